"""The strategy and the ClientApp against the simulator, in one process; tests of real processes are beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from algorithm_table import COMPOSED, CONSTRUCTORS, WRAPPED
from small_federations import classification

import fedloom as fl

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedloom[flower]'")

from one_room import OneRoom, apps, deploy

SIZES = (30, 18, 45)
DATA = classification(SIZES)


class Small(torch.nn.Module):
    """Dense layers, batch norm between them, one layer frozen, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4)
        self.first.bias.requires_grad_(False)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


TASK = fl.Task(model=Small)
CHOSEN = [row for row in [*CONSTRUCTORS, *COMPOSED[:6], *WRAPPED[:2]] if row[0] != "central"]


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize(("name", "make"), CHOSEN, ids=[name for name, _ in CHOSEN])
def test_five_rounds_through_flower_are_those_of_a_simulation(name: str, make: Any, tmp_path: Path) -> None:
    options = {"cohort": 2, "batch_size": 8, "epochs": 2, "seed": 3}
    simulated = fl.simulate(TASK, DATA, make(), rounds=5, executor="loop", **options)
    deployed = deploy(TASK, OneRoom(apps(TASK, DATA, make(), tmp_path)), make(), **options)
    assert apart(deployed.now.params, simulated.params) < 1e-12
    assert apart(deployed.now.state.buffers, simulated.buffers) < 1e-12
    for told, record in zip(deployed.rounds, simulated.rounds, strict=True):
        assert told["train_loss"] == pytest.approx(record["train_loss"], rel=1e-9)
        assert told["train_accuracy"] == pytest.approx(record["train_accuracy"], rel=1e-9)
