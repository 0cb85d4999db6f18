"""How the lines and bars of a study's picture are told apart, and the names below its panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedloom.report.palette import INK, LINES
from fedloom.report.plots import DASHES

HATCHES = ("", "////", "....", "xxxx")
"""On bars, what dashes are on lines."""
MARKERS = ("", "o", "s", "^")
"""On lines of one group, whose colour is the group's, what comes when the dashes are spent."""

MARGIN, ROOM = 0.25, 1.3
"""Inches that a figure keeps free beside its legend, and that it has for one below its panels."""


class Look(NamedTuple):
    """A colour, and what tells apart those who share it: the dash of a line, the hatch of a bar."""

    colour: str
    dash: Any
    hatch: str = ""
    marker: str = ""

    @property
    def bar(self) -> dict[str, Any]:
        """The properties of a patch; its hatch is drawn in the edge's colour, without an edge."""
        return {"facecolor": self.colour, "hatch": self.hatch, "edgecolor": "white", "linewidth": 0}


def nth_look(index: int) -> Look:
    """The look of a figure's line or bar of that number.

    >>> nth_look(0), nth_look(7).dash, nth_look(7).hatch
    (Look(colour='#0072B2', dash='solid', hatch='', marker=''), (0, (5, 2)), '////')
    """
    again, colour = divmod(index, len(LINES))
    return Look(LINES[colour], DASHES[again % len(DASHES)], HATCHES[again % len(HATCHES)])


def group_look(group: int, index: int) -> Look:
    """The look of a line in a group, all of one colour.

    >>> group_look(1, 0), group_look(1, 4).marker
    (Look(colour='#D55E00', dash='solid', hatch='', marker=''), 'o')
    """
    again, dash = divmod(index, len(DASHES))
    return Look(LINES[group % len(LINES)], DASHES[dash], marker=MARKERS[again % len(MARKERS)])


def handle(look: Look, name: str, bars: bool) -> Artist:
    """What stands before a name in the legend."""
    if bars:
        return Patch(label=name, **look.bar)
    shown = {"color": look.colour, "linestyle": look.dash, "marker": look.marker, "markersize": 4}
    return Line2D([], [], linewidth=2.2, label=name, **shown)


def published_handle() -> Artist:
    return Line2D([], [], color=INK, marker="o", mfc="white", linestyle="none", label="published")


def add_legend(figure: Figure, handles: Sequence[Artist], title: str) -> None:
    """Names below the panels, side by side as far as they fit; long ones are folded, and for many the figure grows."""
    names = [str(handle.get_label()) for handle in handles]
    columns, letters = _abreast(names, figure.get_figwidth()), max(map(len, [*names, title]))
    while True:
        legend = figure.legend(
            handles,
            [fill(name, letters) for name in names],
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            title=fill(title, letters),
            alignment="left",
        )
        wide, high = (pixels / figure.dpi for pixels in legend.get_window_extent().size)
        if wide <= figure.get_figwidth() - MARGIN or letters == 1:
            break
        legend.remove()
        if columns > 1:
            rows = math.ceil(len(names) / (columns - 1))
            columns = math.ceil(len(names) / rows)  # as even as they can be
        else:
            letters = max(1, letters * 3 // 4)
    figure.set_figheight(figure.get_figheight() + max(0.0, high - ROOM))


def _abreast(names: Sequence[str], inches: float) -> int:
    """How many names may fit side by side: a letter takes about 0.09 inches, the line or patch before it 0.7."""
    widest = max(map(len, names))
    return max(1, min(len(names), int(inches / (0.7 + 0.09 * widest))))
