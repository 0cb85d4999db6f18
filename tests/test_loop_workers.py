"""The loop with several clients at a time: the same bits for any number of threads, and none of them left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_federations import classification
from test_executors import BatchNormed, Conv, Recurrent
from torch import Tensor, nn

import fedloom as fl
from fedloom.algorithm import Algorithm
from fedloom.executors import auto
from fedloom.simulation import History

DATA = classification([20, 10, 31, 20, 5, 14, 40])


def run(model: Callable[[], nn.Module], algorithm: Algorithm, workers: int, **options: Any) -> History:
    given = {"rounds": 2, "cohort": 6, "batch_size": 8, "executor": "loop", "dtype": torch.float32, **options}
    before = auto._workers
    auto._workers = lambda job, cohort, draws, ranks: workers
    try:
        return fl.simulate(fl.Task(model), DATA, algorithm, **given)
    finally:
        auto._workers = before


@pytest.mark.parametrize("model", [Conv, Recurrent, BatchNormed])
@pytest.mark.parametrize("algorithm", [fl.fedavg(0.1), fl.scaffold(0.1, client_optimizer="momentum")])
def test_the_same_bits_for_any_number_of_workers(model: Callable[[], nn.Module], algorithm: Algorithm) -> None:
    one, *others = (run(model, algorithm, workers) for workers in (1, 2, 4))
    for other in others:
        assert other.resolved["workers"] > 1
        for mine, theirs in ((one.params, other.params), (one.buffers, other.buffers)):
            assert all(torch.equal(leaf, theirs[name]) for name, leaf in mine.items())
        for name in ("train_loss", "cosine"):
            assert [record[name] for record in one.rounds] == [record[name] for record in other.rounds]


class Broken(Conv):
    """Fails on a batch of five rows."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 5:
            raise ArithmeticError("five rows")
        return super().forward(x)


def test_an_error_surfaces_and_leaves_no_thread() -> None:
    threads = torch.get_num_threads()
    with pytest.raises(ArithmeticError, match="five rows"):
        run(Broken, fl.fedavg(0.1), 3, cohort=7)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fedloom")]
    assert torch.get_num_threads() == threads


def test_dense_models_have_one_worker() -> None:
    history = fl.simulate(
        fl.Task(lambda: nn.Linear(6, 4)), DATA, fl.fedavg(0.1), rounds=1, cohort=3, executor="loop", dtype=torch.float64
    )
    assert history.resolved["workers"] == 1
