"""A data set before it is dealt to clients: what a reader returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedloom.data.federated import Augment


@dataclass(frozen=True, eq=False)
class Source:
    """Arrays or tensors with one entry per row, with what partitioners may read: labels, coarse labels, owners."""

    x: Any
    y: Any
    test: tuple[Any, Any]
    coarse: Any = None
    fine: Any = None
    """The labels beneath `coarse`, where `y` is something else."""
    test_tree: tuple[Any, Any] | None = None
    """Fine and coarse labels of the test rows."""
    owners: Any = None
    test_owners: Any = None
    """Who owns the test rows; where training rows have the same owners, each client has test rows of its own."""
    augment: Augment | None = None
    classes: int | None = None
    """How many there are, where the rows that were read may lack some."""
    words: tuple[str, ...] | None = None
    """What the numbers 1, 2, ... in `x` stand for, where they are words."""


Reader = Callable[..., Source]
