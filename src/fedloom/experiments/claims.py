"""The papers' sentences, decided from measured numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fedloom.experiments.results import Key, Result, key, places_of, without
from fedloom.experiments.study import Study
from fedloom.experiments.study_sections import MEASURE, Cell, Claim, picked

Row = dict[str, float]
"""The measured number at every value of an axis, all else being equal."""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim held, in how many of the cells that could tell; None where none could."""

    text: str
    holds: bool | None
    held: int = 0
    of: int = 0
    detail: str = ""

    def words(self) -> str:
        """
        >>> Verdict("FedAdp needs fewer rounds", True, 12, 12).words()
        'pass: FedAdp needs fewer rounds (in 12 of 12 cells)'
        """
        mark = {True: "pass", False: "fail", None: "not decided"}[self.holds]
        count = f"in {self.held} of {self.of} cells" if self.of else "no cell to tell"
        return f"{mark}: {self.text} ({count}{f'; {self.detail}' if self.detail else ''})"


def decide(study: Study, found: Sequence[Result]) -> list[Verdict]:
    """A verdict for every claim of the study; where no cell could tell it says which would."""
    verdicts = [_decide(study, claim, found) for claim in study.claims]
    return [
        each if each.of else replace(each, detail=_about(claim))
        for claim, each in zip(study.claims, verdicts, strict=True)
    ]


def _about(claim: Claim) -> str:
    """The cells that a claim needs; nothing where it needs all."""
    needs = [f"{axis} {value if isinstance(value, str) else ' or '.join(value)}" for axis, value in claim.where.items()]
    if claim.axis is not None and claim.named():
        needs.append(f"{claim.axis} {' and '.join(claim.named())}")
    return f"that needs {', '.join(needs)}" if needs else ""


def _decide(study: Study, claim: Claim, found: Sequence[Result]) -> Verdict:
    wanted = [result for result in found if result.whole and picked(result.cell, claim.where)]
    if claim.axis != MEASURE and MEASURE not in claim.where:
        name = claim.measure or study.counted[0].name
        wanted = [result for result in wanted if result.measure.name == name]
    if claim.kind in _LIMITS:
        numbers = [rank for result in wanted if (rank := result.measured.rank) is not None]
        return _verdict(claim, [_LIMITS[claim.kind](number, claim.number or 0.0, claim.margin) for number in numbers])
    if claim.kind in _WHOLE:
        wanted = _whole(study, claim, wanted)
    rows = list(_rows(str(claim.axis), wanted))
    if claim.kind == "reduction":
        return _reduction(claim, rows)
    answers = [answer for row in rows if (answer := _ANSWERS[claim.kind](claim, row)) is not None]
    return _verdict(claim, answers, f"give or take {claim.margin:g}" if claim.margin and claim.kind in _GIVE else "")


def _whole(study: Study, claim: Claim, found: Sequence[Result]) -> list[Result]:
    """Without rows that lack a value of the axis that the scale has: not run, or come to nothing and compared with."""
    axis = str(claim.axis)
    rows: dict[Key, list[Result]] = {}
    for result in found:
        rows.setdefault(key(without(result.cell, [axis])), []).append(result)
    expected: dict[Key, set[str]] = {}
    for place in places_of(study) if study.facts is None else ():
        if axis in place and picked(place, claim.where):
            expected.setdefault(key(without(place, [axis])), set()).add(place[axis])
    kept: list[Result] = []
    for group, there in rows.items():
        compared = [each for each in there if claim.kind == "window" or each.measured.rank is not None]
        if expected.get(group, set()) <= {each.cell[axis] for each in compared if axis in each.cell}:
            kept += there
    return kept


def _rows(axis: str, found: Sequence[Result]) -> Iterator[Row]:
    """One for every setting of the other axes; a row whose targets were all never reached says nothing."""
    groups: dict[Key, Row] = {}
    for result in found:
        cell: Cell = result.cell
        row = groups.setdefault(key(without(cell, [axis])), {})
        if axis in cell and (rank := result.measured.rank) is not None:
            row[cell[axis]] = rank
    yield from (row for row in groups.values() if any(map(math.isfinite, row.values())))


def _verdict(claim: Claim, answers: Sequence[bool], detail: str = "") -> Verdict:
    if not answers:
        return Verdict(claim.text, None)
    held = sum(answers)
    return Verdict(claim.text, held >= claim.share * len(answers), held, len(answers), detail)


def _pair(claim: Claim, row: Row) -> tuple[float, float] | None:
    """The two numbers; None where one is missing, or neither's target was reached."""
    if str(claim.first) not in row or str(claim.second) not in row:
        return None
    first, second = row[str(claim.first)], row[str(claim.second)]
    return None if first == second == math.inf else (first, second)


def _compare(holds: Callable[[float, float, float], bool]) -> Callable[[Claim, Row], bool | None]:
    def answer(claim: Claim, row: Row) -> bool | None:
        pair = _pair(claim, row)
        return None if pair is None else holds(*pair, claim.margin)

    return answer


def _between(claim: Claim, row: Row) -> bool | None:
    if any(value not in row for value in (str(claim.first), *claim.values)):
        return None
    own, numbers = row[str(claim.first)], [row[value] for value in claim.values]
    return min(numbers) - claim.margin <= own <= max(numbers) + claim.margin


def _order(claim: Claim, row: Row) -> bool | None:
    if any(value not in row for value in claim.values):
        return None
    numbers = [row[value] for value in claim.values]
    return all(after >= before - claim.margin for before, after in pairwise(numbers))


def _first_is_best(claim: Claim, row: Row) -> bool | None:
    if str(claim.first) not in row or len(row) < 2:
        return None
    own, others = row[str(claim.first)], row.values()
    return own <= min(others) + claim.margin if claim.lowest else own >= max(others) - claim.margin


def _diminishing(claim: Claim, row: Row) -> bool | None:
    if any(value not in row for value in claim.values):
        return None
    numbers = [row[value] for value in claim.values]
    first, last = numbers[1] - numbers[0], numbers[-1] - numbers[-2]
    return None if math.isnan(first) or math.isnan(last) else last <= first + claim.margin  # neither was reached


def _window(claim: Claim, row: Row) -> bool:
    best = min(row.values()) if claim.lowest else max(row.values())
    good = sum(abs(value - best) <= claim.margin for value in row.values())
    return (claim.number or 0) <= good <= (good if claim.most is None else claim.most)


_GIVE = ("at_most", "at_least", "between", "order", "best", "diminishing")
"""Kinds that hold although a number is on the wrong side, by the margin."""
_WHOLE = ("best", "window")
"""Kinds that compare all values of an axis. What diverged is no good value of a window's, and may be the best."""
_LIMITS: dict[str, Callable[[float, float, float], bool]] = {
    "above": lambda number, limit, margin: number > limit - margin,
    "below": lambda number, limit, margin: number < limit + margin,
    "near": lambda number, limit, margin: abs(number - limit) <= margin,
}
_ANSWERS: dict[str, Callable[[Claim, Row], bool | None]] = {
    "less": _compare(lambda first, second, margin: first < second - margin),
    "greater": _compare(lambda first, second, margin: first > second + margin),
    "at_most": _compare(lambda first, second, margin: first <= second + margin),
    "at_least": _compare(lambda first, second, margin: first >= second - margin),
    "alike": _compare(lambda first, second, margin: abs(first - second) <= margin),
    "between": _between,
    "order": _order,
    "best": _first_is_best,
    "diminishing": _diminishing,
    "window": _window,
}


def _reduction(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """By how much the first is below the second where it is most so; infinite numbers say nothing."""
    pairs = [pair for row in rows if (pair := _pair(claim, row)) is not None]
    shares = [1 - first / second for first, second in pairs if 0 < second < math.inf and first < math.inf]
    if not shares:
        return Verdict(claim.text, None)
    most = max(shares)
    reached = sum(share >= (claim.number or 0.0) - claim.margin for share in shares)
    return Verdict(claim.text, reached > 0, reached, len(shares), f"the most is {100 * most:.1f} %")
