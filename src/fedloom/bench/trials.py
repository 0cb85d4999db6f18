"""Several runs as one program, and the same runs one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import fedloom as fl
from fedloom.bench.measure import Effort, synchronize
from fedloom.bench.workloads import SEED, Workload


def compare_trials(workload: Workload, executor: str, device: torch.device, effort: Effort) -> Iterator[dict[str, Any]]:
    """Five seeds, and on an accelerator a 5 x 5 grid of rates: as one program, and one run after the other."""
    data, algorithm, rate = workload.data().to(device), workload.algorithm(), workload.client_lr
    kinds = {"5 seeds": [{"algorithm": algorithm, "seed": seed} for seed in range(5)]}
    if device.type != "cpu":
        kinds["5 x 5 rates"] = [
            {"algorithm": fl.fedavg(client_lr=rate * 2.0**-i, server_lr=2.0**-j), "seed": SEED}
            for i in range(5)
            for j in range(5)
        ]
    for kind, runs in kinds.items():
        yield _stacked_and_apart(workload, data, kind, runs, executor, device, effort)


def _stacked_and_apart(
    workload: Workload,
    data: fl.FederatedData,
    kind: str,
    runs: Sequence[dict[str, Any]],
    executor: str,
    device: torch.device,
    effort: Effort,
) -> dict[str, Any]:
    """Whole runs of as many rounds as there is time for, and what a round takes: a long run less a short one.

    One after the other, five are timed and taken for all: the runs are alike.
    """
    task = workload.task()
    settings = workload.settings() | {"executor": executor, "device": device}
    if device.type == "cuda":
        settings["compile"] = True  # as a run long enough to be worth stacking would be
    del settings["seed"]

    def stacked(rounds: int) -> None:
        fl.simulate_trials(task, data, runs, rounds=rounds, **settings)

    alone = runs[:5]

    def apart(rounds: int) -> None:
        for each in alone:
            fl.simulate(task, data, rounds=rounds, **each, **settings)

    def seconds(run: Callable[[int], None], rounds: int) -> float:
        began = time.perf_counter()
        run(rounds)
        synchronize(device)
        taken = time.perf_counter() - began
        return taken if run is stacked else taken * len(runs) / len(alone)

    seconds(stacked, effort.warm)  # compiles
    short = {"stacked": seconds(stacked, effort.warm), "apart": seconds(apart, effort.warm)}
    rounds = effort.fitting(short["stacked"] / effort.warm)
    long = {"stacked": seconds(stacked, effort.warm + rounds), "apart": seconds(apart, effort.warm + rounds)}
    each = {name: (long[name] - short[name]) / rounds for name in long}
    known = min(each.values()) > 0  # else so short that it is lost in the noise
    return {
        "workload": workload.name,
        "trials": kind,
        "rounds": effort.warm + rounds,
        "stacked_seconds": each["stacked"] if known else None,
        "one_after_the_other_seconds": each["apart"] if known else None,
        "share": each["stacked"] / each["apart"] if known else None,
        "stacked_run_seconds": long["stacked"],
        "one_after_the_other_run_seconds": long["apart"],
        "run_share": long["stacked"] / long["apart"],
    }
