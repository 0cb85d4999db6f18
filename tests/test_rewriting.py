"""Dense layers' plain steps as one product each, subtracted where the weights lie; every other step stays as traced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_federations import classification, distance
from torch import Tensor, nn
from torch.fx import GraphModule

import fedloom as fl
from fedloom import tree
from fedloom.algorithm import Algorithm
from fedloom.executors import program
from fedloom.executors.rewriting import subtract_products
from fedloom.lowering import convolution
from fedloom.types import Info, Params, PartState

EQUAL, UNEQUAL = classification([6] * 4), classification([8, 4, 11, 3])


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
    """Its convolutions are products with patches; of the first the factor is too large."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 5, (2, 3)), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(torch.tanh(self.first(x.reshape(-1, 1, 2, 3)))).flatten(1))


class LowRank(nn.Module):
    """Weights that are a product: each factor's gradient is a product with the other, which is written in the step."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (
            nn.Parameter(torch.full((6, 2), 0.3)),
            nn.Parameter(torch.linspace(-0.5, 0.5, 80).reshape(2, 40)),
        )
        self.last = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(x @ (self.a @ self.b)))


class Groups(nn.Module):
    """One parameter of several matrices: its products are not one for each client."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.linspace(-0.5, 0.5, 600).reshape(5, 6, 20)), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(torch.bmm(x.expand(5, *x.shape), self.weight)).sum(0))


def run(data: fl.FederatedData, algorithm: Algorithm, model: Callable[[], nn.Module], **options: Any) -> fl.History:
    given = {"cohort": 4, "batch_size": 2, "executor": "vectorized", "dtype": torch.float64} | options
    return fl.simulate(fl.Task(model), data, algorithm, rounds=2, **given)


CASES: dict[str, tuple[fl.FederatedData, Algorithm, Callable[[], nn.Module], int]] = {
    "both layers": (EQUAL, fl.fedavg(0.1), Wide, 2),
    "clients that have finished": (UNEQUAL, fl.fedavg(0.1), Wide, 2),
    "a rate of each step": (EQUAL, fl.fedavg(fl.schedule.within_round(0.1, 0.5)), Wide, 2),
    "convolutions by patches": (EQUAL, fl.fedavg(0.1), Convolved, 2),
    "the same, unequal": (UNEQUAL, fl.fedavg(0.1), Convolved, 2),
    "not with momentum": (EQUAL, fl.fedavg(0.1, client_optimizer="momentum"), Wide, 0),
    "nor clipped": (EQUAL, fl.fedavg(0.1, client_clip_norm=1.0), Wide, 0),
    "nor where the gradient is remembered": (EQUAL, fl.scaffold(0.1, option="gradmean"), Wide, 0),
    "nor where it is a sum": (EQUAL, fl.fedavg(0.1), Tied, 1),
    "nor of factors that are written too": (EQUAL, fl.fedavg(0.1), LowRank, 1),
    "nor of several matrices at once": (EQUAL, fl.fedavg(0.1), Groups, 1),
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

    monkeypatch.setattr(program, "in_place", rewritten)
    monkeypatch.setattr(convolution, "form", lambda *given: "matrix")
    found = run(data, algorithm, model, compile=False)
    assert found.resolved["program"] == "captured" and set(counts) == {expected}
    assert distance(run(data, algorithm, model, executor="loop"), found) <= 1e-12


def test_a_factor_as_large_as_the_weights_is_not_scaled_instead_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches of 40 rows the last layer's factor, 4 x 40, is as large as its weights."""
    graphs = []
    monkeypatch.setattr(program, "in_place", lambda traced: graphs.append(subtract_products(traced)) or graphs[-1])
    run(classification([40] * 4), fl.fedavg(0.1), Wide, batch_size=40, compile=False)
    assert sum("subtract_product" in str(node.target) for node in graphs[0].graph.nodes) == 0


def test_a_client_that_has_finished_stays_as_it_is_whatever_its_next_forward_would_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last weights are finite, and overflow in a forward that counts for nothing."""

    class Steep(Wide):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.exp(self.first(x)))

    data = classification([3, 30, 30, 30], dtype=torch.float32)
    data = replace(data, x=torch.cat([40 * data.x[:3], data.x[3:]]))
    monkeypatch.setattr(program, "in_place", subtract_products)
    found = fl.simulate(fl.Task(Steep), data, fl.fedavg(0.1), 1, 4, batch_size=3, executor="vectorized", compile=False)
    assert found.resolved["program"] == "captured" and found.rounds[0]["admitted"] == 4


def keeping() -> Algorithm:
    """Clients that go on in the direction they came from: their optimizer keeps the parameters themselves."""

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        step = {name: torch.tanh(0.1 * g[name] + 0.1 * (params[name] - state["old"][name])) for name in g}
        return step, {"old": dict(params)}, info

    plain = fl.fedavg(0.1)
    kept = replace(
        plain.client, init=lambda params: {"old": tree.map(torch.clone, params)}, update=update, forgets=False
    )
    return fl.replace(plain, client=kept)


@pytest.mark.parametrize(("data", "compile"), [(EQUAL, False), (UNEQUAL, False), (EQUAL, True)])
def test_what_another_place_held_is_read_before_that_is_written(data: fl.FederatedData, compile: bool) -> None:
    found = run(data, keeping(), Wide, compile=compile)
    assert found.resolved["program"] == ("compiled" if compile else "captured")
    assert distance(run(data, keeping(), Wide, executor="loop"), found) <= 1e-12


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled() -> None:
    found = run(UNEQUAL, fl.fedavg(0.1), Wide, compile=True)
    assert found.resolved["program"] == "compiled"
    assert distance(run(UNEQUAL, fl.fedavg(0.1), Wide, executor="loop"), found) <= 1e-12
