"""Programs on the same cores: `python benchmarks/sharing/sharing.py --programs 1 2 --spins 300000 1000`.

Each trains the same small network, at the same time as the others. Threads that share an operation wait for each other
at its end; for so many turns (GOMP_SPINCOUNT of GNU's OpenMP, 300,000 unless given) they keep the core they wait on.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--spins", type=int, nargs="+", default=[300_000, 1000])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        train()
        return
    print("programs    spins  ms/round of each")
    for count in asked.programs:
        for spins in asked.spins:
            found = " ".join(f"{each:8.0f}" for each in together(count, spins))
            print(f"{count:8d} {spins:8d}  {found}", flush=True)


def together(count: int, spins: int) -> list[float]:
    """The median milliseconds of a round in each of the programs."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one"]
    given = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    environment = given | {"GOMP_SPINCOUNT": str(spins)}
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(count)]
    return [float(program.communicate()[0]) for program in programs]


def train() -> None:
    """Forty clients a round, a test in each; the first round, and the last when others may be gone, do not count."""
    import torch

    import fedloom as fl

    x, y = torch.rand(12_000, 784), torch.randint(10, (12_000,))
    data = fl.federate(x, y, fl.partition.iid(12_000, clients=100, seed=0), test=(x[:6000], y[:6000]))
    task = fl.Task(model=lambda: fl.models.MLP(784, 10, (32,)))
    history = fl.simulate(task, data, fl.fedavg(0.1), rounds=ROUNDS, cohort=40, batch_size=64, eval_every=1)
    print(1000 * statistics.median(record["seconds"] for record in history.rounds[1:-1]))


if __name__ == "__main__":
    main()
