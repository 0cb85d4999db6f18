"""Where a run goes on: from the newest state that is sound, with the settings it was made with."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom import checkpoint
from fedloom.differences import difference
from fedloom.errors import Changed, Damaged, FedloomError
from fedloom.rundir import APART, METRICS, states
from fedloom.versions import versions

BITS = {name: versions()[name] for name in ("fedloom", "torch")}
"""The versions on which the bits of a run depend."""


@dataclass(frozen=True)
class Found:
    """The newest sound state of a run, and what was passed over; without one the run begins again."""

    state: Path | None = None
    value: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()

    @property
    def round(self) -> int:
        """The first round to be run."""
        return self.value["round"] if self.state else 0

    @property
    def size(self) -> int:
        """The bytes of the metrics up to there."""
        return self.notes["metrics"]["bytes"] if self.state else 0

    def told(self) -> dict[str, Any]:
        """For the run's summary, and for whoever watches."""
        return {"round": self.round, "passed_over": list(self.passed_over)}


def newest(directory: Path) -> Found:
    """The newest state of a run whose files, and whose part of the metrics, are as they were written."""
    passed: list[str] = []
    for folder in reversed(states(directory)):
        try:
            value, notes = checkpoint.read(folder)
            _check_metrics(directory / METRICS, notes["metrics"])
        except FedloomError as error:
            passed.append(str(error))
        else:
            return Found(folder, value, notes, tuple(passed))
    return Found(passed_over=tuple(passed))


def _check_metrics(path: Path, expected: Mapping[str, Any]) -> None:
    """Lines that came after the state may be torn; those before it are part of it."""
    size, content = expected["bytes"], b""
    if size:
        try:
            with path.open("rb") as file:
                content = file.read(size)
        except OSError as error:
            raise Damaged(f"{path}: expected a readable file, got {error.strerror or error}") from error
    got = hashlib.sha256(content).hexdigest()
    if got != expected["sha256"]:
        raise Damaged(
            f"{path}: its first {size} bytes changed since they were written: "
            f"expected sha256 {expected['sha256']}, got {got}"
        )


def notes(config: str, fingerprint: str, frozen: str, seconds: float) -> dict[str, Any]:
    """What is noted with a state: everything that a run must have alike to go on from it."""
    return {
        "config": config,
        "data_fingerprint": fingerprint,
        "frozen": frozen,
        "versions": BITS,
        "seconds": seconds,
    }


def check_same(where: Path, made: Mapping[str, Any], now: Mapping[str, Any], allowed: Collection[str] = ()) -> None:
    """An error with the first setting, fingerprint or version that is not as it was when a state was made."""

    def flat(noted: Mapping[str, Any]) -> dict[str, Any]:
        return tomllib.loads(noted["config"]) | {name: noted[name] for name in APART if name in made}

    found = difference(flat(made), flat(now), but=allowed)
    if found is not None:
        key, expected, got = found
        raise Changed(
            where,
            f"{key}: expected {expected!r} as when its state was made, got {got!r}",
            f"put it back, or allow it: --allow {key}, in a script allow=[{key!r}]",
        )
