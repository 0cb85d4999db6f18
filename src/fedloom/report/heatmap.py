"""Client rate against server rate as a picture: how good each pair is, and how much room there is around the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedloom.report.palette import INK
from fedloom.report.plots import STYLE, Floats, write_png

Pair = tuple[float, float]
"""(client rate, server rate)."""

NOTHING = "#E4E4E4"
"""Of a pair that diverged."""
FRAME = "#E69F00"
"""Around the best."""


def heat_map(
    cells: Mapping[Pair, float | None],
    path: str | PathLike[str],
    *,
    title: str,
    best: Pair | None = None,
    percent: bool = True,
    lower: bool = False,
) -> None:
    """Write a PNG as figure 3 of Reddi et al. 2020: a cell for every pair of rates, the best one framed.

    None is a pair that diverged. Neighbours in the grid are neighbours in the picture: on a grid of decades its axes
    are logarithmic.
    """
    clients, servers = (sorted({pair[axis] for pair in cells}) for axis in (0, 1))
    values = np.full((len(servers), len(clients)), np.nan)
    for (client, server), value in cells.items():
        values[servers.index(server), clients.index(client)] = math.nan if value is None else value
    with mpl.rc_context(STYLE | {"axes.titlepad": 14}):
        width, height = 3.2 + 1.0 * len(clients), 2.4 + 0.75 * len(servers)
        figure = Figure(figsize=(max(7.0, width), max(4.0, height)), dpi=100, layout="constrained")
        axes = figure.add_subplot()
        norm = norm_of(values, lower)
        shown = np.ma.masked_invalid(values)
        image = axes.imshow(shown, cmap=colours_of(lower), norm=norm, origin="lower", aspect="auto")
        _write(axes, values, norm, percent, lower)
        _ticks(axes, clients, servers)
        axes.set_title(title)
        if best is not None:
            _frame(axes, clients.index(best[0]), servers.index(best[1]))
        form = lambda value, _: in_words(value, percent)  # noqa: E731
        bar = figure.colorbar(image, ax=axes, pad=0.02, extend=beyond(values, norm), format=form)
        bar.outline.set_visible(False)
        write_png(figure, path)


def colours_of(lower: bool) -> Colormap:
    """The best is the lightest."""
    return mpl.colormaps["cividis_r" if lower else "cividis"].with_extremes(bad=NOTHING)


def beyond(values: Floats, norm: Normalize) -> str:
    """Whether the colour bar ends in an arrow: some values lie beyond its end, and have its last colour."""
    known = values[np.isfinite(values)]
    return "max" if known.size and norm.vmax is not None and known.max() > norm.vmax else "neither"


def norm_of(values: Floats, lower: bool) -> Normalize:
    """The whole span; of a loss, up to four times the best: what is beyond is equally bad."""
    known = values[np.isfinite(values)]
    if not known.size:
        return Normalize(0, 1)
    low, high = float(known.min()), float(known.max())
    if lower and high > 4 * low > 0:
        high = 4 * low
    return Normalize(low, high if high > low else low + 1e-9)


def _write(axes: Axes, values: Floats, norm: Normalize, percent: bool, lower: bool) -> None:
    """The number in every cell, in ink that can be read on its colour."""
    for row, column in np.ndindex(*values.shape):
        value = float(values[row, column])
        if math.isnan(value):
            axes.text(column, row, "diverged", ha="center", va="center", fontsize=9, color="#777777")
            continue
        share = float(norm(value))
        light = share < 0.5 if lower else share > 0.5
        axes.text(column, row, in_words(value, percent), ha="center", va="center", color=INK if light else "white")


def in_words(value: float, percent: bool) -> str:
    return f"{value:.1%}" if percent else f"{value:.3g}"


def _ticks(axes: Axes, clients: list[float], servers: list[float]) -> None:
    axes.set_xticks(range(len(clients)), [_power(rate) for rate in clients])
    axes.set_yticks(range(len(servers)), [_power(rate) for rate in servers])
    axes.set_xlabel("client learning rate")
    axes.set_ylabel("server learning rate")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(len(clients) - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(len(servers) - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)


def _power(rate: float) -> str:
    """A rate of a decade or half of one as a power of ten, any other as it is.

    >>> _power(0.01), _power(0.316228), _power(0.3)
    ('$10^{-2}$', '$10^{-0.5}$', '0.3')
    """
    exponent = math.log10(rate) if rate > 0 else math.nan
    halves = round(2 * exponent) if rate > 0 else 0
    if rate > 0 and abs(2 * exponent - halves) < 1e-5:
        return f"$10^{{{halves / 2:g}}}$"
    return f"{rate:g}"


def _frame(axes: Axes, column: int, row: int) -> None:
    """The best one, whose colour is the lightest."""
    for colour, width in ((INK, 6.0), (FRAME, 3.0)):
        axes.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=colour, linewidth=width, zorder=3, clip_on=False
            )
        )
    axes.text(column, row - 0.32, "best", ha="center", va="center", fontsize=9, fontweight="bold", color=INK)
