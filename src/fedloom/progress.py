"""A progress bar over rounds, for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedloom.callbacks import Callback

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def rounds_bar(rounds: int, shown: bool) -> Iterator[Callback]:
    """Yields a callback that draws how far the runs are; it draws nothing unless `shown`."""
    if not shown:
        yield lambda record: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        bar.add_task("training", total=rounds)
        yield _Shown(bar)


class _Shown:
    """Sees every round, and where a run goes on, those that it has behind it."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar

    def begin(self, resolved: Mapping[str, Any]) -> None:
        if "resumed" in resolved:
            self.bar.advance(self.bar.task_ids[0], resolved["resumed"]["round"])

    def __call__(self, record: Mapping[str, Any]) -> None:
        accuracy = record.get("test_accuracy")
        # a private run tells what it has spent instead of its clients' loss
        name, value = next((name, record[name]) for name in ("epsilon", "train_loss") if name in record)
        said = f"{name.removeprefix('train_')} {value:.3f}"
        said += "" if accuracy is None else f"  accuracy {accuracy:.1%}"
        self.bar.update(self.bar.task_ids[0], advance=1, description=said)
