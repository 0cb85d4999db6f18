"""Runs that cannot fit in memory are refused before they take any; those that fit are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_federations import classification, linear
from torch import nn

import fedloom as fl
from fedloom import capacity

CPU = torch.device("cpu")


def test_a_model_that_does_not_fit() -> None:
    """Its weights alone are 4 TB: building it in earnest would end the process."""
    task = fl.Task(lambda: nn.Linear(6, 10**12 // 6))
    state = torch.random.get_rng_state()
    with pytest.raises(fl.FedloomError, match=r"memory: .* GiB that are free on cpu, a model of .* 17,\d+\.\d GiB"):
        fl.simulate(task, classification([6, 6]), fl.fedavg(0.1), 1, 2)
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_batch_that_does_not_fit() -> None:
    class Wide(nn.Module):
        """What backward keeps of a row is large; its parameters are not."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + (self.layer.bias.sum() * x[:, :1].expand(-1, 2**20)).sin().mean(1, keepdim=True)

    rows = torch.zeros(1, 6, dtype=torch.float64).expand(2**16, 6)  # one row, many times
    data = fl.federate(rows, torch.zeros(1, dtype=torch.int64).expand(2**16), [torch.arange(2**16)])
    with pytest.raises(fl.FedloomError, match=r"memory: .* training a stack of clients takes .* smaller"):
        fl.simulate(fl.Task(Wide), data, fl.fedavg(0.1), 1, 1, batch_size=None, dtype=torch.float64)


def test_what_clients_keep_is_counted() -> None:
    capacity.check_training(0, 100.0, 10**6, CPU)
    with pytest.raises(fl.FedloomError, match=r"memory: .* what 300,000 clients keep between rounds takes"):
        capacity.check_training(0, 300_000.0, 10**8, CPU)


def test_what_fits_is_not_refused() -> None:
    free = capacity.free_bytes(CPU)
    assert free is None or free > 2**20
    history = fl.simulate(linear(), classification([6, 6]), fl.scaffold(0.1), 2, 2, dtype=torch.float64)
    assert len(history.rounds) == 2


def test_a_model_that_cannot_be_built_without_memory_is_built_with_it() -> None:
    def model() -> nn.Module:
        layer = nn.Linear(6, 4)
        layer.weight.data.numpy()  # which a tensor without memory has not
        return layer

    task = fl.Task(model)
    assert capacity.model_bytes(task) == 0
    assert len(fl.simulate(task, classification([6, 6]), fl.fedavg(0.1), 1, 2, dtype=torch.float64).rounds) == 1


def test_a_container_has_its_own_limit(tmp_path: Path) -> None:
    for name, text in (("memory.max", "1000"), ("memory.current", "700"), ("memory.stat", "anon 500\nfile 150\n")):
        (tmp_path / name).write_text(text)
    assert capacity._left_by_container(tmp_path, 10**12) == 450
    (tmp_path / "memory.max").write_text("max")
    assert capacity._left_by_container(tmp_path, 10**12) == 10**12


def test_a_factory_that_reads_weights_or_draws_elsewhere_is_left_in_peace() -> None:
    """Warnings are errors here: torch's about weights that have nowhere to go would be one."""
    weights = {"weight": torch.ones(4, 6), "bias": torch.zeros(4)}
    drawn = []

    def model() -> nn.Module:
        layer = nn.Linear(6, 4)
        layer.load_state_dict(weights)
        drawn.append(torch.empty(100, device="cpu").normal_())
        return layer

    assert capacity.model_bytes(fl.Task(model)) == 4 * (24 + 4)
    assert float(drawn[0].std()) > 0.5
    assert capacity.model_bytes(fl.Task(lambda: nn.Embedding(9, 4))) == 4 * 36
