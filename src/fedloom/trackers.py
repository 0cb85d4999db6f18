"""Trackers of others as callbacks: each gets the same numbers as `metrics.jsonl`, round by round.

A tracker is imported when its callback is made, so that a missing one is told before the first round. Under `torchrun`
only the first rank reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError, choose
from fedloom.launched import first_rank

Sink = Callable[[dict[str, Any]], None]


def tensorboard(folder: str | PathLike[str]) -> Sink:
    """Write event files for TensorBoard into `folder`, which is made with the first round.

    `fl.simulate(..., callbacks=[fl.callbacks.tensorboard("events/fedavg")])`, then `tensorboard --logdir events`. Give
    each run a folder of its own, outside the run's directory.
    """
    _needed("tensorboard")
    writer_of = import_module("torch.utils.tensorboard").SummaryWriter
    open_writers: list[Any] = []

    def write(step: int, values: dict[str, float]) -> None:
        writer = open_writers[0] if open_writers else writer_of(fspath(folder))
        open_writers[:] = [writer]
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # nobody tells a callback that the run is over

    return _sink(write)


def wandb(**options: Any) -> Sink:
    """Report to Weights & Biases; the options are those of `wandb.init`: project, name, mode="offline", ...

    Runs that follow each other in one process are ended by `wandb.finish()`.
    """
    run = _needed("wandb").init(**options) if first_rank() else None

    def write(step: int, values: dict[str, float]) -> None:
        assert run is not None
        run.log(values, step=step, commit=True)  # with a step given, it would wait for the next one

    return _sink(write)


def mlflow(**options: Any) -> Sink:
    """Report to MLflow; the options are those of `mlflow.start_run`: run_name, experiment_id, nested, ...

    Where the numbers go is said by `mlflow.set_tracking_uri`. Runs that follow each other in one process are ended by
    `mlflow.end_run()`.
    """
    tracker = _needed("mlflow")
    run = tracker.start_run(**options) if first_rank() else None

    def write(step: int, values: dict[str, float]) -> None:
        assert run is not None
        tracker.log_metrics(values, step=step, run_id=run.info.run_id)

    return _sink(write)


TRACKERS = ("tensorboard", "wandb", "mlflow")


def check_tracker(name: str) -> None:
    """An error unless there is such a tracker, and it is installed."""
    if name not in TRACKERS:
        raise choose("--track", name, TRACKERS)
    _needed(name)


@contextmanager
def following(name: str, events: Path, group: str, run: str, settings: Mapping[str, str]) -> Iterator[Sink]:
    """A run of an experiment followed in a tracker: in TensorBoard's folder of `events`, elsewhere by its name.

    There its settings are kept too, and it is over when the run is.
    """
    if name == "tensorboard":
        yield tensorboard(events)
        return
    tracker = _needed(name)
    options: dict[str, Any] = {"project": group, "config": dict(settings)} if name == "wandb" else {}
    sink = wandb(name=run, **options) if name == "wandb" else mlflow(run_name=f"{group}, {run}")
    try:
        if name == "mlflow" and first_rank():
            tracker.log_params(settings)
        yield sink
    finally:
        if first_rank():
            tracker.finish() if name == "wandb" else tracker.end_run()


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """What of a record a tracker can draw: finite numbers, without the round itself.

    >>> numbers({"round": 3, "test_loss": 0.5, "gsi": float("inf"), "note": "x"})
    {'test_loss': 0.5}
    """
    found = {key: value for key, value in record.items() if key != "round" and isinstance(value, int | float)}
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


def _sink(write: Callable[[int, dict[str, float]], None]) -> Sink:
    def sink(record: dict[str, Any]) -> None:
        if first_rank():
            write(record["round"], numbers(record))

    return sink


def _needed(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        said = f"callbacks.{package}: expected the package {package!r}, got none ({error})"
        raise FedloomError(f"{said}: pip install 'fedloom[{package}]'") from None
