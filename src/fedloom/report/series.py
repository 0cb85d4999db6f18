"""From runs to lines: seeds of one algorithm become one series, rounds become points, long lines fewer points."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.experiments.words import cell_words
from fedloom.report import settings
from fedloom.report.palette import DASHES, LINES, Look
from fedloom.report.runs import Run
from fedloom.rundir import MACHINE

Floats = npt.NDArray[np.float64]
Columns = Mapping[str, Mapping[int, float]]
"""A run's numbers by metric and round."""

LONG = 2000
"""A line with more points than this is thinned out."""
BUCKETS, FEW_BUCKETS = 250, 100  # the few are for metrics of which there is one per tensor
AXES = {
    "round": "round",
    "examples_processed": "examples processed",
    "simulated_seconds": "simulated seconds",
    "seconds": "seconds by the clock",
}
_PER_ROUND = ("simulated_seconds", "seconds")  # recorded round by round: an axis has their sum so far


@dataclass(frozen=True)
class Series:
    """The runs of one algorithm, or whatever has one label, with different seeds."""

    label: str
    group: str
    runs: Sequence[Run]
    settings: settings.Flat
    look: Look

    @property
    def columns(self) -> list[Columns]:
        return [run.columns for run in self.runs]


def assemble(runs: Sequence[Run]) -> list[Series]:
    """Runs that differ in nothing but seeds and machine become one series; labels of the others are told apart."""
    together: dict[tuple[Any, ...], list[Run]] = {}
    flats = [settings.flat(run.config) for run in runs]
    for run, flat in zip(runs, flats, strict=True):
        base = (run.label, settings.signature(flat))
        seeds = (run.seed, *(flat.get(key) for key in sorted(settings.SEEDS)))
        copy = 0  # the same run done twice is not a second seed
        while any(seeds == _seeds(other) for other in together.get((*base, copy), [])):
            copy += 1
        together.setdefault((*base, copy), []).append(run)
    groups = _groups([kept[0].group for kept in together.values()])
    tables = [settings.merged([settings.flat(run.config) for run in kept]) for kept in together.values()]
    firsts = [kept[0] for kept in together.values()]
    names = _names(firsts)
    labels = _labels(names, firsts, tables, groups)
    return [
        Series(*parts) for parts in zip(labels, groups, together.values(), tables, _looks(names, groups), strict=True)
    ]


def _seeds(run: Run) -> tuple[Any, ...]:
    flat = settings.flat(run.config)
    return (run.seed, *(flat.get(key) for key in sorted(settings.SEEDS)))


def _groups(folders: Sequence[Path]) -> list[str]:
    """The folders that runs belong to, as far as they differ."""
    if len(set(folders)) < 2:
        return [""] * len(folders)
    shared = Path(os.path.commonpath(folders))
    return [folder.relative_to(shared).as_posix() if folder != shared else shared.name for folder in folders]


def _names(firsts: Sequence[Run]) -> list[str]:
    """What the runs are called: a study's by the values of their cells, as far as they are not the same in all.

    Where others have one label, they give way to titles that differ.
    """
    cells = [run.told.cell for run in firsts]
    axes = dict.fromkeys(axis for cell in cells for axis in cell)
    told = [axis for axis in axes if len({cell.get(axis) for cell in cells if cell}) > 1]
    names = [cell_words(telling(cell, told)) for cell in cells]
    names = [name or run.label for name, run in zip(names, firsts, strict=True)]
    titles = [str(run.config.get("title", "")) for run in firsts]
    return titles if len(set(names)) < len(names) and len({*titles, ""}) > len(titles) else names


def telling(cell: Mapping[str, str], axes: Iterable[str]) -> dict[str, str]:
    """The cell's values on these axes, without those that are `-`: there the axis has nothing to say.

    >>> telling({"method": "FedAdam", "rate": "-", "epochs": "1"}, ["method", "rate"])
    {'method': 'FedAdam'}
    """
    return {axis: cell[axis] for axis in axes if cell.get(axis, "-") != "-"}


def _labels(
    names: Sequence[str], firsts: Sequence[Run], tables: Sequence[settings.Flat], groups: Sequence[str]
) -> list[str]:
    """The names, made to differ: what the settings differ in is added where it is short, else where the runs are."""
    labels = list(names)
    for name, count in Counter(names).items():
        if count == 1:
            continue
        places = [index for index, other in enumerate(names) if other == name]
        keys = settings.ordered(settings.differing([tables[place] for place in places]), tables)
        told = [_told(tables[index], keys) for index in places]
        where = [groups[index] for index in places]
        if len(set(told)) < count or (any(len(text) > 40 for text in told) and len(set(where)) == count):
            told = where
        if len(set(told)) < count:
            told = _short_paths([firsts[index].path for index in places])
        for index, text in zip(places, told, strict=True):
            labels[index] = f"{name} ({text})"
    return labels


def _looks(names: Sequence[str], groups: Sequence[str]) -> list[Look]:
    """One colour for a name in all folders, and other dashes in each; of a folder's several the nth have one colour.

    Once the colours are used up, each folder takes more kinds of dashes; where these would not do, all lines differ and
    tell no more than that.

    >>> _looks(["FedAvg", "FedYogi", "FedAvg"], ["monday", "monday", "tuesday"])
    [Look(colour=0, dash=0), Look(colour=1, dash=0), Look(colour=0, dash=1)]
    """
    before: Counter[tuple[str, str]] = Counter()
    keys = []
    for name, group in zip(names, groups, strict=True):
        keys.append((name, before[name, group]))
        before[name, group] += 1
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    folders = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    laps = -(-len(numbers) // len(LINES))
    if len(folders) * laps > DASHES:
        return [Look(number % len(LINES), number // len(LINES) % DASHES) for number in range(len(keys))]
    looks = []
    for key, group in zip(keys, groups, strict=True):
        lap, colour = divmod(numbers[key], len(LINES))
        looks.append(Look(colour, (folders[group] * laps + lap) % DASHES))
    return looks


def _told(table: settings.Flat, keys: Sequence[str]) -> str:
    ignored = settings.NAMES | settings.SEEDS | MACHINE
    told = [key for key in keys if key not in ignored]
    return ", ".join(f"{key.rpartition('.')[2]} {table.get(key, settings.ABSENT)}" for key in told)


def _short_paths(paths: Sequence[Path]) -> list[str]:
    whole = [path.resolve() for path in paths]
    shared = Path(os.path.commonpath(whole))
    return [path.relative_to(shared).as_posix() for path in whole]


# Lines ----------------------------------------------------------------------------------------------------------------


def metrics(series: Iterable[Series]) -> list[str]:
    """Everything that any round of any run has a number for, in the order in which it first comes."""
    return list(dict.fromkeys(name for each in series for run in each.columns for name in run))


def line(each: Series, metric: str) -> dict[str, list[float]] | None:
    """The metric over the rounds, counted from 1: the mean over seeds and, of several, their smallest and largest."""
    rounds, values = aligned(each.columns, metric)
    if not rounds.size:
        return None
    mean, low, high = values.mean(0), values.min(0), values.max(0)
    kept = thinned(mean, low, high, buckets=FEW_BUCKETS if "/" in metric else BUCKETS)
    found = {"round": rounds[kept].astype(int).tolist(), "mean": _short(mean[kept])}
    if len(values) > 1:
        found |= {"low": _short(low[kept]), "high": _short(high[kept])}
    return found


def percentile_line(each: Series, family: str) -> dict[str, list[float]] | None:
    """Over the clients: the median as the line, the 5th and 95th percentile as its band, each a mean over seeds."""
    parts = [aligned(each.columns, f"{family}/{cut}") for cut in ("p50", "p5", "p95")]
    if not all(rounds.size for rounds, _ in parts):
        return None
    rounds = parts[0][0]
    middle, low, high = (np.interp(rounds, at, values.mean(0)) for at, values in parts)
    kept = thinned(middle, low, high)
    names = {"mean": middle, "low": low, "high": high}
    return {"round": rounds[kept].astype(int).tolist()} | {name: _short(part[kept]) for name, part in names.items()}


def aligned(runs: Sequence[Columns], metric: str) -> tuple[Floats, Floats]:
    """The rounds, from 1, in which any run has the metric, and the runs' values there: runs x rounds.

    Between its rounds a run's value is interpolated; one that stopped early keeps its last.

    >>> aligned([{"x": {0: 1.0, 2: 3.0}}, {"x": {1: 5.0}}], "x")[1].tolist()
    [[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]
    """
    points = [(np.array([*run[metric]]), np.array([*run[metric].values()])) for run in runs if run.get(metric)]
    rounds = np.unique(np.concatenate([at for at, _ in points])) if points else np.array([])
    return rounds + 1.0, np.array([np.interp(rounds, at, values) for at, values in points], np.float64)


def thinned(mean: Floats, low: Floats, high: Floats, long: int = LONG, buckets: int = BUCKETS) -> npt.NDArray[np.int64]:
    """Which points to keep of a long line: the ends and, of every bucket, where the line and its band are extreme.

    >>> wave = np.array([0.0, 1.0, 9.0, 1.0, 0.0, -5.0, 0.0, 1.0])
    >>> thinned(wave, wave, wave, long=4, buckets=2).tolist()
    [0, 2, 5, 7]
    """
    count = len(mean)
    if count <= long:
        return np.arange(count)
    kept = {0, count - 1}
    for part in np.array_split(np.arange(count), buckets):
        kept |= {int(part[at]) for at in (mean[part].argmin(), mean[part].argmax(), low[part].argmin())}
        kept.add(int(part[high[part].argmax()]))
    return np.array(sorted(kept), np.int64)


def axes(each: Series) -> dict[str, list[float]]:
    """Where the rounds lie on each axis: rounds from 0, and how much of the axis had passed, a mean over the seeds."""
    last = max((run.rounds[-1]["round"] + 1 for run in each.runs if run.rounds), default=0)
    if last == 0:
        return {}
    knots = np.unique(np.linspace(0, last, min(last, LONG // 2) + 1).round())
    found = {"round": knots.astype(int).tolist()}
    for name in AXES:
        passed = [_passed(run, name) for run in each.runs if run.rounds]
        if name != "round" and all(points is not None for points in passed):
            sums = [np.interp(knots, *points) for points in passed if points is not None]
            found[name] = _short(np.mean(sums, axis=0), 8)
    return found


def _passed(run: Run, name: str) -> tuple[Floats, Floats] | None:
    """Rounds done, and how much of the axis they took together; None where it was not recorded."""
    column = run.columns.get(name, {})
    if len(column) < len(run.rounds):
        return None
    rounds, values = np.array([-1, *column], np.float64) + 1, np.array([0.0, *column.values()])
    return rounds, np.cumsum(values) if name in _PER_ROUND else values


def _short(values: Floats, digits: int = 5) -> list[float]:
    """Numbers with as many digits as can be seen."""
    return [float(f"{value:.{digits}g}") for value in values]
