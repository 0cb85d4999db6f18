"""A study's picture: curves of a metric, or a measure against an axis, in panels, with what was published beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from os import PathLike
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from fedloom.experiments.measures import PER_ROUND, Outcome, matching
from fedloom.experiments.published import Published
from fedloom.experiments.results import Key, Result, key, without
from fedloom.experiments.study import Study
from fedloom.experiments.study_legend import Look, add_legend, handle, nth_look, published_handle
from fedloom.experiments.study_sections import FULL, MEASURE, Cell, FigureSection, Measure, picked
from fedloom.experiments.words import cell_words, numbers_of
from fedloom.report.palette import FAINT, INK
from fedloom.report.plots import STYLE, Floats, logarithmic, percent, thousands, write_png

SMALL: dict[Any, Any] = {**STYLE, "font.size": 11, "axes.titlesize": 12, "axes.titlepad": 8}
Curves = Sequence[tuple[Cell, Sequence[Outcome]]]
"""The cells that are shown, and the runs of their seeds."""


def study_figure(
    study: Study,
    curves: Curves,
    found: Sequence[Result],
    numbers: Mapping[Key, Published],
    path: str | PathLike[str],
) -> bool:
    """Write the study's PNG; False where it has no figure, or nothing to draw."""
    with mpl.rc_context(SMALL):
        figure = draw(study, curves, found, numbers)
        if figure is not None:
            write_png(figure, path)
    return figure is not None


def draw(study: Study, curves: Curves, found: Sequence[Result], numbers: Mapping[Key, Published]) -> Figure | None:
    """The study's figure, not yet written; None where there is none."""
    wanted = study.figure
    if wanted is None or not curves:
        return None
    measure = _measure(study, wanted)
    if wanted.kind != "curves":
        found = _drawn(wanted, measure, found)
    places = [cell for cell, _ in curves] if wanted.kind == "curves" else [result.cell for result in found]
    panels = _panels(study, wanted, places, curves)
    if not panels:
        return None
    lines = _values(study, _line_axes(study, wanted), places)
    looks = {key(line): nth_look(index) for index, line in enumerate(lines)}
    across = min(3, len(panels)) if len(panels) != 4 else 2
    down = math.ceil(len(panels) / across)
    size = (max(6.4, 4.6 * across), 1.3 + 3.3 * down)
    figure = Figure(figsize=size, dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (metric, x, panel) in zip(grid.flat, panels, strict=False):
        axes.set_title(cell_words(panel))
        axes.grid(axis="y", color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        if wanted.kind == "curves":
            _draw_curves(axes, wanted, (metric, x), panel, lines, looks, curves)
        else:
            _draw_measure(axes, study, wanted, panel, lines, looks, found, numbers)
            axes.set_ylabel("" if measure is None or _by_measure(wanted) else measure.name)
    scale = [] if study.scale == FULL else [f"scale {study.scale}"]
    standing_in = [] if study.stand_ins is None else [f"stand-in: {study.stand_ins}"]
    aside = f" ({'; '.join([*scale, *standing_in])})" if scale or standing_in else ""
    title = fill(study.title + aside, int(8.4 * size[0]))
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    _name(figure, study, wanted, looks, lines, wanted.kind != "curves" and bool(numbers))
    return figure


def _panels(study: Study, wanted: FigureSection, places: Sequence[Cell], curves: Curves) -> list[tuple[str, str, Cell]]:
    """The metric, what goes across and the cell of every panel."""
    named = wanted.metrics if wanted.kind == "curves" else wanted.metrics[:1]
    kinds = [(metric, x) for metric in named for x in wanted.across]
    panels = [(metric, x, panel) for metric, x in kinds for panel in _values(study, wanted.panels, places)]
    if wanted.kind == "curves":  # not all cells are measured alike
        panels = [place for place in panels if _has_curve(place[0], place[2], curves)] or panels
    return panels


def _name(
    figure: Figure,
    study: Study,
    wanted: FigureSection,
    looks: Mapping[Key, Look],
    lines: Sequence[Cell],
    published: bool,
) -> None:
    """The legend; what is the same in all lines is not told."""
    told = [axis for axis in _line_axes(study, wanted) if axis not in study.fixed]
    names = [", ".join(line[axis] for axis in told) for line in lines]
    bars = wanted.kind == "bars"
    handles = [handle(looks[key(line)], name, bars) for name, line in zip(names, lines, strict=True) if name]
    if published:
        handles.append(published_handle())
    if handles:
        add_legend(figure, handles, ", ".join(told))


def _has_curve(metric: str, panel: Cell, curves: Curves) -> bool:
    runs = [run for cell, outcomes in curves if panel.items() <= cell.items() for run in outcomes]
    records = (record for run in runs for record in run.rounds)
    return any(value is not None and fnmatchcase(name, metric) for record in records for name, value in record.items())


def _measure(study: Study, wanted: FigureSection) -> Measure | None:
    name = wanted.measure or (study.counted[0].name if study.counted else None)
    return next((measure for measure in study.counted if measure.name == name), None)


def _by_measure(wanted: FigureSection) -> bool:
    """Whether panels or lines differ in the measure."""
    return MEASURE in (*wanted.panels, *wanted.lines)


def _drawn(wanted: FigureSection, measure: Measure | None, found: Sequence[Result]) -> list[Result]:
    """The results that are drawn: those of one measure, without its name; all, where the measure tells them apart."""
    if _by_measure(wanted):
        return [replace(result, cell=result.cell | {MEASURE: result.measure.name}) for result in found]
    mine = [result for result in found if measure is not None and result.measure.name == measure.name]
    return [replace(result, cell=without(result.cell, [MEASURE])) for result in mine]


def _line_axes(study: Study, wanted: FigureSection) -> list[str]:
    """The axes that lines differ in: those named, and every other that the panels and x leave."""
    taken = {*wanted.panels, *wanted.lines, *([] if wanted.kind == "curves" else wanted.across)}
    return wanted.lines + [axis.name for axis in study.shown if axis.name not in taken]


def _values(study: Study, axes: Sequence[str], places: Sequence[Cell]) -> list[Cell]:
    there = {key({axis: cell[axis] for axis in axes}) for cell in places}
    every = itertools.product(*(study.values(axis) for axis in axes))
    combinations = [dict(zip(axes, values, strict=True)) for values in every]
    return [cell for cell in combinations if key(cell) in there]


def _draw_curves(
    axes: Axes,
    wanted: FigureSection,
    shown: tuple[str, str],
    panel: Cell,
    lines: Sequence[Cell],
    looks: Mapping[Key, Look],
    curves: Curves,
) -> None:
    """A line is the mean over seeds, its band the smallest to the largest; a run that stopped keeps its last value."""
    metric, x = shown
    targets: set[float | None] = set()
    for line in lines:
        level = bool(wanted.level) and picked(line, wanted.level)
        place = line if level else panel | line
        runs = [each for cell, outcomes in curves if place.items() <= cell.items() for each in outcomes]
        targets |= {each.target for each in runs}
        colour, dash, _ = looks[key(line)]
        if "*" in metric:
            for name in matching(metric, [record for run in runs for record in run.rounds]):
                at, values = _aligned(runs, x, name)
                if at.size:
                    axes.plot(at, values.mean(0), color=colour, linewidth=0.8, alpha=0.4)
            continue
        at, values = _aligned(runs, x, metric)
        if not at.size:
            continue
        values = _running(values, wanted.running)
        if level:
            axes.axhline(values[:, -1].mean(), color=colour, linestyle=dash, linewidth=1.8)
            continue
        axes.fill_between(at, values.min(0), values.max(0), color=colour, alpha=0.13, linewidth=0)
        marker = "o" if at.size == 1 else None
        axes.plot(at, values.mean(0), color=colour, linestyle=dash, linewidth=1.8, marker=marker)
    if len(targets) == 1 and (target := targets.pop()) is not None and metric == "test_accuracy":
        axes.axhline(target, color="#888888", linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlabel(x.replace("_", " "))
    axes.set_ylabel(metric.replace("_", " "))
    if x == "round":
        first, last = axes.dataLim.intervalx
        if first == last:
            axes.set_xlim(first - 1, first + 1)  # a single test: not a tenth of a round to either side
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    elif axes.get_xlim()[1] >= 1e4:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.xaxis.set_major_formatter(thousands())
    if wanted.logarithmic:
        logarithmic(axes)
    elif metric.endswith("accuracy"):
        axes.yaxis.set_major_formatter(percent())


def _running(values: Floats, kind: str | None) -> Floats:
    """Each run's best value so far, or the mean so far.

    >>> _running(np.array([[3.0, 1.0, 2.0]]), "mean"), _running(np.array([[3.0, 1.0, 4.0]]), "highest")
    (array([[3., 2., 2.]]), array([[3., 3., 4.]]))
    """
    if kind is None:
        return values
    if kind == "mean":
        return np.asarray(np.cumsum(values, axis=1) / np.arange(1, values.shape[1] + 1))
    so_far = np.maximum if kind == "highest" else np.minimum
    return np.asarray(so_far.accumulate(values, axis=1))


def _aligned(runs: Sequence[Outcome], x: str, metric: str) -> tuple[Floats, Floats]:
    """Where any run was measured, and the runs' values there: runs x places. Rounds are counted from 1."""
    series: list[dict[float, float]] = []
    for run in runs:
        points, summed = {}, 0.0
        for record in run.rounds:
            summed += float(record.get(x) or 0.0) if x in PER_ROUND else 0.0
            if record.get(metric) is not None and record.get(x) is not None:
                at_x = summed if x in PER_ROUND else float(record[x]) + (1 if x == "round" else 0)
                points[at_x] = float(record[metric])
        if points:
            series.append(points)
    at = np.array(sorted({place for points in series for place in points}), np.float64)
    values = [np.interp(at, list(points), list(points.values())) for points in series]
    return at, np.array(values, np.float64).reshape(len(series), at.size)


def _draw_measure(
    axes: Axes,
    study: Study,
    wanted: FigureSection,
    panel: Cell,
    lines: Sequence[Cell],
    looks: Mapping[Key, Look],
    found: Sequence[Result],
    numbers: Mapping[Key, Published],
) -> None:
    x = wanted.across[0]
    names = [value for value in study.values(x) if any(result.cell.get(x) == value for result in found)]
    places = numbers_of(names) if wanted.kind == "lines" else None
    if places and not all(map(math.isfinite, places)):
        places = None  # a name for want of bounds, which has no place on an axis
    at = places or [float(index) for index in range(len(names))]
    by_cell = {key(result.cell): result for result in found}
    width = 0.8 / max(1, len(lines))
    for index, line in enumerate(lines):
        shift = (index - (len(lines) - 1) / 2) * width if wanted.kind == "bars" else 0.0
        colour, dash, _ = mine = looks[key(line)]
        xs, ys, spreads, printed = [], [], [], []
        for place, name in zip(at, names, strict=True):
            cell = panel | line | {x: name}
            result = by_cell.get(key(cell))
            full = cell if result is None else cell | {MEASURE: result.measure.name}
            number = numbers.get(key(cell)) or numbers.get(key(full)) or numbers.get(key(without(cell, [MEASURE])))
            if number is not None and isinstance(number.value, float):
                printed.append((place + shift, number.value))
            if result is not None and result.measured.value is not None and not result.measured.unreached:
                xs.append(place + shift)
                ys.append(result.measured.value)
                spreads.append(result.measured.spread or 0.0)
        if not xs and not printed:
            continue
        if wanted.kind == "bars":
            axes.bar(xs, ys, width * 0.92, yerr=spreads, ecolor=INK, error_kw={"linewidth": 1}, **mine.bar)
        else:
            axes.errorbar(xs, ys, spreads, color=colour, linestyle=dash, linewidth=1.8, marker="o", markersize=4)
        if printed:
            axes.plot(*zip(*printed, strict=True), "o", color=colour if wanted.kind == "lines" else INK, mfc="white")
    axes.set_xlabel(x)
    if not axes.containers and not axes.lines:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no run came so far", transform=axes.transAxes, ha="center", color="#555555")
        return
    if places is None:
        axes.set_xticks(at, names)
        axes.set_xlim(-0.6, len(names) - 0.4)
    else:
        _name_places(axes, places, names)
    if wanted.logarithmic:
        logarithmic(axes)


def _name_places(axes: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """The places' own names along the axis, as far as there is room, on a scale of powers of ten where they are."""
    named = dict(sorted(zip(places, names, strict=True)))
    positive = [place for place in named if place > 0]
    if len(_with_room(list(named))) < len(named) and min(named) >= 0 and max(positive) / min(positive) >= 50:
        if min(named) > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=positive[0])  # a zero among powers of ten
    kept = _with_room([float(place) for place in axes.xaxis.get_transform().transform(np.array(list(named)))])
    axes.set_xticks([list(named)[index] for index in kept], [list(named.values())[index] for index in kept])
    axes.minorticks_off()


def _with_room(places: Sequence[float]) -> list[int]:
    """The places, in their order, that have room for a name: the ends, and what is not too near to one before.

    >>> _with_room([1, 3, 5]), _with_room([1, 10, 400, 800]), _with_room([0, 90, 91])
    ([0, 1, 2], [0, 2, 3], [0, 2])
    """
    least = 0.065 * (places[-1] - places[0])
    kept = [0]
    for index in range(1, len(places)):
        if places[index] - places[kept[-1]] >= least:
            kept.append(index)
        elif index == len(places) - 1 and len(kept) > 1:
            kept[-1] = index
    return kept
