"""Reddi et al.'s initial accumulator: per-example squared gradients, averaged over a batch and then over batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_federations import classification, distance, linear, split
from torch import Tensor, nn

import fedloom as fl


class Plane(nn.Module):
    """f(w; z) = <z, w>: the gradient of an example is the example."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


PLANE = fl.Task(model=Plane, loss=lambda output, target: output, metrics={})


def rows(*examples: tuple[float, float], sizes: list[int]) -> fl.FederatedData:
    x = torch.tensor(examples, dtype=torch.float32)
    return fl.federate(x, torch.zeros(len(x)), split(sizes))


def test_the_worked_example() -> None:
    """d = 2, one-example batches with gradients (0.6, 0.8) and (0, 2): zeta = 1.25 (specification, section 2.4)."""
    data = rows((0.6, 0.8), (0.0, 2.0), sizes=[1, 1])
    assert fl.estimate_accumulator(PLANE, data, fraction=1.0) == pytest.approx(1.25, rel=1e-6)


def test_batches_are_averaged_first_and_examples_count_singly() -> None:
    """A client's mean of squares, not the square of its mean; every client alike, whatever its size."""
    data = rows((2.0, 0.0), (-2.0, 0.0), (0.0, 4.0), sizes=[2, 1])
    assert fl.estimate_accumulator(PLANE, data, fraction=1.0) == pytest.approx(0.5 * (2.0 + 8.0))


def test_one_random_batch_from_a_share_of_the_clients() -> None:
    data = rows(*((float(k), 0.0) for k in range(1, 61)), sizes=[3] * 20)
    squares = [k * k / 2 for k in range(1, 61)]
    found = {fl.estimate_accumulator(PLANE, data, seed=seed, batch_size=1) for seed in range(8)}
    assert len(found) > 4 and found <= set(squares)  # at least one client, one example of it
    assert fl.estimate_accumulator(PLANE, data, seed=3) == fl.estimate_accumulator(PLANE, data, seed=3)
    per_client = [sum(squares[3 * k : 3 * k + 3]) / 3 for k in range(20)]
    assert fl.estimate_accumulator(PLANE, data, batch_size=None) in [pytest.approx(value) for value in per_client]
    alone = rows(*((float(k), 0.0) for k in range(1, 31)), sizes=[30])
    assert len({fl.estimate_accumulator(PLANE, alone, seed=seed, batch_size=1) for seed in range(8)}) > 4
    everyone = fl.estimate_accumulator(PLANE, data, fraction=1.0, batch_size=None)
    assert everyone == pytest.approx(sum(per_client) / 20)


@pytest.mark.parametrize("make", [fl.fedyogi, fl.fedadam, fl.fedadagrad])
def test_a_run_resolves_records_and_uses_it(make: Any) -> None:
    data, options = classification([9, 7, 12]), {"dtype": torch.float64, "seed": 5, "batch_size": 4}
    history = fl.simulate(linear(), data, make(0.1, 0.01, initial_accumulator="estimate"), 2, 2, **options)
    zeta = history.resolved["initial_accumulator"]
    start = fl.simulate(linear(), data, fl.fedavg(0.0), 1, 2, **options).params
    assert zeta == fl.estimate_accumulator(linear(), data, start, 5, batch_size=4) > 0
    same = fl.simulate(linear(), data, make(0.1, 0.01, initial_accumulator=zeta), 2, 2, **options)
    assert distance(history, same) == 0
    assert "initial_accumulator" not in same.resolved


class Mixed(nn.Module):
    """Leaves of every kind: frozen, normalised, dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)
        self.drop = nn.Dropout(0.5)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(x))))


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
def test_any_model_in_any_precision(dtype: torch.dtype | None) -> None:
    data = classification([9, 8, 12], dtype=torch.float32)
    algorithm = fl.fedyogi(0.1, 0.01, initial_accumulator="estimate")
    history = fl.simulate(fl.Task(Mixed), data, algorithm, 1, 2, batch_size=6, dtype=dtype, drop_last=True)
    expected = fl.estimate_accumulator(fl.Task(Mixed), data, batch_size=6)
    assert history.resolved["initial_accumulator"] == pytest.approx(expected, rel=1e-5)


def test_a_warm_start_is_what_is_estimated_at() -> None:
    data = classification([9, 8, 12])
    algorithm = fl.fedyogi(0.1, 0.01, initial_accumulator="estimate")
    options: dict[str, Any] = {"dtype": torch.float64, "drop_last": True, "batch_size": 6}
    first = fl.simulate(fl.Task(Mixed), data, fl.fedavg(0.1), 2, 3, seed=1, **options)
    shifted = {name: leaf + 1 for name, leaf in first.state_dict().items()}
    zetas = [
        fl.simulate(fl.Task(Mixed), data, algorithm, 1, 3, params=start, **options).resolved["initial_accumulator"]
        for start in (first.params, first.state_dict(), shifted)
    ]
    assert len(set(zetas)) == 3  # the second has other frozen leaves and statistics than the first
    assert torch.equal(first.state_dict()["first.weight"], first.constants["first.weight"])


def test_unresolved_it_is_an_error() -> None:
    algorithm = fl.fedyogi(0.1, initial_accumulator="estimate")
    with pytest.raises(fl.FedloomError, match=r"'estimate' is not resolved: let fl.simulate do it"):
        algorithm.init({"w": torch.zeros(2)}, population=2)
