"""Everything that is installed, on W1 to W4, one after the other: times, memory, and whether all train the same thing.

    python compare.py [--workloads W1 W2] [--only ours pfl] [--rounds 5] [--quick] [--device cuda]

The one table goes to the terminal, and with all it was made from to a JSON file. From Python: `measure`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import environments
import numpy as np
import watch
from runner import CORES, RESULT
from workloads import HOME, WORKLOADS, Workload

TOLERANCE = 1e-4
"""How far a parameter may be from the plain loop's after the round that is compared."""

LIMIT = 600.0
"""Seconds after which a runner is stopped."""

NUMBERS = (
    *("what", "how", "seconds", "rounds", "startup", "memory_mb", "gpu_memory_mb"),
    *("error", "update", "same", "others"),
)
"""What a row has beside its names; all None when the runner failed."""


@dataclass(frozen=True)
class Peer:
    """How a peer is run: the runner's file, the package it needs, and its best number of processes on two cores."""

    runner: str
    package: str
    environment: str | None = None  # None: the one this program runs in
    processes: int = 1
    gpu: bool = False

    def interpreter(self) -> str | None:
        """The Python that has it: its environment's, else this one if it has the package; None: not installed."""
        if self.environment is not None and environments.complete(self.environment):
            return str(environments.python(self.environment))
        return sys.executable if find_spec(self.package) is not None else None


PEERS = {
    "ours": Peer("ours.py", "fedloom", gpu=True),
    "loop": Peer("loop.py", "torch", gpu=True),
    "loop-2": Peer("loop.py", "torch", processes=2),
    "pfl": Peer("run_pfl.py", "pfl", "pfl", processes=2, gpu=True),
    "fedlab": Peer("run_fedlab.py", "fedlab", "fedlab"),
    "fedjax": Peer("run_fedjax.py", "fedjax", "fedjax"),
    "flower": Peer("run_flower.py", "flwr", "flower"),
}


def installed(device: str = "cpu") -> list[str]:
    """The peers that can be run here."""
    return [name for name, peer in PEERS.items() if peer.interpreter() is not None and (device == "cpu" or peer.gpu)]


def measure(
    workloads: Sequence[str] | None = None,
    peers: Sequence[str] | None = None,
    rounds: int | None = None,
    *,
    device: str = "cpu",
    data: Path = HOME / "data",
    wait: bool = True,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Runs peers on workloads (None: all, all that are installed), and returns one row for each pair.

    `rounds`: how many are timed; None takes each workload's own number. `wait`: for a quiet machine before each run.
    `say` is given a line before each run. A row:

        workload, peer    "W1", "pfl"
        what, how         "pfl 0.6.0", "2 x 1 threads"
        device            "cpu"
        seconds           of a round: the median without the first, where there are more
        rounds            seconds of each round
        startup           from the start to the end of the first round, less the time of a usual one
        memory_mb         the most that all its processes held together (PSS) up to the end of the timed rounds
        gpu_memory_mb     the most that PyTorch held on the GPU; None on a CPU
        ratio             `seconds` over ours; None where ours was not run
        error             the largest difference of a parameter from the plain loop's, dropout off
        update            the largest change of a parameter in that round
        same              whether `error` is at most 1e-4, and at most a hundredth of `update`
        others            cores that the rest of the machine used meanwhile: above 0.15 the times are disturbed
        failed            None, or the end of what the runner printed; then the numbers are None
    """
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(list(peers or installed(device)), rounds, device, data, wait, say, Path(folder))
        return [row for name in workloads or WORKLOADS for row in bench.rows(WORKLOADS[name])]


@dataclass(frozen=True)
class _Bench:
    """What `measure` was asked for."""

    peers: list[str]
    rounds: int | None
    device: str
    data: Path
    wait: bool
    say: Callable[[str], None]
    folder: Path

    def rows(self, workload: Workload) -> list[dict[str, Any]]:
        """The rows of one workload."""
        outcomes = {peer: self.run(peer, workload, self.rounds or workload.rounds) for peer in self.peers}
        if "loop" not in outcomes:
            self.run("loop", workload, 0)  # for what it trains
        rows = [
            {"workload": workload.name, "peer": peer, "device": self.device} | self.read(peer, workload, outcome)
            for peer, outcome in outcomes.items()
        ]
        for row in rows:
            took = f"failed, {row['failed']}" if row["seconds"] is None else f"{row['seconds']:.4g} s a round"
            self.say(f"{workload.name} {row['peer']}: {took}")
        ours = next((row["seconds"] for row in rows if row["peer"] == "ours"), None)
        return [row | {"ratio": row["seconds"] / ours if ours and row["seconds"] else None} for row in rows]

    def run(self, name: str, workload: Workload, rounds: int) -> watch.Outcome:
        """One runner's run; what it trained without chance is in `params`."""
        peer = PEERS[name]
        self.say(f"{workload.name} {name}: {rounds} rounds")
        command = [peer.interpreter() or sys.executable, str(Path(__file__).with_name(peer.runner)), workload.name]
        command += ["--rounds", str(rounds), "--data", str(self.data), "--params", str(self.params(name, workload))]
        command += ["--device", self.device]
        if self.device == "cpu":
            command += ["--processes", str(peer.processes)]
        if self.wait:
            watch.wait_until_quiet()
        env = {**os.environ, "FEDLOOM_PEERS_BEGAN": str(time.time())}
        return watch.run(command, env, CORES if self.device == "cpu" else None, RESULT, LIMIT)

    def params(self, name: str, workload: Workload) -> Path:
        return self.folder / f"{workload.name}-{name}.npz"

    def read(self, name: str, workload: Workload, outcome: watch.Outcome) -> dict[str, Any]:
        """What a run showed."""
        line = next((line for line in outcome.output.splitlines() if line.startswith(RESULT)), None)
        trained, reference = (self.params(peer, workload) for peer in (name, "loop"))
        if not reference.exists():
            return dict.fromkeys(NUMBERS) | {"failed": "the plain loop failed: nothing to compare with"}
        if outcome.code or line is None or not trained.exists():
            return dict.fromkeys(NUMBERS) | {"failed": f"exit code {outcome.code}: {outcome.output[-2000:]}"}
        found = json.loads(line.removeprefix(RESULT))
        seconds = statistics.median(found["rounds"][1:] or found["rounds"])
        with np.load(trained) as params, np.load(reference) as expected:
            error, update = _difference(params, expected), _difference(params, workload.initial())
        return {
            "what": found["what"],
            "how": found["how"],
            "seconds": seconds,
            "rounds": found["rounds"],
            "startup": found["first_done"] - min(seconds, found["rounds"][0]),
            "memory_mb": outcome.memory_mb,
            "gpu_memory_mb": found["gpu_memory_mb"],
            "error": error,
            "update": update,
            "same": error <= min(TOLERANCE, update / 100),
            "others": outcome.others,
            "failed": None,
        }


def _difference(params: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> float:
    """The largest difference of a parameter."""
    if set(params) != set(others):
        return float("inf")
    return max(float(np.abs(params[name].astype(np.float64) - others[name]).max()) for name in params)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows, aligned; a star marks times that others on the machine disturbed."""
    lines = [("", "peer", "version", "run as", "s/round", "/ ours", "start-up s", "MB", "error", "same")]
    for row in rows:
        if row["failed"] is not None:
            lines.append((row["workload"], row["peer"], "FAILED", *[""] * 7))
            continue
        lines.append(
            (
                row["workload"],
                row["peer"],
                row["what"],
                row["how"],
                f"{row['seconds']:.4f}" + ("*" if row["others"] > watch.QUIET else " "),
                "" if row["ratio"] is None else f"{row['ratio']:.2f}",
                f"{row['startup']:.1f}",
                f"{row['memory_mb']:.0f}",
                f"{row['error']:.0e}",
                "yes" if row["same"] else "NO",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = 4  # the rest are numbers
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--only", nargs="+", choices=PEERS, help="these peers; else all that are installed")
    parser.add_argument("--rounds", type=int, help="timed on each workload, the first apart; else its own number")
    parser.add_argument("--quick", action="store_true", help="two rounds of W1 to W3, without waiting for quiet")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--data", type=Path, default=HOME / "data", help="where the data is, or is to be made")
    parser.add_argument("--out", type=Path, default=HOME / "results.json", help="the JSON file")
    given = parser.parse_args()
    if given.quick:
        given.workloads = [name for name in given.workloads if name != "W4"]
    for name in given.only or ():
        if name not in installed(given.device):
            parser.error(f"--only {name}: not installed for {given.device}; run environments.py")
    rows = measure(
        given.workloads,
        given.only,
        2 if given.quick else given.rounds,
        device=given.device,
        data=given.data,
        wait=not given.quick,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(table(rows))
    for row in rows:
        if row["failed"] is not None:
            print(f"\n{row['workload']} {row['peer']} failed:\n{row['failed']}", file=sys.stderr)
    machine = {"system": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(
        json.dumps({"when": time.strftime("%Y-%m-%d %H:%M"), "machine": machine, "rows": rows}, indent=2) + "\n"
    )
    sys.exit(any(row["failed"] is not None or not row["same"] for row in rows))


if __name__ == "__main__":
    main()
