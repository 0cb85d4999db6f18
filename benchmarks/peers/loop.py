"""The plain PyTorch loop: clients one after the other, eager SGD, in one process or in two.

It is what everybody writes first, and what all others are compared with, in time and in outcome.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch_models
from runner import CORES, Clock, options, run, threads
from torch import Tensor, nn
from workloads import Arrays, Workload


@lru_cache(1)
def _ready(workload: Workload, folder: Path, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A process makes its model and reads its data once."""
    return torch_models.model(workload, device), *torch_models.tensors(workload, folder, device)


def _sum(workload: Workload, folder: Path, device: str, threads: int, start: Arrays, clients: list[int]) -> Arrays:
    """The sum of the clients' models after each has trained from `start`."""
    if device == "cpu":
        torch.set_num_threads(threads)
    model, x, y = _ready(workload, folder, device)
    optimizer = torch.optim.SGD(model.parameters(), workload.lr)
    begin = {name: torch.from_numpy(array).to(device) for name, array in start.items()}
    total = {name: torch.zeros_like(leaf) for name, leaf in begin.items()}
    for client in clients:
        model.load_state_dict(begin)
        for batch, target in zip(x[client].split(workload.batch), y[client].split(workload.batch), strict=True):
            optimizer.zero_grad()
            torch_models.loss(model(batch), target).backward()
            optimizer.step()
        for name, leaf in model.state_dict().items():
            total[name] += leaf
    return {name: leaf.cpu().numpy() for name, leaf in total.items()}


def main() -> None:
    given = options(__doc__, devices=("cpu", "cuda"), processes=CORES)
    each, how = threads(given)

    def train(workload: Workload, rounds: int, clock: Clock) -> Arrays:
        work = workload, given.data, given.device, each
        params = workload.initial()
        with ExitStack() as stack:
            # a pool for each further process, so that each gets its share and keeps its model
            pools = [
                stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
                for _ in range(given.processes - 1)
            ]
            for round in range(rounds):
                clock.begin()
                cohort = workload.cohort(round)
                others = [
                    pool.submit(_sum, *work, params, cohort[k :: given.processes]) for k, pool in enumerate(pools, 1)
                ]
                sums = [_sum(*work, params, cohort[:: given.processes]), *(other.result() for other in others)]
                params = {name: sum(part[name] for part in sums) / np.float32(len(cohort)) for name in params}
                clock.end()
        return params

    run(given, f"torch {torch.__version__}", how, train)


if __name__ == "__main__":
    main()
