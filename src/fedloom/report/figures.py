"""What the runs came to: the page's tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Sequence

from fedloom import ends
from fedloom.report.homes import Judged
from fedloom.report.markup import Cell, table, tag, text
from fedloom.report.runs import Run
from fedloom.report.series import Series, metrics

NOTHING = Cell("–")
LOSSES = ("test_loss", "validation_loss", "train_loss")


def is_share(metric: str) -> bool:
    """Whether a metric is a part of one, shown in percent.

    >>> is_share("client_accuracy/p5"), is_share("test_loss")
    (True, False)
    """
    return any(word in metric for word in ("accuracy", "recall", "fraction"))


def words(metric: str) -> str:
    """
    >>> words("test_accuracy"), words("validation_accuracy")
    ('accuracy', 'validation accuracy')
    """
    return metric.removeprefix("test_").replace("_", " ")


def decided(series: Sequence[Series]) -> Judged | None:
    """By what the tuning judged that all the runs are of; None where they are of none, or not judged alike."""
    judged = [run.told.judged for each in series for run in each.runs]
    return judged[0] if len({each and (each.metric, each.last) for each in judged}) == 1 else None


def score(series: Sequence[Series]) -> str | None:
    """The metric that runs are ranked by: what decided a tuning, else the test accuracy, or what stands for it."""
    if (judged := decided(series)) is not None:
        return judged.metric
    found = metrics(series)
    usual = [name for part in ("test_", "validation_") for name in found if name.startswith(part) and not _lower(name)]
    return next((name for name in ("test_accuracy", *usual, *LOSSES) if name in found), None)


def _lower(metric: str) -> bool:
    """Whether less is better."""
    return "loss" in metric or "error" in metric


def final(run: Run, metric: str) -> float | None:
    """What a tuning took it for, else what it came to at the end; None where there is nothing, or it diverged."""
    if run.told.judged is not None and run.told.judged.metric == metric:
        return run.told.judged.score
    return None if run.diverged is not None else ends.final(run.values(metric))


def rank(each: Series, metric: str | None) -> float:
    """A number that is the lower the better the series is."""
    finals = _finals(each, metric) if metric else []
    mean = statistics.fmean(finals) if finals else math.inf
    return mean if not finals or _lower(metric or "") else -mean


def _finals(each: Series, metric: str) -> list[float]:
    return [value for run in each.runs if (value := final(run, metric)) is not None]


def summary(series: Sequence[Series]) -> str:
    """The table of all series, the best first; a click on a heading sorts it otherwise."""
    metric = score(series)
    headings = ["series"]
    if metric is not None:
        unit = " %" if is_share(metric) else ""
        first = "" if decided(series) is not None else "final "
        headings += [f"{first}{words(metric)}{unit}", "range", f"best {words(metric)}{unit}"]
    losses = [name for name in LOSSES if name != metric]
    headings += [*(name.replace("_", " ") for name in losses), "rounds", "seconds", "folder", "seeds", "state"]
    rows = []
    for each in sorted(series, key=lambda each: rank(each, metric)):
        scores = _scores(each, metric) if metric is not None else []
        cells = [Cell(each.label, look=each.look), *scores, *(_loss(each, name) for name in losses)]
        rows.append(
            [*cells, _rounds(each), _seconds(each), Cell(each.group or "–", kind="long"), _seeds(each), _state(each)]
        )
    return slim([*map(Cell, headings)], rows, {"rounds", "folder", "seeds", "state"})


def meaning(series: Sequence[Series]) -> str:
    """What the summary's numbers are."""
    judged = decided(series)
    if judged is None:
        told = [ends.ENDS.capitalize()]
        told += ["the range is of the same tests"] if score(series) is not None else []
    else:
        over = "all rounds" if judged.last is None else f"the last {judged.last} rounds"
        told = [f"{words(judged.metric).capitalize()} is what the tuning went by, a mean over {over}"]
        told.append(f"the range is of the last {ends.MOST} tests, of few tests of the last fifth")
    return "; ".join([*told, "± is the standard deviation over seeds."])


def slim(headings: Sequence[Cell], rows: Sequence[Sequence[Cell]], among: Container[str]) -> str:
    """A sortable table without its empty columns; of those `among` it, what is the same in all rows is said once."""
    columns = list(zip(*rows, strict=True))
    kept, told = [], []
    for place, (heading, column) in enumerate(zip(headings, columns, strict=True)):
        said = {cell.text for cell in column}
        if said <= {"", NOTHING.text}:
            continue
        if heading.text in among and len(said) == 1 < len(rows):
            told.append(f"{heading.text} {column[0].text}")
        else:
            kept.append(place)
    note = tag("p", text(f"The same in all rows: {'; '.join(told)}."), class_="note") if told else ""
    return note + table([headings[place] for place in kept], [[row[place] for place in kept] for row in rows], True)


def _scores(each: Series, metric: str) -> list[Cell]:
    share, finals = is_share(metric), _finals(each, metric)
    best = [min(values) if _lower(metric) else max(values) for run in each.runs if (values := run.values(metric))]
    last = [value for run in each.runs if run.diverged is None for value in ends.last(run.values(metric))]
    spread = f" ± {_shown(statistics.stdev(finals), share)}" if len(finals) > 1 else ""
    between = f"{_shown(min(last), share, 1)} to {_shown(max(last), share, 1)}" if last else ""
    return [
        Cell(f"{_shown(mean := statistics.fmean(finals), share)}{spread}", mean, "strong") if finals else NOTHING,
        Cell(between, max(last) - min(last)) if last else NOTHING,
        Cell(_shown(mean := statistics.fmean(best), share), mean) if best else NOTHING,
    ]


def _shown(value: float, share: bool, decimals: int = 2) -> str:
    return f"{100 * value:.{decimals}f}" if share else f"{value:.4g}"


def _loss(each: Series, metric: str) -> Cell:
    finals = _finals(each, metric)
    return Cell(_shown(mean := statistics.fmean(finals), share=False), mean) if finals else NOTHING


def _rounds(each: Series) -> Cell:
    lengths = [len(run.rounds) for run in each.runs]
    told = f"{lengths[0]:,}" if len(set(lengths)) == 1 else f"{min(lengths):,} to {max(lengths):,}"
    return Cell(told, max(lengths))


def _seconds(each: Series) -> Cell:
    seconds = statistics.fmean(run.seconds for run in each.runs)
    return Cell(f"{seconds:,.1f}", seconds)


def _state(each: Series) -> Cell:
    """How the runs ended, and whether the tuning they are of found nothing better."""
    states = [run.status for run in each.runs]
    counts = {state: states.count(state) for state in states}
    told = [state if len(counts) == 1 else f"{count} {state}" for state, count in counts.items()]
    best = ["best"] if any(run.told.judged is not None and run.told.judged.best for run in each.runs) else []
    return Cell(", ".join([*told, *best]), kind="" if {*states} <= {"finished", "pruned"} else "bad")


def _seeds(each: Series) -> Cell:
    seeds = [run.seed for run in each.runs if run.seed is not None]
    count = len(each.runs)
    return Cell(", ".join(map(str, sorted(seeds))) if 0 < len(seeds) <= 5 else str(count), count)


def divergences(series: Sequence[Series]) -> str:
    """Where and why runs diverged."""
    lines = [
        tag("li", text(f"{each.label}, seed {run.seed}: {run.diverged}"))
        for each in series
        for run in each.runs
        if run.diverged is not None
    ]
    return tag("ul", "".join(lines), class_="bad") if lines else ""
