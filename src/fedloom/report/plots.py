"""Pictures as files. Colours can be told apart by colour-blind readers, and every line is named where it ends."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, MaxNLocator
from torch import Tensor

from fedloom.data.federated import FederatedData
from fedloom.data.skew import label_counts
from fedloom.report.palette import FAINT, INK, LINES, MIX

Floats = npt.NDArray[np.float64]
Rounds = Sequence[Mapping[str, Any]]
"""One run's records, as `History.rounds` holds them."""

DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
STYLE: dict[Any, Any] = {
    "font.size": 13,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 16,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 44,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}


def write_png(figure: Figure, path: str | PathLike[str]) -> None:
    """Letters that the font does not have, of a label in Chinese say, are drawn as boxes; long labels leave no room."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        figure.savefig(path, format="png")


def learning_curves_and_mix(
    results: Mapping[str, Sequence[Rounds]], data: FederatedData, path: str | PathLike[str], title: str | None = None
) -> None:
    """Write a PNG: how each algorithm learns, beside what each client holds.

    `results` has the records of every seed's run by the algorithm's label. A line is the mean over seeds, its band the
    smallest to the largest; a run that stopped early keeps its last value.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(16, 8), dpi=100, layout=ConstrainedLayoutEngine(w_pad=0.25, h_pad=0.15))
        left, right = figure.subplots(1, 2, width_ratios=[1.45, 1])
        if title:
            figure.suptitle(title, x=0.015, ha="left", fontsize=18, color=INK)
        _curves(left, results)
        _mix(right, data)
        write_png(figure, path)


def _curves(axes: Axes, results: Mapping[str, Sequence[Rounds]]) -> None:
    metric = _metric(results)
    ends: list[tuple[float, float, str, str]] = []
    last = 1.0
    seeds = max((len(runs) for runs in results.values()), default=0)
    for index, (label, runs) in enumerate(results.items()):
        rounds, values = _aligned(runs, metric)
        if not rounds.size:
            continue
        colour, dash = LINES[index % len(LINES)], DASHES[index // len(LINES) % len(DASHES)]
        mean = values.mean(0)
        axes.fill_between(rounds, values.min(0), values.max(0), color=colour, alpha=0.13, linewidth=0)
        axes.plot(rounds, mean, color=colour, linestyle=dash, linewidth=2.2, marker="o" if rounds.size == 1 else None)
        last = max(last, float(rounds[-1]))
        shown = f"{mean[-1]:.1%}" if metric == "test_accuracy" else f"{mean[-1]:.3g}"
        ends.append((float(mean[-1]), float(rounds[-1]), f"{label}  {shown}", colour))
    axes.set_xlim(0, last * 1.01)
    axes.set_title({"test_accuracy": "Test accuracy", "test_loss": "Test loss"}.get(metric, "Training loss"))
    if seeds > 1:
        band = f"mean of {seeds} seeds; the band is their smallest to largest"
        axes.text(0, 1.02, band, transform=axes.transAxes, color="#555555", va="bottom")
    axes.set_xlabel("round")
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if metric == "test_accuracy":
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]), top=min(1.0, axes.get_ylim()[1]))
        axes.yaxis.set_major_formatter(percent())
    _name_ends(axes, ends)


class Plain(LogFormatterSciNotation):
    """Labels of a logarithmic axis as numbers are read: 65 and 0.02, and powers of ten only far from one."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        label: str = super().__call__(x, pos)  # empty where there is no room for it
        return f"{x:g}" if label and 1e-4 <= x < 1e5 else label


def logarithmic(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """An axis on a log scale; both kinds of ticks say so when they have labels."""
    scale, axis = (axes.set_xscale, axes.xaxis) if which == "x" else (axes.set_yscale, axes.yaxis)
    scale("log")
    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain(labelOnlyBase=False, minor_thresholds=(1.5, 0.5)))


def percent() -> FuncFormatter:
    """Shares in percent, with as many digits as tell two ticks apart."""
    return FuncFormatter(lambda value, _: f"{100 * value:.4g}%")


def thousands() -> FuncFormatter:
    """Large counts as they are read: 50k, 2.5M.

    >>> [thousands()(count, None) for count in (0, 50_000, 2_500_000)]
    ['0', '50k', '2.5M']
    """

    def label(value: float, _: int | None) -> str:
        size, unit = (1e6, "M") if abs(value) >= 1e6 else (1e3, "k")
        return f"{value / size:g}{unit}" if value else "0"

    return FuncFormatter(label)


def _metric(results: Mapping[str, Sequence[Rounds]]) -> str:
    """Accuracy where there is any, else a loss."""
    have = {key for runs in results.values() for run in runs for record in run for key in record}
    return next((name for name in ("test_accuracy", "test_loss") if name in have), "train_loss")


def _aligned(runs: Sequence[Rounds], metric: str) -> tuple[Floats, Floats]:
    """The rounds, counted from 1, in which any run was evaluated, and the runs' values there: runs x rounds."""
    series = [{record["round"] + 1: record[metric] for record in run if record.get(metric) is not None} for run in runs]
    series = [points for points in series if points]
    rounds = np.array(sorted({at for points in series for at in points}), np.float64)
    values = np.array([np.interp(rounds, list(points), list(points.values())) for points in series], np.float64)
    return rounds, values


_LEADER = {"arrowstyle": "-", "alpha": 0.6, "linewidth": 0.9, "shrinkA": 1, "shrinkB": 2, "relpos": (0, 0.5)}


def _name_ends(axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Name every line at its end, best first, moved apart where they would touch."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.042
    ends = sorted(ends, key=lambda end: end[0])
    places: list[float] = []
    for value, *_ in ends:
        places.append(max(value, places[-1] + gap) if places else value)
    excess = max(0.0, places[-1] - high) if places else 0.0
    for index in reversed(range(len(places))):  # push down from the top where the stack would leave the picture
        ceiling = places[index + 1] - gap if index + 1 < len(places) else places[index] - excess
        places[index] = min(places[index], ceiling)
    for place, (value, last, text, colour) in zip(places, ends, strict=True):
        axes.annotate(
            text,
            xy=(last, value),
            xytext=(1.025, (place - low) / (high - low)),
            textcoords="axes fraction",
            color=colour,
            fontweight="bold",
            va="center",
            annotation_clip=False,
            arrowprops=_LEADER | {"color": colour},
        )


def _mix(axes: Axes, data: FederatedData) -> None:
    counts = _label_counts(data)
    clients, classes = counts.shape
    colours = MIX if classes <= len(MIX) else [mpl.colormaps["viridis"](at) for at in np.linspace(0, 1, classes)]
    edges = np.arange(clients + 1) - 0.5
    right = np.cumsum(counts, axis=1)
    for label in range(classes):
        start, stop = right[:, label] - counts[:, label], right[:, label]
        begin, end = np.append(start, start[-1]), np.append(stop, stop[-1])
        axes.fill_betweenx(edges, begin, end, step="post", color=colours[label], linewidth=0)
    sizes = right[:, -1]
    if clients <= 120:
        axes.hlines(edges, 0, sizes.max(), color="white", linewidth=min(2.0, 90 / clients))
    axes.set_xlim(0, width := _width(sizes))
    for client in np.flatnonzero(sizes > width).tolist():
        axes.text(
            width, float(client), f"{sizes[client]:,} →", ha="right", va="center", fontsize=9, color=INK, bbox=_TAG
        )
    axes.set_ylim(clients - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("training examples")
    axes.set_ylabel("client")
    axes.set_title(f"What the {clients:,} clients hold{', by label' if classes > 1 else ''}")
    if 1 < classes <= len(MIX):
        label_legend(axes, colours, classes)
    elif classes > 1:
        shown = f"{classes} classes, from dark (0) to light ({classes - 1})"
        axes.text(0, 1.02, shown, transform=axes.transAxes, color="#555555", va="bottom")


_TAG = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}


def _width(sizes: npt.NDArray[np.int64]) -> float:
    """The longest bar, or, where a few dwarf all the others, room for the others: those few are cut and labelled."""
    usual = float(np.quantile(sizes, 0.95)) * 1.5
    return usual if sizes.max() > 3 * usual else float(sizes.max())


def label_legend(axes: Axes, colours: Sequence[Any], classes: int, small: bool = False) -> None:
    """The labels' colours in a row above the bars."""
    axes.legend(
        handles=[Patch(color=colours[label], label=str(label)) for label in range(classes)],
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=classes,
        frameon=False,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.35,
        columnspacing=0.45 if small else 0.9,
        fontsize=10 if small else 13,
        borderaxespad=0.2,
    )


def _label_counts(data: FederatedData) -> npt.NDArray[np.int64]:
    """How many rows of every class each client has, clients x classes; one column where rows have no class."""
    if data.classes is None or not isinstance(data.y, Tensor):
        return data.examples.cpu().numpy()[:, None].astype(np.int64)
    return label_counts(data)
