"""Facts of our own beside a paper's: one line each, and whether they are the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from fedloom.experiments.facts import Fact
from fedloom.experiments.published import Published
from fedloom.experiments.results import Key, key
from fedloom.experiments.study_sections import COLUMN, ROW
from fedloom.report.study_table import MATCH, MISS


def same(fact: Fact, number: Published) -> bool | None:
    """Whether a fact is what was printed; None where there is nothing to compare.

    >>> same(Fact({}, 7850.0), Published(value=7850.0))
    True
    """
    if fact.value is None or number.value is None:
        return None
    if isinstance(fact.value, float) and isinstance(number.value, float):
        return math.isclose(fact.value, number.value, rel_tol=1e-9)
    return str(fact.value) == str(number.value)


def facts_table(found: Sequence[Fact], beside: Mapping[Key, Published], compared: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for heading in ("", "", "ours", "paper", ""):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    row = None
    for fact in found:
        number = beside.get(key(fact.cell))
        mark = "" if number is None or not compared else {True: MATCH, False: MISS, None: ""}[same(fact, number)]
        words = [fact.cell[ROW] if fact.cell[ROW] != row else "", fact.cell[COLUMN], _words(fact.value)]
        row = fact.cell[ROW]
        table.add_row(*map(Text, [*words, _words(number.value) if number else "", mark]))
    return table


def why_not(found: Sequence[Fact]) -> list[str]:
    """A line for every row of which something could not be told."""
    return [f"{row}: {why}" for row, why in dict.fromkeys((fact.cell[ROW], fact.why) for fact in found) if why]


def _words(value: float | str | None) -> str:
    """
    >>> _words(1206590.0), _words(0.1), _words(None)
    ('1,206,590', '0.1', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1000 else f"{value:g}"
