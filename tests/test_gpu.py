"""The same numbers on a GPU: every executor there against the loop on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from small_federations import classification, distance, noise, split
from torch import Tensor, nn

import fedloom as fl
from fedloom import random
from fedloom.algorithm import Algorithm
from fedloom.data.augment import Augmentation
from fedloom.lowering.masks import keep_mask

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


class NormedPictures(nn.Module):
    """A convolution and a batch norm of images, which torch's libraries have on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))).mean((2, 3)))


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


def test_a_stack_that_narrows_agrees_with_the_loop_and_makes_a_program_for_each_width() -> None:
    data = classification([3, 90, 5, 4, 6, 7, 60, 3, 2, 40, 8, 1])
    options: dict[str, Any] = {"rounds": 3, "cohort": 12, "batch_size": 8, "device": "cuda", "dtype": torch.float64}
    runs = [fl.simulate(fl.Task(Dropped), data, fl.scaffold(0.1), executor=how, **options) for how in ("loop", "auto")]
    assert runs[1].resolved["executor"] == "vectorized" and runs[1].resolved["programs"] == 2  # for 12 and 6
    assert distance(*runs) <= 1e-12


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


def test_a_batch_norm_of_pictures_is_stacked() -> None:
    data = fl.federate(noise(60, 3, 8, 8).float(), torch.arange(60) % 4, split([10, 30, 20]))
    how: dict[str, Any] = {"rounds": 2, "cohort": 3, "batch_size": 8, "precision": "highest", "device": "cuda"}
    alone, stacked = (
        fl.simulate(fl.Task(NormedPictures), data, fl.fedavg(0.1, client_momentum=0.9), executor=executor, **how)
        for executor in ("loop", "auto")
    )
    assert stacked.resolved["executor"] == "vectorized" and stacked.resolved["program"] == "captured"
    assert distance(alone, stacked) <= 1e-3


def bottlenecks() -> nn.Module:
    """The beginnings of ResNet-56's first two stages."""
    model = fl.models.ResNet56()
    model.blocks = nn.Sequential(model.blocks[0], model.blocks[6])
    model.linear = nn.Linear(128, 10)
    return model


def test_what_a_graph_reads_is_kept() -> None:
    """A trace holds tensors that the forward made of numbers: their memory is nobody else's while it is replayed."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            shift = torch.tensor([0.5] * 6, dtype=x.dtype, device=x.device)
            return self.linear((x - shift) / torch.tensor(2.0, dtype=x.dtype, device=x.device))

    def write_over(_: dict[str, Any]) -> None:
        gc.collect()
        taken = [torch.full((size,), torch.nan, device="cuda") for size in (1, 6, 64) for _ in range(200)]
        torch.cuda.synchronize()
        del taken

    how: dict[str, Any] = {"rounds": 4, "cohort": 4, "batch_size": 8, "compile": False, "dtype": torch.float64}
    how |= {"executor": "vectorized", "device": "cuda"}
    runs = [
        fl.simulate(fl.Task(Shifted), classification([20, 10, 31, 20]), fl.fedavg(0.1), callbacks=callbacks, **how)
        for callbacks in ([], [write_over])
    ]
    assert runs[1].resolved["program"] == "captured"
    assert distance(*runs) == 0


@pytest.mark.filterwarnings("default")  # torch's own, in its compiler
def test_batch_norms_of_several_sizes_are_compiled() -> None:
    data = fl.federate(noise(12 * 64, 3, 32, 32).float(), torch.arange(12 * 64) % 10, split([64] * 12))
    how: dict[str, Any] = {"rounds": 2, "cohort": 12, "batch_size": 64, "precision": "highest", "device": "cuda"}
    alone, stacked = (
        fl.simulate(fl.Task(bottlenecks), data, fl.fedavg(0.01), executor=executor, compile=True, **how)
        for executor in ("loop", "auto")
    )
    assert stacked.resolved["program"] == "compiled"
    assert distance(alone, stacked) <= 1e-3


@pytest.mark.filterwarnings("default")  # torch's own, in its compiler
def test_pictures_are_cropped_and_an_accumulator_estimated_there_too() -> None:
    y = torch.arange(40) % 4
    data = fl.federate(noise(40, 3, 8, 8), y, split([10, 30]), augment=Augmentation(crop=6, flip=True))
    task = fl.Task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 4)))
    algorithm = fl.fedyogi(0.1, 0.01, initial_accumulator="estimate")
    runs = [
        fl.simulate(task, data, algorithm, 3, 2, batch_size=10, executor=executor, device=device, dtype=torch.float64)
        for device, executor in [("cpu", "loop"), ("cuda", "loop"), ("cuda", "vectorized")]
    ]
    for run in runs[1:]:
        run.params = {name: leaf.cpu() for name, leaf in run.params.items()}
        assert distance(runs[0], run) <= 1e-12


@pytest.mark.parametrize("compile", [False, True])
def test_one_step_a_round_is_a_program_too(compile: bool) -> None:
    how: dict[str, Any] = {"rounds": 3, "cohort": 4, "epochs": 1, "batch_size": None, "dtype": torch.float64}
    data = classification([9, 20, 33, 7])
    here, there = (
        fl.simulate(fl.Task(Dropped), data, fl.fedavg(0.1), device=device, compile=said, **how)
        for device, said in (("cpu", None), ("cuda", compile))
    )
    assert there.resolved["program"] == ("compiled" if compile else "captured")
    there.params = {name: leaf.cpu() for name, leaf in there.params.items()}
    assert distance(here, there) <= 1e-12


@pytest.mark.parametrize("sampler", ["uniform", "multinomial", "poisson", "attention"])
def test_samplers_draw_the_same_clients(sampler: str) -> None:
    data = classification([5, 7, 30, 20])
    cpu, gpu = (
        fl.simulate(fl.Task(Dropped), data, fl.fedavg(0.1), 3, 2, sampler=sampler, device=device, dtype=torch.float64)
        for device in ("cpu", "cuda")
    )
    gpu.params = {name: leaf.cpu() for name, leaf in gpu.params.items()}
    assert distance(cpu, gpu) <= 1e-12


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # that it is a prototype
def test_nobody_waits_for_the_device_within_a_round() -> None:
    """torch reports every call that makes the host wait; reading a round's numbers, late, is the one that may."""
    rounds = []

    def watch(record: dict[str, float]) -> None:
        rounds.append(record["round"])
        torch.cuda.set_sync_debug_mode("error" if 2 <= record["round"] < 8 else "default")

    try:
        fl.simulate(
            fl.Task(Dropped),
            classification([20, 7, 50, 20, 33]),
            fl.fedglad(fl.fedadam(0.1, server_lr=0.01)),
            12,
            4,
            batch_size=10,
            device="cuda",
            dtype=torch.float32,
            eval_every=100,
            compile=False,
            callbacks=[watch],
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rounds == list(range(12))


def test_a_client_that_is_not_finite_is_refused_there_too() -> None:
    """Rows are trusted and the round is taken again: the outcome is the CPU's."""
    data = classification([20, 7, 50, 20, 33])
    data.x[data.rows(2)[0]] = torch.nan
    runs = [
        fl.simulate(fl.Task(Dropped), data, fl.scaffold(0.1), 5, 3, batch_size=10, device=device, dtype=torch.float64)
        for device in ("cpu", "cuda")
    ]
    assert any(record["refused"] for record in runs[0].rounds)
    assert [r["refused"] for r in runs[0].rounds] == [r["refused"] for r in runs[1].rounds]
    runs[1].params = {name: leaf.cpu() for name, leaf in runs[1].params.items()}
    assert distance(*runs) <= 1e-12


def test_trials_stack() -> None:
    data = classification([20, 7, 50, 20, 33])
    trials = [{"algorithm": fl.fedavgm(rate), "seed": seed} for rate in (0.03, 0.1) for seed in range(4)]
    options = {"rounds": 6, "cohort": 3, "batch_size": 10, "dtype": torch.float64}  # their servers work side by side
    together = fl.simulate_trials(fl.Task(Dropped), data, trials, device="cuda", **options)
    for trial, history in zip(trials, together, strict=True):
        alone = fl.simulate(fl.Task(Dropped), data, trial["algorithm"], seed=trial["seed"], executor="loop", **options)
        history.params = {name: leaf.cpu() for name, leaf in history.params.items()}
        assert distance(alone, history) <= 1e-12


def test_what_does_not_fit_is_halved_and_told_once() -> None:
    """A limit on the process's memory, real allocations, a real refusal by the allocator."""
    data = classification([40] * 64)
    task = fl.Task(lambda: nn.Sequential(nn.Linear(6, 4096), nn.ReLU(), nn.Linear(4096, 1024), nn.Linear(1024, 4)))
    whole = torch.cuda.get_device_properties(0).total_memory
    settings: dict[str, Any] = {"rounds": 2, "cohort": 64, "device": "cuda", "executor": "vectorized", "chunk": 64}
    settings |= {"dtype": torch.float32, "compile": False}
    gc.collect()
    torch.cuda.empty_cache()
    room = torch.cuda.memory_reserved() + 2 * 2**30  # programs of other tests may still hold some
    try:  # 17 MiB of parameters a client: 64 of them, their gradients and updates take more than 2 GiB
        torch.cuda.set_per_process_memory_fraction(room / whole)
        with pytest.warns(UserWarning, match="out of memory") as caught:
            history = fl.simulate(task, data, fl.fedavg(0.1), **settings)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len([each for each in caught if "out of memory" in str(each.message)]) == 1
    assert history.resolved["repeatable"] is False
    assert history.resolved["chunk"] < 64
    roomy = fl.simulate(task, data, fl.fedavg(0.1), **settings)
    assert distance(history, roomy) < 1e-4


def test_masks_are_the_processors() -> None:
    keys = random.key(3, 1, torch.arange(5), "dropout")
    for shape, drop in (((7, 3), 0.3), ((3000,), 0.5), ((0, 4), 0.5), ((4,), 1.0)):
        draw = partial(keep_mask, site=2, shape=torch.Size(shape), drop=drop)
        here, there = (torch.func.vmap(draw)(each) for each in (keys, keys.cuda()))
        assert torch.equal(here, there.cpu())


class Pictures(nn.Module):
    """Dropout on what was pooled, whose channels are adjacent, before a dense layer that wants another order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop, self.last = nn.Conv2d(1, 16, 3), nn.Dropout(0.25), nn.Linear(16 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.relu(nn.functional.max_pool2d(self.conv(x), 2))).flatten(1))


@pytest.mark.filterwarnings("default")  # torch's own, in its compiler
@pytest.mark.parametrize("sizes", [[20, 20, 20], [20, 7, 31]], ids=["equal", "unequal"])
def test_a_network_with_pooling_and_dropout_compiles(sizes: list[int]) -> None:
    data = fl.federate(noise(sum(sizes), 1, 8, 8), torch.arange(sum(sizes)) % 4, split(sizes))
    options: dict[str, Any] = {"rounds": 2, "cohort": 3, "batch_size": 10, "dtype": torch.float32}
    runs = [
        fl.simulate(fl.Task(Pictures), data, fl.fedavg(0.1), device=device, compile=compile, **options)
        for device, compile in (("cpu", None), ("cuda", True))
    ]
    assert runs[1].resolved["program"] == "compiled"
    runs[1].params = {name: leaf.cpu() for name, leaf in runs[1].params.items()}
    assert distance(*runs) < 1e-3
