"""The workloads are what they say: parameters, shapes, sizes, the same rows every time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import fedloom as fl
from fedloom.bench.workloads import CHARACTERS, ON_A_CPU, WORKLOADS, writers

PARAMETERS = {
    "W1": 1_206_590,
    "W2": 7_850,
    "W3": 820_522,
    "W4": 1_206_590,
    "W5": 11_227_812,
    "W5-50": 11_227_812,
    "W6": 1_206_590,
}
ROW = {"W1": (1, 28, 28), "W2": (784,), "W3": (80,), "W5": (3, 24, 24)}


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W5"])
def test_models_have_their_parameters(name: str) -> None:
    leaves = WORKLOADS[name].model().parameters()
    assert sum(leaf.numel() for leaf in leaves if leaf.requires_grad) == PARAMETERS[name]


def test_workloads_of_one_model_share_it_and_its_rows() -> None:
    assert set(WORKLOADS) == set(PARAMETERS) and set(ON_A_CPU) < set(WORKLOADS)
    for one, other in (("W1", "W4"), ("W1", "W6"), ("W5", "W5-50")):
        assert WORKLOADS[one].model is WORKLOADS[other].model and WORKLOADS[one].rows is WORKLOADS[other].rows


def test_rounds_have_their_sizes() -> None:
    expected = {
        "W1": (100, 10, 10, 20),
        "W2": (1000, 100, 10, 10),
        "W3": (100, 10, 5, 4),
        "W4": (400, 100, 10, 20),
        "W5": (100, 10, 5, 20),
        "W5-50": (200, 50, 5, 20),
        "W6": (1600, 800, None, 20),
    }
    found = {name: (w.population, w.cohort, w.steps, w.batch_size) for name, w in WORKLOADS.items()}
    assert found == expected
    assert [WORKLOADS[name].client_lr for name in ("W1", "W3")] == [0.1, 0.5]


@pytest.mark.parametrize("name", ROW)
def test_rows_suit_the_model_and_are_the_same_every_time(name: str) -> None:
    workload = replace(WORKLOADS[name], population=3)
    data, again = workload.data(), workload.data()
    assert data.fingerprint() == again.fingerprint()
    assert data.population == 3 and data.examples.tolist() == [workload.examples] * 3 and data.test is None
    assert isinstance(data.x, torch.Tensor) and isinstance(data.y, torch.Tensor)
    assert tuple(data.x.shape[1:]) == ROW[name]
    assert sorted(data.indices.tolist()) == list(range(len(data.y)))
    losses = workload.task().loss(workload.model()(data.x[:2]), data.y[:2])
    assert losses.shape == (2,) and bool(losses.isfinite().all())


def test_characters_are_no_padding_and_targets_are_the_next() -> None:
    data = replace(WORKLOADS["W3"], population=2).data()
    assert isinstance(data.x, torch.Tensor) and isinstance(data.y, torch.Tensor)
    assert data.x[:, 1:].equal(data.y[:, :-1])
    assert int(data.x.min()) >= 1 and int(data.x.max()) <= CHARACTERS


def test_writers_are_unequal() -> None:
    sizes = writers(1600)
    assert sizes.equal(writers(1600))
    assert int(sizes.min()) >= 1 and int(sizes.max()) == 400
    share = sizes.sort(descending=True).values[:160].sum() / sizes.sum()
    assert 0.25 < float(share) < 0.5  # a tenth of them has a third of all
    data = replace(WORKLOADS["W6"], population=5).data()
    assert data.examples.equal(writers(5))


def test_shared_rows_have_several_owners() -> None:
    data = replace(WORKLOADS["W2"], population=10, shared=64).data()
    assert isinstance(data.x, torch.Tensor)
    assert len(data.x) == 64 and data.examples.tolist() == [100] * 10 and int(data.indices.max()) == 63


def test_settings_are_keywords_of_simulate() -> None:
    workload = replace(WORKLOADS["W2"], population=2, cohort=2, examples=4)
    history = fl.simulate(workload.task(), workload.data(), workload.algorithm(), rounds=1, **workload.settings())
    assert history.rounds[0]["admitted"] == 2 and "test_loss" not in history.rounds[0]


def test_the_table_is_read_without_torch() -> None:
    code = "import sys; from fedloom.bench.workloads import WORKLOADS; print('torch' in sys.modules, len(WORKLOADS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False 7\n"
