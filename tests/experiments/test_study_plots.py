"""A study's picture: bars that can be told apart, and a legend that is all there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from fedloom.experiments.measures import Measured, Outcome
from fedloom.experiments.published import Published
from fedloom.experiments.results import Key, Result, key
from fedloom.experiments.study import Study, read_study
from fedloom.experiments.study_legend import HATCHES
from fedloom.experiments.study_plots import SMALL, draw, study_figure
from fedloom.report.plots import DASHES

TEXT = """
id = "tiny"
paper = "Nobody 2026, table 1"
title = "Accuracy of several methods"

[experiment]
rounds = 3
data = { name = "digits", clients = 4 }
model = { name = "logistic" }
algorithm = { name = "fedavg", client_lr = 0.5 }

[only]
model = ["logistic"]

[[axes]]
name = "model"
values.logistic = {}
values.other = {}

[[axes]]
name = "method"
METHODS

[[axes]]
name = "epochs"
values.one = { epochs = 1 }
values.two = { epochs = 2 }

[[measures]]
name = "accuracy"
kind = "final"

[figure]
kind = "KIND"
AXES
"""
SHORT, LONG = "rate {}", "a method whose name tells all about it, as some do, at some length, with the rate {}"


def named(name: str, count: int) -> list[str]:
    return [name.replace("{}", str(index)) for index in range(count)]


def small_study(kind: str, count: int, name: str = SHORT) -> Study:
    methods = [
        f'values."{method}" = {{ "algorithm.client_lr" = {1 + i} }}' for i, method in enumerate(named(name, count))
    ]
    axes = 'panels = ["epochs"]' if kind == "curves" else 'x = "epochs"'
    return read_study(TEXT.replace("METHODS", "\n".join(methods)).replace("KIND", kind).replace("AXES", axes))


def outcomes(study: Study) -> tuple[list[tuple[dict[str, str], list[Outcome]]], list[Result]]:
    cells = [{"model": "logistic", "method": a, "epochs": b} for a in study.values("method") for b in ("one", "two")]
    curves = [(cell, [Outcome([{"round": t, "test_accuracy": 0.1 * t} for t in range(3)])]) for cell in cells]
    return curves, [Result(cell, study.counted[0], Measured((40.0 + i, 42.0 + i))) for i, cell in enumerate(cells)]


def drawn(study: Study, numbers: dict[Key, Published] | None = None) -> Figure:
    """As it would be written."""
    with mpl.rc_context(SMALL):
        figure = draw(study, *outcomes(study), numbers or {})
        assert figure is not None
        figure.draw_without_rendering()
    return figure


def legend_of(figure: Figure) -> Legend:
    (legend,) = figure.legends
    return legend


def look_of(patch: Rectangle) -> tuple[str, str]:
    return to_hex(patch.get_facecolor()), patch.get_hatch() or ""


def looks_of_bars(figure: Figure) -> list[tuple[str, str]]:
    bars = [each for each in figure.axes[0].containers if isinstance(each, BarContainer)]
    assert all(len({look_of(patch) for patch in container}) == 1 for container in bars)
    return [look_of(container[0]) for container in bars]


@pytest.mark.parametrize("count", [3, 8, 16, 28])
def test_every_bar_has_a_colour_and_hatch_of_its_own_and_the_legend_shows_both(count: int) -> None:
    figure = drawn(small_study("bars", count))
    looks = looks_of_bars(figure)
    assert len(set(looks)) == len(looks) == count
    assert all(hatch == "" for _, hatch in looks[:7])  # nothing to tell apart yet
    legend = legend_of(figure)
    assert [look_of(handle) for handle in legend.get_patches()] == looks and not legend.get_lines()
    assert [text.get_text() for text in legend.get_texts()] == named(SHORT, count)


def test_lines_have_dashes_where_colours_repeat() -> None:
    figure = drawn(small_study("curves", 8))
    first, *_, last = figure.axes[0].lines
    assert first.get_color() == last.get_color() and first.get_linestyle() != last.get_linestyle()
    assert not legend_of(figure).get_patches() and len(legend_of(figure).get_lines()) == 8
    assert len(HATCHES) == len(DASHES)


def test_a_level_is_drawn_across_every_panel() -> None:
    study = small_study("curves", 3)
    assert study.figure is not None
    level = study.figure.model_copy(update={"level": {"method": "rate 2"}})
    curves, found = outcomes(study)
    only_one = [(cell, runs) for cell, runs in curves if cell["method"] != "rate 2" or cell["epochs"] == "one"]
    figure = draw(study.model_copy(update={"figure": level}), only_one, found, {})
    assert figure is not None
    for axes in figure.axes:
        *_, last = axes.lines
        assert len(axes.lines) == 3 and list(last.get_ydata()) == [0.2, 0.2]


def test_names_along_an_axis_are_the_studys_own() -> None:
    text = TEXT.replace("METHODS", 'values.a = { "algorithm.client_lr" = 1 }').replace("KIND", "lines")
    counts = [1, 10, 11, 100, 800]
    text = text.replace(
        "values.one = { epochs = 1 }\nvalues.two = { epochs = 2 }", f'key = "epochs"\nvalues = {counts}'
    )
    study = read_study(text.replace("AXES", 'x = "epochs"'))
    found = [
        Result({"model": "logistic", "method": "a", "epochs": str(count)}, study.counted[0], Measured((40.0,)))
        for count in counts
    ]
    figure = draw(study, [(result.cell, []) for result in found], found, {})
    assert figure is not None
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "10", "100", "800"]
    assert axes.get_xscale() == "log"


def test_a_name_that_is_no_place_on_an_axis_makes_them_all_names() -> None:
    text = TEXT.replace("METHODS", 'values.a = { "algorithm.client_lr" = 1 }').replace("KIND", "lines")
    text = text.replace("values.one = ", "values.inf = ").replace("values.two = ", 'values."1" = ')
    study = read_study(text.replace("AXES", 'x = "epochs"'))
    cells = [{"model": "logistic", "method": "a", "epochs": name} for name in ("inf", "1")]
    found = [Result(cell, study.counted[0], Measured((40.0,))) for cell in cells]
    figure = draw(study, [(cell, []) for cell in cells], found, {})
    assert figure is not None
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["inf", "1"]


def test_all_that_a_star_stands_for_has_a_panel_beside_another_metric() -> None:
    study = small_study("curves", 1)
    assert study.figure is not None
    wanted = study.figure.model_copy(update={"metric": ["gsi/*", "test_accuracy"]})
    curves, found = outcomes(study)
    marked = [
        (cell, [replace(run, rounds=[{**each, "gsi/w": 1.0} for each in run.rounds]) for run in runs])
        for cell, runs in curves
    ]
    figure = draw(study.model_copy(update={"figure": wanted}), marked, found, {})
    assert figure is not None
    assert {axes.get_ylabel() for axes in figure.axes if axes.axison} == {"gsi/*", "test accuracy"}


@pytest.mark.parametrize("kind", ["bars", "lines", "curves"])
@pytest.mark.parametrize(("count", "name"), [(1, SHORT), (8, "{}"), (28, SHORT), (16, LONG), (3, LONG * 3)])
def test_a_legend_is_never_cut_off_and_leaves_room_for_the_panels(kind: str, count: int, name: str) -> None:
    figure = drawn(small_study(kind, count, name))
    box = legend_of(figure).get_window_extent()
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
    for axes in figure.axes:
        panel = axes.get_tightbbox()
        assert panel is not None and panel.y0 >= box.y1
        assert axes.get_window_extent().height > 1.5 * figure.dpi
    shown = [text.get_text().replace("\n", " ") for text in legend_of(figure).get_texts()]
    assert shown == named(name, count)


def test_what_all_lines_share_is_named_neither_in_the_legend_nor_above_it() -> None:
    legend = legend_of(drawn(small_study("bars", 2)))
    assert legend.get_title().get_text() == "method"


def test_published_numbers_are_circles_among_the_bars_and_in_the_legend() -> None:
    study = small_study("bars", 8)
    cell = {"model": "logistic", "method": "rate 7", "epochs": "two"}
    figure = drawn(study, {key(cell): Published(cell=cell, value=70.0)})
    (circle,) = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    (bar,) = [patch for patch in figure.axes[0].patches if patch.get_height() == 41.0 + 15]
    assert circle.get_xydata()[0] == pytest.approx([bar.get_x() + bar.get_width() / 2, 70.0])
    (handle,) = legend_of(figure).get_lines()
    assert isinstance(handle, Line2D) and legend_of(figure).get_texts()[-1].get_text() == "published"


def test_without_a_figure_nothing_is_written(tmp_path: Path) -> None:
    study = small_study("bars", 2)
    plain = study.model_copy(update={"figure": None})
    assert not study_figure(plain, *outcomes(plain), {}, tmp_path / "figure.png")
    assert not study_figure(study, [], [], {}, tmp_path / "figure.png")
    assert not any(tmp_path.iterdir())
