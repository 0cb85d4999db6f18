"""The picture of a growth: seconds a round, in powers of ten, and memory, against size."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator

from fedloom.report.palette import FAINT, INK, LINES
from fedloom.report.plots import STYLE, write_png

_FORM = FuncFormatter(lambda value, _: f"{value:,.10g}")


def growth_picture(found: Mapping[str, Any], path: str | PathLike[str]) -> None:
    """Write a PNG of what `fedloom.bench.growth.grow` found."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(15, 7), dpi=100, layout=ConstrainedLayoutEngine(w_pad=0.25, h_pad=0.15))
        title = f"{found['about']}, on {found['device_name']}"
        figure.suptitle(title, x=0.015, ha="left", fontsize=18, color=INK)
        left, right = figure.subplots(1, 2)
        _panel(left, found, "Seconds a round", {"fedloom": "seconds", "plain loop": "plain_seconds"})
        left.set_yscale("log")
        left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        left.yaxis.set_minor_formatter("")
        _panel(right, found, "Memory, MiB", {"fedloom": "memory_mib", "plain loop": "plain_memory_mib"})
        right.set_ylim(bottom=0)
        for axes in (left, right):
            axes.yaxis.set_major_formatter(_FORM)
        write_png(figure, path)


def _panel(axes: Axes, found: Mapping[str, Any], title: str, series: Mapping[str, str]) -> None:
    """A line per series, named at its end."""
    ends = []
    for colour, (label, key) in zip(LINES, series.items(), strict=False):
        points = [(point["at"], point[key]) for point in found["points"] if point[key]]
        if points:
            at, values = zip(*points, strict=True)
            axes.plot(at, values, color=colour, linewidth=2.2, marker="o")
            ends.append((values[-1], at[-1], label, colour))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_FORM)
    axes.set_title(title, pad=16)
    axes.set_xlabel(found["axis"])
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for place, (value, last, label, colour) in enumerate(sorted(ends)):
        aside = 0 if len(ends) == 1 else (-8, 8)[place]  # points, so that two ends in one place can be read
        axes.annotate(
            label,
            xy=(last, value),
            xytext=(12, aside),
            textcoords="offset points",
            va="center",
            color=colour,
            fontweight="bold",
            annotation_clip=False,
        )
