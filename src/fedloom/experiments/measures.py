"""From rounds to figures: what a measure makes of a run, and of all seeds of a cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fedloom.experiments.study_sections import Measure

PER_ROUND = ("simulated_seconds", "seconds")
"""What is recorded round by round and meant as a sum."""

Records = Sequence[Mapping[str, Any]]
"""One run's rounds, as `metrics.jsonl` holds them."""


@dataclass(frozen=True)
class Outcome:
    """What a run left: its rounds, and why it ended early where it diverged."""

    rounds: Records
    target: float | None = None
    diverged: str | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Measured:
    """A measure over the seeds of a cell, in the units that are shown.

    `value` is the mean over the seeds that came to one, None where none did; `spread` their sample standard deviation.
    `best` is how far the metric came, which is told where a target was not reached.
    """

    values: tuple[float | None, ...]
    best: float | None = None
    diverged: int = 0
    never: int = 0  # seeds that did not reach the target

    @property
    def value(self) -> float | None:
        found = [value for value in self.values if value is not None]
        return statistics.fmean(found) if found else None

    @property
    def spread(self) -> float | None:
        found = [value for value in self.values if value is not None]
        return statistics.stdev(found) if len(found) > 1 else None

    @property
    def complete(self) -> bool:
        """Whether every seed came to a value."""
        return bool(self.values) and all(value is not None for value in self.values)

    @property
    def unreached(self) -> bool:
        """Whether most seeds never reached the target."""
        return self.never > len(self.values) / 2

    @property
    def rank(self) -> float | None:
        """The number that claims compare, which no seed is left out of.

        Where one never reached the target it is the median (of two the earlier), with that one infinitely late; where
        one diverged, and so came to nothing, there is none.
        """
        if self.never:
            return statistics.median_low(math.inf if value is None else value for value in self.values)
        return None if self.diverged and not self.complete else self.value


def measure_cell(measure: Measure, outcomes: Sequence[Outcome]) -> Measured:
    """One measure over a cell's runs."""
    take = KINDS[measure.kind]
    counts = measure.kind in _COUNTS
    values: list[float | None] = []
    for outcome in outcomes:
        alive = outcome.diverged is None or measure.kind in _OUTLIVE
        value = take(measure, outcome) if alive and _came_far_enough(measure, outcome) else None
        values.append(None if value is None else value if counts else measure.scale * value)
    diverged = sum(outcome.diverged is not None for outcome in outcomes)
    if measure.kind == "total_to":
        return Measured(tuple(values), diverged=diverged, never=sum(value is None for value in values))
    if measure.kind != "rounds_to":
        return Measured(tuple(values), diverged=diverged)
    reached = [max((value for _, value in series(measure, outcome)), default=None) for outcome in outcomes]
    most = [value for value in reached if value is not None]
    return Measured(
        tuple(values),
        best=measure.scale * statistics.fmean(most) if most else None,
        diverged=diverged,
        never=sum(value is None for value in values),
    )


def _came_far_enough(measure: Measure, outcome: Outcome) -> bool:
    """Whether a run came to the round up to which it is asked; one that reached a target first did."""
    if measure.until is None or measure.kind in _ARRIVE:
        return True
    return bool(outcome.rounds) and int(outcome.rounds[-1]["round"]) + 1 >= measure.until


def series(measure: Measure, outcome: Outcome) -> list[tuple[int, float]]:
    """(round, value) wherever the metric was measured; rounds are counted from 1."""
    found = [(int(record["round"]) + 1, _value(measure, record)) for record in outcome.rounds]
    until = measure.until or math.inf
    return [(round, float(value)) for round, value in found if value is not None and round <= until]


def matching(pattern: str, records: Records) -> list[str]:
    """The metrics that a name with a star stands for, in the order in which they come.

    >>> matching("gsi/*", [{"round": 0, "gsi": 1.0, "gsi/w": 1.5, "gsi/b": 1.2}])
    ['gsi/w', 'gsi/b']
    """
    return list(dict.fromkeys(name for record in records for name in record if fnmatchcase(name, pattern)))


def _value(measure: Measure, record: Mapping[str, Any]) -> float | None:
    if measure.across is None:
        value: float | None = record.get(measure.metric)
        return value
    values = [record[name] for name in matching(measure.metric, [record])]
    values = [value for value in values if value is not None]
    return ACROSS[measure.across](values) if values else None


ACROSS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "lowest": min,
    "highest": max,
    "deviation": statistics.pstdev,
}


def over(measured: Measured, base: Measured) -> Measured:
    """The ratio to another cell's number, which no seed of it is left out of, seed by seed."""
    below = base.rank
    if not below or math.isinf(below):
        return Measured(tuple(None for _ in measured.values), diverged=measured.diverged)
    values = tuple(None if value is None else value / below for value in measured.values)
    return Measured(values, diverged=measured.diverged, never=measured.never)


def _final(measure: Measure, outcome: Outcome) -> float | None:
    points = series(measure, outcome)
    values = [value for round, value in points if round > points[-1][0] - measure.last]
    return statistics.fmean(values) if values else None


def _at(measure: Measure, outcome: Outcome) -> float | None:
    return dict(series(measure, outcome)).get(measure.round or 0)


def _best(measure: Measure, outcome: Outcome) -> float | None:
    return max((value for _, value in series(measure, outcome)), default=None)


def _lowest(measure: Measure, outcome: Outcome) -> float | None:
    return min((value for _, value in series(measure, outcome)), default=None)


def _highest_at(measure: Measure, outcome: Outcome) -> float | None:
    found = max(series(measure, outcome), key=lambda point: (point[1], -point[0]), default=None)
    return None if found is None else found[0]


def _lowest_at(measure: Measure, outcome: Outcome) -> float | None:
    found = min(series(measure, outcome), key=lambda point: (point[1], point[0]), default=None)
    return None if found is None else found[0]


def _rounds_to(measure: Measure, outcome: Outcome) -> float | None:
    target = outcome.target if measure.target is None else measure.target
    if target is None:
        return None
    return next((float(round) for round, value in series(measure, outcome) if value >= target), None)


def _drop(measure: Measure, outcome: Outcome) -> float | None:
    points, round = dict(series(measure, outcome)), measure.round or 0
    before, after = points.get(round - 1), points.get(round)
    return None if before is None or after is None else before - after


def _total(measure: Measure, outcome: Outcome) -> float | None:
    values = [value for _, value in series(measure, outcome)]
    if not values:
        return None
    return math.fsum(values) if measure.metric in PER_ROUND else values[-1]


def _total_to(measure: Measure, outcome: Outcome) -> float | None:
    reached = _rounds_to(measure.model_copy(update={"metric": "test_accuracy"}), outcome)
    return None if reached is None else _total(measure.model_copy(update={"until": int(reached)}), outcome)


def _catastrophic(measure: Measure, outcome: Outcome) -> float | None:
    from fedloom.history import History  # torch, by then loaded for the runs

    until = measure.until or math.inf
    if outcome.diverged is not None and len(outcome.rounds) < until:
        return 1.0
    history = History(rounds=[dict(record) for record in outcome.rounds if int(record["round"]) < until])
    return float(history.catastrophic(measure.metric, measure.chance))


def _correlation(measure: Measure, outcome: Outcome) -> float | None:
    """None where one of the two never changes."""
    other = {int(record["round"]) + 1: record.get(str(measure.against)) for record in outcome.rounds}
    pairs = [(value, there) for round, value in series(measure, outcome) if (there := other.get(round)) is not None]
    if len(pairs) < 2 or any(len(set(column)) < 2 for column in zip(*pairs, strict=True)):
        return None
    return statistics.correlation(*zip(*pairs, strict=True))


def _curve(measure: Measure, outcome: Outcome) -> float | None:
    return None


KINDS: dict[str, Callable[[Measure, Outcome], float | None]] = {
    "final": _final,
    "at": _at,
    "best": _best,
    "lowest": _lowest,
    "highest_at": _highest_at,
    "lowest_at": _lowest_at,
    "rounds_to": _rounds_to,
    "drop": _drop,
    "total": _total,
    "total_to": _total_to,
    "catastrophic": _catastrophic,
    "chosen": _curve,  # no run can tell: results.py does
    "correlation": _correlation,
    "curve": _curve,
}
_COUNTS = ("rounds_to", "highest_at", "lowest_at")
"""Kinds that come to a round, which `scale` leaves alone."""
_ARRIVE = ("rounds_to", "total_to")
"""Kinds that end at a target."""
_OUTLIVE = (*_ARRIVE, "catastrophic", "at")
"""Kinds that mean something in a run that diverged later."""
