"""What `fedloom bench` was asked for, checked before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from fedloom.bench import peers
from fedloom.bench.workloads import WORKLOADS
from fedloom.errors import FedloomError, choose
from fedloom.experiments.schema import Device, Experiment

GROWTHS = ("clients", "model", "population")
EXECUTORS: tuple[str, ...] = get_args(Experiment.model_fields["executor"].annotation)


@dataclass(frozen=True)
class Request:
    """What to measure; `workloads` None: those that suit the device."""

    workloads: tuple[str, ...] | None = None
    executors: tuple[str, ...] = ("auto",)
    device: str | None = None
    rounds: int | None = None
    quick: bool = False
    peers: bool = False
    trials: bool = False
    growth: str | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise FedloomError(f"--rounds: expected a whole number of at least 1, got {self.rounds}")
        if self.device is not None:
            try:
                TypeAdapter(Device).validate_python(self.device)
            except ValidationError as error:
                said = error.errors()[0]["msg"]
                raise FedloomError(f"--device: {said}, got {self.device!r}") from None
        modes = {"--growth": self.growth, "--trials": self.trials, "--peers": self.peers}
        asked = [name for name, value in modes.items() if value]
        if len(asked) > 1:
            raise FedloomError(f"{asked[0]}: expected it alone, got {' and '.join(asked[1:])} too: run them apart")
        if self.growth is not None:
            self._check_growth(self.growth)
        elif self.out is not None:
            raise FedloomError(f"--out: expected with --growth, which draws a picture; got {str(self.out)!r} alone")
        if self.trials and len(self.executors) > 1:
            raise FedloomError(f"--trials: expected one --executor, got {', '.join(self.executors)}")
        if self.peers:
            peers.script()
            if not set(self.workloads or peers.WORKLOADS) & set(peers.WORKLOADS):
                asked_for = ", ".join(self.workloads or ())
                raise FedloomError(f"--peers: expected one of {', '.join(peers.WORKLOADS)}, got {asked_for} alone")

    def _check_growth(self, growth: str) -> None:
        if growth not in GROWTHS:
            raise choose("--growth", growth, GROWTHS)
        if self.workloads is not None:
            raise FedloomError("--growth: expected it without --workloads, since it has its own: leave one out")
        if len(self.executors) > 1:
            raise FedloomError(f"--growth: expected one --executor, got {', '.join(self.executors)}")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise FedloomError(f"--out: expected a folder, got the file {str(self.out)!r}")


def names(option: str, given: str | Sequence[str] | None, known: Iterable[str]) -> tuple[str, ...] | None:
    """The names in an option that takes several, each once, whichever way they are written; None: not given.

    >>> names("--workloads", "w2,W1,W2", ["W1", "W2", "W3"])
    ('W2', 'W1')
    """
    if given is None or given == []:
        return None
    folded = {name.casefold(): name for name in known}
    words = [word.strip() for text in ([given] if isinstance(given, str) else given) for word in text.split(",")]
    for word in words:
        if word.casefold() not in folded:
            raise choose(option, word, folded.values())
    return tuple(dict.fromkeys(folded[word.casefold()] for word in words))


def workload_names(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    return names("--workloads", given, WORKLOADS)


def executor_names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return names("--executor", given, EXECUTORS) or ("auto",)
