"""Where the time of a round goes: `python benchmarks/hotspots/hotspots.py W4 cifar10 --device cuda`.

Prints a round's time, and how much of it the device works in which kernels (torch.profiler, which slows the rounds that
it watches). Beside the workloads of `fedloom bench` there are `cifar10`, sixteen settings of Hsu et al. with five
clients each on pictures of noise (`--runs` for fewer), and `resnet56`, a run of ten clients of FedGLAD's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

import fedloom as fl
from fedloom.bench.workloads import WORKLOADS
from fedloom.data.augment import Augmentation

WARM, WATCHED, TIMED = 4, 2, 8
"""Rounds before any is counted (compiled and captured by then), rounds under the profiler, rounds that are timed."""


@dataclass(frozen=True)
class Work:
    """Runs that are trained as one stack."""

    task: fl.Task
    data: fl.FederatedData
    algorithms: list[fl.Algorithm]
    settings: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="+", choices=[*WORKLOADS, *OTHERS])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=int, default=16, help="settings of cifar10 in one stack")
    parser.add_argument("--precision", default="high", choices=["high", "highest", "bfloat16"])
    parser.add_argument("--kernels", type=int, default=15, help="how many to print")
    asked = parser.parse_args()
    if asked.runs < 1:
        parser.error(f"argument --runs: expected a whole number of at least 1, got {asked.runs}")
    for name in asked.work:
        work = OTHERS[name](asked.runs) if name in OTHERS else of_bench(name)
        watch = measure(work, asked.device, asked.precision)
        clients = len(work.algorithms) * work.settings["cohort"]
        first = f"the first {watch.first:.1f} s after the start"
        print(f"{name}: {clients} clients, {1000 * watch.seconds:.1f} ms a round, {first}", flush=True)
        watch.print(asked.kernels)


def measure(work: Work, device: str, precision: str) -> Watch:
    watch = Watch(device)
    trials: list[dict[str, Any]] = [{"algorithm": algorithm} for algorithm in work.algorithms]
    trials[-1]["callbacks"] = [watch]
    how: dict[str, Any] = {"device": device, "precision": precision, "compile": device != "cpu" or None}
    fl.simulate_trials(work.task, work.data, trials, rounds=WARM + WATCHED + TIMED, **work.settings, **how)
    return watch


class Watch:
    """A callback that has the profiler look at some rounds, and times those after."""

    def __init__(self, device: str) -> None:
        self.on_gpu, self.began, self.ends = device.startswith("cuda"), time.perf_counter(), list[float]()
        kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if self.on_gpu else [])]
        self.profiler = torch.profiler.profile(activities=kinds)

    def __call__(self, record: dict[str, Any]) -> None:
        count = record["round"] + 1
        if count in (WARM, WARM + WATCHED) and self.on_gpu:
            torch.cuda.synchronize()
        if count == WARM:
            self.profiler.start()
        elif count == WARM + WATCHED:
            self.profiler.stop()
        self.ends.append(time.perf_counter())

    @property
    def first(self) -> float:
        return self.ends[0] - self.began

    @property
    def seconds(self) -> float:
        """The median round, the two after the profiler's left out: on a GPU the host is ahead of them."""
        ends = self.ends[WARM + WATCHED + 1 :]
        return statistics.median(end - start for start, end in pairwise(ends))

    def print(self, most: int) -> None:
        """Milliseconds a round and calls a round, the longest first."""
        spent = "self_device_time_total" if self.on_gpu else "self_cpu_time_total"
        found = sorted(self.profiler.key_averages(), key=lambda each: -getattr(each, spent))
        total = sum(getattr(each, spent) for each in found)
        print(f"  {total / 1000 / WATCHED:9.2f} ms of a watched round in all")
        for each in found[:most]:
            print(f"  {getattr(each, spent) / 1000 / WATCHED:9.2f} ms {each.count / WATCHED:7.0f}  {each.key[:100]}")


def of_bench(name: str) -> Work:
    workload = WORKLOADS[name]
    return Work(workload.task(), workload.data(), [workload.algorithm()], workload.settings())


def cifar10(runs: int) -> Work:
    rates = [0.001 * (run + 1) for run in range(runs)]
    algorithms = [fl.fedavgm(client_lr=rate, momentum=0.9, variant="nesterov") for rate in rates]
    task = fl.Task(model=fl.models.Cifar10CNN, penalty=fl.models.penalty.cifar10_cnn())
    pictures = noise(Augmentation(crop=24, flip=True, jitter=True, whiten=True))
    return Work(task, pictures, algorithms, {"cohort": 5, "epochs": 1, "batch_size": 64})


def resnet56(_: int) -> Work:
    channels = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    pictures = noise(Augmentation(pad=4, crop=32, flip=True, normalise=channels, cutout=16))
    algorithm = fl.fedavg(client_lr=0.1, client_optimizer="momentum", client_momentum=0.9, client_clip_norm=1.0)
    return Work(fl.Task(model=fl.models.ResNet56), pictures, [algorithm], {"cohort": 10, "epochs": 5, "batch_size": 64})


def noise(augment: Augmentation, clients: int = 100, each: int = 500) -> fl.FederatedData:
    """Pictures of the size of CIFAR-10's, brighter from class to class."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(10, (clients * each,), generator=generator)
    x = (torch.rand(len(y), 3, 32, 32, generator=generator) + y[:, None, None, None] / 10) / 2
    parts = torch.arange(len(y)).split(each)
    return fl.federate(x, y, list(parts), name="noise", augment=augment)


OTHERS: dict[str, Callable[[int], Work]] = {"cifar10": cifar10, "resnet56": resnet56}

if __name__ == "__main__":
    main()
