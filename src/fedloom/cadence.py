"""How often a run's state is written: as often as a share of its time allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE = 0.02
"""Of a run's time may go into writing its state."""

LONGEST = 60.0
"""Seconds between two states at most, whatever they cost."""


class Cadence:
    """When the next state is due: so long after the last one that its cost is a small share of the time between.

    >>> seconds = iter([0, 0, 0, 0.5, 20, 26])
    >>> cadence = Cadence(clock=lambda: next(seconds))
    >>> cadence.due()  # what it costs is not known yet
    True
    >>> with cadence.writing():
    ...     pass  # takes half a second
    >>> [cadence.due() for now in (20, 26)]
    [False, True]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last, self._cost = clock, clock(), 0.0

    def due(self) -> bool:
        return self._clock() - self._last >= min(LONGEST, self._cost / SHARE)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around the writing of a state: notes what it takes."""
        before = self._clock()
        yield
        self._last = self._clock()
        self._cost = self._last - before
