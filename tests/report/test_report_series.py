"""From runs to lines: which runs belong together, what their labels are, what thinning keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import records, write_run

from fedloom.report import settings
from fedloom.report.runs import read
from fedloom.report.series import AXES, Series, aligned, assemble, axes, line, metrics, percentile_line, thinned


def series_of(folder: Path) -> list[Series]:
    return assemble(read([folder]).runs)


# Which runs belong together -------------------------------------------------------------------------------------------


def test_seeds_of_one_label_are_one_series(tmp_path: Path) -> None:
    for label in ("FedAvg", "FedAdam"):
        for seed in (0, 1):
            write_run(tmp_path / f"{label}{seed}", records([0.1 * seed, 0.5]), label, seed, device=f"cuda:{seed}")
    first, second = series_of(tmp_path)
    assert (first.label, second.label) == ("FedAdam", "FedAvg")
    assert [run.seed for run in first.runs] == [0, 1]
    assert first.settings["seeds"] == "[0], [1]"


def test_one_label_with_other_settings_is_another_series_and_says_in_what(tmp_path: Path) -> None:
    for alpha in (0.1, 1.0):
        write_run(tmp_path / f"a{alpha}", records([0.1]), data={"name": "digits", "alpha": alpha})
    assert [each.label for each in series_of(tmp_path)] == ["FedAvg (alpha 0.1)", "FedAvg (alpha 1.0)"]


def test_seeds_that_were_computed_in_another_precision_are_another_series(tmp_path: Path) -> None:
    for seed, precision in enumerate(["high", "bfloat16"]):
        write_run(tmp_path / f"seed{seed}", records([0.1]), seed=seed, precision=precision)
    assert [each.label for each in series_of(tmp_path)] == ["FedAvg (precision high)", "FedAvg (precision bfloat16)"]


def test_the_same_run_twice_is_told_apart_by_its_folder(tmp_path: Path) -> None:
    for top in ("monday", "tuesday"):
        for seed in (0, 1):
            write_run(tmp_path / top / f"run{seed}", records([0.1]), seed=seed)
    found = series_of(tmp_path)
    assert [each.label for each in found] == ["FedAvg (monday)", "FedAvg (tuesday)"]
    assert [each.group for each in found] == ["monday", "tuesday"]
    assert [len(each.runs) for each in found] == [2, 2]


def test_titles_name_the_cells_of_a_study(tmp_path: Path) -> None:
    for cell in ("MNIST, FedAvg", "CIFAR, FedAvg"):
        write_run(tmp_path / cell[:5] / "seed0", records([0.1]), title=cell, data={"name": cell[:5]})
    (tmp_path / "results.json").write_text("{}")
    found = series_of(tmp_path)
    assert sorted(each.label for each in found) == ["CIFAR, FedAvg", "MNIST, FedAvg"]
    assert {each.group for each in found} == {""}


def test_settings_that_differ_and_settings_that_do_not() -> None:
    flats = [settings.flat({"rounds": 5, "data": {"alpha": alpha}, "hidden": [10, 20]}) for alpha in (0.1, 1.0)]
    assert settings.differing(flats) == ["data.alpha"]
    assert settings.common(flats) == {"rounds": "5", "hidden": "[10, 20]"}
    assert settings.differing([*flats, {}]) == ["rounds", "data.alpha", "hidden"]


# Lines ----------------------------------------------------------------------------------------------------------------


def test_a_line_is_the_mean_over_seeds_between_the_smallest_and_the_largest(tmp_path: Path) -> None:
    write_run(tmp_path / "a", records([0.2, None, 0.4]), seed=0)
    write_run(tmp_path / "b", records([0.4, 0.6, 0.8]), seed=1)
    (only,) = series_of(tmp_path)
    assert line(only, "test_accuracy") == {
        "round": [1, 2, 3],
        "mean": pytest.approx([0.3, 0.45, 0.6]),
        "low": pytest.approx([0.2, 0.3, 0.4]),
        "high": pytest.approx([0.4, 0.6, 0.8]),
    }
    assert line(only, "gsi") is None
    assert metrics([only]) == ["examples_processed", "seconds", "test_accuracy"]


def test_a_single_run_has_no_band_and_one_that_stopped_keeps_its_last(tmp_path: Path) -> None:
    write_run(tmp_path / "a", records([0.2, 0.4]))
    (only,) = series_of(tmp_path)
    assert line(only, "test_accuracy") == {"round": [1, 2], "mean": [0.2, 0.4]}
    _, values = aligned([{"x": {0: 1.0, 1: 2.0, 2: 3.0}}, {"x": {0: 5.0}}, {}], "x")
    assert values.tolist() == [[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]


def test_percentiles_become_a_median_and_its_band(tmp_path: Path) -> None:
    cuts = {"client_accuracy/p5": 0.1, "client_accuracy/p50": 0.5, "client_accuracy/p95": 0.9}
    write_run(tmp_path / "a", records([0.2, 0.4], **cuts))
    (only,) = series_of(tmp_path)
    expected = {"round": [1, 2], "mean": [0.5] * 2, "low": [0.1] * 2, "high": [0.9] * 2}
    assert percentile_line(only, "client_accuracy") == expected
    assert percentile_line(only, "client_loss") is None


def test_axes_add_up_what_was_recorded_round_by_round(tmp_path: Path) -> None:
    write_run(tmp_path / "a", records([0.1, 0.2, 0.3], simulated_seconds=4.0))
    write_run(tmp_path / "b", records([0.1, 0.2]), label="other")
    first, second = series_of(tmp_path)
    assert axes(first) == {
        "round": [0, 1, 2, 3],
        "examples_processed": [0, 10, 20, 30],
        "simulated_seconds": [0, 4, 8, 12],
        "seconds": [0, 0.5, 1, 1.5],
    }
    assert set(axes(second)) == set(AXES) - {"simulated_seconds"}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(1, 20))
def test_thinning_keeps_ends_and_extremes(values: list[float], buckets: int) -> None:
    mean = np.array(values)
    low, high = mean - np.cos(mean) ** 2, mean + np.sin(mean) ** 2
    kept = thinned(mean, low, high, long=50, buckets=buckets)
    assert (np.diff(kept) > 0).all()
    assert kept[0] == 0 and kept[-1] == len(mean) - 1
    assert mean[kept].min() == mean.min() and mean[kept].max() == mean.max()
    assert low[kept].min() == low.min() and high[kept].max() == high.max()
    assert len(kept) == len(mean) if len(mean) <= 50 else len(kept) <= 4 * buckets + 2


def test_a_spike_in_a_long_run_is_still_there(tmp_path: Path) -> None:
    values: list[float | None] = [1.0] * 10_000
    values[7_321] = 99.0
    write_run(tmp_path / "a", records(values, "test_loss"))
    (only,) = series_of(tmp_path)
    found = line(only, "test_loss")
    assert found is not None and len(found["round"]) < 2_000
    assert found["round"][found["mean"].index(99.0)] == 7_322
    assert len(axes(only)["round"]) <= 1_001
