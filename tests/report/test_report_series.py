"""From runs to lines: which runs belong together, what their labels are, what thinning keeps."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from small_runs import records, write_run, write_study, write_tuning

from fedloom.report import settings
from fedloom.report.runs import read
from fedloom.report.series import (
    AXES,
    Series,
    _looks,
    aligned,
    assemble,
    axes,
    line,
    metrics,
    percentile_line,
    thinned,
)


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


def test_a_studys_series_are_named_by_the_axes_that_differ(tmp_path: Path) -> None:
    found = series_of(write_study(tmp_path / "study"))
    named = ["alpha 1, FedAvg", "alpha 1, FedSGD", "alpha 10, FedAvg", "alpha 10, FedSGD"]  # in the order of the cells
    assert [each.label for each in found] == named
    assert {each.group for each in found} == {""}
    some = [tmp_path / "study" / f"{alpha}-1-fedavg" for alpha in (1, 10)]
    assert [each.label for each in assemble(read(some).runs)] == ["alpha 1", "alpha 10"]
    assert [each.label for each in assemble(read(some[:1]).runs)] == ["fedavg"]


def test_an_axis_that_has_nothing_to_say_is_left_out(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study")
    plan = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(plan.replace("values.FedSGD = {}", 'values."-" = {}'))
    for config in folder.glob("*/seed0/config.toml"):
        config.write_text(config.read_text().replace("FedSGD", "-"))
    assert [each.label for each in series_of(folder)] == ["alpha 1, FedAvg", "alpha 1", "alpha 10, FedAvg", "alpha 10"]


def test_a_study_that_is_no_longer_read_has_its_titles(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study")
    (folder / "config.toml").write_text('id = "rates"\nunknown = 3\n')
    assert "10, 1, FedAvg" in [each.label for each in series_of(folder)]


def test_an_algorithm_has_one_colour_and_a_folder_its_dashes(tmp_path: Path) -> None:
    for top, labels in (("monday", ["FedAvg", "FedYogi"]), ("tuesday", ["FedYogi", "FedAvg", "FedAdp"])):
        for place, label in enumerate(labels):
            write_run(tmp_path / top / f"{place}", records([0.1]), label, rounds=len(labels))
    found = series_of(tmp_path)
    looks = {(each.label.partition(" ")[0], each.group): tuple(each.look) for each in found}
    assert looks == {
        ("FedAvg", "monday"): (0, 0),
        ("FedYogi", "monday"): (1, 0),
        ("FedYogi", "tuesday"): (1, 1),
        ("FedAvg", "tuesday"): (0, 1),
        ("FedAdp", "tuesday"): (2, 1),
    }


@given(st.integers(1, 28), st.integers(1, 4))
def test_lines_look_different_as_long_as_there_are_looks(series: int, folders: int) -> None:
    names = [f"{index}" for index in range(series)]
    looks = _looks(names * folders, [f"{folder}" for folder in range(folders) for _ in names])
    assert len(set(looks)) == min(series * folders, 28)
    if folders * -(-series // 7) <= 4:
        assert [look.colour for look in looks] == [index % 7 for index in range(series)] * folders


def test_a_tunings_series_are_the_best_first(tmp_path: Path) -> None:
    found = series_of(write_tuning(tmp_path / "tuning", {"0.1": 0.3, "1.0": None, "0.5": 0.7}))
    assert [each.label for each in found] == [f"FedAvg (client_lr {rate})" for rate in ("0.5", "0.1", "1.0")]
    assert [each.runs[0].status for each in found] == ["finished", "finished", "pruned"]
    assert {each.group for each in found} == {""}


def test_long_differences_are_told_where_the_folder_does_not_tell(tmp_path: Path) -> None:
    for place in (1, 2):
        more = {f"a_rather_long_name_{key}": place for key in "ab"}
        write_run(tmp_path / "one" / f"{place}", records([0.1]), algorithm=more)
    first, _ = series_of(tmp_path)
    assert first.label == "FedAvg (a_rather_long_name_a 1, a_rather_long_name_b 1)"


def test_labels_tell_settings_in_one_order(tmp_path: Path) -> None:
    for index, name in enumerate(("fedyogi", "fedavg")):
        for rate in (0.1, 1.0):
            rates = {"client_lr": rate, "server_lr": rate} if index == 0 else {"server_lr": rate, "client_lr": rate}
            folder = write_run(tmp_path / f"{name}{rate}", records([0.1]), name)
            config = tomllib.loads((folder / "config.toml").read_text())
            config["algorithms"] = [{"name": name, "label": name, **rates}]
            (folder / "config.toml").write_text(tomli_w.dumps(config))
    told = [f"(client_lr {rate}, server_lr {rate})" for rate in (0.1, 1.0)]
    assert [each.label.partition(" ")[2] for each in series_of(tmp_path)] == told * 2


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
