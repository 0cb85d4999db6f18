"""Run directories made by hand, for reading back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w


def records(values: Sequence[float | None], metric: str = "test_accuracy", **more: float) -> list[dict[str, Any]]:
    """A record per value, counted from round 0."""
    return [
        {"round": t, **more, "examples_processed": 10.0 * (t + 1), "seconds": 0.5}
        | ({} if value is None else {metric: value})
        for t, value in enumerate(values)
    ]


def write_run(
    folder: Path,
    told: Sequence[Mapping[str, Any]],
    label: str = "FedAvg",
    seed: int = 0,
    finished: bool = True,
    **config: Any,
) -> Path:
    """A directory like that of a run; keywords go into its settings."""
    folder.mkdir(parents=True)
    algorithm = {"name": "fedavg", "label": label, "client_lr": 0.1} | config.pop("algorithm", {})
    settings = {"name": "small", "rounds": len(told), "seeds": [seed], **config, "algorithms": [algorithm]}
    (folder / "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
    lines = "".join(f"{json.dumps(record)}\n" for record in told)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    if finished:
        summary = {"seed": seed, "rounds": len(told), "seconds": 2.0, "versions": {"fedloom": "0.1.0"}}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


STUDY = """
id = "rates"
paper = "Nobody 2020, table 1"
title = "Accuracy against alpha"

[experiment]
rounds = 10
data = { name = "digits", partition = "dirichlet", clients = 10, alpha = 1.0 }
model = { name = "logistic" }
algorithm = { name = "fedavg", client_lr = 0.1 }

[[axes]]
name = "alpha"
key = "data.alpha"
values = [0.1, 1.0, 10.0]

[[axes]]
name = "epochs"
key = "epochs"
values = [1]

[[axes]]
name = "method"
values.FedAvg = {}
values.FedSGD = {}

[[measures]]
name = "accuracy"
kind = "final"

[scales.smoke]
says = "two of the alphas, 3 rounds"
set = { rounds = 3 }
only = { alpha = ["1", "10"] }
"""
"""A study's file; at its smoke scale four cells are left."""


def write_study(folder: Path, results: Mapping[str, Any] | None = None) -> Path:
    """The folder of that study at its smoke scale, with a run of every cell; `results` is what is said of it."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'scale = "smoke"\n{STUDY}', encoding="utf-8")
    for alpha in ("1", "10"):
        for method in ("FedSGD", "FedAvg"):
            run = folder / f"{alpha}-1-{method.lower()}" / "seed0"
            data = {"name": "digits", "alpha": float(alpha)}
            write_run(run, records([0.1, 0.2]), "fedavg", name="rates", title=f"{alpha}, 1, {method}", data=data)
    if results is not None:
        (folder / "results.json").write_text(json.dumps({"id": "rates", "scale": "smoke", **results}))
    return folder


def write_tuning(folder: Path, scores: Mapping[str, float | None], metric: str = "validation_accuracy") -> Path:
    """The folder of a tuning with a run for every client rate, judged by the score that is given."""
    ranked = sorted((score for score in scores.values() if score is not None), reverse="loss" not in metric)
    points = []
    for rate, score in scores.items():
        directory = f"points/fedavg/client_lr={rate}/seed0"
        write_run(folder / directory, records([0.5, 0.5], metric), algorithm={"client_lr": float(rate)})
        point = {"algorithm": "FedAvg", "directories": [directory], "score": score, "scores": {"0": score}}
        points.append(point | {"best": score == ranked[0], "pruned": score is None})
    (folder / "tune.toml").write_text("[tune]\n", encoding="utf-8")
    told = {"metric": metric, "lower_is_better": "loss" in metric, "rounds_averaged": 10, "points": points}
    (folder / "tune.json").write_text(json.dumps(told), encoding="utf-8")
    return folder
