"""What a search tried, as a picture: one setting against another with the score as colour, or one against the score."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedloom.report.heatmap import FRAME, beyond, colours_of, in_words, norm_of
from fedloom.report.palette import FAINT, INK, LINES
from fedloom.report.plots import STYLE, logarithmic, write_png

MISSED: dict[str, dict[str, Any]] = {
    "pruned": {"marker": "o", "markersize": 7, "markerfacecolor": "none"},
    "diverged": {"marker": "x", "markersize": 7},
    "not finite": {"marker": "+", "markersize": 9},
}
"""The marks of what came to no score, which are grey."""
WIDE = 20
"""How many times the lowest loss the highest is where only a logarithmic axis shows both."""


class Trial(NamedTuple):
    """What was set, one or two numbers, and the score; without one, which of `MISSED` it is."""

    at: tuple[float, ...]
    score: float | None
    why: str = ""


def search_plot(
    trials: Sequence[Trial],
    path: str | PathLike[str],
    *,
    names: Sequence[str],
    title: str,
    score: str,
    best: int | None = None,
    percent: bool = True,
    lower: bool = False,
) -> None:
    """Write a PNG of two settings against each other, coloured by the score, or of one against it.

    `best` is the place of the trial that won. What was pruned or diverged has a mark of its own, and no colour.
    """
    scored = [trial for trial in trials if trial.score is not None]
    pairs = len(names) == 2
    with mpl.rc_context(STYLE | {"axes.titlepad": 34}):
        figure = Figure(figsize=(8.5, 6.5), dpi=100, layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(f"{title}, {len(trials)} tried")
        if pairs:
            _coloured(axes, scored, score, percent, lower)
        else:
            _against(axes, scored, score, percent, lower)
        for why, mark in MISSED.items():
            worst = 0.98 if lower else 0.02
            missed = [(*trial.at, worst)[:2] for trial in trials if trial.score is None and trial.why == why]
            across = axes.transData if pairs else axes.get_xaxis_transform()  # as bad as can be
            if missed:
                axes.plot(*zip(*missed, strict=True), transform=across, color="#888888", linestyle="none", **mark)
        which: tuple[Literal["x", "y"], ...] = ("x", "y")
        for place, (name, axis) in enumerate(zip(names, which, strict=False)):
            (axes.xaxis if axis == "x" else axes.yaxis).set_label_text(name)
            if min(trial.at[place] for trial in trials) > 0:
                logarithmic(axes, axis)
        if best is not None:
            _ring(axes, trials[best])
        _explain(axes, trials)
        axes.grid(color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        write_png(figure, path)


def _coloured(axes: Axes, scored: Sequence[Trial], score: str, percent: bool, lower: bool) -> None:
    if not scored:
        return
    values = np.array([trial.score for trial in scored], np.float64)
    across, up = zip(*(trial.at for trial in scored), strict=True)
    look: dict[str, Any] = {"s": 90, "edgecolors": "white", "linewidths": 0.8, "zorder": 2.5}
    norm = norm_of(values, lower)
    points = axes.scatter(across, up, c=values, norm=norm, cmap=colours_of(lower), **look)
    form = lambda value, _: in_words(value, percent)  # noqa: E731
    bar = axes.figure.colorbar(points, ax=axes, pad=0.02, extend=beyond(values, norm), format=form, label=score)
    bar.outline.set_visible(False)


def _against(axes: Axes, scored: Sequence[Trial], score: str, percent: bool, lower: bool) -> None:
    values = [trial.score for trial in scored if trial.score is not None]
    axes.plot([trial.at[0] for trial in scored], values, "o", color=LINES[0], markersize=8)
    axes.set_ylabel(score)
    if lower and values and max(values) > WIDE * min(values) > 0:
        logarithmic(axes)
    elif values:
        axes.yaxis.set_major_formatter(lambda value, _: in_words(value, percent))


def _ring(axes: Axes, best: Trial) -> None:
    x, y = np.array([*best.at, best.score], np.float64)[:2]
    for colour, width in ((INK, 5.0), (FRAME, 2.5)):
        ring: dict[str, Any] = {
            "markersize": 16,
            "markerfacecolor": "none",
            "markeredgecolor": colour,
            "markeredgewidth": width,
        }
        axes.plot([x], [y], "o", zorder=3, **ring)
    place: dict[str, Any] = {"xytext": (0, 12), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    axes.annotate("best", (x, y), fontsize=11, fontweight="bold", color=INK, zorder=4, **place)


def _explain(axes: Axes, trials: Sequence[Trial]) -> None:
    """What the marks without a score are."""
    handles = []
    for why, mark in MISSED.items():
        if count := sum(trial.score is None and trial.why == why for trial in trials):
            handles.append(Line2D([], [], color="#888888", linestyle="none", label=f"{count} {why}", **mark))
    if not handles:
        return
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=len(handles),
        frameon=False,
        handlelength=1.0,
        borderaxespad=0.2,
        fontsize=12,
    )
