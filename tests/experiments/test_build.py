"""From an experiment's tables to real runs: losses and penalties by model, cohorts that grow, devices."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom.experiments import build, schema
from fedloom.experiments.model_sections import Bert, BiLSTM
from fedloom.experiments.schema import Doubling, SystemSection

TEXT = """
name = "tiny"
rounds = 1
cohort = { initial = 2, every = 1, most = 3 }
system = { dropout = 0.5, straggling = 1.0, deadline = 40.0 }
data = { name = "digits", partition = "iid", clients = 6 }
model = { name = "MODEL" }
algorithms = [{ name = "fedavg", client_lr = 0.1 }]
"""


def test_a_table_becomes_a_growing_cohort_and_devices() -> None:
    experiment = schema.read(TEXT.replace("MODEL", "logistic"))
    assert isinstance(experiment.cohort, Doubling)
    cohort = build.build_cohort(experiment.cohort)
    assert callable(cohort) and [cohort(t) for t in range(3)] == [2, 3, 3]
    assert build.build_system(experiment.system) == fl.System(dropout=0.5, straggling=1.0, deadline=40.0)
    assert build.build_system(SystemSection()) == fl.System()
    assert build.build_cohort(0.5) == 0.5
    assert schema.read(experiment.to_toml()) == experiment


@pytest.mark.parametrize(
    ("model", "loss", "metrics", "penalised"),
    [
        ("logistic", "cross_entropy", {"accuracy"}, False),
        ("tag_predictor", "tag_cross_entropy", {"recall"}, False),
        ("autoencoder", "squared_error", set(), False),
        ("shakespeare_lstm", "loss", {"accuracy"}, False),
        ("resnet18_gn", "cross_entropy", {"accuracy"}, True),
    ],
)
def test_a_model_brings_what_it_learns(model: str, loss: str, metrics: set[str], penalised: bool) -> None:
    experiment = schema.read(TEXT.replace("MODEL", model))
    data = fl.federate(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), [[0, 1], [2, 3]])
    task = build.build_task(experiment.model, data)
    assert task.loss.__name__ == loss and set(task.metrics) == metrics
    assert (task.penalty is not None) == penalised


def test_a_model_from_files_may_lie_in_the_data_folder(tmp_path: Path) -> None:
    data = fl.load("digits", partition="iid", clients=4)
    (tmp_path / "small-bert").mkdir()
    spec = Bert(name="bert", source="small-bert")
    for folder, expected in ((tmp_path, tmp_path / "small-bert"), (tmp_path / "else", Path("small-bert"))):
        model: Any = build.build_task(spec, data, folder).model
        assert model.keywords == {"classes": 10, "source": expected}


def test_word_vectors_from_the_data_folder_are_those_of_the_datas_words(tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text("orbit 1 2\nmoon 3 4\nreason 5 6\n")
    data = fl.load("digits", partition="iid", clients=4)
    spec = BiLSTM(name="bilstm", embedding="small.txt")
    with pytest.raises(
        fl.FedloomError, match=r"model, embedding: expected data of words .* for 'small.txt', got digits"
    ):
        build.build_task(spec, data, tmp_path)
    model = build.build_task(spec, dataclasses.replace(data, words=("reason", "orbit")), tmp_path).model()
    assert model.embedding.weight.tolist() == [[0, 0], [5, 6], [1, 2]]
