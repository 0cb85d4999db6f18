"""A study's picture: curves of a metric, or a measure against an axis, in panels, with what was published beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from os import PathLike
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedloom.experiments.measures import PER_ROUND, Outcome, matching
from fedloom.experiments.published import Published
from fedloom.experiments.results import Key, Result, key, without
from fedloom.experiments.study import Study, table_of
from fedloom.experiments.study_legend import Look, add_legend, group_look, handle, nth_look, published_handle
from fedloom.experiments.study_sections import MEASURE, Cell, FigureSection, Measure, picked
from fedloom.experiments.words import cell_words, numbers_of
from fedloom.report.coincident import tell_apart
from fedloom.report.palette import FAINT, INK
from fedloom.report.plots import STYLE, Floats, logarithmic, percent, thousands, write_png

SMALL: dict[Any, Any] = {**STYLE, "font.size": 11, "axes.titlesize": 12, "axes.titlepad": 8}
Curves = Sequence[tuple[Cell, Sequence[Outcome]]]
"""The cells that are shown, and the runs of their seeds."""
RUNNING = {"highest": "highest so far", "lowest": "lowest so far", "mean": "mean so far"}
GREY = "#888888"


@dataclass(frozen=True)
class Line:
    """What is told apart within a panel: its own part of the cell, and its metric where that is not the panel's."""

    cell: Cell
    look: Look
    name: str
    metric: str | None = None


Panel = tuple[str | None, str, Cell]
"""The metric, none where the lines have their own; what goes across; and the cell."""


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
    lines = _lines(study, wanted, places)
    across = min(3, len(panels)) if len(panels) != 4 else 2
    down = math.ceil(len(panels) / across)
    size = (max(6.4, 4.6 * across), 1.3 + (3.3 if len(panels) > 1 else 4.0) * down)
    figure = Figure(figsize=size, dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    drawn: list[list[Line2D]] = []
    for axes, (metric, x, panel) in zip(grid.flat, panels, strict=False):
        axes.set_title(cell_words(panel))
        axes.grid(axis="y", color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        if wanted.kind == "curves":
            drawn.append(_draw_curves(axes, wanted, (metric, x), panel, lines, curves))
        else:
            drawn.append(_draw_measure(axes, study, wanted, panel, lines, found, numbers))
            axes.set_ylabel(wanted.y or ("" if measure is None or _by_measure(wanted) else measure.name))
        _mark(axes, wanted)
    shown = list(grid.flat[: len(panels)])
    _share(shown, [_compared_by(study, wanted, panel, places) for panel in panels])
    for axes, own in zip(shown, drawn, strict=True):
        tell_apart(axes, own)
    title = fill(study.headline, int(8.4 * size[0]))
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    _name(figure, study, wanted, lines, wanted.kind != "curves" and bool(numbers))
    return figure


def _lines(study: Study, wanted: FigureSection, places: Sequence[Cell]) -> list[Line]:
    """The lines of every panel; what is the same in all of them is not part of their names."""
    if wanted.groups:
        return [
            Line({}, group_look(group, index), f"{name} ({title})", metric)
            for group, (title, named) in enumerate(wanted.groups.items())
            for index, (name, metric) in enumerate(named.items())
        ]
    axes = _line_axes(study, wanted)
    told = [axis for axis in axes if axis not in study.fixed]
    cells = _values(study, axes, places)
    return [Line(cell, nth_look(index), ", ".join(cell[axis] for axis in told)) for index, cell in enumerate(cells)]


def _panels(study: Study, wanted: FigureSection, places: Sequence[Cell], curves: Curves) -> list[Panel]:
    named: Sequence[str | None] = wanted.metrics if wanted.kind == "curves" else wanted.metrics[:1]
    axes = wanted.panels
    if wanted.groups:
        named, axes = [None], axes + [axis for axis in _line_axes(study, wanted) if axis not in study.fixed]
    kinds = [(metric, x) for metric in named for x in wanted.across]
    panels = [(metric, x, panel) for metric, x in kinds for panel in _values(study, axes, places)]
    if wanted.kind == "curves":  # not all cells are measured alike
        panels = [
            (metric, x, panel) for metric, x, panel in panels if _has_curve(wanted, metric, panel, curves)
        ] or panels
    return panels


def _compared_by(study: Study, wanted: FigureSection, panel: Panel, places: Sequence[Cell]) -> tuple[object, ...]:
    """What two panels have in common that can be compared: what goes up, of which data and of which model."""
    metric, _, cell = panel
    place = without(next((each for each in places if cell.items() <= each.items()), cell), [MEASURE])
    whole = {axis.name: axis.names()[0] for axis in study.axes} | place
    table = table_of(study, whole)
    of = [str(table.get("data", {}).get(each)) for each in ("name", "task", "target")]
    upwards = metric if wanted.kind == "curves" else cell.get(MEASURE)
    return (upwards, *of, str(table.get("model", {}).get("name")))


def _share(panels: Sequence[Axes], kinds: Sequence[tuple[object, ...]]) -> None:
    """The same span upwards where panels can be compared; what is empty has none."""
    for kind in set(kinds):
        alike = [axes for axes, own in zip(panels, kinds, strict=True) if own == kind and axes.has_data()]
        lows, highs = zip(*(axes.get_ylim() for axes in alike), strict=True) if alike else ((), ())
        for axes in alike:
            axes.set_ylim(min(lows), max(highs))


def _mark(axes: Axes, wanted: FigureSection) -> None:
    """The values that are told across every panel, each with its name."""
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    for name, value in wanted.marks.items():
        axes.axhline(value, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(name, (1, value), (0, 1), ha="right", va="bottom", color="#555555", **place)


def _name(figure: Figure, study: Study, wanted: FigureSection, lines: Sequence[Line], published: bool) -> None:
    """The legend."""
    handles = [handle(line.look, line.name, wanted.kind == "bars") for line in lines if line.name]
    if published:
        handles.append(published_handle())
    told = [] if wanted.groups else [axis for axis in _line_axes(study, wanted) if axis not in study.fixed]
    if handles:
        add_legend(figure, handles, ", ".join(told))


def _has_curve(wanted: FigureSection, metric: str | None, panel: Cell, curves: Curves) -> bool:
    metrics = wanted.metrics if metric is None else [metric]
    runs = [run for cell, outcomes in curves if panel.items() <= cell.items() for run in outcomes]
    there = {name for run in runs for record in run.rounds for name, value in record.items() if value is not None}
    return any(fnmatchcase(name, each) for name in there for each in metrics)


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
    shown: tuple[str | None, str],
    panel: Cell,
    lines: Sequence[Line],
    curves: Curves,
) -> list[Line2D]:
    """A line is the mean over seeds, its band the smallest to the largest; a run that stopped keeps its last value."""
    common, x = shown
    metrics = {line.metric or common or "" for line in lines}
    targets: set[float | None] = set()
    drawn: list[Line2D] = []
    for line in lines:
        metric = line.metric or common or ""
        level = bool(wanted.level) and picked(line.cell, wanted.level)
        place = line.cell if level else panel | line.cell
        runs = [each for cell, outcomes in curves if place.items() <= cell.items() for each in outcomes]
        targets |= {each.target for each in runs}
        colour, dash = line.look.colour, line.look.dash
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
        marker = line.look.marker or ("o" if at.size == 1 else "")
        style: dict[str, Any] = {"marker": marker, "markersize": 4, "markevery": 1 + at.size // 20}
        drawn += axes.plot(at, values.mean(0), color=colour, linestyle=dash, linewidth=1.8, **style)
    if len(targets) == 1 and (target := targets.pop()) is not None and metrics == {"test_accuracy"}:
        axes.axhline(target, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlabel(x.replace("_", " "))
    running = "" if wanted.running is None else f", {RUNNING[wanted.running]}"
    axes.set_ylabel(wanted.y or f"{str(common).replace('_', ' ')}{running}")
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
    elif all(metric.endswith("accuracy") for metric in metrics):
        axes.yaxis.set_major_formatter(percent())
    return drawn


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
    lines: Sequence[Line],
    found: Sequence[Result],
    numbers: Mapping[Key, Published],
) -> list[Line2D]:
    x = wanted.across[0]
    names = [value for value in study.values(x) if any(result.cell.get(x) == value for result in found)]
    places = numbers_of(names) if wanted.kind == "lines" else None
    if places and not all(map(math.isfinite, places)):
        places = None  # a name for want of bounds, which has no place on an axis
    at = places or [float(index) for index in range(len(names))]
    by_cell = {key(result.cell): result for result in found}
    width = 0.8 / max(1, len(lines))
    drawn: list[Line2D] = []
    for index, line in enumerate(lines):
        shift = (index - (len(lines) - 1) / 2) * width if wanted.kind == "bars" else 0.0
        colour, dash = line.look.colour, line.look.dash
        xs, ys, spreads, printed = [], [], [], []
        for place, name in zip(at, names, strict=True):
            cell = panel | line.cell | {x: name}
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
            axes.bar(xs, ys, width * 0.92, yerr=spreads, ecolor=INK, error_kw={"linewidth": 1}, **line.look.bar)
        else:
            bars = axes.errorbar(xs, ys, spreads, color=colour, linestyle=dash, linewidth=1.8, marker="o", markersize=4)
            drawn.append(bars.lines[0])
        if printed:
            axes.plot(*zip(*printed, strict=True), "o", color=colour if wanted.kind == "lines" else INK, mfc="white")
    axes.set_xlabel(x)
    if not axes.containers and not axes.lines:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no run came so far", transform=axes.transAxes, ha="center", color="#555555")
        return drawn
    if places is None:
        axes.set_xticks(at, names)
        axes.set_xlim(-0.6, len(names) - 0.4)
    else:
        _name_places(axes, places, names)
    if wanted.logarithmic:
        logarithmic(axes)
    return drawn


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
