"""A study's picture: bars and lines that can be told apart, panels that can be compared, a legend that is all there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from fedloom.errors import FedloomError
from fedloom.experiments.measures import Measured, Outcome
from fedloom.experiments.published import Published
from fedloom.experiments.registry import find_study
from fedloom.experiments.results import Key, Result, key
from fedloom.experiments.study import Study
from fedloom.experiments.study_file import read_study
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


# Panels that can be compared ------------------------------------------------------------------------------------------


def curves_of(study: Study, **values: list[float]) -> list[tuple[dict[str, str], list[Outcome]]]:
    """For each value of the axis `epochs`, the accuracies of every method."""
    records = {name: [{"round": t, "test_accuracy": v} for t, v in enumerate(own)] for name, own in values.items()}
    return [
        ({"model": "logistic", "method": method, "epochs": name}, [Outcome(records[name])])
        for method in study.values("method")
        for name in values
    ]


def spans(study: Study, curves: list[tuple[dict[str, str], list[Outcome]]]) -> list[tuple[float, float]]:
    figure = draw(study, curves, [], {})
    assert figure is not None
    return [axes.get_ylim() for axes in figure.axes]


def test_panels_of_one_metric_and_data_set_have_one_span() -> None:
    study = small_study("curves", 1)
    one, two = spans(study, curves_of(study, one=[0.1, 0.9], two=[0.4, 0.5]))
    assert one == two and one[0] < 0.1 and one[1] > 0.9


@pytest.mark.parametrize("setting", ['"data.name" = "mnist"', 'model = { name = "mlp" }'])
def test_panels_of_another_data_set_or_model_have_their_own(setting: str) -> None:
    text = TEXT.replace("METHODS", 'values."rate 0" = {}').replace("KIND", "curves")
    text = text.replace("AXES", 'panels = ["epochs"]').replace("{ epochs = 2 }", f"{{ {setting} }}")
    study = read_study(text)
    one, two = spans(study, curves_of(study, one=[0.1, 0.9], two=[0.4, 0.5]))
    assert one[0] < 0.1 < 0.3 < two[0] and two[1] < 0.6


def test_panels_of_different_metrics_have_their_own() -> None:
    study = small_study("curves", 1)
    assert study.figure is not None
    study = study.model_copy(
        update={"figure": study.figure.model_copy(update={"metric": ["test_accuracy", "train_loss"], "panels": []})}
    )
    records = [{"round": t, "test_accuracy": 0.5, "train_loss": 100.0 + t} for t in range(3)]
    cell = {"model": "logistic", "method": "rate 0", "epochs": "one"}
    figure = draw(study, [(cell, [Outcome(records)])], [], {})
    assert figure is not None
    accuracy, loss = figure.axes
    assert accuracy.get_ylim()[1] < 1 < 99 < loss.get_ylim()[0]


def test_lines_of_one_measure_have_one_span_and_an_empty_panel_takes_none_of_it() -> None:
    study = small_study("lines", 2)
    assert study.figure is not None
    study = study.model_copy(update={"figure": study.figure.model_copy(update={"panels": ["method"], "lines": []})})

    def result(method: str, epochs: str, value: float | None) -> Result:
        cell = {"model": "logistic", "method": method, "epochs": epochs}
        return Result(cell, study.counted[0], Measured((value,)))

    def both(*values: float | None) -> list[tuple[float, float]]:
        found = [result(f"rate {i // 2}", ("one", "two")[i % 2], value) for i, value in enumerate(values)]
        figure = draw(study, [(each.cell, []) for each in found], found, {})
        assert figure is not None
        return [axes.get_ylim() for axes in figure.axes]

    one, two = both(10.0, 20.0, 60.0, 70.0)
    assert one == two and one[0] < 10 and one[1] > 70
    one, empty = both(60.0, 70.0, None, None)
    assert one[0] > 50 and empty == (0.0, 1.0)


# Lines that lie on each other -----------------------------------------------------------------------------------------


def turns(figure: Figure) -> list[tuple[str, float, list[list[float]]]]:
    """Of every part of a line that is drawn over the one that hides it: its colour, the dashes' begin, its points."""
    parts = [part for axes in figure.axes for part in axes.collections if isinstance(part, LineCollection)]
    return [
        (to_hex(part.get_colors()[0]), part.get_linestyles()[0][0], np.round(part.get_segments()[0], 6).tolist())
        for part in parts
    ]


def figure_of(*lines: list[float]) -> Figure:
    study = small_study("curves", len(lines))
    assert study.figure is not None
    study = study.model_copy(
        update={"figure": study.figure.model_copy(update={"panels": []}), "only": {"epochs": ["one"]}}
    )
    curves = [
        (
            {"model": "logistic", "method": f"rate {i}", "epochs": "one"},
            [Outcome([{"round": t, "test_accuracy": v} for t, v in enumerate(values)])],
        )
        for i, values in enumerate(lines)
    ]
    figure = draw(study, curves, [], {})
    assert figure is not None
    return figure


def test_a_line_under_another_shows_through_it_where_they_lie_on_each_other() -> None:
    figure = figure_of([0.1, 0.2, 0.3, 0.9], [0.1, 0.2, 0.3, 0.5], [0.8, 0.7, 0.6, 0.4])
    [(colour, _, points)] = turns(figure)
    lines = figure.axes[0].lines
    assert colour == to_hex(lines[0].get_color()) and len(lines) == 3
    assert points == [[1, 0.1], [2, 0.2], [3, 0.3]]


def test_of_three_lines_each_has_its_turn() -> None:
    figure = figure_of(*([[0.1, 0.5, 0.3]] * 3))
    found = turns(figure)
    assert [colour for colour, _, _ in found] == [to_hex(line.get_color()) for line in figure.axes[0].lines[:2]]
    assert len({begin for _, begin, _ in found}) == 2


def test_lines_that_only_cross_are_left_as_they_are() -> None:
    assert turns(figure_of([0.1, 0.5, 0.9], [0.9, 0.5, 0.1])) == []


def test_a_single_test_that_is_hidden_has_a_larger_disc() -> None:
    axes = figure_of([0.5], [0.5], [0.7]).axes[0]
    [disc] = [each for each in axes.collections if each.get_offsets().tolist() == [[1.0, 0.5]]]
    below, above, _ = axes.lines
    assert to_hex(disc.get_facecolor()[0]) == to_hex(below.get_color())
    assert disc.get_sizes()[0] > above.get_markersize() ** 2 and disc.get_zorder() < above.get_zorder()


# Metrics as lines -----------------------------------------------------------------------------------------------------

ANGLES = """metric."even" = { first = "angle/0", third = "angle/2" }
metric."odd" = { second = "angle/1" }
y = "angle"
marks = { "pi/2" = 1.5708 }
"""


def of_angles(panels: str = 'panels = ["epochs"]') -> Study:
    text = TEXT.replace("METHODS", 'values."rate 0" = {}').replace("KIND", "curves")
    return read_study(text.replace("AXES", panels + "\n" + ANGLES))


def test_metrics_in_groups_are_the_lines_of_one_panel_a_colour_for_each_group() -> None:
    study = of_angles()
    records = [{"round": t, "angle/0": 1.0 + t, "angle/1": 0.5, "angle/2": 0.1 * t} for t in range(3)]
    cells = [{"model": "logistic", "method": "rate 0", "epochs": epochs} for epochs in ("one", "two")]
    figure = draw(study, [(cell, [Outcome(records)]) for cell in cells], [], {})
    assert figure is not None and [axes.get_title() for axes in figure.axes] == [
        "one, rate 0",
        "two, rate 0",
    ]
    for axes in figure.axes:
        first, third, second, level = axes.lines
        assert [list(line.get_ydata()) for line in (first, third, second)] == [[1, 2, 3], [0, 0.1, 0.2], [0.5] * 3]
        assert first.get_color() == third.get_color() != second.get_color()
        assert first.get_linestyle() != third.get_linestyle()
        assert list(level.get_ydata()) == [1.5708] * 2 and [text.get_text() for text in axes.texts] == ["pi/2"]
        assert axes.get_ylabel() == "angle"
    names = [text.get_text() for text in legend_of(figure).get_texts()]
    assert names == ["first (even)", "third (even)", "second (odd)"]


def test_no_two_lines_of_a_large_group_look_alike() -> None:
    study = read_study(find_study("fedadp-fig2"))
    records = [{"round": t, **{f"angle/{k}": 0.1 * k for k in range(10)}} for t in range(3)]
    figure = draw(study, [({}, [Outcome(records)])], [], {})
    assert figure is not None
    (axes,) = figure.axes
    shown = legend_of(figure).get_lines()
    looks = [(line.get_color(), line.get_marker(), str(line._dash_pattern)) for line in shown]  # type: ignore[attr-defined]
    assert len(looks) == len(set(looks)) == 10 and len({colour for colour, *_ in looks}) == 3
    assert axes.get_ylabel() == "smoothed angle (mean so far)"


MISTAKES = {
    'lines = ["method"]': "figure.lines: expected none beside a table of metrics, which are the lines",
    'x = "epochs"': "figure.kind: expected 'curves' beside a table of metrics, got 'lines'",
}


@pytest.mark.parametrize("keys", MISTAKES)
def test_what_groups_of_metrics_cannot_have_is_told(keys: str) -> None:
    text = TEXT.replace("METHODS", 'values."rate 0" = {}').replace("KIND", "lines" if "x =" in keys else "curves")
    with pytest.raises(FedloomError, match=MISTAKES[keys]):
        read_study(text.replace("AXES", keys + "\n" + ANGLES))
    with pytest.raises(FedloomError, match=r"figure.y: expected the axis's name beside a table of metrics"):
        read_study(
            TEXT.replace("METHODS", "values.a = {}")
            .replace("KIND", "curves")
            .replace("AXES", ANGLES.replace('y = "angle"', ""))
        )


def test_what_is_drawn_up_to_a_round_says_so() -> None:
    study = small_study("curves", 1)
    assert study.figure is not None
    running = study.model_copy(update={"figure": study.figure.model_copy(update={"running": "mean"})})
    figure = draw(running, *outcomes(study), {})
    assert figure is not None
    assert {axes.get_ylabel() for axes in figure.axes} == {"test accuracy, mean so far"}
    assert list(figure.axes[0].lines[0].get_ydata()) == pytest.approx([0.0, 0.05, 0.1])


def test_a_pictures_title_says_at_which_scale_it_was_made() -> None:
    study = read_study(find_study("hsu-fig1"))
    assert study.headline == study.title
    assert study.at("smoke").headline == f"{study.title} (scale smoke; stand-in: {study.at('smoke').stand_ins})"
