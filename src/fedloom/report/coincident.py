"""Lines that lie on each other, drawn so that each can be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from fedloom.report.plots import Floats

NEAR = 0.002
"""As a share of the panel's height, what no eye tells apart."""
LEAST = 0.03
"""As a share of its width: shorter stretches are where lines cross."""
DASH = 6.0
"""The length of a colour's dash, in widths of the line."""


def tell_apart(axes: Axes, lines: Sequence[Line2D]) -> None:
    """Give lines that lie on each other dashes in turn, and a larger disc under what would hide a point.

    For when all is drawn and the axes have their limits: the last line is on top, and the others show through its gaps.
    """
    if len(lines) < 2:
        return
    across, heights = _heights(axes, lines)
    for members, begin, end in _stretches(heights):
        if across[end] - across[begin] < LEAST:
            continue
        for order, member in enumerate(members[:-1]):
            line = lines[member]
            part = LineCollection(
                [_cut(axes, line, across[begin], across[end])],
                colors=[line.get_color()],
                linewidths=[line.get_linewidth()],
                linestyles=[_turn(order + 1, len(members))],
                capstyle="butt",
                zorder=line.get_zorder() + 0.1,
            )
            axes.add_collection(part, autolim=False)
    _discs(axes, lines)


def _turn(order: int, count: int) -> tuple[float, tuple[float, float]]:
    """The dash that is seen in its turn, the line on top being the first.

    >>> _turn(1, 2), _turn(2, 3)
    ((6.0, (6.0, 6.0)), (6.0, (6.0, 12.0)))
    """
    return ((count - order) * DASH, (DASH, (count - 1) * DASH))


def _placed(axes: Axes, line: Line2D) -> Floats:
    """The line's points, from left to right, as shares of the panel; those that have no place left out."""
    points = np.asarray(line.get_xydata(), np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        placed = np.asarray((axes.transScale + axes.transLimits).transform(points), np.float64)
    placed = placed[np.isfinite(placed).all(1)]
    return placed[np.argsort(placed[:, 0], kind="stable")]


def _heights(axes: Axes, lines: Sequence[Line2D]) -> tuple[Floats, Floats]:
    """Every place across where a line has a point, and how high all of them are there: NaN beyond a line's ends."""
    placed = [_placed(axes, line) for line in lines]
    across = np.unique(np.concatenate([points[:, 0] for points in placed]))
    nowhere = np.full(across.size, np.nan)
    heights = [
        np.interp(across, points[:, 0], points[:, 1], left=np.nan, right=np.nan) if len(points) else nowhere
        for points in placed
    ]
    return across, np.array(heights)


def _together(near: npt.NDArray[np.bool_]) -> Iterator[tuple[int, ...]]:
    """The lines that are together, by which of each two are."""
    left = list(range(len(near)))
    while left:
        members = [other for other in left if near[left[0], other] or other == left[0]]
        left = [other for other in left if other not in members]
        if len(members) > 1:
            yield tuple(members)


def _stretches(heights: Floats) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Which lines are together, and from which place to which."""
    if heights.shape[1] < 2:
        return
    apart = np.abs(heights[:, None] - heights[None])  # NaN is near to nothing
    farther = np.maximum(apart[..., :-1], apart[..., 1:])
    both = (farther < NEAR) & ~np.eye(len(heights), dtype=np.bool_)[..., None]
    some = np.asarray(both.any((0, 1)))
    open_at: dict[tuple[int, ...], int] = {}
    for place in range(both.shape[-1] + 1):
        now = set(_together(both[..., place])) if place < some.size and some[place] else set()
        for members in [each for each in open_at if each not in now]:
            yield members, open_at.pop(members), place
        for members in now:
            open_at.setdefault(members, place)


def _cut(axes: Axes, line: Line2D, begin: float, end: float) -> Floats:
    """The points of a stretch, in the axes' own units."""
    placed = _placed(axes, line)
    inside = placed[(placed[:, 0] > begin) & (placed[:, 0] < end)]
    ends = [(at, np.interp(at, placed[:, 0], placed[:, 1])) for at in (begin, end)]
    whole = np.array([ends[0], *inside.tolist(), ends[1]])
    return np.asarray((axes.transScale + axes.transLimits).inverted().transform(whole), np.float64)


def _discs(axes: Axes, lines: Sequence[Line2D]) -> None:
    """Under the point that is on top, a disc for each that it hides."""
    marked = [line for line in lines if line.get_marker() not in (None, "", "None")]
    seen: list[list[tuple[Floats, Floats, Line2D]]] = []
    for line in marked:
        placed = _placed(axes, line)
        data = (axes.transScale + axes.transLimits).inverted().transform(placed) if len(placed) else placed
        for point, own in zip(placed, data, strict=True):
            pile = next((pile for pile in seen if np.abs(pile[0][0] - point).max() < NEAR), None)
            if pile is None:
                seen.append(pile := [])
            pile.append((point, own, line))
    for pile in seen:
        for below, (_, own, line) in enumerate(reversed(pile)):
            if below:
                size = line.get_markersize() + 5.0 * below
                axes.scatter(
                    own[0],
                    own[1],
                    s=size**2,
                    color=line.get_color(),
                    zorder=line.get_zorder() - 0.01 * below,
                    linewidths=0,
                )
