"""Transformers through the optional package: without it one line that says what to install."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from fedloom import models
from fedloom.dropout import SeededDropout
from fedloom.errors import FedloomError
from fedloom.experiments import model_sections

INSTALLED = importlib.util.find_spec("transformers") is not None
needs_transformers = pytest.mark.skipif(not INSTALLED, reason="transformers is not installed")
SMALL = {"model_type": "distilbert", "vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}


@pytest.mark.skipif(INSTALLED, reason="transformers is installed")
def test_without_the_package_the_extra_is_named() -> None:
    with pytest.raises(FedloomError) as caught:
        models.bert_classifier(SMALL, 4)
    line = "bert_classifier: expected the package transformers, got none: pip install 'fedloom[bert]'"
    assert str(caught.value) == line


@pytest.mark.parametrize("source", ["some/folder", SMALL])
def test_an_experiment_may_name_a_folder_or_a_configuration(source: object) -> None:
    section = model_sections.MODELS["bert"].model_validate({"name": "bert", "source": source})
    assert isinstance(section, model_sections.ModelSection) and section.options() == {"source": source}


@needs_transformers
def test_a_configuration_gives_logits_and_all_dropout_is_seeded() -> None:
    model = models.bert_classifier(SMALL, 4).train()
    x = torch.randint(1, 50, (3, 8))
    before = torch.random.get_rng_state()
    with SeededDropout(torch.zeros((), dtype=torch.int64)):
        logits = model(x)
    assert torch.equal(before, torch.random.get_rng_state())
    assert logits.shape == model(input_ids=x, attention_mask=torch.ones_like(x)).shape == (3, 4)
    logits.sum().backward()
    assert all(leaf.grad is not None for leaf in model.parameters())


@needs_transformers
def test_a_folder_gives_its_weights_back_and_a_new_classifier_where_classes_differ(tmp_path: Path) -> None:
    model = models.bert_classifier(SMALL, 4).eval()
    model.model.save_pretrained(tmp_path)
    x = torch.randint(1, 50, (3, 8))
    again = models.bert_classifier(tmp_path, 4).eval()
    assert torch.equal(model(x), again(x))
    assert models.bert_classifier(str(tmp_path), 7)(x).shape == (3, 7)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FedloomError, match=r"transformers says: .*safetensors"):
        models.bert_classifier(tmp_path, 4)


@needs_transformers
def test_sizes_of_distilbert() -> None:
    for classes, size in ((20, 66_968_852), (4, 66_956_548)):
        with torch.device("meta"):
            model = models.bert_classifier({"model_type": "distilbert"}, classes)
        assert sum(leaf.numel() for leaf in model.parameters()) == size


@needs_transformers
def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"expected a configuration with model_type = 'distilbert' or such"):
        models.bert_classifier({"n_layers": 2}, 4)
    with pytest.raises(FedloomError, match=r"expected a folder with config\.json, got"):
        models.bert_classifier(tmp_path, 4)
    with pytest.raises(FedloomError, match="transformers says: Unrecognized model identifier: nothing"):
        models.bert_classifier({"model_type": "nothing"}, 4)
