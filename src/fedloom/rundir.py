"""A run's directory: its settings before anything heavy, a line per round as it happens, figures at the end."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any

import tomli_w

from fedloom import durable, lock
from fedloom.durable import write_whole as write_whole
from fedloom.errors import Damaged, FedloomError

CONFIG, METRICS, SUMMARY, CHECKPOINTS = "config.toml", "metrics.jsonl", "summary.json", "checkpoints"
RESULTS, FIGURE = "results.json", "figure.png"
"""What a reproduced table or figure came to, measured beside published, and its picture."""

SETTLED = ("executor", "chunk", "device", "dtype", "threads")
"""Settings that are resolved when a run begins: its own directory has them, the experiment's need not."""

APART = ("data_fingerprint", "frozen", "versions")
"""What a run must have alike beside its settings, to go on: the rows, what does not train, the versions."""

MACHINE = {"executor", "chunk", "device", "threads", "compile", "deterministic"}
"""Settings of where and how a run is run: they change its numbers by rounding alone. `precision` does more."""


class RunDirectory:
    """`config.toml`, `metrics.jsonl`, `summary.json` and `checkpoints/` of one run.

    A directory that holds another run's rounds, or anything else, is refused. `resume=True` goes on with a run that has
    rounds but no summary.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = RunDirectory(folder)
    ...     run.record({"round": 0, "test_loss": float("nan")})
    ...     print((run.path / "metrics.jsonl").read_text(), end="")
    {"round": 0, "test_loss": null}
    """

    def __init__(self, path: str | PathLike[str], *, resume: bool = False, finished: bool = False) -> None:
        self.path = Path(path)
        check_free(self.path, resume=resume, finished=finished)
        durable.make_folder(self.path)
        durable.sweep(self.path / CHECKPOINTS)
        self._written, self._digest = 0, hashlib.sha256()  # of the metrics

    def config(self, values: Mapping[str, Any] | str) -> None:
        """Write the settings, or their text; a later call, with more of them resolved, replaces them."""
        write_whole(self.path / CONFIG, values if isinstance(values, str) else as_toml(values))

    def record(self, row: Mapping[str, Any]) -> None:
        """Append one round as a line of strict JSON; what is not finite becomes null."""
        line = (json.dumps(_strict(row, METRICS), allow_nan=False) + "\n").encode()
        durable.append(self.path / METRICS, line)
        self._written += len(line)
        self._digest.update(line)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write the final figures; with them the run is finished."""
        write_json(self.path / SUMMARY, values)

    def checkpoint(self, round: int, value: Any, notes: Mapping[str, Any] | None = None) -> None:
        """Write the state after `round` rounds, whole or not at all; the last two and the first are kept.

        Noted with it are the metrics so far, which reach the disk before it does.
        """
        from fedloom import checkpoint

        if self._written:
            durable.flush(self.path / METRICS)
        metrics = {"bytes": self._written, "sha256": self._digest.hexdigest()}
        checkpoint.save(self.path / CHECKPOINTS / f"round-{round:06d}", value, {**(notes or {}), "metrics": metrics})
        for folder in states(self.path)[1:-2]:
            durable.remove_folder(folder)

    def rewind(self, state: Path | None, size: int) -> list[dict[str, Any]]:
        """Take back what came after `state`, or everything; read the metrics up to there, which are `size` bytes."""
        saved = states(self.path)
        for folder in saved[0 if state is None else saved.index(state) + 1 :]:
            durable.remove_folder(folder)
        path = self.path / METRICS
        if not path.exists():
            return []
        os.truncate(path, size)
        durable.flush(path)
        content = path.read_bytes()
        self._written, self._digest = size, hashlib.sha256(content)
        return [json.loads(line) for line in content.splitlines()]


def enter(path: Path, *, resume: bool = False, finished: bool = False) -> AbstractContextManager[None]:
    """A run may begin, or go on, in this directory, and no other process works in it until this one leaves."""
    lock.check(path)
    check_free(path, resume=resume, finished=finished)
    return lock.alone(path)


def states(path: Path) -> list[Path]:
    """The states that were written in a run's directory, oldest first."""
    found = [folder for folder in (path / CHECKPOINTS).glob("round-*") if re.fullmatch(r"round-\d{6,}", folder.name)]
    return sorted(found, key=_round_of)


def _round_of(state: Path) -> int:
    return int(state.name.removeprefix("round-"))


def rounds_seen(path: Path) -> int:
    """The most rounds that anything in a run's directory tells of: a state, sound or not, or the metrics."""
    metrics = path / METRICS
    lines = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
    return max([lines, *map(_round_of, states(path))])


def check_free(path: Path, *, resume: bool = False, finished: bool = False) -> None:
    """An error unless a run may begin, or go on, in this directory; with `finished` one may be finished already."""
    advice = "choose another directory, or remove it"
    if path.exists() and not path.is_dir():
        raise FedloomError(f"{path}: expected a directory for the run, got a file: {advice}")
    held = {entry.name for entry in path.iterdir()} if path.exists() else set()
    held = {name for name in held if not name.startswith(".")}  # what a killed write left, or a file manager
    if SUMMARY in held and not finished:
        raise FedloomError(f"{path}: expected a directory of its own, got one with a finished run: {advice}")
    if held and CONFIG not in held:
        if resume:
            raise Damaged(
                f"{path / CONFIG}: expected the settings of a run, got none beside {min(held)!r}: "
                f"put them back, or move {path.name} away, and the run begins again"
            )
        raise FedloomError(f"{path}: expected a directory of its own, got one with {min(held)!r} in it: {advice}")
    if not resume and held - {CONFIG}:
        raise FedloomError(
            f"{path}: expected a directory of its own, got one with an unfinished run: fedloom resume goes on with it; "
            f"else {advice}"
        )
    for name, expected, fits in ((CHECKPOINTS, "a folder", Path.is_dir), (METRICS, "a file", Path.is_file)):
        if name in held and SUMMARY not in held and not fits(path / name):
            raise Damaged(
                f"{path / name}: expected {expected}, got something else: remove it, and the run begins again"
            )


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write strict JSON with sorted keys; what is not finite becomes null."""
    strict = _strict(values, path.name)
    write_whole(path, json.dumps(strict, allow_nan=False, sort_keys=True, indent=2) + "\n")


def _strict(value: Any, where: str) -> Any:
    """The same value with null for what is not finite; anything that JSON has no form for is an error."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _strict(part, f"{where}, {key!r}") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part, f"{where}[{index}]") for index, part in enumerate(value)]
    kind = type(value).__name__
    raise FedloomError(f"{where}: expected numbers, strings, None, lists and dicts of them; got {kind}: convert it")


def as_toml(values: Mapping[str, Any]) -> str:
    """Settings as text, without those that are None."""
    return tomli_w.dumps(_without_none(values))


def _without_none(value: Any) -> Any:
    """The same value without the keys that have none: TOML has no null."""
    if isinstance(value, Mapping):
        return {key: _without_none(part) for key, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list | tuple) else value
