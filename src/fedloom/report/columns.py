"""Names and what is said of them, in two columns under a title."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_columns(title: str, rows: Mapping[str, str], console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, about in rows.items():
        table.add_row(Text(f"  {name}"), Text(about))
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()
