"""What the runs came to: the page's tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedloom.report import settings
from fedloom.report.markup import Cell, definitions, table, tag, text
from fedloom.report.runs import Run
from fedloom.report.series import Series, metrics

LAST = 10
"""A final figure is a mean over this many evaluations at the end: a single one swings too much."""
NOTHING = Cell("–")


def is_share(metric: str) -> bool:
    """Whether a metric is a part of one, shown in percent.

    >>> is_share("client_accuracy/p5"), is_share("test_loss")
    (True, False)
    """
    return any(word in metric for word in ("accuracy", "recall", "fraction"))


def score(series: Sequence[Series]) -> str | None:
    """The metric that runs are ranked by: the test accuracy, or what stands in its place."""
    found = [name for name in metrics(series) if name.startswith("test_") and "loss" not in name]
    return "test_accuracy" if "test_accuracy" in found else next(iter(found), None)


def summary(series: Sequence[Series]) -> str:
    """The table of all series, the best first; a click on a heading sorts it otherwise."""
    metric = score(series)
    several = len({each.group for each in series}) > 1
    named = (metric or "").removeprefix("test_")
    headings = [
        "series",
        *(["folder"] if several else []),
        "seeds",
        *([f"final {named} %", f"last {LAST}", f"best {named} %"] if metric else []),
        "test loss",
        "train loss",
        "rounds",
        "seconds",
        "state",
    ]
    rows = []
    for index, each in enumerate(series):
        finals = [value for run in each.runs if (value := final(run, metric or "")) is not None]
        rank = (-statistics.fmean(finals) if finals else 1.0, index)
        where = [Cell(each.group)] if several else []
        scores = _scores(each, metric, finals) if metric else []
        rows.append((rank, [Cell(each.label, series=index), *where, _seeds(each), *scores, *_others(each)]))
    return table(headings, [row for _, row in sorted(rows, key=lambda pair: pair[0])], sortable=True)


def final(run: Run, metric: str) -> float | None:
    """The mean of the last evaluations; None where there is none, or the run diverged."""
    values = run.values(metric)[-LAST:]
    return statistics.fmean(values) if values and run.diverged is None else None


def _scores(each: Series, metric: str, finals: list[float]) -> list[Cell]:
    best = [max(values) for run in each.runs if (values := run.values(metric))]
    last = [value for run in each.runs if run.diverged is None for value in run.values(metric)[-LAST:]]
    spread = f" ± {100 * statistics.stdev(finals):.2f}" if len(finals) > 1 else ""
    return [
        Cell(f"{100 * (mean := statistics.fmean(finals)):.2f}{spread}", mean, "strong") if finals else NOTHING,
        Cell(f"{100 * min(last):.1f} to {100 * max(last):.1f}", max(last) - min(last)) if last else NOTHING,
        Cell(f"{100 * (mean := statistics.fmean(best)):.2f}", mean) if best else NOTHING,
    ]


def _others(each: Series) -> list[Cell]:
    cells = []
    for metric in ("test_loss", "train_loss"):
        values = [value for run in each.runs if (value := final(run, metric)) is not None]
        cells.append(Cell(f"{(mean := statistics.fmean(values)):.4g}", mean) if values else NOTHING)
    lengths = [len(run.rounds) for run in each.runs]
    rounds = f"{lengths[0]:,}" if len(set(lengths)) == 1 else f"{min(lengths):,} to {max(lengths):,}"
    seconds = statistics.fmean(run.seconds for run in each.runs)
    states = [run.status for run in each.runs]
    told = [
        state if len(states) == states.count(state) else f"{states.count(state)} {state}" for state in _once(states)
    ]
    kind = "" if set(states) == {"finished"} else "bad"
    return [*cells, Cell(rounds, max(lengths)), Cell(f"{seconds:,.1f}", seconds), Cell(", ".join(told), kind=kind)]


def _seeds(each: Series) -> Cell:
    seeds = [run.seed for run in each.runs if run.seed is not None]
    count = len(each.runs)
    return Cell(", ".join(map(str, sorted(seeds))) if 0 < len(seeds) <= 5 else str(count), count)


def _once(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(values))


def divergences(series: Sequence[Series]) -> str:
    """Where and why runs diverged."""
    lines = [
        tag("li", text(f"{each.label}, seed {run.seed}: {run.diverged}"))
        for each in series
        for run in each.runs
        if run.diverged is not None
    ]
    return tag("ul", "".join(lines), class_="bad") if lines else ""


def differences(series: Sequence[Series]) -> str:
    """A row per series, a column per key whose value is not the same in all of them; what they share is folded away."""
    tables = [each.settings for each in series]
    keys = [key for key in settings.differing(tables) if key != "algorithm.label"]
    parts = []
    if keys:
        rows = [
            [Cell(each.label, series=index), *(Cell(each.settings.get(key, settings.ABSENT)) for key in keys)]
            for index, each in enumerate(series)
        ]
        parts.append(table(["series", *keys], rows))
    elif len(series) > 1:
        parts.append(tag("p", "No setting differs between the series.", class_="note"))
    shared = settings.common(tables)
    if shared:
        told = f"{len(shared)} settings that {'all series share' if len(series) > 1 else 'the runs have'}"
        parts.append(tag("details", tag("summary", text(told)) + definitions(shared, "settings")))
    return "\n".join(parts)
