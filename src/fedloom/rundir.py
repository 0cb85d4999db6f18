"""A run's directory: its settings before anything heavy, a line per round as it happens, figures at the end."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import tomli_w

from fedloom.errors import FedloomError

CONFIG, METRICS, SUMMARY, CHECKPOINTS = "config.toml", "metrics.jsonl", "summary.json", "checkpoints"


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

    def __init__(self, path: str | PathLike[str], *, resume: bool = False) -> None:
        self.path = Path(path)
        check_free(self.path, resume=resume)
        self.path.mkdir(parents=True, exist_ok=True)

    def config(self, values: Mapping[str, Any]) -> None:
        """Write the settings; a later call, with more of them resolved, replaces them."""
        write_whole(self.path / CONFIG, tomli_w.dumps(_without_none(values)))

    def record(self, row: Mapping[str, Any]) -> None:
        """Append one round as a line of strict JSON; what is not finite becomes null."""
        line = json.dumps(_strict(row, METRICS), allow_nan=False)
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write the final figures; with them the run is finished."""
        write_json(self.path / SUMMARY, values)

    def checkpoint(self, round: int, value: Any) -> None:
        """Write the state after `round` rounds, whole or not at all."""
        from fedloom import checkpoint

        checkpoint.save(self.path / CHECKPOINTS / f"round-{round:06d}", value)

    def saved(self) -> list[Path]:
        """The states that were written, oldest first."""
        return sorted((self.path / CHECKPOINTS).glob("round-*"))

    def keep_last(self, count: int) -> None:
        """Remove all states but the last few."""
        for folder in self.saved()[:-count]:
            shutil.rmtree(folder)

    def rewind(self, rounds: int) -> list[dict[str, Any]]:
        """Cut the metrics back to so many rounds, and read them."""
        path = self.path / METRICS
        lines = path.read_text(encoding="utf-8").splitlines()[:rounds] if path.exists() else []
        write_whole(path, "".join(f"{line}\n" for line in lines))
        return [json.loads(line) for line in lines]


def check_free(path: Path, *, resume: bool = False) -> None:
    """An error unless a run may begin, or go on, in this directory."""
    advice = "choose another directory, or remove it"
    if path.exists() and not path.is_dir():
        raise FedloomError(f"{path}: expected a directory for the run, got a file: {advice}")
    held = {entry.name for entry in path.iterdir()} if path.exists() else set()
    held = {name for name in held if not name.startswith(".")}  # what a killed write left, or a file manager
    if SUMMARY in held:
        raise FedloomError(f"{path}: expected a directory of its own, got one with a finished run: {advice}")
    if held and CONFIG not in held:
        raise FedloomError(f"{path}: expected a directory of its own, got one with {min(held)!r} in it: {advice}")
    if not resume and held - {CONFIG}:
        raise FedloomError(f"{path}: expected a directory of its own, got one with an unfinished run: {advice}")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader, or a power cut, sees the old one or the new one and nothing between."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the rename is in the folder, which is flushed by itself
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


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


def _without_none(value: Any) -> Any:
    """The same value without the keys that have none: TOML has no null."""
    if isinstance(value, Mapping):
        return {key: _without_none(part) for key, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list | tuple) else value
