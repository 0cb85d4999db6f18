"""A picture of a partition: every client's label mix, how large clients are, and how many labels they have."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from fedloom.data.federated import FederatedData
from fedloom.data.skew import label_counts, label_skew
from fedloom.report.palette import FAINT, INK, MIX
from fedloom.report.partition_map import SHOWN, spread_out
from fedloom.report.plots import STYLE, label_legend, write_png

Counts = npt.NDArray[np.int64]
_BAR, _MUTED = "#0072B2", "#555555"


def partition_picture(data: FederatedData, path: str | PathLike[str], title: str) -> None:
    """Write a PNG: stacked bars of the clients' labels (Hsu et al. 2019, figure 1) beside two histograms."""
    with mpl.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.25, h_pad=0.2, hspace=0.06)
        figure = Figure(figsize=(15, 9), dpi=100, layout=layout)
        figure.suptitle(title, x=0.015, ha="left", fontsize=18, color=INK)
        sizes = data.examples.cpu().numpy()
        if data.classes is None:
            _histogram(figure.subplots(), sizes, "How large the clients are", "training examples")
        else:
            counts = label_counts(data)
            grid = figure.add_gridspec(2, 2, width_ratios=[1.6, 1])
            _mix(figure.add_subplot(grid[:, 0]), counts)
            _histogram(figure.add_subplot(grid[0, 1]), sizes, "How large the clients are", "training examples")
            distinct = label_skew(counts).distinct
            _histogram(figure.add_subplot(grid[1, 1]), distinct, "How many labels they have", "distinct labels")
        write_png(figure, path)


def partition_panels(partitions: Mapping[str, FederatedData], path: str | PathLike[str], title: str) -> None:
    """Write a PNG: for every partition the label mix of 30 clients, and below it how many labels all clients have."""
    with mpl.rc_context({**STYLE, "font.size": 11, "axes.titlesize": 12}):
        across = len(partitions)
        layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)
        figure = Figure(figsize=(max(7.0, 3.6 * across), 9), dpi=100, layout=layout)
        figure.suptitle(fill(title, int(9.5 * figure.get_figwidth())), x=0.015, ha="left", fontsize=15, color=INK)
        grid = figure.subplots(2, across, squeeze=False, height_ratios=[2, 1])
        for (upper, lower), (name, data) in zip(grid.T, partitions.items(), strict=True):
            counts = label_counts(data)
            _mix(upper, counts, most=30, legend=False)
            upper.set_title(name, pad=8)
            _histogram(lower, label_skew(counts).distinct, "", "distinct labels")
        write_png(figure, path)


def _mix(axes: Axes, counts: Counts, most: int = SHOWN, legend: bool = True) -> None:
    clients, classes = counts.shape
    chosen = spread_out(clients, most)
    share = counts[chosen] / counts[chosen].sum(1, keepdims=True)
    right = np.cumsum(share, axis=1)
    colours = _colours(classes)
    place = np.arange(len(chosen))
    for label in range(classes):
        width, left = share[:, label], right[:, label] - share[:, label]
        axes.barh(place, width, left=left, height=0.86, color=colours[label], linewidth=0)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(chosen) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    named = _round_ones(chosen.tolist(), clients)
    axes.set_yticks(named, [f"{chosen[at]:,}" for at in named])
    axes.set_ylabel("client")
    axes.set_xlabel("share of the client's examples")
    few = len(chosen) < clients
    axes.set_title(f"Labels of {f'{len(chosen)} of the ' if few else 'the '}{clients:,} clients")
    if legend:
        _legend(axes, colours, classes)


def _round_ones(chosen: list[int], clients: int, most: int = 12) -> list[int]:
    """The places of the clients that are named: all multiples of the smallest round number that leaves room.

    >>> _round_ones([0, 3, 6, 10, 13, 16, 20], 21), _round_ones(list(range(10)), 10)
    ([0, 3, 6], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    for step in (digit * 10**power for power in range(10) for digit in (1, 2, 5)):
        multiples = range(0, clients, step)
        if len(multiples) <= most and set(multiples) <= set(chosen):
            return [chosen.index(client) for client in multiples]
    return [0]


def _legend(axes: Axes, colours: list[Any], classes: int) -> None:
    if classes > len(MIX) * 2:
        text = f"{classes} labels, coloured in their order"
        axes.text(0, 1.012, text, transform=axes.transAxes, color=_MUTED, va="bottom")
        return
    label_legend(axes, colours, classes, small=classes > 10)


def _colours(classes: int) -> list[Any]:
    """The muted scheme, or, for more labels than it has, a ramp on which neighbours alternate in lightness."""
    if classes <= len(MIX):
        return list(MIX)
    ramp = [mpl.colormaps["turbo"](at) for at in np.linspace(0.03, 0.97, classes)]
    return [tuple(1 - (1 - part) * (0.62 if index % 2 else 1) for part in rgba[:3]) for index, rgba in enumerate(ramp)]


def _histogram(axes: Axes, values: Counts, title: str, label: str) -> None:
    low, high = int(values.min()), int(values.max())
    if high - low < 40:
        bins = np.arange(low, high + 2) - 0.5
        bins = bins if len(bins) > 3 else np.arange(max(0, low - 3), high + 5) - 0.5
    else:
        bins = np.linspace(low, high, 41)
    axes.hist(values, bins=bins.tolist(), color=_BAR, rwidth=0.9 if high - low < 40 else 1.0)
    axes.set_title(title, pad=26)
    spread = f"{low:,} each" if low == high else f"{low:,} to {high:,}, median {_half(float(np.median(values)))}"
    axes.text(0, 1.015, spread, transform=axes.transAxes, color=_MUTED, va="bottom")
    axes.set_xlabel(label)
    axes.set_ylabel("clients")
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if low == high:
        axes.set_xticks([low])  # of one value there is nothing else to tell


def _half(median: float) -> str:
    """A median of whole numbers, which may lie between two of them.

    >>> _half(3.5), _half(1200.0)
    ('3.5', '1,200')
    """
    return f"{median:,.0f}" if median == int(median) else f"{median:,.1f}"
