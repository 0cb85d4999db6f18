"""Tuning: what a file stands for, who wins, and what is left on the disk."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fedloom as fl
from fedloom import cli
from fedloom.experiments import build, schema, search, tune_report
from fedloom.experiments.selection import Rule, edges
from fedloom.experiments.tune_file import Axis, TuneSection, read_tune
from fedloom.experiments.tuning import Outcome, Tried, tune
from fedloom.report import search_plot as search_plots

TEXT = """
name = "small"
rounds = 6
cohort = 3
data = { name = "digits", partition = "dirichlet", clients = 40, alpha = 20.0 }
model = { name = "logistic" }
algorithms = [{ name = "fedavg", label = "FedAvg" }]

[tune.grid]
"algorithm.client_lr" = [0.001, 0.1]
"algorithm.server_lr" = [0.1, 1.0]
"""
TWO = "algorithms=[{name='fedavgm',client_lr=0.1},{name='feddyn',label='Dyn 1.0',alpha=0.1}]"


def tuned(out: Path, *overrides: str, text: str = TEXT) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The best points, the numbers that were stored, and what was printed."""
    console = Console(record=True, width=160, file=io.StringIO())
    best = tune(read_tune(text, overrides), out, console=console)
    return best, json.loads((out / "tune.json").read_text()), console.export_text()


# What a file stands for -----------------------------------------------------------------------------------------------


def test_a_grid_is_the_product_of_its_lists() -> None:
    [algorithm] = read_tune(TEXT).algorithms()
    points = list(algorithm.points())
    assert [point.settings for point in points] == [
        {"client_lr": c, "server_lr": s} for c in (0.001, 0.1) for s in (0.1, 1.0)
    ]
    assert points[1].folder == "fedavg/client_lr=0.001,server_lr=1.0"
    section = points[1].experiment.algorithms[0]
    assert (section.client_lr, section.server_lr, section.label) == (0.001, 1.0, "FedAvg")  # type: ignore[attr-defined]


def test_decades_and_half_decades() -> None:
    grid = read_tune(TEXT, ["tune.grid.algorithm.client_lr={decades=[-2.5,-1],per_decade=2}"]).grid
    assert grid["algorithm.client_lr"].values == (0.00316228, 0.01, 0.0316228, 0.1)
    hsu = read_tune(TEXT, ["tune.grid.algorithm.client_lr={decades=[-4,0]}"]).grid["algorithm.client_lr"]
    assert hsu.values == (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def test_a_key_for_all_algorithms_is_for_those_that_take_it() -> None:
    avgm, dyn = read_tune(TEXT, [TWO, "tune.grid.algorithm.momentum=[0.5,0.9]"]).algorithms()
    assert list(avgm.axes) == ["client_lr", "server_lr", "momentum"] and list(dyn.axes) == ["client_lr"]
    assert len(list(avgm.points())) == 8 and len(list(dyn.points())) == 2


def test_keys_of_one_algorithm_by_number_and_by_label_and_of_the_experiment() -> None:
    text = TEXT.replace('"algorithm.client_lr"', '"algorithms.*.client_lr"').replace(
        '"algorithm.server_lr" = [0.1, 1.0]',
        '"algorithms.0.server_lr" = [0.1, 1.0]\n"algorithms.Dyn 1.0.alpha" = [0.1, 1.0]\n'
        '"data.alpha" = [0.1]\nepochs = [1, 2]',
    )
    avgm, dyn = read_tune(text, [TWO]).algorithms()
    assert list(avgm.axes) == ["client_lr", "server_lr", "data.alpha", "epochs"]
    assert list(dyn.axes) == ["client_lr", "alpha", "data.alpha", "epochs"]
    point = list(dyn.points())[-1]
    assert point.experiment.epochs == 2 and point.experiment.data.options()["alpha"] == 0.1
    assert [section.name for section in point.experiment.algorithms] == ["feddyn"]


def test_the_rule_decides_what_is_run() -> None:
    def first(select: str) -> schema.Experiment:
        [algorithm] = read_tune(TEXT, [f"tune.select={select}", "rounds=11", "target=0.5"]).algorithms()
        return next(algorithm.points()).experiment

    kept = first("validation")
    assert (kept.validation, kept.evaluate_on, kept.rounds, kept.target) == (0.2, ["validation"], 11, None)
    assert (first("train_loss").rounds, first("train_loss").validation) == (3, None)  # ceil(0.2 * 11)
    assert (first("last").rounds, first("last").evaluate_on) == (11, ["test"])


MISTAKES = {
    "tune.grid=": "tune.grid: expected a table of keys with the values to try, got nothing",
    "tune.grid={}": "tune.grid: expected keys with values to try",
    "tune=": "tune: expected a [tune] table with a grid, got none",
    "tune.selct=last": "tune.selct: unknown key: expected one of",
    "tune.select=best": "tune.select: expected one of last, train_loss, validation; got 'best'",
    "tune.validation=1.5": "tune.validation: expected a number above 0 and below 1, got 1.5",
    "tune.grid.algorithm.client_lr=[]": "tune.grid 'algorithm.client_lr': expected a list of values to try",
    "tune.grid.algorithm.client_lr=0.1": "tune.grid 'algorithm.client_lr': expected a list of values to try",
    "tune.grid.algorithm.client_lr=[1,1]": "tune.grid 'algorithm.client_lr': expected different values, got [1, 1]",
    "tune.grid.algorithm.client_lr=[-1.0]": "algorithms.0.client_lr: expected a number of at least 0",
    "tune.grid.algorithm.client_lr={decades=[0,-1]}": "expected decades = [FROM, TO]",
    "tune.grid.algorithm.client_lr={decades=[0]}": "expected two exponents of ten from -300 to 300, such as [-4, 0]",
    "tune.grid.algorithm.client_rate=[1]": "got 'client_rate'",
    "tune.grid.algorithms.FedAvgM.client_lr=[1]": "got 'FedAvgM': did you mean 'FedAvg'?",
    "tune.grid.round=[1]": "got 'round': did you mean 'rounds'?",
    "tune.grid.client_lr=[1]": "expected a key of the experiment, got one of an algorithm: algorithm.client_lr",
    "tune.grid.seeds=[1]": "got 'seeds'",
    "tune.grid.data.alhpa=[1.0]": "data.alhpa: unknown key",
    "rounds=0": "rounds: expected a whole number of at least 1, got 0",
    "algorithms=[]": "algorithms: expected at least one [[algorithms]] table, got []",
    "algorithms.0.name=fedavgg": "algorithms.0.name: expected one of",
    "tune.search={ sampler = 'grid' }": "tune.search.sampler: expected one of optuna; got 'grid'",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_one_line(override: str) -> None:
    with pytest.raises(fl.FedloomError) as error:
        read_tune(TEXT, [override])
    assert MISTAKES[override] in str(error.value)
    assert "\n" not in str(error.value)


def test_the_program_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.toml").write_text(TEXT)
    with pytest.raises(SystemExit) as stop:
        cli.main(["tune", str(tmp_path / "small.toml"), "--set", "tune.select=best"])
    assert stop.value.code == 2
    assert "fedloom: tune.select: expected one of last, train_loss, validation" in capsys.readouterr().err


# Who wins -------------------------------------------------------------------------------------------------------------

RECORDS = [{"round": t, "train_loss": 10.0 - t, "test_accuracy": 0.1 * t} for t in range(10)]


def rule(measured: list[dict[str, Any]] = RECORDS, **keys: Any) -> Rule:
    return Rule.of(TuneSection(grid={"epochs": [1]}, **keys), {key for record in measured for key in record})


def test_scores_of_the_three_rules() -> None:
    assert rule(select="train_loss").score(RECORDS[:2], 2) == pytest.approx(9.5)  # the mean of 10 and 9
    assert rule(select="last", last=4).score(RECORDS, 10) == pytest.approx((0.6 + 0.7 + 0.8 + 0.9) / 4)
    assert rule(select="last").last == 100 and rule(select="last").score(RECORDS, 10) == pytest.approx(0.45)
    rarely = [record if record["round"] % 3 == 0 else {"round": record["round"]} for record in RECORDS]
    assert rule(select="last", last=4).score(rarely, 10) == pytest.approx((0.6 + 0.9) / 2)
    kept = [{"round": t, "validation_accuracy": v, "validation_loss": -v} for t, v in enumerate([0.9, 0.2, 0.4])]
    assert rule(kept, last=2).score(kept, 3) == pytest.approx(0.3)
    assert rule(kept, last=1, metric="validation_loss").score(kept, 3) == pytest.approx(-0.4)


def test_the_best_is_the_largest_accuracy_or_the_smallest_loss() -> None:
    assert rule(select="last").best([0.1, None, 0.3, 0.3]) == 2
    assert rule(select="last", metric="train_loss").best([0.1, None, 0.3]) == 0
    assert rule(select="train_loss").lower and not rule(select="last").lower
    assert rule(select="last").best([None]) is None


def test_what_is_not_finite_has_no_score() -> None:
    assert rule(select="train_loss").score([{"round": 0, "train_loss": None}], 1) is None
    assert rule(select="train_loss").score([{"round": 0, "train_loss": float("nan")}], 1) is None
    assert rule(select="train_loss").score([], 1) is None


def test_a_metric_that_nobody_measures_is_named_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(fl.FedloomError, match=r"tune.metric: expected one of .*; got 'test_acuracy'.*'test_accuracy'"):
        rule(select="last", metric="test_acuracy")
    with pytest.raises(fl.FedloomError, match=r"tune.metric: .*validation_accuracy.*; got 'test_accuracy'"):
        tune(read_tune(TEXT, ["tune.metric=test_accuracy"]), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()
    losses = [{"round": 0, "validation_loss": 1.0}]
    assert rule(losses).metric == "validation_loss" and rule(losses).lower


def test_edges() -> None:
    axes = {"a": Axis((1, 2, 3)), "b": Axis((0.1, 1.0)), "c": Axis((5,)), "d": Axis(("x", "y"))}
    assert edges(axes, {"a": 2, "b": 0.1, "c": 5, "d": "x"}) == ["b = 0.1 (the smallest tried)"]
    assert edges(axes, {"a": 3, "b": 1.0, "c": 5, "d": "x"}) == [
        "a = 3 (the largest tried)",
        "b = 1 (the largest tried)",
    ]


# What is left ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("select", ["validation", "train_loss", "last"])
def test_the_grid_picks_what_running_each_alone_picks(select: str, tmp_path: Path) -> None:
    overrides = [f"tune.select={select}", "seeds=[0,1]"]
    best, numbers, printed = tuned(tmp_path / "out", *overrides)
    [algorithm] = read_tune(TEXT, overrides).algorithms()
    scores = []
    for point in algorithm.points():
        experiment = point.experiment
        data = build.build_federation(experiment)
        task = build.build_task(experiment.model, data)
        made = build.build_algorithm(experiment.algorithms[0])
        settings = build.build_options(experiment, data)
        runs = [fl.simulate(task, data, made, **settings | {"seed": seed}) for seed in (0, 1)]
        decides = Rule.of(algorithm.file.tune, {key for record in runs[0].rounds for key in record})
        own = [decides.score(run.rounds, experiment.rounds) for run in runs]
        scores.append(sum(score for score in own if score is not None) / 2)
    assert [point["score"] for point in numbers["points"]] == pytest.approx(scores, rel=1e-4)
    place = decides.best(scores)
    assert place is not None
    winner = best["FedAvg"]
    assert winner is not None and winner.point.settings == numbers["points"][place]["settings"]
    assert [point["best"] for point in numbers["points"]] == [index == place for index in range(4)]
    assert "4 of 4" not in printed and "8 runs as one program" in printed and "best" in printed


def test_what_is_written_can_be_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    best, numbers, printed = tuned(out, TWO, "epochs=2")
    winner = schema.read(out / "best.toml")
    assert [section.title() for section in winner.algorithms] == ["fedavgm", "Dyn 1.0"]
    remarks = [line for line in (out / "best.toml").read_text().splitlines() if line.startswith("#")]
    score = f"{100 * numbers['best']['fedavgm']['score']:.2f} %"
    assert remarks[0].startswith("# fedavgm: validation_") and len(remarks) == 2
    assert "mean of all rounds, the climb among them" in remarks[0] and "best of " in remarks[0]
    assert numbers["rounds_averaged"] == 6 and (score in remarks[0] or "loss" in remarks[0])
    avgm = best["fedavgm"]
    assert avgm is not None and winner.algorithms[0].client_lr == avgm.point.settings["client_lr"]  # type: ignore[attr-defined]
    assert (winner.rounds, winner.evaluate_on, winner.validation) == (6, ["test"], None)  # as the file has it
    run = out / "points" / "fedavgm" / "client_lr=0.1,server_lr=1.0" / "seed0"
    again = tmp_path / "again"
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", str(run / "config.toml"), "--out", str(again), "--quiet"])
    assert stop.value.code == 0

    def losses(folder: Path) -> list[float]:
        return [json.loads(line)["validation_loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]

    assert losses(again) == pytest.approx(losses(run), rel=1e-4)
    assert (out / "heatmap-fedavgm.png").stat().st_size > 10_000
    assert not (out / "heatmap-dyn-1.0.png").exists()  # it has no server rate
    assert numbers["at_the_edge"]["fedavgm"] and "the best lies at the edge of the grid, client_lr = 0.1" in printed


def test_winners_that_differ_in_more_than_the_algorithm_have_a_file_each(tmp_path: Path) -> None:
    overrides = [TWO, "tune.grid={ batch_size = [5, 40] }", "tune.select=train_loss", "algorithms.1.client_lr=10.0"]
    best, _, _ = tuned(tmp_path / "out", *overrides, "rounds=20")
    sizes = {label: tried.point.settings["batch_size"] for label, tried in best.items()}
    files = sorted(path.name for path in (tmp_path / "out").glob("best*.toml"))
    apart = len(set(sizes.values())) > 1
    assert files == (["best-dyn-1.0.toml", "best-fedavgm.toml"] if apart else ["best.toml"])


def test_a_setting_that_diverges_is_shown_and_never_chosen(tmp_path: Path) -> None:
    out = tmp_path / "out"
    grid = "tune.grid.algorithm.client_lr=[0.1,1e38]"
    _, numbers, printed = tuned(out, grid, "tune.grid.algorithm.server_lr=[1.0,3.0]")
    lost = [point for point in numbers["points"] if point["diverged"]]
    assert {point["settings"]["client_lr"] for point in lost} == {1e38}
    assert all(point["score"] is None and not point["best"] for point in lost)
    assert "diverged (round" in printed
    _, again, printed = tuned(out, grid, "tune.grid.algorithm.server_lr=[1.0,3.0]")
    assert again == numbers and "4 of 4 runs are finished already" in printed and "as one program" not in printed


@pytest.mark.usefixtures("blank_pictures")
def test_nothing_but_divergence_is_exit_code_4_after_all_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.toml").write_text(TEXT.replace("[0.001, 0.1]", "[1e38]").replace("[0.1, 1.0]", "[1.0]"))
    with pytest.raises(SystemExit) as stop:
        cli.main(["tune", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"), "--quiet"])
    said = capsys.readouterr().err
    assert (stop.value.code, said) == (4, "fedloom: tune: every setting of FedAvg diverged: try lower rates\n")
    assert (tmp_path / "out" / "tune.json").exists() and not (tmp_path / "out" / "best.toml").exists()


@pytest.mark.usefixtures("blank_pictures")
def test_started_again_it_runs_what_is_not_finished(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _, numbers, _ = tuned(out)
    points = sorted((out / "points" / "fedavg").iterdir())
    shutil.rmtree(points[0])
    (points[1] / "seed0" / "summary.json").unlink()  # as an interrupt would leave it
    stamps = {path: (path / "seed0" / "summary.json").stat().st_mtime_ns for path in points[2:]}
    _, again, printed = tuned(out)
    assert "2 of 4 runs are finished already" in printed and "2 runs as one program" in printed
    assert all((path / "seed0" / "summary.json").stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert [p["score"] for p in again["points"]] == pytest.approx([p["score"] for p in numbers["points"]], rel=1e-4)
    _, wider, printed = tuned(out, "tune.grid.algorithm.client_lr=[0.001,0.1,0.5]")
    assert "4 of 6 runs are finished already" in printed and len(wider["points"]) == 6


@pytest.mark.usefixtures("blank_pictures")
def test_other_settings_and_other_folders_are_refused(tmp_path: Path) -> None:
    tuned(tmp_path / "out")
    before = (tmp_path / "out" / "tune.toml").read_text()
    with pytest.raises(fl.FedloomError, match="rounds: expected 7, got a run with 6: choose another --out"):
        tuned(tmp_path / "out", "rounds=7")
    assert (tmp_path / "out" / "tune.toml").read_text() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(fl.FedloomError, match=r"got one with 'thesis.tex' in it"):
        tuned(tmp_path / "mine")


@pytest.mark.usefixtures("blank_pictures")
def test_a_start_that_was_killed_and_a_file_manager_are_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".tune.toml.123.new").touch()
    (tmp_path / ".DS_Store").touch()
    best, _, _ = tuned(tmp_path, "rounds=1")
    assert best["FedAvg"] is not None
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".DS_Store"]


@pytest.mark.usefixtures("blank_pictures")
def test_clients_that_work_differently_do_not_share_a_program(tmp_path: Path) -> None:
    _, _, printed = tuned(tmp_path / "out", "tune.grid.algorithm.client_optimizer=['sgd','momentum']")
    assert printed.count("4 runs as one program") == 2


@pytest.mark.usefixtures("blank_pictures")
def test_the_most_that_run_together(tmp_path: Path) -> None:
    _, _, printed = tuned(tmp_path / "out", "tune.together=3")
    assert printed.count("2 runs as one program") == 2


@pytest.mark.usefixtures("blank_pictures")
def test_central_training_is_tuned_like_the_others(tmp_path: Path) -> None:
    algorithms = "algorithms=[{name='central',client_optimizer='adam'},{name='fedavg'}]"
    best, numbers, _ = tuned(tmp_path / "out", algorithms)
    assert [point["settings"] for point in numbers["points"][:2]] == [{"client_lr": 0.001}, {"client_lr": 0.1}]
    assert best["central"] is not None


# Beyond grids ---------------------------------------------------------------------------------------------------------

SEARCH = ["tune.search={ trials = 6, at_once = 3 }", "tune.grid.algorithm.client_lr={decades=[-4,0]}"]
installed = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="optuna is not installed")


def test_a_search_without_optuna_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "find_spec", lambda name: None)
    with pytest.raises(fl.FedloomError, match=r"pip install 'fedloom\[tune\]'"):
        tuned(tmp_path / "out", *SEARCH)
    assert not (tmp_path / "out").exists()


@installed
@pytest.mark.filterwarnings("ignore")
def test_a_search_proposes_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    best, numbers, printed = tuned(out, *SEARCH)
    rates = [point["settings"]["client_lr"] for point in numbers["points"]]
    assert len(set(rates)) == 6 and all(1e-4 <= rate <= 1 for rate in rates)
    assert {point["settings"]["server_lr"] for point in numbers["points"]} <= {0.1, 1.0}
    assert best["FedAvg"] is not None and (out / "best.toml").exists()
    assert f"picture: {out / 'search-fedavg.png'}" in printed.replace("\n", "")
    assert (out / "search-fedavg.png").stat().st_size > 10_000 and not (out / "heatmap-fedavg.png").exists()
    shutil.rmtree(out / "points" / "fedavg" / "trial004")
    _, again, printed = tuned(out, *SEARCH)
    assert [point["settings"] for point in again["points"]] == [point["settings"] for point in numbers["points"]]
    assert "3 of 3 runs are finished already" in printed and "2 of 3 runs are finished already" in printed


@pytest.mark.parametrize(
    ("grid", "drawn"),
    [
        (
            "{ 'algorithm.server_lr' = [0.1, 1.0], 'algorithm.client_lr' = [0.1], epochs = [1] }",
            ["client_lr", "server_lr"],
        ),
        ("{ 'algorithm.client_lr' = [0.1], epochs = [1, 2] }", ["client_lr"]),
        ("{ batch_size = [5, 10], 'algorithm.client_optimizer' = ['sgd'] }", ["batch_size"]),
        ("{ 'algorithm.client_optimizer' = ['sgd'] }", None),
    ],
)
def test_which_settings_of_a_search_are_drawn(
    grid: str, drawn: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(search_plots, "search_plot", lambda trials, path, **told: seen.append((trials, told)))
    file = read_tune(TEXT, [f"tune.grid={grid}", "tune.search={}", "algorithms.0.client_lr=0.1"])
    [algorithm] = file.algorithms()
    points = list(algorithm.points())
    rule = Rule.of(file.tune, {"validation_accuracy"})
    records = [{"round": t, "validation_accuracy": 0.5} for t in range(6)]
    tried = [Tried(points[0], [Outcome(0, tmp_path, records)])]
    tried += [Tried(point, [Outcome(0, tmp_path, records[:2])], pruned=True) for point in points[1:]]
    found = tune_report.Findings(file, [algorithm], {"FedAvg": tried}, {"FedAvg": tried[0]}, rule)
    path = tune_report._search_plot(found, algorithm, tmp_path)
    if drawn is None:
        assert path is None and not seen
        return
    [(trials, told)] = seen
    assert told["names"] == [tune_report.NAMES.get(key, key.replace("_", " ")) for key in drawn] and told["best"] == 0
    assert [trial.at for trial in trials] == [tuple(point.settings[key] for key in drawn) for point in points]
    assert [trial.score for trial in trials] == [0.5, *[None] * (len(points) - 1)]
    assert {trial.why for trial in trials[1:]} <= {"pruned"}


class Hopeless:
    """A trial that should always be pruned."""

    def __init__(self) -> None:
        self.reported: list[int] = []

    def report(self, value: float, step: int) -> None:
        self.reported.append(step)

    def should_prune(self) -> bool:
        return True


@pytest.mark.parametrize(("first", "rounds"), [(1, [0, 1, 2, 3]), (3, [2, 3]), (None, [])])
def test_no_run_is_pruned_before_its_first_rounds(first: int | None, rounds: list[int]) -> None:
    trial = Hopeless()
    watch = search._watch(trial, "test_accuracy", first)  # type: ignore[arg-type]
    ended = [t for t in range(4) if watch({"round": t, "test_accuracy": 0.1})]
    assert ended == rounds and trial.reported == [0, 1, 2, 3]


@installed
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("blank_pictures")
def test_a_search_prunes_after_a_fifth_of_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import optuna

    monkeypatch.setattr(optuna.Trial, "should_prune", lambda trial: True)
    with pytest.raises(fl.FedloomError, match="diverged or came to no validation_accuracy"):
        tuned(tmp_path / "out", "tune.search={ trials = 3, at_once = 3 }", "rounds=11")
    runs = (tmp_path / "out" / "points" / "fedavg").glob("*/seed0/metrics.jsonl")
    assert [len(run.read_text().splitlines()) for run in runs] == [3, 3, 3]  # 11 / 5, and no less


@installed
@pytest.mark.filterwarnings("ignore")
def test_a_hopeless_run_is_pruned(tmp_path: Path) -> None:
    pruning = [
        "tune.search={ trials = 16, at_once = 4 }",
        "tune.grid.algorithm.client_lr={decades=[-7,0]}",
        "rounds=20",
    ]
    _, numbers, printed = tuned(tmp_path / "out", *pruning)
    pruned = [point for point in numbers["points"] if point["pruned"]]
    assert pruned and not any(point["best"] for point in pruned) and "pruned after" in printed
    for trial in range(9, 16):  # as if it had been interrupted in the third of four programs
        shutil.rmtree(tmp_path / "out" / "points" / "fedavg" / f"trial{trial:03d}")
    _, again, _ = tuned(tmp_path / "out", *pruning)
    assert [(p["settings"], p["pruned"]) for p in again["points"]] == [
        (p["settings"], p["pruned"]) for p in numbers["points"]
    ]


# The documentation ----------------------------------------------------------------------------------------------------

DOCS = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")


def test_the_documented_files_are_right() -> None:
    example, grids, search, central = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    assert [len(list(algorithm.points())) for algorithm in read_tune(example).algorithms()] == [28, 28]
    text = example.partition("[tune.grid]")[0].replace("fedyogi", "fedavgm") + "[tune.grid]\n"
    sizes = [len(list(read_tune(text + grid).algorithms()[1].points())) for grid in grids.split("\n\n")]
    assert sizes == [8 * 6, 5 * 9, 5 * 5]
    assert read_tune(example + search).tune.search is not None
    assert schema.read(example.partition("[[algorithms]]")[0] + central).algorithms[0].name == "central"


def test_a_tune_file_is_not_run_by_mistake() -> None:
    with pytest.raises(fl.FedloomError, match="use fedloom tune"):
        schema.read(TEXT)


# What cannot share a stack --------------------------------------------------------------------------------------------


def test_runs_that_cannot_share_a_stack_train_one_by_one(tmp_path: Path) -> None:
    """Labels are flipped for clients that a seed draws, and rates that go otherwise within a round are not alike."""
    flipped = 'faults = [{ kind = "label_flip", rate = 0.2 }]\nseeds = [0, 1]\n' + TEXT
    best, _, _ = tuned(tmp_path / "flipped", "rounds=2", text=flipped)
    assert best
    shapes = """
    "algorithm.client_lr" = [0.3, { schedule = "within_round", rate = 0.3, warmup = 0.06 }]
    """
    within = TEXT[: TEXT.index("[tune.grid]")] + f"epochs = 3\n[tune]\nselect = 'train_loss'\n[tune.grid]{shapes}"
    _, together, _ = tuned(tmp_path / "together", text=within)
    _, apart, _ = tuned(tmp_path / "apart", "tune.together=1", text=within)
    scores = [[point["score"] for point in stored["points"]] for stored in (together, apart)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-6) and scores[0][0] != scores[0][1]
