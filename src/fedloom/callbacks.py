"""Callbacks see each round's record and may end the run by returning True.

One that has a method `begin` is told before the first round what was resolved: executor, device, estimated memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedloom.trackers import mlflow as mlflow
from fedloom.trackers import tensorboard as tensorboard
from fedloom.trackers import wandb as wandb

Callback = Callable[[dict[str, Any]], "bool | None"]


def begin(callbacks: Iterable[Callback], resolved: Mapping[str, Any]) -> None:
    """Tell those that want to know how the run will be run."""
    for callback in callbacks:
        told: Callable[[Mapping[str, Any]], None] | None = getattr(callback, "begin", None)
        if told is not None:
            told(resolved)


def stop_at(metric: str, target: float) -> Callback:
    """End the run in the first evaluated round whose `metric` is at least `target` (at most, for a loss).

    >>> stop = stop_at("test_accuracy", 0.9)
    >>> stop({"round": 0, "test_accuracy": 0.5}), stop({"round": 1, "test_accuracy": 0.93})
    (False, True)
    """
    falling = "loss" in metric or "error" in metric

    def callback(record: dict[str, Any]) -> bool:
        value = record.get(metric)
        if value is None:
            return False
        return bool(value <= target if falling else value >= target)

    return callback
