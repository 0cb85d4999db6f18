"""Transformers that classify text, through the `transformers` package: an optional extra."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.models.layers import check_sizes


def bert_classifier(source: str | Path | Mapping[str, Any], classes: int) -> nn.Module:
    """A BERT-like encoder with a classifier on top: FedGLAD (Yang et al. 2023) fine-tunes DistilBERT so.

    `source`: a folder with `config.json` and `model.safetensors`, as `save_pretrained` writes it, whose classifier is
    new where it has another number of classes or none; or a configuration, such as `{"model_type": "distilbert",
    "n_layers": 2}`, which gives a model with the package's initial values. Nothing is fetched or unpickled.

    Takes (batch, time) tokens, alone or as `{"input_ids": ..., "attention_mask": ...}`, and returns logits (batch,
    classes). The paper's code passes no mask. DistilBERT's head is dense 768, ReLU, dropout 0.2, dense `classes`:
    66,968,852 parameters with 20 classes, 66,956,548 with 4. Attention is written out, so that all dropout is
    fedloom's, a function of the seed.
    """
    check_sizes("bert_classifier", classes=classes)
    transformers = _transformers()
    if not isinstance(source, Mapping) and not (Path(source) / "config.json").is_file():
        raise FedloomError(f"bert_classifier source: expected a folder with config.json, got {str(source)!r}")
    if isinstance(source, Mapping) and "model_type" not in source:
        raise FedloomError(
            f"bert_classifier source: expected a configuration with model_type = 'distilbert' or such, got {source!r}"
        )
    build = transformers.AutoModelForSequenceClassification
    how: dict[str, Any] = {"attn_implementation": "eager"}
    try:
        if isinstance(source, Mapping):
            config = transformers.AutoConfig.for_model(**{**source, "num_labels": classes})
            return _Logits(build.from_config(config, **how))
        how |= {"num_labels": classes, "local_files_only": True, "use_safetensors": True}
        return _Logits(build.from_pretrained(str(source), ignore_mismatched_sizes=True, **how))
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise FedloomError(f"bert_classifier source: {str(source)!r}: transformers says: {said[:200]}") from error


class _Logits(nn.Module):
    """The logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits


def _transformers() -> Any:
    try:
        return import_module("transformers")
    except ImportError:
        raise FedloomError(
            "bert_classifier: expected the package transformers, got none: pip install 'fedloom[bert]'"
        ) from None
