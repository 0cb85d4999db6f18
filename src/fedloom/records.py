"""What a run writes to its directory: settings at the start, a line per round, the state, a summary."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedloom import __version__
from fedloom.data.federated import FederatedData
from fedloom.history import History
from fedloom.rundir import RunDirectory

if TYPE_CHECKING:
    from fedloom.trial import Trial

SETTLED = ("executor", "chunk", "device", "dtype", "threads")


class Records:
    """A run's directory; nothing is written when it has none."""

    def __init__(
        self,
        path: str | PathLike[str] | None,
        config: Mapping[str, Any],
        history: History,
        data: FederatedData,
        seed: int,
        resume: bool = False,
        every_round: bool = False,
    ) -> None:
        self.directory = None if path is None else RunDirectory(Path(path), resume=resume)
        self.every_round = every_round  # is the state to be written after each?
        if self.directory is not None:
            self.fingerprint = data.fingerprint()
            self.seed = seed
            settled = {name: value for name, value in history.resolved.items() if name in SETTLED}
            self.directory.config({**config, **settled})

    def record(self, record: Mapping[str, Any]) -> None:
        if self.directory is not None:
            self.directory.record(record)

    def keep(self, round: int, trial: Trial) -> None:
        """Write the state: parameters, buffers, the server's slots, memory rows, the sampler's."""
        if self.directory is not None:
            self.directory.checkpoint(
                round,
                {
                    "round": round,
                    "params": trial.x,
                    "state": dict(vars(trial.state)),
                    "rows": {str(client): row for client, row in sorted(trial.rows.rows.items())},
                    "sampler": trial.sampling,
                    "processed": trial.processed,
                    "lost": {str(client): leaf for client, leaf in trial.lost.items()},
                },
            )
            self.directory.keep_last(2)

    def settled(self, trial: Trial) -> None:
        """A round is over."""
        if self.every_round:
            self.keep(len(trial.history.rounds), trial)

    def finish(self, trial: Trial) -> None:
        if self.directory is None:
            return
        history = trial.history
        self.keep(len(history.rounds), trial)
        ledger = trial.setup.ledger
        self.directory.summary(
            {
                **({} if ledger is None else {"privacy": ledger.figures()}),
                "seed": self.seed,
                "rounds": len(history.rounds),
                "final": history.rounds[-1] if history.rounds else {},
                "seconds": history.seconds,
                "resolved": history.resolved,
                "data_fingerprint": self.fingerprint,
                "versions": {"fedloom": __version__, "torch": torch.__version__, "python": platform.python_version()},
            }
        )
