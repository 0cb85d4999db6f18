"""The exceptions a user can meet. Each message says what, where, expected, got, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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


def choose(what: str, got: object, allowed: Iterable[str]) -> FedloomError:
    """The error for a name that is not among `allowed`, with the nearest one.

    >>> str(choose("sampler", "unifrom", ["uniform", "poisson"]))
    "sampler: expected one of poisson, uniform; got 'unifrom': did you mean 'uniform'?"
    """
    names = sorted(allowed)
    folded = {name.casefold(): name for name in names}
    near = get_close_matches(str(got).casefold(), folded, n=1)
    hint = f": did you mean {folded[near[0]]!r}?" if near else ""
    return FedloomError(f"{what}: expected one of {', '.join(names)}; got {got!r}{hint}")
