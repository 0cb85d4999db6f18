"""Study files: what may stand in them, the cells and runs they stand for, and what numbers make of claims."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fedloom.errors import FedloomError
from fedloom.experiments import registry
from fedloom.experiments.claims import decide
from fedloom.experiments.measures import Measured, Outcome, measure_cell, over
from fedloom.experiments.published import Published, conflicts, matched, published
from fedloom.experiments.results import Result, results
from fedloom.experiments.study import Study, StudyRun, cells, experiment_of, runs
from fedloom.experiments.study_file import read_study
from fedloom.experiments.study_sections import Claim, Measure

TEXT = """
id = "small"
paper = "Nobody 2020, table 0"
title = "A small study"

[experiment]
rounds = 3
cohort = 2
seeds = [0, 1]
target = 0.5
data = { name = "digits", partition = "iid", clients = 6 }
model = { name = "logistic" }
algorithm = { name = "fedavg", client_lr = 0.1 }

[[axes]]
name = "method"
values.FedAvg = {}
values.FedAdp = { "algorithm.name" = "fedadp" }

[[axes]]
name = "clients"
key = "data.clients"
values = [6, 8]

[[measures]]
name = "rounds"
kind = "rounds_to"
scale = 100

[table]
columns = ["clients"]

[[claims]]
text = "FedAdp is faster"
kind = "less"
axis = "method"
first = "FedAdp"
second = "FedAvg"

[scales.smoke]
says = "one round"
set = { rounds = 1 }
only = { method = ["FedAvg"] }

[scales.short]
says = "one seed"
set = { seeds = [0] }
"""
SEARCH = """
[[axes]]
name = "rate"
key = "algorithm.client_lr"
values = [0.1, 1.0]
best = "lowest"
"""


def edited(*changes: tuple[str, str]) -> str:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


# Reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "A', 'titel = "A', "titel: unknown key: expected one of"),
        ("[experiment]", "[experimant]", "got 'experimant': did you mean 'experiment'?"),
        ('kind = "rounds_to"', 'kind = "round_to"', "did you mean 'rounds_to'?"),
        ('kind = "rounds_to"', 'kind = "at"', "measures.0.round: expected a round, counted from 1, for kind = 'at'"),
        (
            'kind = "rounds_to"',
            'kind = "final"\nmetric = "gsi/*"',
            "measures.0.across: expected a value beside a metric",
        ),
        ('kind = "rounds_to"', 'kind = "correlation"', "measures.0.against: expected another metric"),
        ('kind = "less"', 'kind = "above"', "claims.0.number: expected a value for kind = 'above'"),
        (
            'kind = "less"',
            'kind = "order"\nvalues = ["FedAvg"]',
            r"claims.0.values: expected at least two values for kind = 'order'",
        ),
        (
            'first = "FedAdp"',
            'first = "FedApd"',
            "expected one of FedAdp, FedAvg; got 'FedApd': did you mean 'FedAdp'?",
        ),
        ('columns = ["clients"]', 'columns = ["client"]', "table.columns: expected one of clients, measure, method"),
        (
            'only = { method = ["FedAvg"] }',
            'only = { method = ["FedSGD"] }',
            "scales.smoke.only, 'method': expected one",
        ),
        ("[scales.short]", "[scales.full]", "scales: expected scales beside 'full'"),
        ("values = [6, 8]", "values = [6, 6]", "axis 'clients', values: expected different names, got '6' twice"),
        ('key = "data.clients"\n', "", "axes.1.key: expected a list"),
    ],
)
def test_a_mistake_in_a_study_is_one_line(old: str, new: str, said: str) -> None:
    with pytest.raises(FedloomError) as error:
        read_study(edited((old, new)))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"algorithm.name" = "fedadp"',
            '"algorithm.nmae" = "fedadp"',
            "small, cell FedAdp, 6: algorithm.nmae: unknown key",
        ),
        ('"algorithm.name" = "fedadp"', '"algorithm.name" = "fedapd"', "algorithm.name: expected one of"),
        ('"algorithm.name" = "fedadp"', '"rounds.most" = 3', "rounds.most: expected a table to hold it, got 3"),
        ("values = [6, 8]", "values = [6, 1]", "cell FedAvg, 1: cohort: expected at most data.clients = 1, got 2"),
        ("cohort = 2\n", "", "cell FedAvg, 6: cohort: expected a whole number of clients"),
        ('algorithm = { name = "fedavg", client_lr = 0.1 }', "", "FedAvg, 6: algorithms: expected"),
    ],
)
def test_a_mistake_in_a_cell_names_the_cell(old: str, new: str, said: str) -> None:
    with pytest.raises(FedloomError) as error:
        runs(read_study(edited((old, new))))
    assert said in str(error.value).replace("[experiment.algorithm]", "algorithms"), error.value


def test_cells_are_all_combinations_and_scales_cut_them() -> None:
    study = read_study(TEXT)
    assert [run.slug for run in runs(study)][:3] == ["fedavg-6/seed0", "fedavg-6/seed1", "fedavg-8/seed0"]
    assert (len(list(cells(study))), len(runs(study))) == (4, 8)
    smoke = study.at("smoke")
    assert [run.label for run in runs(smoke)] == [f"FedAvg, {n}, seed {s}" for n in (6, 8) for s in (0, 1)]
    assert all(run.experiment.rounds == 1 for run in runs(smoke))
    with pytest.raises(FedloomError, match="scale: expected one of full, short, smoke; got 'shorte'"):
        study.at("shorte")


def test_what_comes_later_wins() -> None:
    where = '[[where]]\ncell = { method = "FedAdp", clients = "8" }\nset = { rounds = 9, "algorithm.alpha" = 2.0 }\n'
    skip = '[[where]]\ncell = { method = "FedAvg", clients = ["8"] }\nskip = true\n'
    study = read_study(edited(("[[measures]]", where + skip + "[[measures]]")))
    assert [cell["clients"] for cell in cells(study)] == ["6", "6", "8"]
    cell = {"method": "FedAdp", "clients": "8"}
    assert experiment_of(study, cell).rounds == 9
    assert experiment_of(study.at("smoke"), cell).rounds == 1
    changed = read_study(study.to_toml(), ["experiment.rounds=4", "data.seed=7"], "smoke")
    assert (experiment_of(changed, cell).rounds, experiment_of(changed, cell).data.seed) == (4, 7)
    assert read_study(changed.to_toml()) == changed


def test_the_last_that_a_cell_is_in_says_whether_it_is_skipped() -> None:
    skip = '[[where]]\ncell = { method = "FedAvg" }\nskip = true\n'
    back = '[[where]]\ncell = { method = "FedAvg", clients = ["8"] }\nskip = false\n'
    said = [
        [
            cell
            for cell in cells(read_study(edited(("[[measures]]", order + "[[measures]]"))))
            if cell["method"] == "FedAvg"
        ]
        for order in (skip + back, back + skip)
    ]
    assert [{cell["clients"] for cell in each} for each in said] == [{"8"}, set()]


def test_a_target_ends_runs_only_where_nothing_later_is_measured() -> None:
    assert {(run.target, run.experiment.target) for run in runs(read_study(TEXT))} == {(0.5, 0.5)}
    more = '[[measures]]\nname = "final"\nkind = "final"\n\n[table]'
    assert {(run.target, run.experiment.target) for run in runs(read_study(edited(("[table]", more))))} == {(0.5, None)}


def test_a_partition_of_its_own_for_every_seed() -> None:
    study = read_study(edited(('title = "A', 'partition_per_seed = true\ntitle = "A')))
    assert {(run.seed, run.experiment.data.seed) for run in runs(study)} == {(0, 0), (1, 1)}


def test_fewer_seeds_are_compared_and_fewer_rounds_are_not() -> None:
    study = read_study(TEXT)
    assert [study.at(scale).compared for scale in ("full", "short", "smoke")] == [True, True, False]
    assert read_study(TEXT, ["device=cpu", "seeds=[3]", "compile=false"]).compared
    for other in ("rounds=2", "precision=bfloat16"):
        assert not read_study(TEXT, [f"experiment.{other}"]).compared
    assert not read_study(edited(('title = "A', 'stand_in = "digits"\ntitle = "A'))).compared


def test_a_stand_in_at_a_scale_or_in_a_cell_is_not_compared() -> None:
    short = read_study(edited(("[scales.short]", '[scales.short]\nstand_in = "digits"')))
    assert (short.compared, short.at("short").compared) == (True, False)
    assert short.at("short").standing_in == "digits" and short.standing_in is None
    where = '[[where]]\ncell = { method = "FedAdp" }\nstand_in = "half of it"\n\n[[measures]]'
    study = read_study(edited(("[[measures]]", where)))
    assert study.compared and not study.at("smoke").compares({"method": "FedAvg", "clients": "6"})
    assert [study.compares({"method": name, "clients": "6"}) for name in ("FedAvg", "FedAdp")] == [True, False]
    assert study.standing_in is None and study.stand_ins == "FedAdp: half of it"
    both = read_study(edited(("[[measures]]", where), ('title = "A', 'stand_in = "digits"\ntitle = "A')))
    assert both.stand_ins == "digits; FedAdp: half of it"
    asked = read_study(edited(("[[measures]]", where)), asked=["method=FedAvg"])
    assert asked.stand_ins is None  # none of its cells
    other = '[[where]]\ncell = { method = "FedAdp" }\nset = { KEY }\nstand_in = "another"\n\n'
    first = '[[where]]\ncell = { method = "FedAdp" }\nset = { epochs = 2 }\nstand_in = "one"\n\n'
    for key, said in (("epochs = 3", "FedAdp: another"), ("cohort = 2", "FedAdp: one; FedAdp: another")):
        both = read_study(edited(("[[measures]]", first + other.replace("KEY", key) + "[[measures]]")))
        assert both.stand_ins == said


def test_an_axis_with_one_value_kept_is_fixed() -> None:
    study = read_study(edited(("[experiment]", '[only]\nmethod = ["FedAdp"]\n\n[experiment]')))
    assert study.fixed == {"method": "FedAdp"} and [cell["clients"] for cell in cells(study)] == ["6", "8"]


LIKE = """
id = "other"
like = "{}"
paper = "Nobody 2020, figure 1"
title = "Another small study"
only = {{ method = ["FedAdp"] }}

[experiment]
rounds = 5

[[axes]]
name = "clients"
key = "data.clients"
values = [6, 9]

[[axes]]
name = "rate"
key = "algorithm.client_lr"
values = [0.1, 0.2]

[[where]]
cell = {{ rate = "0.2" }}
set = {{ cohort = 3 }}

[scales.smoke]
only = {{ rate = ["0.2"] }}

[scales.short]
says = "two rounds"
set = {{ rounds = 2 }}
"""


def test_a_study_like_another_has_what_it_leaves_out(tmp_path: Any) -> None:
    file = tmp_path / "small.toml"
    file.write_text(TEXT)
    study = read_study(LIKE.format(file))
    assert list(cells(study)) == [
        {"method": "FedAdp", "clients": n, "rate": r} for n in ("6", "9") for r in ("0.1", "0.2")
    ]
    experiment = experiment_of(study, {"method": "FedAdp", "clients": "9", "rate": "0.2"})
    assert (experiment.rounds, experiment.cohort, experiment.data.clients) == (5, 3, 9)
    assert [axis.name for axis in study.axes] == ["method", "clients", "rate"]
    assert (study.claims, study.measures) == ([], read_study(TEXT).measures)
    smoke = study.at("smoke")
    assert (study.scales["smoke"].says, study.scales["smoke"].set) == ("one round", {"rounds": 1})
    assert (study.scales["short"].says, study.scales["short"].set) == ("two rounds", {"rounds": 2})
    assert [run.experiment.rounds for run in runs(read_study(study.to_toml(), ["seeds=[0]"], "full"))] == [5] * 4
    assert not list(cells(smoke.model_copy(update={"only": {"method": ["FedAvg"], "rate": ["0.1"]}})))
    for like, said in ((f"{file}x", "like: "), ("quickstart", "like: quickstart: expected a study")):
        with pytest.raises(FedloomError, match=said):
            read_study(LIKE.format(like))
    mine = tmp_path / "other.toml"
    mine.write_text(LIKE.format(mine))
    with pytest.raises(FedloomError, match="got the study itself"):
        read_study(mine)
    file.write_text(f'id = "small"\nlike = "{mine}"\n')
    mine.write_text(LIKE.format(file))
    with pytest.raises(FedloomError, match="like: expected a study of its own in the end, got one that is like this"):
        read_study(mine)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("where = 5", r"small.toml: where: expected \[\[where\]\], got 5"),
        ("axes = [1]", r"small.toml: axes: expected \[\[axes\]\], got \[1\]"),
        ("scales = 3", r"small.toml: scales: expected a table, got 3"),
        ("only = ['a']", r"small.toml: only: expected a table, got \['a'\]"),
    ],
)
def test_what_a_study_is_like_is_checked_before_they_are_joined(tmp_path: Any, wrong: str, said: str) -> None:
    file = tmp_path / "small.toml"
    file.write_text(f'id = "small"\n{wrong}\n')
    with pytest.raises(FedloomError, match=said):
        read_study(LIKE.format(file))


# Measures -------------------------------------------------------------------------------------------------------------


def outcome(*values: float | None, diverged: str | None = None, target: float | None = None) -> Outcome:
    return Outcome([{"round": t, "test_accuracy": value} for t, value in enumerate(values)], target, diverged)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"kind": "final", "last": 2}, 65.0),
        ({"kind": "final", "last": 3, "until": 3}, 45.0),
        ({"kind": "final", "last": 2, "until": 3}, 70.0),
        ({"kind": "final", "last": 2, "until": 5}, None),
        ({"kind": "at", "round": 1}, 20.0),
        ({"kind": "at", "round": 2}, None),
        ({"kind": "best"}, 70.0),
        ({"kind": "lowest"}, 20.0),
        ({"kind": "highest_at"}, 3.0),
        ({"kind": "lowest_at"}, 1.0),
        ({"kind": "lowest_at", "until": 5}, None),
        ({"kind": "rounds_to", "until": 5}, 3.0),
        ({"kind": "rounds_to"}, 3.0),
        ({"kind": "rounds_to", "target": 0.9}, None),
        ({"kind": "drop", "round": 4}, 10.0),
        ({"kind": "total"}, 60.0),
        ({"kind": "total", "metric": "examples_processed", "scale": 1.0}, 40.0),
        ({"kind": "total", "metric": "simulated_seconds", "scale": 1.0}, 10.0),
        ({"kind": "total_to", "metric": "examples_processed", "scale": 1.0}, 30.0),
        ({"kind": "total_to", "metric": "simulated_seconds", "scale": 1.0}, 6.0),
        ({"kind": "total_to", "metric": "simulated_seconds", "target": 0.9}, None),
        ({"kind": "catastrophic", "scale": 1.0}, 0.0),
        ({"kind": "catastrophic", "metric": "train_accuracy", "scale": 1.0}, 1.0),
        ({"kind": "catastrophic", "metric": "train_accuracy", "scale": 1.0, "chance": 0.2}, 0.0),
        ({"kind": "catastrophic", "metric": "train_accuracy", "scale": 1.0, "until": 1}, 0.0),  # not yet
        ({"kind": "curve"}, None),
    ],
)
def test_measures_of_a_run(keys: dict[str, Any], expected: float | None) -> None:
    measure = Measure(name="m", **{"scale": 100.0, **keys})
    run = outcome(0.2, None, 0.7, 0.6, target=0.7)
    more = [
        {"examples_processed": 10.0 * t, "simulated_seconds": float(t), "train_accuracy": 0.2 / t} for t in (1, 2, 3, 4)
    ]
    run = replace(run, rounds=[{**record, **each} for record, each in zip(run.rounds, more, strict=True)])
    assert measure_cell(measure, [run]).value == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"kind": "final", "across": "mean"}, 2.5),
        ({"kind": "best", "across": "highest"}, 4.0),
        ({"kind": "at", "round": 2, "across": "lowest"}, 2.0),
        ({"kind": "final", "across": "deviation", "last": 1}, 1.0),
        ({"kind": "correlation", "metric": "gsi", "against": "test_accuracy"}, -1.0),
        ({"kind": "correlation", "metric": "test_accuracy", "against": "other"}, None),
    ],
)
def test_measures_of_several_metrics(keys: dict[str, Any], expected: float | None) -> None:
    rounds = [
        {"round": 0, "gsi": 2.0, "gsi/a": 1.0, "gsi/b": 3.0, "test_accuracy": 0.5},
        {"round": 1, "gsi": 3.0, "gsi/a": 2.0, "gsi/b": 4.0, "test_accuracy": 0.3, "other": 1.0},
        {"round": 2, "gsi": 4.0, "gsi/a": None, "test_accuracy": None},
    ]
    value = measure_cell(Measure(name="m", **{"metric": "gsi/*", **keys}), [Outcome(rounds)]).value
    assert value == (None if expected is None else pytest.approx(expected))


def test_seeds_have_a_mean_and_a_sample_deviation() -> None:
    measure = Measure(name="m", kind="final", last=1, scale=100)
    measured = measure_cell(measure, [outcome(0.1), outcome(0.3), outcome(0.5, diverged="round 1")])
    assert measured.values == (10.0, 30.0, None) and measured.diverged == 1 and not measured.complete
    assert (measured.value, measured.spread) == (20.0, pytest.approx(14.142135623730951))


def test_a_target_that_is_not_reached_has_the_best_value() -> None:
    measure = Measure(name="m", kind="rounds_to", scale=100)
    never = measure_cell(measure, [outcome(0.4, 0.3, target=0.9), outcome(0.5, target=0.9)])
    assert (never.value, never.best, never.never, never.rank) == (None, 45.0, 2, float("inf"))
    partly = measure_cell(measure, [outcome(0.9, target=0.9), outcome(0.5, target=0.9)])
    assert (partly.value, partly.rank, partly.complete) == (1.0, 1.0, False)


# Cells ----------------------------------------------------------------------------------------------------------------


def outcomes(study: Study, values: dict[str, list[float]]) -> list[tuple[StudyRun, Outcome]]:
    """A history for every run, by the names of its cell."""
    return [(run, outcome(*values[" ".join(run.cell.values())], target=run.target)) for run in runs(study)]


def test_a_searched_axis_keeps_its_best_value() -> None:
    study = read_study(edited(("[[measures]]", SEARCH + "[[measures]]")))
    fast, slow = [0.1, 0.6], [0.1, 0.1, 0.6]
    values = {"FedAvg 6 0.1": slow, "FedAvg 6 1": fast, "FedAvg 8 0.1": fast, "FedAvg 8 1": slow}
    values |= {name.replace("FedAvg", "FedAdp"): rows for name, rows in values.items()}
    found = results(study, outcomes(study, values))
    assert [(result.cell, result.chosen["rate"]) for result in found[:2]] == [
        ({"method": "FedAvg", "clients": "6"}, "1"),
        ({"method": "FedAvg", "clients": "8"}, "0.1"),
    ]
    assert all(result.measured.value == 2.0 for result in found)


def test_a_ratio_to_another_cell_and_several_measures() -> None:
    more = '[[measures]]\nname = "ratio"\nkind = "rounds_to"\nover = { clients = "6" }\n\n[table]'
    study = read_study(edited(("[table]", more)))
    values = {f"{m} {n}": [0.0] * (k - 1) + [0.6] for m in ("FedAvg", "FedAdp") for n, k in ((6, 2), (8, 3))}
    found = results(study, outcomes(study, values))
    ratios = {result.cell["clients"]: result.measured.value for result in found if result.cell["measure"] == "ratio"}
    assert ratios == {"6": 1.0, "8": 1.5}


def test_a_measure_of_some_cells_and_what_a_search_found() -> None:
    some = '[[measures]]\nname = "share"\nkind = "final"\nlast = 1\nlower = true\nwhere = { clients = "8" }\n\n'
    found_at = '[[measures]]\nname = "at"\nkind = "chosen"\nmetric = "rate"\n\n[table]'
    study = read_study(edited(("[[measures]]", SEARCH + "[[measures]]"), ("[table]", some + found_at)))
    values = {
        f"{m} {n} {r}": [0.1, 0.6 - 0.1 * float(r)] for m in ("FedAvg", "FedAdp") for n in (6, 8) for r in ("0.1", "1")
    }
    found = {
        (r.cell["method"], r.cell["clients"], r.cell["measure"]): r.measured.value
        for r in results(study, outcomes(study, values))
    }
    assert ("FedAvg", "6", "share") not in found and found["FedAvg", "8", "share"] == pytest.approx(0.59)
    assert (found["FedAvg", "6", "at"], found["FedAvg", "8", "at"]) == (0.1, 0.1)
    by_share = read_study(study.to_toml().replace('best = "lowest"', 'best = "lowest"\nby = "share"'))
    found = {
        (r.cell["clients"], r.cell["measure"]): r.measured.value for r in results(by_share, outcomes(study, values))
    }
    assert (found["6", "at"], found["8", "at"]) == (0.1, 1.0)
    with pytest.raises(FedloomError, match=r"measure 'at', metric: expected .*rate; got 'method'"):
        read_study(study.to_toml().replace('metric = "rate"', 'metric = "method"'))


CLAIMS: list[tuple[dict[str, Any], bool | None, tuple[int, int]]] = [
    ({"kind": "less", "axis": "method", "first": "b", "second": "a"}, True, (2, 2)),
    ({"kind": "less", "axis": "method", "first": "b", "second": "a", "margin": 5}, False, (1, 2)),
    ({"kind": "less", "axis": "method", "first": "b", "second": "a", "margin": 5, "share": 0.5}, True, (1, 2)),
    ({"kind": "greater", "axis": "method", "first": "b", "second": "a"}, False, (0, 2)),
    ({"kind": "at_least", "axis": "method", "first": "b", "second": "a", "margin": 10}, True, (2, 2)),
    ({"kind": "at_most", "axis": "method", "first": "a", "second": "c"}, None, (0, 0)),
    ({"kind": "alike", "axis": "method", "first": "b", "second": "a", "margin": 2}, False, (1, 2)),
    ({"kind": "alike", "axis": "method", "first": "a", "second": "b", "margin": 10}, True, (2, 2)),
    ({"kind": "reduction", "axis": "method", "first": "b", "second": "a", "number": 0.5}, True, (1, 2)),
    ({"kind": "reduction", "axis": "method", "first": "b", "second": "a", "number": 0.6}, False, (0, 2)),
    ({"kind": "reduction", "axis": "method", "first": "b", "second": "a", "number": 0.6, "margin": 0.1}, True, (1, 2)),
    ({"kind": "above", "number": 9}, False, (3, 4)),
    ({"kind": "below", "number": 21}, True, (4, 4)),
    ({"kind": "near", "number": 10, "margin": 0.5, "where": {"size": "1", "method": "b"}}, True, (1, 1)),
    ({"kind": "between", "axis": "size", "first": "1", "values": ["1", "2"]}, True, (2, 2)),
    ({"kind": "between", "axis": "method", "first": "b", "values": ["a"]}, False, (0, 2)),
    ({"kind": "between", "axis": "method", "first": "a", "values": ["b"], "margin": 2}, False, (1, 2)),
    ({"kind": "between", "axis": "method", "first": "a", "values": ["b", "c"]}, None, (0, 0)),
    ({"kind": "order", "axis": "size", "values": ["2", "1"]}, True, (2, 2)),
    ({"kind": "best", "axis": "method", "first": "a"}, True, (2, 2)),
    ({"kind": "best", "axis": "method", "first": "a", "lowest": True}, False, (0, 2)),
    ({"kind": "diminishing", "axis": "size", "values": ["2", "1"]}, True, (2, 2)),
    ({"kind": "diminishing", "axis": "size", "values": ["1", "2", "3"]}, None, (0, 0)),
    ({"kind": "window", "axis": "method", "number": 2, "margin": 5}, False, (1, 2)),
    ({"kind": "window", "axis": "method", "number": 1}, True, (2, 2)),
    ({"kind": "window", "axis": "method", "number": 1, "most": 1, "margin": 5}, False, (1, 2)),
]


@pytest.mark.parametrize(("keys", "holds", "count"), CLAIMS)
def test_claims_are_decided_from_numbers(keys: dict[str, Any], holds: bool | None, count: tuple[int, int]) -> None:
    measure = Measure(name="m", kind="final")
    table = {("a", "1"): 20.0, ("b", "1"): 10.0, ("a", "2"): 10.0, ("b", "2"): 8.0}
    found = [Result({"method": m, "size": s}, measure, Measured((value,))) for (m, s), value in table.items()]
    study = read_study(TEXT).model_copy(update={"measures": [measure], "claims": [Claim(text="it does", **keys)]})
    [verdict] = decide(study, found)
    assert (verdict.holds, (verdict.held, verdict.of)) == (holds, count)
    assert verdict.words().startswith({True: "pass", False: "fail", None: "not decided"}[holds] + ": it does (")


def test_an_unreached_target_is_slower_than_any_and_two_of_them_say_nothing() -> None:
    never, reached = Measured((None,), best=1.0, never=1), Measured((5.0,))
    study = read_study(TEXT)
    for slow, holds in ((never, True), (reached, False)):
        found = [
            Result({"method": "FedAvg", "clients": "6"}, study.measures[0], slow),
            Result({"method": "FedAdp", "clients": "6"}, study.measures[0], reached),
            *(Result({"method": m, "clients": "8"}, study.measures[0], never) for m in ("FedAvg", "FedAdp")),
        ]
        [verdict] = decide(study, found)
        assert (verdict.holds, verdict.of) == (holds, 1)


def test_gains_between_targets_that_were_never_reached_say_nothing() -> None:
    study = read_study(TEXT)
    claim = Claim(text="it does", kind="diminishing", axis="clients", values=["6", "8", "9"])
    study = study.model_copy(update={"claims": [claim]})
    never, reached = Measured((None,), best=1.0, never=1), Measured((5.0,))
    for measured in ((reached, never, never), (never, never, reached)):
        cells = zip(("6", "8", "9"), measured, strict=True)
        found = [Result({"method": "FedAvg", "clients": size}, study.measures[0], each) for size, each in cells]
        [verdict] = decide(study, found)
        assert verdict.holds is None


def test_no_seed_is_left_out_of_what_claims_compare() -> None:
    assert Measured((80.0, 82.0)).rank == 81.0
    assert Measured((80.0, None), diverged=1).rank is None
    assert Measured((0.0, 1.0), diverged=1).rank == 0.5  # whether it failed, say, is told of those that diverged too
    assert Measured((60.0, 100.0, None), never=1).rank == 100.0
    assert Measured((60.0, None, None), never=2).rank == math.inf and Measured((60.0, None), never=1).rank == 60.0


def test_the_best_of_what_nobody_reached_is_not_decided() -> None:
    never, reached = Measured((None,), best=1.0, never=1), Measured((5.0,))
    claim = Claim(text="it is first", kind="best", axis="method", first="FedAdp", lowest=True)
    study = read_study(TEXT).model_copy(update={"claims": [claim]})
    for other, holds in ((never, None), (reached, False)):
        found = [
            Result({"method": "FedAvg", "clients": "6"}, study.measures[0], other),
            Result({"method": "FedAdp", "clients": "6"}, study.measures[0], never),
        ]
        assert [verdict.holds for verdict in decide(study, found)] == [holds]


@pytest.mark.parametrize(
    ("kind", "others", "holds"),
    [
        ("best", [Measured((40.0,))], None),  # the third was not run
        ("best", [Measured((40.0,)), Measured((90.0, None), diverged=1)], None),
        ("best", [Measured((40.0,)), Measured((30.0,))], True),
        ("window", [Measured((40.0,))], None),
        ("window", [Measured((40.0,)), Measured((90.0, None), diverged=1)], True),
    ],
)
def test_the_best_of_all_needs_all(kind: str, others: list[Measured], holds: bool | None) -> None:
    text = TEXT.replace("values.FedAdp = ", "values.Third = {}\nvalues.FedAdp = ")
    claim = Claim.model_validate({"text": "it is", "kind": kind, "axis": "method", "first": "FedAvg", "number": 1})
    study = read_study(text).model_copy(update={"claims": [claim]})
    there = zip(["FedAvg", "FedAdp", "Third"], [Measured((50.0,)), *others], strict=False)
    found = [Result({"method": name, "clients": "6"}, study.measures[0], each) for name, each in there]
    assert [verdict.holds for verdict in decide(study, found)] == [holds]


def test_a_ratio_to_what_some_seeds_never_reached_is_none() -> None:
    late = over(Measured((60.0, 60.0)), Measured((None, None, 50.0), never=2))
    assert late.values == (None, None) and late.rank is None
    assert over(Measured((60.0,)), Measured((None, 50.0, 40.0), never=1)).values == (1.2,)


# Published ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "measured", "number", "expected"),
    [
        ("final", Measured((80.0,)), Published(value=81.4), True),
        ("final", Measured((80.0,)), Published(value=81.6), False),
        ("final", Measured((80.0,)), Published(value=83.0, std=1.5), True),
        ("rounds_to", Measured((115.0,)), Published(value=100.0), True),
        ("rounds_to", Measured((116.0,)), Published(value=100.0), False),
        ("rounds_to", Measured((100.0, None), best=90.0, never=1), Published(value=100.0), False),
        ("rounds_to", Measured((None,), best=94.0, never=1), Published(best=94.48), True),
        ("rounds_to", Measured((None,), best=90.0, never=1), Published(best=94.48), False),
        ("rounds_to", Measured((200.0,), best=95.0), Published(best=94.48), False),
        ("rounds_to", Measured((200.0, None, None), best=94.0, never=2), Published(best=94.48), True),
        ("final", Measured((80.0, None), diverged=1), Published(value=80.0), False),
        ("catastrophic", Measured((100.0, 100.0), diverged=2), Published(value=100.0), True),
        ("rounds_to", Measured((60.0, 61.0), diverged=1), Published(value=60.0), True),
        ("rounds_to", Measured((None,), best=94.0, diverged=1, never=1), Published(best=94.48), False),
    ],
)
def test_when_a_number_matches(kind: Any, measured: Measured, number: Published, expected: bool) -> None:
    assert matched(Measure(name="m", kind=kind, scale=100), measured, number) is expected


def test_without_a_unit_only_the_published_spread_can_tell() -> None:
    plain = Measure(name="m", kind="final")
    assert matched(plain, Measured((1.0,)), Published(value=1.1)) is None
    assert matched(plain, Measured((1.0,)), Published(value=1.1, std=0.1)) is True


def test_a_published_number_without_a_cell_is_a_mistake(tmp_path: Any) -> None:
    file = tmp_path / "small.toml"
    file.write_text(TEXT)
    numbers = tmp_path / "published.toml"
    numbers.write_text('small = [{ cell = { method = "FedAvg", clients = "6" }, value = 3 }]')
    assert [each.value for each in published(read_study(file), file)] == [3.0]
    numbers.write_text('small = [{ cell = { method = "FedAvg", clients = "7" }, value = 3 }]')
    with pytest.raises(
        FedloomError, match=r"small\.0: expected a cell of the study, with its axes method, clients; got"
    ):
        published(read_study(file), file)
    numbers.write_text('small = [{ cell = { method = "FedAvg", clients = "6" }, valeu = 3 }]')
    with pytest.raises(FedloomError, match=r"small\.0: valeu: unknown key"):
        published(read_study(file), file)


# What is shipped ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.studies())
def test_every_study_expands_at_every_scale_and_its_numbers_have_cells(name: str) -> None:
    file = registry.find_study(name)
    study = read_study(file)
    assert study.id == name and read_study(study.to_toml()) == study
    assert len(conflicts(study.conflicts)) == len(study.conflicts)
    published(study, file)
    if study.facts is not None:
        return
    assert {"smoke", "short"} <= set(study.scales)
    found = {scale: runs(study.at(scale)) for scale in study.scales}
    full = [run.experiment for run in runs(study)]
    assert len(found["smoke"]) >= 1 and len(found["short"]) <= len(full)
    assert all(doubt.concerns(full) for doubt in conflicts(study.conflicts))


@pytest.mark.parametrize(
    "name", [name for name in registry.studies() if published(read_study(registry.find_study(name)))]
)
def test_a_papers_own_numbers_bear_out_its_claims(name: str) -> None:
    study = read_study(registry.find_study(name))
    measures = {measure.name: measure for measure in study.counted}
    only = study.counted[0].name if study.facts is None else ""
    found = [
        Result(
            number.place,
            measures.get(number.measure or only, Measure(name="m", kind="final")),
            Measured((number.value,)) if number.value is not None else Measured((None,), best=number.best, never=1),
        )
        for number in published(study)
        if not isinstance(number.value, str)
    ]
    assert [verdict.words() for verdict in decide(study, found) if verdict.holds is False] == []


def test_table_2_with_the_rates_of_later_documents() -> None:  # spec 13, the later official set
    study = read_study(registry.find_study("reddi-table2"), scale="docs")
    [yogi, adagrad] = [
        experiment_of(study, {"task": task, "method": method}).algorithms[0].model_dump()
        for task, method in (("CIFAR-100", "FedYogi"), ("SO LR", "FedAdagrad"))
    ]
    keys = ("client_lr", "server_lr", "tau", "initial_accumulator")
    assert [yogi[key] for key in keys] == pytest.approx([10**-1.5, 1.0, 0.1, 0.0]) and yogi["beta2"] == 0.999
    assert [adagrad[key] for key in keys] == pytest.approx([100.0, 10.0, 0.01, 0.0])
    assert not study.compared


def test_an_experiment_is_no_study() -> None:
    with pytest.raises(FedloomError, match="fedloom run quickstart runs it"):
        registry.find_study("quickstart")
