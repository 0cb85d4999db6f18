"""The same numbers on a GPU: every executor there against the loop on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from small_federations import classification, distance
from torch import Tensor, nn

import fedloom as fl
from fedloom.algorithm import Algorithm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.tanh(self.first(x))))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


CASES: list[tuple[Callable[[], nn.Module], Algorithm]] = [
    (Dropped, fl.scaffold(0.1, option="I", client_optimizer="adam")),
    (Dropped, fl.scaffold(0.1)),
    (Normed, fl.fedglad(fl.fedyogi(0.1, 0.01, client_optimizer="momentum"))),
    (Dropped, fl.fedadp(0.1, client_optimizer="adagrad")),
    (Dropped, fl.replace(fl.feddyn(0.1, alpha=0.1), upload=fl.adaptive_clip())),
    (Dropped, fl.fedsgd(0.1)),
    (Normed, fl.fednova(0.1, client_optimizer="adamw", client_clip_norm=1.0)),
    (Dropped, fl.replace(fl.fedavg(0.1), server=fl.from_torch(torch.optim.Adam, lr=0.01), upload=fl.zeroing())),
]


@pytest.mark.parametrize(("model", "algorithm"), CASES, ids=[algorithm.name for _, algorithm in CASES])
def test_executors_agree_across_devices(model: Callable[[], nn.Module], algorithm: Algorithm) -> None:
    data = classification([1, 7, 50, 20, 33])
    runs = [
        fl.simulate(
            fl.Task(model),
            data,
            algorithm,
            4,
            4,
            epochs=2,
            batch_size=10,
            drop_last=True,
            seed=3,
            executor=executor,
            device=device,
            dtype=torch.float64,
            alignment=True,
        )
        for device, executor in [("cpu", "loop"), ("cuda", "loop"), ("cuda", "vectorized"), ("cuda", "auto")]
    ]
    assert [run.resolved["executor"] for run in runs] == ["loop", "loop", "vectorized", "vectorized"]
    for run in runs[1:]:
        run.params = {name: leaf.cpu() for name, leaf in run.params.items()}
        run.buffers = {name: leaf.cpu() for name, leaf in run.buffers.items()}
        assert distance(runs[0], run) <= 1e-12


@pytest.mark.parametrize("sampler", ["uniform", "multinomial", "poisson", "attention"])
def test_samplers_draw_the_same_clients(sampler: str) -> None:
    data = classification([5, 7, 30, 20])
    cpu, gpu = (
        fl.simulate(fl.Task(Dropped), data, fl.fedavg(0.1), 3, 2, sampler=sampler, device=device, dtype=torch.float64)
        for device in ("cpu", "cuda")
    )
    gpu.params = {name: leaf.cpu() for name, leaf in gpu.params.items()}
    assert distance(cpu, gpu) <= 1e-12
