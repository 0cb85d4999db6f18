"""Dense layers' plain steps as one product each, subtracted where the weights lie; every other step stays as traced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_federations import classification, distance
from torch import Tensor, nn
from torch.fx import GraphModule

import fedloom as fl
from fedloom.algorithm import Algorithm
from fedloom.executors import program
from fedloom.executors.product_updates import subtract_products
from fedloom.lowering import convolution

EQUAL, UNEQUAL = classification([16] * 4), classification([20, 10, 31, 5])


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 40), nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Tied(Wide):
    """The first layer's weights are read twice, and their gradient is a sum."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (x @ self.first.weight.t())[:, :4]


class Convolved(nn.Module):
    """Its convolutions are products with patches; of the first, and of the dense layer, the factor is too large."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 5, (2, 3)), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(torch.tanh(self.first(x.reshape(-1, 1, 2, 3)))).flatten(1))


def run(data: fl.FederatedData, algorithm: Algorithm, model: Callable[[], nn.Module], **options: Any) -> fl.History:
    given = {"cohort": 4, "batch_size": 3, "executor": "vectorized", "dtype": torch.float64} | options
    return fl.simulate(fl.Task(model), data, algorithm, rounds=3, **given)


CASES: dict[str, tuple[fl.FederatedData, Algorithm, Callable[[], nn.Module], int]] = {
    "both layers": (EQUAL, fl.fedavg(0.1), Wide, 2),
    "clients that have finished": (UNEQUAL, fl.fedavg(0.1), Wide, 2),
    "a rate of each step": (EQUAL, fl.fedavg(fl.schedule.within_round(0.1, 0.5)), Wide, 2),
    "convolutions by patches": (EQUAL, fl.fedavg(0.1), Convolved, 1),
    "the same, unequal": (UNEQUAL, fl.fedavg(0.1), Convolved, 1),
    "not with momentum": (EQUAL, fl.fedavg(0.1, client_optimizer="momentum"), Wide, 0),
    "nor clipped": (EQUAL, fl.fedavg(0.1, client_clip_norm=1.0), Wide, 0),
    "nor where the gradient is remembered": (EQUAL, fl.scaffold(0.1, option="gradmean"), Wide, 0),
    "nor where it is a sum": (EQUAL, fl.fedavg(0.1), Tied, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_which_updates_are_products_and_that_they_agree_with_the_loop(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, algorithm, model, expected = CASES[case]
    counts = []

    def rewritten(traced: GraphModule) -> GraphModule:
        traced = subtract_products(traced)
        counts.append(sum("subtract_product" in str(node.target) for node in traced.graph.nodes))
        return traced

    monkeypatch.setattr(program, "_in_place", rewritten)
    monkeypatch.setattr(convolution, "form", lambda *given: "matrix")
    found = run(data, algorithm, model, compile=False)
    assert found.resolved["program"] == "captured" and set(counts) == {expected}
    assert distance(run(data, algorithm, model, executor="loop"), found) <= 1e-12


def test_a_factor_as_large_as_the_weights_is_not_scaled_instead_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches of 40 rows the last layer's factor, 4 x 40, is as large as its weights."""
    graphs = []
    monkeypatch.setattr(program, "_in_place", lambda traced: graphs.append(subtract_products(traced)) or graphs[-1])
    run(classification([40] * 4), fl.fedavg(0.1), Wide, batch_size=40, compile=False)
    assert sum("subtract_product" in str(node.target) for node in graphs[0].graph.nodes) == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("data", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_compiled(data: fl.FederatedData) -> None:
    found = run(data, fl.fedavg(0.1), Wide, compile=True)
    assert found.resolved["program"] == "compiled"
    assert distance(run(data, fl.fedavg(0.1), Wide, executor="loop"), found) <= 1e-12
