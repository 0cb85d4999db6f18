"""What a study's runs come to: a measured number for every cell, the best of those searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fedloom.experiments.measures import Measured, Outcome, measure_cell, over
from fedloom.experiments.study import Study, StudyRun, cells, seeds_of
from fedloom.experiments.study_sections import MEASURE, Cell, Measure, picked

Key = frozenset[tuple[str, str]]
V = TypeVar("V")


@dataclass(frozen=True)
class Result:
    """One number of the table: the cell, without the axes that were searched, and what they were found at.

    It is `whole` unless runs are missing, seeds or choices of what is searched: then it is neither compared nor part of
    a claim.
    """

    cell: Cell
    measure: Measure
    measured: Measured
    chosen: Cell = field(default_factory=dict)
    whole: bool = True


def key(cell: Cell) -> Key:
    return frozenset(cell.items())


def without(cell: Mapping[str, V], axes: Iterable[str]) -> dict[str, V]:
    """The cell, or another table of axes, without some of its axes.

    >>> without({"method": "FedAvg", "client rate": "0.1"}, ["client rate"])
    {'method': 'FedAvg'}
    """
    gone = set(axes)
    return {axis: value for axis, value in cell.items() if axis not in gone}


def places_of(study: Study) -> list[Cell]:
    """Every place of a number at the study's scale, asked for or not: the shown axes, and the measure of several."""
    searched = [axis.name for axis in study.searched]
    seen: dict[Key, Cell] = {}
    for cell in cells(study.model_copy(update={"asked": {}})):
        for place in _measured(study, without(cell, searched)):
            seen[key(place)] = place
    return list(seen.values())


def _measured(study: Study, cell: Cell) -> list[Cell]:
    """A cell with each of the measures that it has."""
    several = len(study.counted) > 1
    there = [measure.name for measure in study.counted if picked(cell, measure.where)]
    return [cell | {MEASURE: name} if several else cell for name in there]


def results(study: Study, outcomes: Sequence[tuple[StudyRun, Outcome]]) -> list[Result]:
    """Every measure of every cell; with several measures, each is a coordinate of its own."""
    several = len(study.counted) > 1
    found: list[Result] = []
    there = Counter(key(without(run.cell, [axis.name for axis in study.searched])) for run, _ in outcomes)
    wanted = _runs_of(study)
    for cell, chosen, runs in kept(study, outcomes):
        whole = there[key(cell)] == wanted[key(cell)]
        for measure in study.counted:
            if picked(cell, measure.where):
                named = cell | {MEASURE: measure.name} if several else cell
                measured = _chosen(measure, chosen) if measure.kind == "chosen" else measure_cell(measure, runs)
                found.append(Result(named, measure, measured, chosen, whole))
    return [_over(result, found) for result in found]


def _runs_of(study: Study) -> Counter[Key]:
    """How many runs every shown cell has at the study's scale, whatever was asked for of what is searched."""
    searched = [axis.name for axis in study.searched]
    found: Counter[Key] = Counter()
    for cell in cells(study.model_copy(update={"asked": without(study.asked, searched)})):
        found[key(without(cell, searched))] += len(seeds_of(study, cell))
    return found


def _chosen(measure: Measure, chosen: Cell) -> Measured:
    """The value that a searched axis was found at, where it is a number."""
    try:
        return Measured((measure.scale * float(chosen[measure.metric]),))
    except ValueError:
        return Measured((None,))


def kept(study: Study, outcomes: Sequence[tuple[StudyRun, Outcome]]) -> list[tuple[Cell, Cell, list[Outcome]]]:
    """Every cell that is shown, the values of the searched axes it keeps, and the runs of all its seeds."""
    searched = [axis.name for axis in study.searched]
    groups: dict[Key, tuple[Cell, dict[Key, tuple[Cell, list[Outcome]]]]] = {}
    for run, outcome in outcomes:
        cell = without(run.cell, searched)
        chosen = {axis: run.cell[axis] for axis in searched}
        _, choices = groups.setdefault(key(cell), (cell, {}))
        choices.setdefault(key(chosen), (chosen, []))[1].append(outcome)
    return [(cell, *_best(study, cell, list(choices.values()))) for cell, choices in groups.values()]


def _best(study: Study, cell: Cell, choices: list[tuple[Cell, list[Outcome]]]) -> tuple[Cell, list[Outcome]]:
    """The choice with the best measure; one in which a seed diverged only where there is no other.

    The measure is the axis's own, or the first that the cell has.
    """
    there = [measure for measure in study.counted if picked(cell, measure.where)]
    if len(choices) == 1 or not there:
        return choices[0]
    axis = study.searched[0]
    by = next((measure for measure in there if measure.name == axis.by), there[0])
    ranked = [(choice, measure_cell(by, choice[1])) for choice in choices]
    sound = [(measured.rank, choice) for choice, measured in ranked if not measured.diverged]
    others = [(measured.value, choice) for choice, measured in ranked]
    scored = [(number, choice) for number, choice in sound or others if number is not None]
    if not scored:
        return choices[0]
    pick = max if axis.best == "highest" and not by.lower else min
    return pick(scored, key=lambda pair: pair[0])[1]


def _over(result: Result, found: Sequence[Result]) -> Result:
    """The result as a ratio, where its measure asks for that."""
    if not result.measure.over:
        return result
    wanted = key(result.cell | result.measure.over)
    base = next((other for other in found if key(other.cell) == wanted and other.measure is result.measure), None)
    gone = Measured(tuple(None for _ in result.measured.values), diverged=result.measured.diverged)
    return replace(result, measured=gone if base is None else over(result.measured, base.measured))
