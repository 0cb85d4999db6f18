"""Attacks against rules on MNIST by writer: test accuracy with a fifth of the clients hostile, as JSON and a table.

python benchmarks/attacks/attacks.py --out benchmarks/attacks/results.json    (QMNIST in FEDLOOM_DATA)
"""

from __future__ import annotations

import argparse
import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import fedloom as fl

HOSTILE = 0.2
ATTACKS: dict[str, list[fl.Fault]] = {
    "none": [],
    "nan": [fl.Fault("nan", HOSTILE)],
    "sign flip, x 10": [fl.Fault("sign_flip", HOSTILE, 10)],
    "scaling, x 100": [fl.Fault("scaling", HOSTILE, 100)],
    "gaussian, 1": [fl.Fault("gaussian", HOSTILE, 1)],
    "zero": [fl.Fault("zero", HOSTILE)],
    "label flip": [fl.Fault("label_flip", HOSTILE)],
    "a little, z max": [fl.Fault("a_little_is_enough", HOSTILE)],
    "a little, z = 10": [fl.Fault("a_little_is_enough", HOSTILE, 10)],
    "inner product, 0.5": [fl.Fault("inner_product", HOSTILE, 0.5)],
    "inner product, 10": [fl.Fault("inner_product", HOSTILE, 10)],
}
SHARE = 0.3
"""Of a cohort, what a rule stands: a fifth of the population is now and then more than a fifth of a cohort."""


def rules(client_lr: float) -> dict[str, fl.Algorithm]:
    """Clients that do the same work, and servers that differ."""
    fedavg = fl.fedavg(client_lr)

    def by(combine: fl.Weighting) -> fl.Algorithm:
        return fl.replace(fedavg, combine=combine)

    return {
        "FedAvg": fedavg,
        "multi-Krum": by(fl.multi_krum(SHARE)),
        "geometric median": by(fl.geometric_median()),
        "centred clipping": by(fl.centred_clipping(0.5)),
        "median": by(fl.coordinate_median()),
        "trimmed mean": by(fl.trimmed_mean(SHARE)),
        "norm bounding": by(fl.norm_bounding(0.5)),
        "FedGLAD": fl.fedglad(fedavg),
        "FedGLAD, unbounded": fl.fedglad(fedavg, gamma=math.inf),
        "FedGLAD, geometric median": fl.fedglad(by(fl.geometric_median())),
    }


def accuracies(
    data: fl.FederatedData, faults: list[fl.Fault], settings: argparse.Namespace, seed: int
) -> dict[str, float]:
    """Test accuracy after the last round, by rule; one that diverged is at 0."""
    task = fl.Task(model=lambda: fl.models.Logistic(784, 10))
    shared: dict[str, Any] = {
        "rounds": settings.rounds,
        "cohort": settings.cohort,
        "batch_size": 50,
        "eval_every": settings.rounds,
        "seed": seed,
        "faults": faults,
    }
    algorithms = rules(settings.client_lr)
    trials = [{"algorithm": algorithm} for algorithm in algorithms.values()]
    histories = fl.simulate_trials(task, data, trials, **shared)
    return {
        name: 0.0 if history.diverged else history.rounds[-1]["test_accuracy"]
        for name, history in zip(algorithms, histories, strict=True)
    }


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Attacks down, rules across, in percent; bold where it is within 2 points of FedAvg without attackers."""
    names = list(next(iter(found.values())))
    clean = mean(found["none"]["FedAvg"])
    lines = [f"| attack | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for attack, row in found.items():
        cells = [f"{100 * mean(row[name]):.1f}" for name in names]
        marked = [f"**{c}**" if mean(row[name]) >= clean - 0.02 else c for c, name in zip(cells, names, strict=True)]
        lines.append(f"| {attack} | {' | '.join(marked)} |")
    return "\n".join(lines)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cohort", type=int, default=30)
    parser.add_argument("--client-lr", type=float, default=0.2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    began = time.perf_counter()
    data = fl.load("qmnist", partition="natural")
    found: dict[str, dict[str, list[float]]] = {}
    for attack, faults in ATTACKS.items():
        for seed in range(settings.seeds):
            for rule, accuracy in accuracies(data, faults, settings, seed).items():
                found.setdefault(attack, {}).setdefault(rule, []).append(accuracy)
        print(f"{time.perf_counter() - began:5.0f} s  {attack}: {found[attack]}", flush=True)
    print(table(found))
    if settings.out is not None:
        settled = {name: getattr(settings, name) for name in ("rounds", "cohort", "client_lr", "seeds")}
        about = {"date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__, **settled}
        about |= {"clients": data.population, "seconds": round(time.perf_counter() - began)}
        settings.out.write_text(json.dumps({"about": about, "test_accuracy": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
