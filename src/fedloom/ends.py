"""What a run came to at its end: not its last test alone, which swings too much, nor its climb."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MOST, SHARE = 10, 5
ENDS = f"final figures: means over the last {MOST} tests, of few tests over the last fifth"


def last(values: Sequence[float]) -> Sequence[float]:
    """
    >>> [len(last([0.0] * tests)) for tests in (0, 1, 9, 20, 50, 500)]
    [0, 1, 1, 4, 10, 10]
    """
    return values[-max(1, min(MOST, len(values) // SHARE)) :]


def final(values: Sequence[float]) -> float | None:
    """Their mean; None where there are none."""
    return statistics.fmean(last(values)) if values else None
