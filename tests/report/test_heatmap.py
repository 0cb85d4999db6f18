"""The heat map of two rates, and the picture of a search: they can be drawn whatever came of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from PIL import Image

from fedloom.report.heatmap import heat_map
from fedloom.report.search_plot import Trial, search_plot

RATES = [(c, s) for c in (0.01, 0.1, 1.0) for s in (0.316228, 1.0)]


@pytest.mark.parametrize(
    "values",
    [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.1, None, 0.3, None, 0.5, 0.6], [0.5] * 6, [None] * 6, [1e9, 0.1, 2, 3, 4, 5]],
)
@pytest.mark.parametrize("lower", [False, True])
def test_it_is_drawn(values: list[float | None], lower: bool, tmp_path: Path) -> None:
    cells = dict(zip(RATES, values, strict=True))
    best = None if values[1] is None else RATES[1]
    heat_map(cells, tmp_path / "map.png", title="FedAvg", best=best, percent=not lower, lower=lower)
    with Image.open(tmp_path / "map.png") as image:
        assert image.format == "PNG" and image.width >= 700 and len(image.convert("RGB").getcolors(2**24) or []) > 20


def test_a_grid_may_have_gaps_and_a_single_cell(tmp_path: Path) -> None:
    heat_map({(0.1, 1.0): 0.5, (1.0, 0.1): 0.6}, tmp_path / "gaps.png", title="FedAvg", best=(1.0, 0.1))
    heat_map({(0.0, 1.0): 0.5}, tmp_path / "one.png", title="FedAvg", best=(0.0, 1.0))


def bar_of(figure: Figure) -> Colorbar:
    axes = figure.axes[0]
    shown = [*axes.images, *(each for each in axes.collections if each.get_array() is not None)]
    assert len(shown) == 1 and isinstance(shown[0].colorbar, Colorbar)
    return shown[0].colorbar


@pytest.mark.parametrize(("highest", "arrow"), [(1000.0, "max"), (3.0, "neither")])
def test_a_colour_bar_that_stops_before_the_highest_loss_ends_in_an_arrow(
    highest: float, arrow: str, tmp_path: Path, drawn: list[Figure]
) -> None:
    cells = dict(zip(RATES, [1.0, 2.0, None, 2.5, highest, 1.5], strict=True))
    heat_map(cells, tmp_path / "map.png", title="FedAvg", best=RATES[0], percent=False, lower=True)
    trials = [Trial(at, score, "" if score else "diverged") for at, score in cells.items()]
    names = ["client rate", "server rate"]
    search_plot(trials, tmp_path / "a.png", names=names, title="", score="loss", best=0, percent=False, lower=True)
    assert [bar_of(figure).extend for figure in drawn] == [arrow, arrow]
    assert [bar_of(figure).vmax for figure in drawn] == [min(highest, 4.0)] * 2


TRIALS = [
    Trial((0.01, 1.0), 0.3),
    Trial((0.1, 0.5), 0.8),
    Trial((1.0, 0.1), None, "pruned"),
    Trial((10.0, 3.0), None, "diverged"),
    Trial((0.2, 3.0), None, "pruned"),
]


def test_two_rates_of_a_search_are_a_cloud_coloured_by_the_score(tmp_path: Path, drawn: list[Figure]) -> None:
    search_plot(TRIALS, tmp_path / "a.png", names=["c", "s"], title="FedAvg", score="accuracy", best=1)
    axes = drawn[0].axes[0]
    [cloud] = axes.collections
    assert cloud.get_offsets().tolist() == [[0.01, 1.0], [0.1, 0.5]] and cloud.get_array().tolist() == [0.3, 0.8]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("c", "s")
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    pruned, diverged, *rings = axes.lines
    assert pruned.get_xydata().tolist() == [[1.0, 0.1], [0.2, 3.0]] and diverged.get_xydata().tolist() == [[10.0, 3.0]]
    assert pruned.get_marker() != diverged.get_marker()
    assert rings and all(ring.get_xydata().tolist() == [[0.1, 0.5]] for ring in rings)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["2 pruned", "1 diverged"]
    assert axes.get_title(loc="left") == "FedAvg, 5 tried"


def test_one_rate_of_a_search_is_drawn_against_the_score(tmp_path: Path, drawn: list[Figure]) -> None:
    trials = [Trial(trial.at[:1], trial.score, trial.why) for trial in TRIALS]
    search_plot(trials, tmp_path / "a.png", names=["c"], title="FedAvg", score="accuracy", best=1)
    axes = drawn[0].axes[0]
    scored, *_, ring = axes.lines
    assert scored.get_xydata().tolist() == [[0.01, 0.3], [0.1, 0.8]] and ring.get_xydata().tolist() == [[0.1, 0.8]]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == ("c", "accuracy", "log")


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("scores", [[None, None], [0.5, None], [1e30, 0.0], [1e30, 0.1]])
def test_a_search_can_be_drawn(scores: list[float | None], count: int, lower: bool, tmp_path: Path) -> None:
    trials = [Trial((float(i), 1.0)[:count], score, "not finite") for i, score in enumerate(scores)]
    best = next((place for place, score in enumerate(scores) if score is not None), None)
    names = ["c", "s"][:count]
    search_plot(trials, tmp_path / "a.png", names=names, title="", score="loss", best=best, lower=lower)
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG" and image.size == (850, 650)
