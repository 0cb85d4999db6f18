"""What every runner shares: its command line, its clock, and the one line it prints.

A runner is `train(workload, rounds, clock) -> parameters`: it trains, telling the clock when a round begins and ends.
It is called to be timed and, with --params, once more, for one round without chance, which is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from workloads import HOME, WORKLOADS, Arrays, Workload

BEGAN = float(os.environ.setdefault("FEDLOOM_PEERS_BEGAN", str(time.time())))
"""When the run was started, as whoever started it says; else when this was read."""

CORES = 2
RESULT = "RESULT "
"""What the line begins with: peers print lines of their own."""


@dataclass
class Clock:
    """How a run goes: the seconds of each round, and how long after the start the first one was done."""

    how: str = ""
    seconds: list[float] = field(default_factory=list)
    first_done: float = 0.0
    _since: float = 0.0

    def begin(self) -> None:
        self._since = time.perf_counter()

    def end(self) -> None:
        self.add(time.perf_counter() - self._since)

    def add(self, seconds: float) -> None:
        """A round that has just ended."""
        if not self.seconds:
            self.first_done = time.time() - BEGAN
        self.seconds.append(seconds)


def options(about: str, devices: tuple[str, ...] = ("cpu",), processes: int = 1) -> argparse.Namespace:
    """A runner's command line; `devices` and `processes` say what it can do."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, help="how many to time; may be 0")
    parser.add_argument("--data", type=Path, default=HOME / "data", help="where the data is, or is to be made")
    parser.add_argument("--params", type=Path, help="train the round that is compared too, and write it there")
    parser.add_argument("--device", choices=devices, default="cpu")
    parser.add_argument("--processes", type=int, choices=range(1, processes + 1), default=1)
    given = parser.parse_args()
    if given.device == "cuda" and given.processes > 1:
        parser.error("--device cuda: expected 1 process, got more")
    given.workload = WORKLOADS[given.workload]
    if given.rounds is None:
        given.rounds = given.workload.rounds
    return given


def threads(given: argparse.Namespace) -> tuple[int, str]:
    """How many threads each process has, and that in words."""
    each = CORES // given.processes
    return each, f"{given.processes} x {each} threads" if given.device == "cpu" else "1 process"


def run(given: argparse.Namespace, what: str, how: str, train: Callable[[Workload, int, Clock], Arrays]) -> None:
    """Time `train` and report that; then let it train what is compared, and write it down."""
    first = os.environ.get("RANK", "0") == "0"  # of several processes that do the same, one speaks
    if given.rounds:
        clock = Clock(how)
        train(given.workload, given.rounds, clock)
        if first:
            report(given, what, clock)
    if given.params is not None:
        params = train(given.workload.checked(), 1, Clock())
        if first:
            np.savez(given.params, **params)


def report(given: argparse.Namespace, what: str, clock: Clock) -> None:
    """The one line."""
    found = {
        "what": what,
        "how": clock.how,
        "workload": given.workload.name,
        "device": given.device,
        "rounds": clock.seconds,
        "first_done": clock.first_done,
        "gpu_memory_mb": _gpu_memory() if given.device == "cuda" else None,
    }
    print(RESULT + json.dumps(found), flush=True)


def _gpu_memory() -> float:
    import torch

    return torch.cuda.max_memory_allocated() / 2**20
