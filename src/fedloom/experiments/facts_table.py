"""Facts of our own beside a paper's: one line each, and whether they are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from fedloom.experiments.facts import Fact, same
from fedloom.experiments.published import Published
from fedloom.experiments.results import Key, key
from fedloom.experiments.study_sections import COLUMN, ROW
from fedloom.experiments.study_table import MARKS
from fedloom.experiments.words import fact_words


def facts_table(found: Sequence[Fact], beside: Mapping[Key, Published], compared: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for heading in ("", "", "ours", "paper", ""):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    row = None
    for fact in found:
        number = beside.get(key(fact.cell))
        mark = "" if number is None or not compared else MARKS[same(fact, number)]
        words = [fact.cell[ROW] if fact.cell[ROW] != row else "", fact.cell[COLUMN], fact_words(fact.value)]
        row = fact.cell[ROW]
        table.add_row(*map(Text, [*words, fact_words(number.value) if number else "", mark]))
    return table


def why_not(found: Sequence[Fact]) -> list[str]:
    """A line for every reason why something could not be told, with the rows that it concerns."""
    rows: dict[str, dict[str, None]] = {}
    for fact in found:
        if fact.why:
            rows.setdefault(fact.why, {})[fact.cell[ROW]] = None
    return [f"{'; '.join(there)}: {why}" for why, there in rows.items()]
