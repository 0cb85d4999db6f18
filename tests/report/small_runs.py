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
