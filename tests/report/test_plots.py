"""The picture: its size, what its lines and bars say, and the awkward cases."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedloom.data.federated import FederatedData, federate
from fedloom.report import plots
from fedloom.report.plots import learning_curves_and_mix, logarithmic


def run(values: list[float | None], metric: str = "test_accuracy") -> list[dict[str, Any]]:
    return [{"round": t, "train_loss": 1.0} | ({} if v is None else {metric: v}) for t, v in enumerate(values)]


def few_rows(labels: list[int] | None = None) -> FederatedData:
    y = torch.tensor(labels or [0, 1, 2, 2, 1, 0])
    return federate(torch.zeros(len(y), 1), y, [[0, 1, 2], [3, 4]])


def test_a_png_of_1600_by_800_and_no_settings_left_behind(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    learning_curves_and_mix({"FedAvg": [run([0.1, 0.4])]}, few_rows(), tmp_path / "a.png", "A title")
    content = (tmp_path / "a.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")) == (1600, 800)
    assert dict(mpl.rcParams) == before


def test_a_line_is_the_mean_its_band_the_extremes_its_label_the_final_value(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    runs = [run([0.1, None, 0.5]), run([0.3, None, 0.7])]
    learning_curves_and_mix({"FedAvg": runs, "FedGLAD": [run([0.2, 0.9, 0.4])]}, few_rows(), tmp_path / "a.png")
    axes = drawn[0].axes[0]
    assert [line.get_xydata().tolist() for line in axes.lines] == [
        [[1.0, pytest.approx(0.2)], [3.0, pytest.approx(0.6)]],
        [[1.0, 0.2], [2.0, 0.9], [3.0, 0.4]],
    ]
    band = axes.collections[0].get_paths()[0].vertices
    assert {(x, round(y, 6)) for x, y in band} == {(1.0, 0.1), (1.0, 0.3), (3.0, 0.5), (3.0, 0.7)}
    texts = [text.get_text() for text in axes.texts]
    assert "FedAvg  60.0%" in texts and "FedGLAD  40.0%" in texts
    colours = [to_hex(line.get_color()) for line in axes.lines]
    assert len(set(colours)) == 2
    assert [to_hex(text.get_color()) for text in axes.texts if "  " in text.get_text()] == colours[::-1]


@pytest.mark.parametrize(("first", "final"), [(0.1, 0.95), (0.95, 0.1)])
def test_labels_do_not_touch(first: float, final: float, tmp_path: Path, drawn: list[Figure]) -> None:
    results = {f"method {i}": [run([first, final + i / 1000])] for i in range(8)}
    learning_curves_and_mix(results, few_rows(), tmp_path / "a.png")
    figure = drawn[0]
    boxes = sorted(
        (Text.get_window_extent(text) for text in figure.axes[0].texts if "method" in text.get_text()),
        key=lambda b: b.y0,
    )
    assert len(boxes) == 8
    assert all(upper.y0 > lower.y1 - 1 for lower, upper in pairwise(boxes))
    frame = figure.axes[0].get_window_extent()
    assert all(box.x1 <= 1600 and frame.y0 - 12 <= box.y0 and box.y1 <= frame.y1 + 12 for box in boxes)


def test_a_run_that_stopped_early_keeps_its_last_value(tmp_path: Path, drawn: list[Figure]) -> None:
    learning_curves_and_mix({"a": [run([0.2, 0.8]), run([0.2, 0.4, 0.6, 0.6])]}, few_rows(), tmp_path / "a.png")
    np.testing.assert_allclose(drawn[0].axes[0].lines[0].get_ydata(), [0.2, 0.6, 0.7, 0.7])


def test_bars_are_the_counts_of_each_client_in_order(tmp_path: Path, drawn: list[Figure]) -> None:
    data = few_rows()
    assert plots._label_counts(data).tolist() == [[1, 1, 1], [0, 1, 1]]
    learning_curves_and_mix({"a": [run([0.5])]}, data, tmp_path / "a.png")
    axes = drawn[0].axes[1]
    assert axes.get_title(loc="left") == "What the 2 clients hold, by label"
    assert axes.get_xlim() == (0, 3)
    assert axes.get_ylim() == (1.5, -0.5)  # client 0 on top
    extents = [
        [(x0, x1) for x0, x1 in _spans(collection.get_paths()[0].vertices)] for collection in axes.collections[:3]
    ]
    assert extents == [[(0, 1), (0, 0)], [(1, 2), (0, 1)], [(2, 3), (1, 2)]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "1", "2"]


def _spans(vertices: np.ndarray) -> list[tuple[float, float]]:
    """The left and right end of a class's bar in the middle of every client's row."""
    from matplotlib.path import Path as Outline

    outline, grid = Outline(vertices), np.arange(0.05, 3.05, 0.1)
    spans = []
    for client in (0, 1):
        inside = grid[outline.contains_points([(x, client) for x in grid])]
        spans.append((round(inside.min() - 0.05), round(inside.max() + 0.05)) if inside.size else (0, 0))
    return spans


def test_a_giant_is_cut_and_labelled(tmp_path: Path, drawn: list[Figure]) -> None:
    parts = [[i] for i in range(60)] + [list(range(60, 160))]
    data = federate(torch.zeros(160, 1), torch.zeros(160, dtype=torch.int64), parts)
    learning_curves_and_mix({"a": [run([0.5])]}, data, tmp_path / "a.png")
    axes = drawn[0].axes[1]
    assert axes.get_xlim()[1] < 10
    assert "100 →" in [text.get_text() for text in axes.texts]


def test_many_classes_and_no_classes(tmp_path: Path, drawn: list[Figure]) -> None:
    learning_curves_and_mix({"a": [run([0.5])]}, few_rows([0, 30, 61, 5, 7, 9]), tmp_path / "a.png")
    assert any("62 classes" in text.get_text() for text in drawn[0].axes[1].texts)
    floats = federate(torch.zeros(3, 1), torch.zeros(3), [[0], [1, 2]])
    learning_curves_and_mix({"a": [run([2.0, 1.0], "test_loss")]}, floats, tmp_path / "b.png")
    assert plots._label_counts(floats).tolist() == [[1], [2]]
    assert drawn[1].axes[0].get_title(loc="left") == "Test loss"
    assert "a  1" in [text.get_text() for text in drawn[1].axes[0].texts]


@pytest.mark.parametrize(("low", "high", "there"), [(60, 65, {"61", "65"}), (0.014, 0.6, {"0.02", "0.1", "0.6"})])
def test_a_logarithmic_axis_has_numbers_as_they_are_read(low: float, high: float, there: set[str]) -> None:
    axes = Figure().add_subplot()
    axes.plot([0, 1], [low, high])
    logarithmic(axes)
    axes.figure.draw_without_rendering()
    labels = {label.get_text() for label in axes.get_yticklabels(which="both")}
    assert there <= labels and not any("times" in label for label in labels)
