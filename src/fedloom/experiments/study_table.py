"""A study's numbers as a table: measured beside published, how far apart, and whether that is a match."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedloom.experiments.published import Published, matched_in
from fedloom.experiments.results import Key, Result, key
from fedloom.experiments.study import Study
from fedloom.experiments.study_sections import MEASURE, Cell
from fedloom.experiments.words import difference_words, measured_words, published_words

WIDE = 160
"""Characters that a table may take where there is no terminal to fit."""
MARKS = {True: "✓", False: "✗", None: ""}


@dataclass(frozen=True)
class Line:
    """A cell in words."""

    measured: str
    published: str
    difference: str
    mark: str


def line(study: Study, result: Result, number: Published | None) -> Line:
    """One cell."""
    measure, measured = result.measure, result.measured
    mark = "" if number is None else MARKS[matched_in(study, result, number)]
    away = "" if study.stands_in(result.cell) else difference_words(measure, measured, number)
    return Line(measured_words(measure, measured), published_words(measure, number), away, mark)


def study_table(study: Study, found: Sequence[Result], numbers: Mapping[Key, Published], console: Console) -> Table:
    """The axes that the study puts across go across where they fit; else every cell has a line of its own."""
    axes = [axis.name for axis in study.shown] + ([MEASURE] if len(study.counted) > 1 else [])
    across = [axis for axis in study.table.columns if axis in axes]
    down = [axis for axis in study.table.rows if axis in axes and axis not in across]
    told = {*across, *down, *study.fixed}
    down += [axis for axis in axes if axis not in told]
    lines = {key(result.cell): line(study, result, numbers.get(key(result.cell))) for result in found}
    if across:
        table = _table(study, found, lines, down, across)
        if _width(console, table) <= (console.width if console.is_terminal else WIDE):
            return table
    return _table(study, found, lines, [*down, *across], [])


def print_table(console: Console, table: Table) -> None:
    """Print a table; where there is no terminal to fit, none of it is cut."""
    before = console.width
    if not console.is_terminal:
        console.width = max(before, _width(console, table))
    console.print(table, crop=False)
    console.width = before


def _width(console: Console, table: Table) -> int:
    """What it takes to show all of it."""
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def _table(
    study: Study, found: Sequence[Result], lines: Mapping[Key, Line], down: Sequence[str], across: Sequence[str]
) -> Table:
    rows, columns = _places(study, found, down), _places(study, found, across)
    beside = any(each.published for each in lines.values())
    marked = any(each.mark for each in lines.values())
    chosen = {key(result.cell): result.chosen for result in found if result.chosen}
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for axis in down:
        table.add_column(Text(axis), overflow="fold")  # where room is short names give way, numbers do not
    for column in columns:
        name = ", ".join(column.values())
        table.add_column(Text(f"{name}\nmeasured".strip()), justify="right", no_wrap=True)
        if beside:
            table.add_column(Text("\npaper" if name else "paper"), justify="right", no_wrap=True)
            table.add_column(Text("\ndiff" if name else "diff"), justify="right", no_wrap=True)
        if marked:
            table.add_column(Text(""), no_wrap=True)
        if chosen:
            table.add_column(Text("\nat" if name else "at"), no_wrap=True)
    before: Cell = {}
    for row in rows:
        words = [_unless_same(row, before, down[: place + 1]) for place in range(len(down))]
        before = row
        for column in columns:
            place = key(study.fixed | row | column)
            each = lines.get(place, Line("", "", "", ""))
            words.append(each.measured)
            words += [each.published, each.difference] if beside else []
            words += [each.mark] if marked else []
            words += [", ".join(f"{a} {v}" for a, v in chosen.get(place, {}).items())] if chosen else []
        table.add_row(*map(Text, words))
    return table


def _places(study: Study, found: Sequence[Result], axes: Sequence[str]) -> list[Cell]:
    """The combinations of these axes' values that some result has, in the study's order."""
    there = {key({axis: result.cell[axis] for axis in axes}) for result in found}
    combinations = itertools.product(*(study.values(axis) for axis in axes))
    places = [dict(zip(axes, values, strict=True)) for values in combinations]
    return [place for place in places if key(place) in there]


def _unless_same(row: Cell, before: Cell, axes: Sequence[str]) -> str:
    """The last axis's value; nothing where all of these are the same as in the row above."""
    same = bool(before) and all(row[axis] == before[axis] for axis in axes)
    return "" if same else row[axes[-1]]
