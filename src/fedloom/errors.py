"""The exceptions a user can meet. Each message says what, where, expected, got, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class FedloomError(ValueError):
    """A user's mistake, told in one line."""


class Diverged(FedloomError):
    """The model became non-finite, the global one or every client's: carries the round and the first leaf that did."""

    def __init__(self, round: int, leaf: str, whose: str = "the global model") -> None:
        super().__init__(
            f"round {round}, {leaf!r}: {whose} became non-finite; "
            "the last finite state is kept: lower client_lr or server_lr, or clip the updates"
        )
        self.round = round
        self.leaf = leaf


class AllDiverged(Diverged):
    """Whatever was tried diverged, each in a round of its own."""

    def __init__(self, message: str) -> None:
        FedloomError.__init__(self, message)


class Unlike(FedloomError):
    """Runs that cannot be trained in one stack, and can one by one."""


class OutOfMemory(FedloomError):
    """What cannot be made smaller does not fit the device's memory."""


class Damaged(FedloomError):
    """A run directory that cannot be read as one: a file of it is broken, or it is somebody else's."""


class Changed(Damaged):
    """A run that was begun with other settings, rows or versions."""

    def __init__(self, directory: Path, what: str, do: str) -> None:
        super().__init__(f"{directory}, {what}: {do}")
        self.directory, self.what = directory, what


def positive(what: str, value: Any) -> None:
    """An error unless `value` is a positive number."""
    if not (_is_number(value) and value > 0):
        raise FedloomError(f"{what}: expected a positive number, got {value!r}")


def non_negative(what: str, value: Any) -> None:
    """An error unless `value` is a number of at least 0."""
    if not (_is_number(value) and value >= 0):
        raise FedloomError(f"{what}: expected a number of at least 0, got {value!r}")


def fraction(what: str, value: Any, *, below_one: bool = False) -> None:
    """An error unless `value` is a number in [0, 1], or in [0, 1)."""
    if not (_is_number(value) and 0 <= value <= 1 and not (below_one and value == 1)):
        raise FedloomError(f"{what}: expected a number in [0, 1{')' if below_one else ']'}, got {value!r}")


def existing_folder(what: str, path: Path | None) -> Path | None:
    """The folder, an error unless it is there; None where none was given."""
    if path is not None and not path.is_dir():
        raise FedloomError(f"{what}: expected a folder, got {str(path)!r}, which is none")
    return path


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def choose(what: str, got: object, allowed: Iterable[str]) -> FedloomError:
    """The error for a name that is not among `allowed`, with the nearest one.

    >>> str(choose("sampler", "unifrom", ["uniform", "poisson"]))
    "sampler: expected one of poisson, uniform; got 'unifrom': did you mean 'uniform'?"
    """
    names = sorted(allowed)
    folded = {name.casefold(): name for name in names}
    near = get_close_matches(str(got)[:100].casefold(), folded, n=1)
    hint = f": did you mean {folded[near[0]]!r}?" if near else ""
    return FedloomError(f"{what}: expected one of {', '.join(names)}; got {cut(repr(got))}{hint}")


def cut(said: object) -> str:
    """What was said, at a length that fits on a line.

    >>> cut("y" + "e" * 100 + "s")[55:]
    'ee...'
    """
    text = str(said)
    return text if len(text) <= 60 else f"{text[:57]}..."
