"""A progress bar over rounds, for a person at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def rounds_bar(rounds: int, shown: bool) -> Iterator[Callable[[dict[str, Any] | int], None]]:
    """Yields a function to call with each round's record, or with how many are done already.

    It draws nothing unless `shown`.
    """
    if not shown:
        yield lambda record: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("training", total=rounds)

        def show(record: dict[str, Any] | int) -> None:
            if isinstance(record, int):
                bar.update(task, advance=record)
                return
            accuracy = record.get("test_accuracy")
            # a private run tells what it has spent instead of its clients' loss
            name, value = next((name, record[name]) for name in ("epsilon", "train_loss") if name in record)
            said = f"{name.removeprefix('train_')} {value:.3f}"
            said += "" if accuracy is None else f"  accuracy {accuracy:.1%}"
            bar.update(task, advance=1, description=said)

        yield show
