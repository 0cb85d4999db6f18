"""What a run writes to its directory: settings at the start, a line per round, the state, a summary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from fedloom import resumption
from fedloom.accounting import Ledger
from fedloom.history import History
from fedloom.resumption import Found
from fedloom.rundir import SETTLED, RunDirectory, as_toml
from fedloom.versions import versions


class Records:
    """A run's directory; nothing is written when it has none."""

    def __init__(
        self,
        path: str | PathLike[str] | None,
        config: Mapping[str, Any],
        history: History,
        fingerprint: Callable[[], str],
        frozen: Callable[[], str],
        seed: int,
        found: Found | None = None,
        allowed: Collection[str] = (),
        finished: bool = False,
    ) -> None:
        self.directory = None if path is None else RunDirectory(Path(path), resume=found is not None, finished=finished)
        self.kept: int | None = None  # the round of the last state
        if self.directory is not None:
            self.fingerprint, self.frozen = fingerprint(), frozen()
            self.seed = seed
            settled = {name: value for name, value in history.resolved.items() if name in SETTLED}
            self.config = as_toml({**config, **settled})
            if found is not None:
                self._go_on(self.directory, found, allowed, history)
            self.directory.config(self.config)

    def _go_on(self, directory: RunDirectory, found: Found, allowed: Collection[str], history: History) -> None:
        """What came after the state that was found is taken back; it will be run again."""
        if found.state is not None:
            now = self._notes(0.0)
            resumption.check_same(directory.path, found.notes, now, allowed)
            self.kept = found.round
        history.rounds = directory.rewind(found.state, found.size)
        history.resolved["resumed"] = found.told()

    def _notes(self, seconds: float) -> dict[str, Any]:
        return resumption.notes(self.config, self.fingerprint, self.frozen, seconds)

    def record(self, record: Mapping[str, Any]) -> None:
        if self.directory is not None:
            self.directory.record(record)

    def write(self, round: int, value: Mapping[str, Any], seconds: float) -> None:
        """Write the state after `round` rounds, with a note of what it was made with, unless it is there."""
        if self.directory is not None and round != self.kept:
            self.directory.checkpoint(round, value, self._notes(seconds))
            self.kept = round

    def summarise(self, history: History, ledger: Ledger | None) -> None:
        """Write the final figures; with them the run is finished."""
        if self.directory is None:
            return
        self.directory.summary(
            {
                **({} if ledger is None else {"privacy": ledger.figures()}),
                "seed": self.seed,
                "rounds": len(history.rounds),
                "final": history.rounds[-1] if history.rounds else {},
                "seconds": history.seconds,
                "resolved": history.resolved,
                "data_fingerprint": self.fingerprint,
                "versions": versions(),
            }
        )
