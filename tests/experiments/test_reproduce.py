"""`fedloom reproduce`: runs that share a stack, runs that are not run twice, what is printed and left behind."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedloom import cli, documents, resumption
from fedloom.data.catalog import Shelf
from fedloom.data.releases import RELEASES
from fedloom.errors import Damaged, FedloomError
from fedloom.experiments import adoption, build, clocks, registry, reproduce, stacks, study_runs
from fedloom.experiments.model_sections import ModelSection
from fedloom.experiments.study import Study, StudyRun, runs
from fedloom.experiments.study_file import read_study
from fedloom.experiments.study_report import command
from fedloom.experiments.study_table import print_table
from fedloom.report.page import write_report
from fedloom.rundir import METRICS, SETTLED

TEXT = """
id = "tiny"
paper = "Nobody 2020, table 0"
title = "A tiny study"
conflicts = ["D-33"]
notes = ["it is tiny"]
partition_per_seed = true

[experiment]
rounds = 3
cohort = 3
seeds = [0, 1]
target = 0.3
data = { name = "digits", partition = "dirichlet", clients = 12, alpha = 1.0 }
model = { name = "logistic" }
algorithm = { name = "fedavg", client_lr = 0.5 }

[[axes]]
name = "method"
values.FedAvg = {}
values.FedAdp = { "algorithm.name" = "fedadp" }

[[axes]]
name = "epochs"
key = "epochs"
values = [1, 2]

[[measures]]
name = "accuracy"
kind = "final"
last = 1
scale = 100

[[measures]]
name = "rounds"
kind = "rounds_to"
scale = 100

[table]
rows = ["method"]
columns = ["measure", "epochs"]

[figure]
kind = "FIGURE"
x = "X"
panels = ["epochs"]

[[claims]]
text = "FedAdp is faster"
kind = "at_most"
axis = "method"
first = "FedAdp"
second = "FedAvg"
measure = "rounds"

[scales.smoke]
says = "one seed"
set = { seeds = [0] }
"""
FIGURE = '\n[figure]\nkind = "FIGURE"\nx = "X"\npanels = ["epochs"]\n'
PLAIN = TEXT.replace(FIGURE, "")
CURVES = TEXT.replace("FIGURE", "curves").replace(
    'x = "X"', 'metric = ["test_accuracy", "train_loss"]\nrunning = "highest"'
)
BARE = PLAIN[: PLAIN.index("\n[[axes]]")] + PLAIN[PLAIN.index("\n[[measures]]") : PLAIN.index("\n[table]")]
PUBLISHED = """
tiny = [
  { cell = { method = "FedAvg", epochs = "1" }, measure = "accuracy", value = 99.0, std = 80.0 },
  { cell = { method = "FedAdp", epochs = "1" }, measure = "rounds", best = 1.0 },
]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A study in a folder of its own, with published numbers beside it."""
    (tmp_path / "published.toml").write_text(PUBLISHED)
    path = tmp_path / "tiny.toml"
    path.write_text(PLAIN)
    return path


@pytest.fixture(autouse=True)
def _not_timed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are timed for an estimate where it is looked at, which takes as long as these studies."""
    looked_at = (test_a_study_is_run_printed_and_left_behind, test_the_estimate_is_of_the_rounds_that_are_left)
    if request.function not in looked_at:
        monkeypatch.setattr(study_runs, "estimate", lambda missing, *_: {run.slug: 1.0 for run in missing})


def ran(study: Study, out: Path, file: Path | None = None, **options: Any) -> tuple[dict[str, Any], str]:
    """The report, and what was printed."""
    told = io.StringIO()
    console = Console(file=told, width=140, force_terminal=False)
    return reproduce.reproduce(study, out, file, console=console, **options), told.getvalue()


# Stacks ---------------------------------------------------------------------------------------------------------------


def sizes(study: Study) -> list[int]:
    return [len(stack) for stack in stacks.stacks(runs(study))]


def test_runs_share_a_stack_where_only_seeds_partitions_rates_and_servers_differ() -> None:
    study = read_study(CURVES)
    assert sizes(study) == [4, 4]  # one epoch, two epochs
    rates = CURVES.replace('key = "epochs"\nvalues = [1, 2]', 'key = "algorithm.client_lr"\nvalues = [0.1, 0.2]')
    assert sizes(read_study(rates)) == [8]
    assert sizes(read_study(CURVES, ["executor=loop"])) == [1] * 8
    prox = CURVES.replace('"algorithm.name" = "fedadp"', '"algorithm.name" = "fedprox", "algorithm.mu" = 1.0')
    assert sizes(read_study(prox)) == [2, 2, 2, 2]  # other work for the clients
    many = read_study(CURVES, [f"seeds={list(range(20))}"])
    assert sizes(many) == [20] * 4  # no more than the most at once, in even parts


def test_on_a_cpu_convolutions_run_one_by_one() -> None:
    study = read_study(CURVES.replace("logistic", "mnist_cnn"))
    assert sizes(study) == [1] * 8
    assert sizes(study.model_copy(update={"overrides": {"device": "cuda"}})) == [4, 4]


def test_what_a_run_settles_for_itself_is_no_difference() -> None:
    assert set(SETTLED) - {"dtype"} <= adoption.NOT_THE_NUMBERS


def test_partitions_share_their_rows() -> None:
    shelf = Shelf()
    one, other = (build.build_data(run.experiment.data, shelf=shelf) for run in runs(read_study(CURVES))[:2])
    assert one.x is other.x and one.test is other.test and not torch.equal(one.indices, other.indices)
    alone = build.build_data(runs(read_study(CURVES))[1].experiment.data)
    assert alone.fingerprint() == other.fingerprint()


def test_a_forced_round_takes_those_who_hold_the_label() -> None:
    experiment = runs(read_study(CURVES, ["forced=[{round=2,label=4},{round=3,clients=[5,1]}]"]))[0].experiment
    data = build.build_data(experiment.data)
    sampler = build.build_sampler(experiment, data)
    assert not isinstance(sampler, str) and sampler.forced[2].tolist() == [1, 5]
    assert isinstance(data.y, torch.Tensor)
    shares = [float((data.y[data.rows(client)] == 4).double().mean()) for client in range(data.population)]
    assert sorted(shares)[-3:] == sorted(shares[client] for client in sampler.forced[1].tolist())
    with pytest.raises(FedloomError, match=r"forced\.0\.clients: expected a list of clients, or a label, and not both"):
        runs(read_study(CURVES, ["forced=[{round=2}]"]))


# Whole studies --------------------------------------------------------------------------------------------------------


def test_a_study_is_run_printed_and_left_behind(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    file.write_text(CURVES)
    report, said = ran(read_study(file), out, file)
    for words in (
        "tiny: A tiny study",
        "Nobody 2020, table 0",
        "scale full",
        "8 runs in 4 cells, at most 24 rounds in all",
        "note: it is tiny",
        "D-33, in doubt: angles are smoothed by the number of rounds",
        "estimated time on this machine: about ",
        "99.00 ± 80",
        "N/A (1)",
        "matched: 1 of 2 published numbers",
        "FedAdp is faster (in ",
        "figure: ",
    ):
        assert words in said, words
    page = write_report([out]).read_text(encoding="utf-8")  # reads all of it back
    assert "tiny: A tiny study" in page and "99.00 ± 80" in page
    stored = json.loads((out / "results.json").read_text(), parse_constant=pytest.fail)
    assert {
        "id",
        "command",
        "commit",
        "device",
        "seconds",
        "scale",
        "measured",
        "published",
        "claims",
        "versions",
    } <= set(stored)
    assert (stored["id"], stored["scale"], stored["device"], stored["runs"]) == ("tiny", "full", "cpu", 8)
    assert stored["command"] == f"fedloom reproduce {file} --scale full" and stored["seconds"] > 0
    assert len(stored["measured"]) == 8 and [each["matched"] for each in stored["published"]] == [True, False]
    assert report["measured"] == stored["measured"]
    assert (out / "figure.png").stat().st_size > 10_000
    lines = [json.loads(line) for line in (out / "fedavg-1/seed1/metrics.jsonl").read_text().splitlines()]
    last = next(
        each
        for each in stored["measured"]
        if each["cell"] == {"method": "FedAvg", "epochs": "1", "measure": "accuracy"}
    )
    assert len(lines) == 3 and last["values"][1] == pytest.approx(100 * lines[-1]["test_accuracy"])
    assert not list(out.rglob("checkpoints"))

    # a run's own file repeats it alone
    alone = tmp_path / "alone"
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", str(out / "fedavg-1/seed1/config.toml"), "--out", str(alone), "--quiet"])
    again = [json.loads(line) for line in (alone / "metrics.jsonl").read_text().splitlines()]
    assert stop.value.code == 0
    assert [record["test_accuracy"] for record in again] == pytest.approx([r["test_accuracy"] for r in lines], abs=0.01)


def test_finished_runs_are_not_run_again(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    study = read_study(file)
    train, begun = stacks.train, []

    def interrupted(stack: list[StudyRun], *rest: Any) -> None:
        begun.append(len(stack))
        if len(begun) == 2:
            (out / stack[0].slug).mkdir(parents=True)
            (out / stack[0].slug / "config.toml").write_text(stack[0].experiment.to_toml())
            (out / stack[0].slug / "metrics.jsonl").write_text("half a li")
            raise KeyboardInterrupt
        train(stack, *rest)

    monkeypatch.setattr(stacks, "train", interrupted)
    with pytest.raises(
        KeyboardInterrupt, match=r"interrupted with 4 of 8 runs finished, kept in .*: the same command goes"
    ):
        ran(study, out, file)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert len(before) == 4 and not (out / "results.json").exists()
    _, said = ran(study, out, file)
    assert begun == [4, 4, 4] and "4 of 8 runs are finished and not run again" in said
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    _, said = ran(study, out, file)
    assert begun == [4, 4, 4] and "estimated" not in said


def test_a_stack_that_a_signal_ends_goes_on_in_the_middle(file: Path, tmp_path: Path) -> None:
    study, out = read_study(file), tmp_path / "out"
    stack = stacks.stacks(runs(study))[0]
    seen: list[int] = []

    def signals(run: StudyRun, record: Any) -> None:
        seen.append(record["round"])
        if record["round"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        stacks.train(stack, out, Shelf(), None, signals)
    told = len(seen)
    stacks.train(stack, out, Shelf(), None, lambda run, record: seen.append(record["round"]))
    assert 0 not in seen[told:]
    for run in stack:
        summary = json.loads((out / run.slug / "summary.json").read_text())
        lines = (out / run.slug / "metrics.jsonl").read_text().splitlines()
        assert summary["resolved"]["resumed"]["round"] >= 1 and len(lines) == summary["rounds"]
        assert not (out / run.slug / "checkpoints").exists()


def test_an_unfinished_study_is_told_up_to_the_round_that_all_its_runs_have(file: Path, tmp_path: Path) -> None:
    text = file.read_text().replace("rounds = 3", "rounds = 6\neval_every = 2").replace("target = 0.3\n", "")
    file.write_text(text)
    study, out = read_study(file), tmp_path / "out"
    with pytest.raises(FedloomError, match="expected a study that was begun, got none: leave out --so-far"):
        ran(study, out, file, so_far=True)

    def signals(run: StudyRun, record: Any) -> None:
        if record["round"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        stacks.train(stacks.stacks(runs(study))[0], out, Shelf(), None, signals)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    (out / "config.toml").write_text(study.to_toml())
    told, said = ran(study, out, file, so_far=True)
    assert "so far: 4 rounds of 4 of 8 runs" in said and "none is called a match" in said
    assert told["runs"] == 4 and not told["compared"] and "--set experiment.rounds=4" in told["command"]
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())  # nothing was run
    shorter = read_study(file, ["experiment.rounds=4"])
    again, _ = ran(shorter, tmp_path / "shorter", file)
    found = {json.dumps(each["cell"]): each["values"] for each in again["measured"]}
    assert all(found[json.dumps(each["cell"])] == each["values"] for each in told["measured"])
    for number, run in enumerate(runs(study)):
        if (metrics := out / run.slug / "metrics.jsonl").exists():
            metrics.write_text('{"round": 0}\n')
            if not number:
                told, said = ran(study, out, file, so_far=True)
                assert "left out, begun and not yet tested: 1 run" in said and told["runs"] == 3
    with pytest.raises(FedloomError, match="expected a test of one of the runs that were begun, got none yet"):
        ran(study, out, file, so_far=True)


def test_a_run_that_ended_at_its_target_does_not_cut_the_others_short(file: Path, tmp_path: Path) -> None:
    """It waits for those it is stacked with, and has no summary before they are over."""
    accuracy = '[[measures]]\nname = "accuracy"\nkind = "final"\nlast = 1\nscale = 100\n'  # which needs every round
    file.write_text(
        PLAIN.replace(accuracy, "").replace("target = 0.3", "target = 0.45").replace("rounds = 3", "rounds = 6")
    )
    study, out = read_study(file), tmp_path / "out"
    stack = stacks.stacks(runs(study))[0]

    def signals(run: StudyRun, record: Any) -> None:
        if record["round"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        stacks.train(stack, out, Shelf(), None, signals)
    (out / "config.toml").write_text(study.to_toml())
    lengths = {run.slug: len(documents.read_records(out / run.slug / METRICS)) for run in stack}
    told, rounds, _ = study_runs.begun(stack, out, None)
    assert min(lengths.values()) < rounds
    assert {run.slug: len(left.rounds) for run, left in told} == {name: min(n, rounds) for name, n in lengths.items()}


def test_the_estimate_is_of_the_rounds_that_are_left(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(PLAIN.replace("values = [1, 2]", "values = [1, 2, 3]"))
    study, out = read_study(file), tmp_path / "out"
    done, begun, untouched = stacks.stacks(runs(study))
    stacks.train(done, out, Shelf(), None, lambda run, record: None)

    def signals(run: StudyRun, record: Any) -> None:
        if record["round"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        stacks.train(begun, out, Shelf(), None, signals)
    (out / "config.toml").write_text(study.to_toml())
    monkeypatch.setattr(stacks, "seconds_per_round", lambda *_: 100.0)
    _, said = ran(study, out, file)
    summaries = [json.loads((out / run.slug / "summary.json").read_text()) for run in begun]
    kept = [summary["resolved"]["resumed"]["round"] for summary in summaries]
    assert all(round >= 1 for round in kept)
    left = sum(3 - round for round in kept) + 3 * len(untouched)
    assert f"estimated time on this machine: {study_runs.duration(100.0 * left)} (" in said


def test_what_is_to_go_is_what_it_was_expected_to_take(file: Path) -> None:
    """A long kind of run comes last: by its rounds it would be as long as the others."""
    file.write_text(PLAIN.replace("values = [1, 2]", "values = [1, 2, 50]"))
    study = read_study(file)
    first, second, third = pile = stacks.stacks(runs(study))
    expected = {run.slug: seconds for stack, seconds in zip(pile, (1.0, 3.0, 100.0), strict=True) for run in stack}
    assert [study_runs._ahead(stack, pile, expected) for stack in (first, second, third)] == [103.0, 25.0, 0.0]
    assert study_runs._ahead(first, pile, dict.fromkeys(expected, 0.0)) == 0.0  # too short to be timed


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("quiet", [False, True])
def test_a_study_of_several_stacks_says_how_far_it_is_unless_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setattr(study_runs, "SOON", 0.0)
    _, said = ran(read_study(PLAIN, ["experiment.seeds=[0]"]), tmp_path / "out", quiet=quiet)
    assert ("to go" in said) is not quiet


def test_a_run_that_is_over_has_no_rounds_left(file: Path, tmp_path: Path) -> None:
    experiment, folder = runs(read_study(file))[0].experiment, tmp_path / "run"
    assert stacks.rounds_left(experiment, folder) == 3
    stacks.run_stack([stacks.StackRun(experiment, folder, lambda record: record["round"] == 1)], Shelf(), None)
    (folder / "summary.json").unlink()
    assert stacks.rounds_left(experiment, folder) == 0


def test_a_run_whose_watch_has_to_see_every_round_begins_again(file: Path, tmp_path: Path) -> None:
    experiment = runs(read_study(file))[0].experiment
    seen: list[int] = []

    def watch(record: dict[str, Any]) -> bool:
        seen.append(record["round"])
        if seen == [0, 1]:
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    stack = [stacks.StackRun(experiment, tmp_path / "run", watch, afresh=True)]
    with pytest.raises(KeyboardInterrupt):
        stacks.run_stack(stack, Shelf(), None)
    stacks.run_stack(stack, Shelf(), None)
    assert seen == [0, 1, 0, 1, 2]


def test_a_stack_of_other_versions_is_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, out = read_study(file), tmp_path / "out"
    stack = stacks.stacks(runs(study))[0]

    def signals(run: StudyRun, record: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        stacks.train(stack, out, Shelf(), None, signals)
    before = sorted(out.rglob("*"))
    monkeypatch.setattr(resumption, "BITS", resumption.BITS | {"torch": "99.0"})
    anew = "put it back, remove that folder to begin it again, or choose another --out"
    with pytest.raises(Damaged, match=rf"versions\.torch: expected .*: {anew}"):
        stacks.train(stack, out, Shelf(), None, lambda run, record: None)
    (out / stack[0].slug / "privacy.json").write_text("{}")
    with pytest.raises(Damaged, match=r"versions\.torch: expected .*: put it back, or choose another --out"):
        stacks.train(stack, out, Shelf(), None, lambda run, record: None)
    with pytest.raises(Damaged, match="expected a new run, got one begun whose privacy is spent"):
        stacks.run_stack([stacks.StackRun(stack[0].experiment, out / stack[0].slug, afresh=True)], Shelf(), None)
    (out / stack[0].slug / "privacy.json").unlink()
    assert sorted(out.rglob("*")) == before


def test_a_kill_before_a_run_has_settings_leaves_it_to_be_begun(file: Path, tmp_path: Path) -> None:
    study, out = read_study(file), tmp_path / "out"
    first = reproduce.reproduce(study, out, file, quiet=True)
    folder = out / runs(study)[0].slug
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / ".lock").touch()
    assert reproduce.reproduce(study, out, file, quiet=True)["measured"] == first["measured"]


def test_a_finished_run_that_lost_rounds_is_refused(file: Path, tmp_path: Path) -> None:
    study, out = read_study(file), tmp_path / "out"
    reproduce.reproduce(study, out, file, quiet=True)
    metrics = out / runs(study)[0].slug / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:1]))
    with pytest.raises(Damaged, match=rf"expected the {len(lines)} rounds of its summary.json, got 1: remove "):
        reproduce.reproduce(study, out, file, quiet=True)


def test_models_that_do_not_stack_leave_the_others_stacks(file: Path) -> None:
    dense = runs(read_study(file))
    convolutional = [
        replace(run, experiment=run.experiment.model_copy(update={"model": ModelSection(name="mnist_cnn")}))
        for run in dense
    ]
    sizes = [len(stack) for stack in stacks.stacks([*convolutional, *dense])]
    assert sorted(sizes) == sorted([1] * len(dense) + [len(stack) for stack in stacks.stacks(dense)])
    assert max(sizes) > 1


def test_what_is_told_again_keeps_its_origin(file: Path, tmp_path: Path) -> None:
    """Runs made on one machine are reported on another: device, commit and seconds are those of the training."""
    study, out = read_study(file), tmp_path / "out"
    first = reproduce.reproduce(study, out, file, quiet=True)
    made = json.loads((out / "made.json").read_text()) | {"device": "cuda (a card)", "commit": "0" * 40}
    (out / "made.json").write_text(json.dumps(made))
    again = reproduce.reproduce(study, out, file, quiet=True)
    assert (again["device"], again["commit"]) == ("cuda (a card)", "0" * 40)
    assert again["seconds"] == first["seconds"] > 0
    assert again["measured"] == first["measured"]


def test_what_a_kill_leaves_knows_its_seconds(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written when a process is killed, so that what was written before has to tell."""
    out, seen = tmp_path / "out", list[float]()
    monkeypatch.setattr(study_runs, "SOON", 0.0)

    def train(stack: list[StudyRun], folder: Path, *others: Any) -> None:
        watch = others[-1]

        def look(run: StudyRun, record: dict[str, Any]) -> None:
            watch(run, record)
            seen.append(json.loads((folder / "made.json").read_text())["seconds"])

        trained(stack, folder, *others[:-1], look)

    trained = stacks.train
    monkeypatch.setattr(stacks, "train", train)
    one_stack = read_study(file, asked=["epochs=1"])
    told = reproduce.reproduce(one_stack, out, file, quiet=True)
    assert seen == sorted(set(seen)) and len(seen) > 4 and seen[-1] <= told["seconds"] < seen[-1] + 60


def test_a_part_of_a_study_is_compared_and_told_as_such(file: Path, tmp_path: Path) -> None:
    part = read_study(file, scale="smoke", asked=["method=FedAvg", "epochs=1,2"])
    report, said = ran(part, tmp_path / "out", file)
    assert "2 runs in 2 cells" in said and "asked for by --only: method FedAvg, epochs 1 or 2" in said
    assert {each["cell"]["method"] for each in report["measured"]} == {"FedAvg"}
    assert [each["matched"] for each in report["published"]] == [True]
    assert report["only"] == {"method": ["FedAvg"], "epochs": ["1", "2"]}
    assert command(part) == "fedloom reproduce tiny --scale smoke --only method=FedAvg --only epochs=1,2"
    _, said = ran(read_study(file, scale="smoke"), tmp_path / "out", file)
    assert "2 of 4 runs are finished and not run again" in said


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("method", "--only: expected AXIS=VALUE"),
        ("methd=FedAvg", "--only: expected one of epochs, method; got 'methd': did you mean 'method'"),
        ("method=FedAgv", "--only, 'method': expected one of FedAdp, FedAvg; got 'FedAgv'"),
        ("measure=rounds", "--only: expected one of epochs, method; got 'measure'"),
    ],
)
def test_a_part_that_is_none_is_refused(asked: str, message: str, file: Path) -> None:
    with pytest.raises(FedloomError, match=message):
        read_study(file, asked=[asked])


def test_a_part_that_the_scale_has_not_is_refused(file: Path) -> None:
    file.write_text(PLAIN + 'only = { method = ["FedAvg"] }\n')
    with pytest.raises(FedloomError, match="--only, 'method' at scale 'smoke': expected one of FedAvg; got 'FedAdp'"):
        runs(read_study(file, scale="smoke", asked=["method=FedAdp"]))
    with pytest.raises(FedloomError, match="--only, 'method' at scale 'smoke': expected one of FedAvg; got 'FedAdp'"):
        runs(read_study(file, scale="smoke", asked=["method=FedAvg,FedAdp"]))


def test_a_value_with_a_comma_is_asked_for_in_quotes(file: Path) -> None:
    file.write_text(
        PLAIN.replace("values.FedAvg = {}", 'values."FedAvg, plain" = {}').replace('"FedAvg"', '"FedAvg, plain"')
    )
    study = read_study(file, asked=['method="FedAvg, plain"'])
    assert {run.cell["method"] for run in runs(study)} == {"FedAvg, plain"}
    again = shlex.split(command(study))
    assert read_study(file, asked=[again[again.index("--only") + 1]]).asked == study.asked


def test_runs_of_another_study_are_taken_where_the_settings_are_the_same(file: Path, tmp_path: Path) -> None:
    first, _ = ran(read_study(file, scale="smoke"), tmp_path / "one", file)
    other = read_study(
        PLAIN.replace('"tiny"', '"other"', 1).replace("values = [1, 2]", "values = [2, 3]"), scale="smoke"
    )
    told = io.StringIO()
    console = Console(file=told, width=140, force_terminal=False)
    report = reproduce.reproduce(other, tmp_path / "two", console=console, reuse=[tmp_path / "one"])
    assert "2 runs taken from" in told.getvalue() and "2 of 4 runs are finished" in told.getvalue()
    shared = [each for each in first["measured"] if each["cell"]["epochs"] == "2"]
    assert shared == [each for each in report["measured"] if each["cell"]["epochs"] == "2"]
    assert report["trained_by"] == [first["command"]] and report["command"] == command(other)
    _, said = ran(other, tmp_path / "two")
    assert "4 of 4 runs are finished" in said


def test_files_that_are_not_here_are_told_before_training_with_what_can_be_run(tmp_path: Path) -> None:
    apart = 'data = { name = "mnist", partition = "iid", clients = 12 }'
    text = PLAIN.replace("values.FedAvg = {}", f"values.FedAvg = {{ {apart} }}")
    text = text.replace('says = "one seed"', 'says = "one seed"\nstand_in = "digits"')
    there = 'data = { name = "digits", partition = "iid", clients = 12 }'
    study = read_study(text.replace("set = { seeds = [0] }", f"set = {{ seeds = [0], {there} }}"))
    for folder in ("data", "out"):
        (tmp_path / folder).mkdir()
    told = "; without it: --only method=FedAdp; with what is here, some of it standing in: --scale smoke$"
    with pytest.raises(FedloomError, match=f"mnist: expected .*{told}"):
        reproduce.reproduce(study, tmp_path / "out", data_folder=tmp_path / "data", quiet=True)
    assert not list((tmp_path / "out").glob("*/seed*"))
    with pytest.raises(FedloomError, match=r"; without it: --only method=FedAdp$"):  # smoke lacks the same files
        reproduce.reproduce(read_study(text), tmp_path / "out", data_folder=tmp_path / "data", quiet=True)
    own = 'data = { name = "digits", partition = "dirichlet", clients = 12, alpha = 1.0 }'
    text = PLAIN.replace(own, apart).replace("set = { seeds = [0] }", f'set = {{ {there} }}\nstand_in = "digits"')
    fits_full_alone = read_study(text, ["data.style=plain"])  # which digits do not have
    with pytest.raises(FedloomError, match=r"^mnist: expected .* names another place$"):
        reproduce.reproduce(fits_full_alone, tmp_path / "out", data_folder=tmp_path / "data", quiet=True)


def test_a_models_files_that_are_not_here_are_told_before_training(tmp_path: Path) -> None:
    data = '"data.name" = "20newsgroups", "data.encode" = "words"'
    vectors = f'values.FedAvg = {{ {data}, model = {{ name = "bilstm", embedding = "vectors.txt" }} }}'
    study = read_study(PLAIN.replace("values.FedAvg = {}", vectors), scale="smoke")
    for path in (path for file in RELEASES["20newsgroups"].layouts.values() for path in file):
        (tmp_path / path.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.path).write_bytes(b"")
    told = r"^model.embedding: expected a file or folder, as a path or within .*, got 'vectors.txt', which is neither; "
    with pytest.raises(FedloomError, match=told + "without it: --only method=FedAdp$"):
        reproduce.reproduce(study, tmp_path / "out", data_folder=tmp_path, quiet=True)
    assert not list((tmp_path / "out").glob("*/seed*"))


def test_a_run_that_is_taken_has_the_name_of_the_cell_it_is_taken_for(tmp_path: Path) -> None:
    one = read_study(PLAIN, scale="smoke")
    renamed = PLAIN.replace('"tiny"', '"other"', 1).replace("values.FedAvg =", "values.plain =")
    other = read_study(renamed.replace('second = "FedAvg"', 'second = "plain"'), scale="smoke")
    ran(one, tmp_path / "one")
    assert adoption.adopt(runs(other), tmp_path / "two", [tmp_path / "one"]) == len(runs(other))
    for run in runs(other):
        there = documents.read_toml(tmp_path / "two" / run.slug / "config.toml")
        assert (there["name"], there["title"]) == ("other", ", ".join(run.cell.values()))


def test_what_was_taken_of_an_unfinished_run_says_on_which_rows_it_was_trained(tmp_path: Path) -> None:
    def study(rounds: int) -> Study:
        return read_study(PLAIN, [f"experiment.rounds={rounds}", "experiment.eval_every=1", "experiment.seeds=[0]"])

    def signals(run: StudyRun, record: Any) -> None:
        if record["round"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        stacks.train(stacks.stacks(runs(study(6)))[0], tmp_path / "begun", Shelf(), None, signals)
    assert adoption.adopt(runs(study(2)), tmp_path / "taken", [tmp_path / "begun"]) == 2
    for path in (tmp_path / "taken").rglob("summary.json"):
        assert {"seed", "data_fingerprint", "versions"} <= documents.read_json(path).keys()


def test_runs_beside_those_that_were_begun_are_taken_whatever_they_are_called(tmp_path: Path) -> None:
    def study(often: int) -> Study:
        return read_study(PLAIN, [f"experiment.eval_every={often}", "experiment.seeds=[0]", "experiment.rounds=4"])

    wanted = runs(study(2))
    for name in ("aa", "zz"):  # beside mm, which is begun
        ran(study(1), tmp_path / name / name)
        for run in wanted:
            own = tmp_path / name / "mm" / run.slug
            own.mkdir(parents=True)
            (own / "config.toml").write_text(run.experiment.to_toml())
            (own / METRICS).write_text("")
        assert adoption.adopt(wanted, tmp_path / name / "mm", [tmp_path / name]) == len(wanted)


def test_numbers_of_other_data_are_not_subtracted(file: Path, tmp_path: Path) -> None:
    own, _ = ran(read_study(file), tmp_path / "own", file)
    assert any(each["difference"] for each in own["published"])
    file.write_text(
        PLAIN.replace("[scales.smoke]", '[[where]]\ncell = { epochs = "1" }\nstand_in = "digits"\n\n[scales.smoke]')
    )
    other, said = ran(read_study(file), tmp_path / "own", file)
    assert len(other["published"]) == 2 and not any(each["difference"] for each in other["published"])
    assert "stand-in, not the paper's own: 1: digits" in said


def test_a_claim_that_no_cell_could_tell_says_what_it_needs(file: Path, tmp_path: Path) -> None:
    [undecided] = ran(read_study(file, asked=["method=FedAvg"]), tmp_path / "out", file)[0]["claims"]
    assert undecided["holds"] is None and undecided["detail"] == "that needs method FedAdp and FedAvg"


def test_without_a_terminal_a_long_stack_says_how_far_it_is(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_runs, "QUIET", 0.0)
    _, said = ran(read_study(file, scale="smoke"), tmp_path / "out", file)
    assert "seed 0: 1 of at most 3 rounds" in said


@pytest.mark.usefixtures("blank_pictures")
def test_a_search_that_is_not_whole_is_neither_compared_nor_claimed(tmp_path: Path) -> None:
    search = '''[[axes]]
name = "client rate"
key = "algorithm.client_lr"
values = [0.001, 0.5]
best = "highest"

[[measures]]
name = "accuracy"'''
    text = PLAIN.replace('[[measures]]\nname = "accuracy"', search).replace("values = [1, 2]", "values = [1]")
    file = tmp_path / "tiny.toml"
    file.write_text(text.replace("seeds = [0, 1]", "seeds = [0]"))
    (tmp_path / "published.toml").write_text(PUBLISHED)
    study = read_study(file)
    whole, _ = ran(study, tmp_path / "whole", file)
    assert [each["matched"] is None for each in whole["published"]] == [False, False]
    assert whole["claims"][0]["of"] == 1 and all("whole" not in each for each in whole["measured"])
    for taken, part in ((["client rate=0.5"], "asked"), ([], "begun")):
        out = tmp_path / part
        if taken:
            told, said = ran(read_study(file, asked=taken), out, file)
        else:
            half = [run for run in runs(study) if run.cell["client rate"] == "0.5"]
            adoption.adopt(half, out, [tmp_path / "whole"])
            (out / "config.toml").write_text(study.to_toml())
            told, said = ran(study, out, file, so_far=True)
        assert [each["matched"] for each in told["published"]] == [None, None]
        assert told["claims"][0]["holds"] is None and all(each["whole"] is False for each in told["measured"])
        assert "for want of seeds or of choices searched: 4 of 4 numbers" in said and "matched: 0 of 0" in said


@pytest.mark.usefixtures("blank_pictures")
def test_a_run_that_diverged_later_had_not_so_far(tmp_path: Path) -> None:
    text = BARE.replace("seeds = [0, 1]", "seeds = [0]").replace("rounds = 3", "rounds = 6\neval_every = 1")
    text = text.replace("target = 0.3\n", "")
    study, out = read_study(text), tmp_path / "out"
    ran(study, out)
    [run] = runs(study)
    folder = out / run.slug
    (folder / "summary.json").unlink()
    lines = (folder / METRICS).read_text().splitlines(keepends=True)
    (folder / METRICS).write_text("".join(lines[:2]))
    both = read_study(text.replace("seeds = [0]", "seeds = [0, 1]"))
    ran(both.model_copy(update={"overrides": {"seeds": [1]}}), tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "tiny" / "seed1", out / "tiny" / "seed1")
    summary = out / "tiny" / "seed1" / "summary.json"
    (out / "tiny" / "seed1" / METRICS).write_text("".join(lines[:4]))
    summary.write_text(json.dumps(documents.read_json(summary) | {"diverged": "round 5", "rounds": 4}))
    (out / "config.toml").write_text(both.to_toml())
    told, said = ran(both, out, so_far=True)
    assert "so far: 2 rounds of 2 of 2 runs: numbers stand beside" in said and "changed by --set" not in said
    assert told["diverged"] == 0 and None not in told["measured"][0]["values"]


def test_runs_on_other_rows_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings name the data; what was in the files is in the fingerprint."""
    text = PLAIN.replace("values = [1, 2]", "values = [1]").replace(
        "values.FedAvg = {}", 'values.FedAvg = { "algorithm.client_lr" = 1e38 }'
    )
    study = read_study(text, scale="smoke")
    ran(study, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "good")
    missing = runs(study)
    found = [path for run in missing for path in (tmp_path / "one" / run.slug).glob("summary.json")]
    said = [documents.read_json(path) for path in found]
    assert ["diverged" in each for each in said] == [True, False] and said[1]["data_fingerprint"]
    for path, each in zip(found, said, strict=True):
        path.write_text(json.dumps(each | {"data_fingerprint": "another"}))
    assert adoption.adopt(missing, tmp_path / "two", [tmp_path / "one"]) == 0
    both = [tmp_path / "one", tmp_path / "good"]  # each run by itself
    assert adoption.adopt(missing, tmp_path / "three", both) == len(missing)

    def gone(*_: Any) -> Any:
        raise FedloomError("digits: expected its files, got nothing")

    monkeypatch.setattr(build, "build_federation", gone)  # nothing to compare with
    assert adoption.adopt(missing, tmp_path / "two", [tmp_path / "one"]) == len(missing)


@pytest.mark.usefixtures("blank_pictures")
def test_where_runs_were_trained_is_told_of_those_that_were_taken(tmp_path: Path) -> None:
    study = read_study(PLAIN, scale="smoke")
    first, _ = ran(study, tmp_path / "one")
    made = documents.read_json(tmp_path / "one" / "made.json") | {"device": "a toaster", "seconds": 1234.5}
    (tmp_path / "one" / "made.json").write_text(json.dumps(made))
    quiet = Console(file=io.StringIO())
    for source, target in (("one", "two"), ("two", "three")):  # and of those that were taken from there
        report = reproduce.reproduce(study, tmp_path / target, console=quiet, reuse=[tmp_path / source])
        assert (report["device"], report["seconds"]) == ("a toaster", 1234.5)
        assert report["trained_by"] == [first["command"]]
    text = PLAIN.replace('"tiny"', '"wide"', 1).replace("values = [1, 2]", "values = [1, 2, 3]")
    wider = read_study(text, scale="smoke")
    report = reproduce.reproduce(wider, tmp_path / "four", console=quiet, reuse=[tmp_path / "one"])
    assert report["device"] == "a toaster, cpu" and report["seconds"] > 1234.5  # some taken, some trained
    last = reproduce.reproduce(wider, tmp_path / "five", console=quiet, reuse=[tmp_path / "four"])
    assert last["trained_by"] == [first["command"], report["command"]]
    assert (last["device"], last["seconds"]) == ("a toaster, cpu", report["seconds"])


def test_an_origin_that_says_little_is_no_obstacle(tmp_path: Path) -> None:
    study = read_study(PLAIN, scale="smoke")
    ran(study, tmp_path / "one")
    (tmp_path / "one" / "made.json").write_text("{}")
    assert adoption.adopt(runs(study), tmp_path / "two", [tmp_path / "one"]) == len(runs(study))


def untimed(study: Study, out: Path) -> dict[str, Any]:
    """Every file of a study's runs, but for what a clock or a machine tells."""
    found: dict[str, Any] = {}
    for run in runs(study):
        folder = out / run.slug
        summary, records = documents.left_behind(folder)
        final = {key: value for key, value in summary["final"].items() if key != "seconds"}
        kept = [{key: value for key, value in record.items() if key != "seconds"} for record in records]
        found[run.slug] = documents.read_toml(folder / "config.toml"), final, kept
    return found


@pytest.mark.usefixtures("blank_pictures")
def test_runs_that_were_tested_more_are_taken_without_the_other_tests(tmp_path: Path) -> None:
    plain = CURVES.replace("target = 0.3\n", "")
    more = read_study(plain, ["experiment.eval_every=1", "experiment.evaluate_on=['test', 'train']"])
    wanted = read_study(plain, ["experiment.eval_every=2", "experiment.evaluate_on=['test']"])
    lacking = read_study(plain, ["experiment.eval_every=1", "experiment.evaluate_on=['test', 'clients']"])
    ran(more, tmp_path / "more")
    ran(wanted, tmp_path / "made")
    assert adoption.adopt(runs(lacking), tmp_path / "lacking", [tmp_path / "more"]) == 0
    assert adoption.adopt(runs(more), tmp_path / "back", [tmp_path / "made"]) == 0
    assert adoption.adopt(runs(wanted), tmp_path / "taken", [tmp_path / "more"]) == len(runs(wanted))
    assert untimed(wanted, tmp_path / "taken") == untimed(wanted, tmp_path / "made")
    assert all(stacks.finished(run.experiment, tmp_path / "taken" / run.slug) for run in runs(wanted))
    turned = read_study(plain, ["experiment.eval_every=1", "experiment.evaluate_on=['train', 'test']"])
    assert adoption.adopt(runs(turned), tmp_path / "turned", [tmp_path / "more"]) == len(runs(turned))
    assert all(stacks.finished(run.experiment, tmp_path / "turned" / run.slug) for run in runs(turned))
    stopping = PLAIN.replace('kind = "final"\nlast = 1', 'kind = "rounds_to"')  # nothing needs more than the target
    often, rarely = (read_study(stopping, [f"experiment.eval_every={every}"]) for every in (1, 2))
    ran(often, tmp_path / "often")
    assert adoption.adopt(runs(rarely), tmp_path / "rarely", [tmp_path / "often"]) == 0


@pytest.mark.usefixtures("blank_pictures")
def test_a_run_that_went_on_is_taken_up_to_the_target(tmp_path: Path) -> None:
    whole = PLAIN.replace("target = 0.3\n", "").replace('kind = "rounds_to"', 'kind = "best"')
    stopping = PLAIN.replace('kind = "final"\nlast = 1', 'kind = "rounds_to"').replace("target = 0.3", "target = 0.5")
    options = ["experiment.rounds=5", "experiment.eval_every=1"]
    went_on, stopped = read_study(whole, options), read_study(stopping, options)
    ran(went_on, tmp_path / "went_on")
    ran(stopped, tmp_path / "stopped")
    assert adoption.adopt(runs(went_on), tmp_path / "back", [tmp_path / "stopped"]) == 0
    assert adoption.adopt(runs(stopped), tmp_path / "taken", [tmp_path / "went_on"]) == len(runs(stopped))
    assert untimed(stopped, tmp_path / "taken") == untimed(stopped, tmp_path / "stopped")
    lengths = {run.slug: len(stacks.outcome(run, tmp_path / "taken").rounds) for run in runs(stopped)}
    assert min(lengths.values()) < 5 == max(lengths.values())  # some arrive, some never
    for run in runs(went_on):  # killed before its end: those that had arrived are taken
        (tmp_path / "went_on" / run.slug / "summary.json").unlink()
        metrics = tmp_path / "went_on" / run.slug / METRICS
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    arrived = sum(length < 5 for length in lengths.values())
    assert adoption.adopt(runs(stopped), tmp_path / "begun", [tmp_path / "went_on"]) == arrived


@pytest.mark.usefixtures("blank_pictures")
def test_a_run_is_taken_up_to_the_rounds_that_are_wanted_whether_or_not_it_is_finished(tmp_path: Path) -> None:
    def study(rounds: int) -> Study:
        return read_study(PLAIN, [f"experiment.rounds={rounds}", "experiment.eval_every=2", "experiment.seeds=[0]"])

    def taken(rounds: int, target: str) -> int:
        return adoption.adopt(runs(study(rounds)), tmp_path / target, [tmp_path / "long"])

    ran(study(6), tmp_path / "long")
    ran(study(4), tmp_path / "short")
    assert taken(8, "longer") == 0 and taken(5, "untested") == 0
    assert taken(4, "finished") == len(runs(study(4)))
    for run in runs(study(6)):
        folder = tmp_path / "long" / run.slug
        (folder / "summary.json").unlink()
        whole = (folder / METRICS).read_text()
        (folder / METRICS).write_text(whole[: whole.index('{"round": 5') + 20])  # killed while it wrote
    assert taken(6, "whole") == 0
    assert taken(4, "begun") == len(runs(study(4)))
    for target in ("finished", "begun"):
        assert untimed(study(4), tmp_path / target) == untimed(study(4), tmp_path / "short")
        assert all(stacks.finished(run.experiment, tmp_path / target / run.slug) for run in runs(study(4)))
    for run in runs(study(6)):
        (tmp_path / "long" / run.slug / METRICS).write_text("no record\n")
    assert taken(4, "damaged") == 0


@pytest.mark.usefixtures("blank_pictures")
def test_a_finished_run_that_lost_rounds_is_not_taken_for_a_shorter_one(tmp_path: Path) -> None:
    long, short = (read_study(PLAIN, [f"experiment.rounds={n}", "experiment.eval_every=1"]) for n in (4, 3))
    ran(long, tmp_path / "long")
    metrics = tmp_path / "long" / runs(long)[0].slug / METRICS
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(Damaged, match=r"metrics.jsonl: expected the 4 rounds of its summary.json, got 2"):
        adoption.adopt(runs(short), tmp_path / "short", [tmp_path / "long"])


@pytest.mark.usefixtures("blank_pictures")
def test_what_is_no_run_of_a_study_is_passed_over_and_states_stay_where_they_are(tmp_path: Path) -> None:
    study = read_study(PLAIN, ["experiment.seeds=[0]"])
    ran(study, tmp_path / "there")
    scripts = tmp_path / "there" / "a-script"
    scripts.mkdir()
    (scripts / "config.toml").write_text("rounds = 3\nalgorithms = 4\n")
    (scripts / METRICS).write_text("")
    state = tmp_path / "there" / runs(study)[0].slug / "checkpoints" / "round-000001"
    state.mkdir(parents=True)
    assert adoption.adopt(runs(study), tmp_path / "taken", [tmp_path / "there"]) == len(runs(study))
    assert state.exists() and not (tmp_path / "taken" / runs(study)[0].slug / "checkpoints").exists()


@pytest.mark.usefixtures("blank_pictures")
def test_a_private_run_is_taken_whole(tmp_path: Path) -> None:
    """What its privacy cost is told of all its rounds, and of no others."""
    private = 'clip = 1.0, weighting = "uniform", privacy = { noise_multiplier = 1.0, delta = 1e-3 } }'
    text = PLAIN.replace("client_lr = 0.5 }", f"client_lr = 0.5, {private}").replace('"fedadp"', '"fedavgm"')
    same, fewer = (
        read_study(text, [f"experiment.rounds={rounds}", "experiment.eval_every=1", 'experiment.sampler="poisson"'])
        for rounds in (3, 2)
    )
    stopping = text.replace('kind = "final"\nlast = 1', 'kind = "rounds_to"')
    early = read_study(stopping, ["experiment.eval_every=1", 'experiment.sampler="poisson"', "experiment.target=0.05"])
    ran(same, tmp_path / "had")
    for other in (fewer, early):
        assert adoption.adopt(runs(other), tmp_path / "other", [tmp_path / "had"]) == 0
    assert adoption.adopt(runs(same), tmp_path / "same", [tmp_path / "had"]) == len(runs(same))
    for run in runs(same):
        (tmp_path / "had" / run.slug / "summary.json").unlink()
    assert adoption.adopt(runs(same), tmp_path / "begun", [tmp_path / "had"]) == 0


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize(
    ("had", "wanted", "others", "enough"),
    [
        (["straggling=2.0"], [], [], True),
        (["straggling=2.0", "dropout=0.3"], ["dropout=0.3"], [], True),
        (["straggling=2.0"], ["straggling=3.0"], [], True),
        ([], ["straggling=2.0"], [], True),
        (
            ["straggling=0.0", "dropout=0.3", "availability=0.8"],
            ["straggling=2.0", "dropout=0.3", "availability=0.8"],
            ['sampler="multinomial"', "sampling_seed=5"],
            True,
        ),
        ([], ["straggling=2.0"], ["algorithm={ name='fedsgd', server_lr=0.5 }"], True),
        ([], ["straggling=2.0"], ["steps=3", "batch_size=7"], True),
        ([], ["straggling=2.0"], ["faults=[{ kind='dropout', rate=0.3 }, { kind='crash', rate=0.2 }]"], True),
        (["straggling=3.0"], ["straggling=2.0"], ['sampler="attention"'], False),  # who is drawn is learnt
        (["straggling=2.0"], ["straggling=2.0", "deadline=9.0"], [], False),
        (["straggling=2.0", "deadline=9.0"], ["straggling=2.0"], [], False),
        (["straggling=2.0", "deadline=9.0"], ["straggling=3.0", "deadline=9.0"], [], False),
    ],
)
def test_a_clock_that_nobody_waited_for_is_told_afterwards(
    tmp_path: Path, had: list[str], wanted: list[str], others: list[str], enough: bool
) -> None:
    options = ["experiment.seeds=[0]", *(f"experiment.{each}" for each in others)]
    timed, asked = (
        read_study(BARE, [*options, *(f"experiment.system.{each}" for each in given)]) for given in (had, wanted)
    )
    ran(timed, tmp_path / "timed")
    assert adoption.adopt(runs(asked), tmp_path / "taken", [tmp_path / "timed"]) == enough * len(runs(asked))
    if enough:
        ran(asked, tmp_path / "made")
        assert untimed(asked, tmp_path / "taken") == untimed(asked, tmp_path / "made")


EPOCHS = '[[axes]]\nname = "epochs"\nkey = "epochs"\nvalues = [1, 2]\n'
CLOCKS = (
    PLAIN.replace("target = 0.3\n", "")
    .replace("rounds = 3", "rounds = 4\neval_every = 2")
    .replace(EPOCHS, '[[axes]]\nname = "lambda"\nkey = "system.straggling"\nvalues = [0.1, 10.0, 100.0]\n')
    .replace('"rounds"\nkind = "rounds_to"\nscale = 100', '"time"\nkind = "total"\nmetric = "simulated_seconds"')
    .replace('columns = ["measure", "epochs"]', 'columns = ["measure", "lambda"]')
    .replace('measure = "rounds"', 'measure = "time"')
)


@pytest.mark.usefixtures("blank_pictures")
def test_runs_that_differ_in_their_clock_alone_are_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = read_study(CLOCKS, (), "smoke")
    trained: list[str] = []
    train = stacks.train

    def counted(stack: Sequence[StudyRun], *rest: Any) -> None:
        trained.extend(run.slug for run in stack)
        train(stack, *rest)

    monkeypatch.setattr(stacks, "train", counted)
    told, said = ran(study, tmp_path / "once")
    assert len(trained) == 2 and "4 runs differ from others in the clock alone" in said
    assert said.index("4 runs differ") < said.index("estimated time")
    for both in zip(*clocks.twins(runs(study)), strict=True):  # a stack for each clock
        stacks.run_stack(
            [stacks.StackRun(run.experiment, tmp_path / "apart" / run.slug) for run in both], Shelf(), None
        )
    assert untimed(study, tmp_path / "once") == untimed(study, tmp_path / "apart")
    times = {each["cell"]["lambda"]: each["value"] for each in told["measured"] if each["measure"] == "time"}
    assert times["0.1"] < times["10"] < times["100"]

    shutil.rmtree(tmp_path / "once" / runs(study)[0].slug)  # the others are as good
    trained.clear()
    again, _ = ran(study, tmp_path / "once")
    assert trained == [] and again["measured"] == told["measured"]


@pytest.mark.parametrize(
    ("axis", "values"),
    [("executor", '["loop", "vectorized"]'), ("threads", "[1, 2]"), ("eval_every", "[1, 2]"), ("rounds", "[3, 4]")],
)
def test_only_the_clock_is_no_difference(axis: str, values: str) -> None:
    study = read_study(
        CLOCKS.replace('"system.straggling"\nvalues = [0.1, 10.0, 100.0]', f'"{axis}"\nvalues = {values}')
    )
    assert [len(alike) for alike in clocks.twins(runs(study))] == [1] * len(runs(study))


@pytest.mark.parametrize(
    "setting",
    [
        'sampler = "attention"',  # who is drawn is learnt
        'algorithm = { name = "central", client_lr = 0.5 }',  # nobody is drawn
        'sampler = "poisson"\nalgorithm = { name = "fedavg", client_lr = 0.5, clip = 1.0, weighting = "uniform", '
        "privacy = { noise_multiplier = 1.0, delta = 1e-3 } }",  # nobody may know who is drawn
        "system = { deadline = 9.0 }",  # the others wait no longer
        "system = { over_selection = 1.5 }",
    ],
)
def test_a_clock_that_cannot_be_told_afterwards_is_a_difference(setting: str) -> None:
    own = 'algorithm = { name = "fedavg", client_lr = 0.5 }'
    text = CLOCKS.replace(own, setting if "algorithm" in setting else f"{own}\n{setting}")
    text = text[: text.index("[[axes]]")] + text[text.index('[[axes]]\nname = "lambda"') : text.index("[table]")]
    study = read_study(text)
    assert [len(alike) for alike in clocks.twins(runs(study))] == [1] * len(runs(study)) != []


@pytest.mark.usefixtures("blank_pictures")
def test_clocks_of_a_run_that_diverges_at_once_are_told_too(tmp_path: Path) -> None:
    """Such a run has a summary, and no rounds."""
    study = read_study(CLOCKS.replace("client_lr = 0.5", "client_lr = 1e38"), (), "smoke")
    told, said = ran(study, tmp_path / "out")
    assert told["diverged"] == told["runs"] == 6 and "4 runs differ" in said
    assert not list((tmp_path / "out").rglob("metrics.jsonl"))


@pytest.mark.usefixtures("blank_pictures")
def test_what_cannot_be_told_after_all_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = read_study(CLOCKS, (), "smoke")
    monkeypatch.setattr(study_runs, "adopt", lambda *_: 0)
    told, _ = ran(study, tmp_path / "out")
    assert told["runs"] == 6 and None not in [each["value"] for each in told["measured"]]


@pytest.mark.usefixtures("blank_pictures")
def test_the_run_that_came_furthest_is_the_one_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, out = read_study(CLOCKS.replace("rounds = 4", "rounds = 8"), asked=["method=FedAvg"]), tmp_path / "out"
    [(first, second, last), *_] = clocks.twins(runs(study))

    def interrupted(run: StudyRun, after: int) -> None:
        def signals(record: Any) -> None:
            if record["round"] == after:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(KeyboardInterrupt):
            stacks.run_stack([stacks.StackRun(run.experiment, out / run.slug, signals)], Shelf(), None)

    interrupted(first, 1)
    interrupted(last, 5)
    (out / "config.toml").write_text(study.to_toml())
    assert next(alike[0] for alike in study_runs.trainings(runs(study), out)) == last
    told, said = ran(study, out, so_far=True)
    assert "so far: 6 rounds of 3 of 6 runs" in said and told["runs"] == 3
    monkeypatch.setattr(stacks, "seconds_per_round", lambda *_: 1.0)
    trained: list[tuple[str, int]] = []
    train = stacks.train

    def watched(stack: Sequence[StudyRun], *rest: Any) -> None:
        def look(run: StudyRun, record: dict[str, Any]) -> None:
            trained.append((run.slug, record["round"]))

        train(stack, *rest[:-1], look)

    monkeypatch.setattr(stacks, "train", watched)
    ran(study, out)
    of_seed = [place for place in trained if place[0] in (first.slug, second.slug, last.slug)]
    assert [slug for slug, _ in of_seed] == [last.slug] * len(of_seed) and len(of_seed) < 4


@pytest.mark.usefixtures("blank_pictures")
def test_of_a_finished_study_nothing_is_cut_so_far(file: Path, tmp_path: Path) -> None:
    """Cells may have rounds of their own, and be tested on something else."""
    text = PLAIN.replace("target = 0.3\n", 'evaluate_on = ["train"]\n').replace("values = [1, 2]", "values = [1]")
    text = text.replace('kind = "final"', 'kind = "final"\nmetric = "trainset_accuracy"')
    text = text.replace('kind = "rounds_to"', 'kind = "rounds_to"\nmetric = "trainset_accuracy"\ntarget = 0.3')
    file.write_text(text.replace("values.FedAvg = {}", "values.FedAvg = { rounds = 2 }"))
    study, out = read_study(file), tmp_path / "out"
    whole, _ = ran(study, out, file)
    told, said = ran(study, out, file, so_far=True)
    assert "so far: 3 rounds of 4 of 4 runs" in said and "--set" not in told["command"]
    assert told["compared"] and told["measured"] == whole["measured"] and told["published"] == whole["published"]


@pytest.mark.usefixtures("blank_pictures")
def test_a_part_of_what_was_trained_has_the_command_that_tells_it(file: Path, tmp_path: Path) -> None:
    whole, _ = ran(read_study(file, scale="smoke"), tmp_path / "out", file)
    part, _ = ran(read_study(file, scale="smoke", asked=["method=FedAvg"]), tmp_path / "out", file)
    assert part["command"].endswith("--only method=FedAvg") and part["only"] == {"method": ["FedAvg"]}
    assert part["trained_by"] == [whole["command"]] and "trained_by" not in whole


@pytest.mark.usefixtures("blank_pictures")
def test_a_cell_that_is_told_keeps_its_own_target_so_far(tmp_path: Path) -> None:
    """`target` may differ where no run ends at it: rounds are counted to each cell's own."""
    text = CLOCKS.replace('"system.straggling"\nvalues = [0.1, 10.0, 100.0]', '"target"\nvalues = [0.1, 0.99]')
    text = text.replace('kind = "total"\nmetric = "simulated_seconds"', 'kind = "rounds_to"')
    study = read_study(text, asked=["method=FedAvg"])
    whole, _ = ran(study, tmp_path / "whole")
    [(first, _), *_] = clocks.twins(runs(study))
    stacks.run_stack([stacks.StackRun(first.experiment, tmp_path / "begun" / first.slug)], Shelf(), None)
    (tmp_path / "begun" / "config.toml").write_text(study.to_toml())
    told, _ = ran(study, tmp_path / "begun", so_far=True)
    found = {json.dumps(each["cell"]): each["values"][0] for each in told["measured"]}
    assert found == {json.dumps(each["cell"]): each["values"][0] for each in whole["measured"]}
    assert len(set(found.values())) > 2


@pytest.mark.usefixtures("blank_pictures")
def test_without_the_data_the_other_clocks_are_left_out_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, out = read_study(CLOCKS, (), "smoke"), tmp_path / "out"
    [first, *_] = clocks.twins(runs(study))
    stacks.run_stack([stacks.StackRun(first[0].experiment, out / first[0].slug)], Shelf(), None)
    (out / "config.toml").write_text(study.to_toml())

    def gone(*_: Any) -> Any:
        raise FedloomError("digits: expected its files, got nothing")

    monkeypatch.setattr(build, "build_federation", gone)
    told, said = ran(study, out, so_far=True)
    assert told["runs"] == 1 and "left out: digits: expected its files" in said


@pytest.mark.usefixtures("blank_pictures")
def test_what_a_begun_study_has_come_to_is_told_with_all_clocks(tmp_path: Path) -> None:
    study = read_study(CLOCKS, (), "smoke")
    whole, _ = ran(study, tmp_path / "whole")
    [first, *_] = clocks.twins(runs(study))
    stacks.run_stack([stacks.StackRun(first[0].experiment, tmp_path / "begun" / first[0].slug)], Shelf(), None)
    (tmp_path / "begun" / "config.toml").write_text(study.to_toml())
    told, said = ran(study, tmp_path / "begun", so_far=True)
    assert "of 3 of 6 runs" in said
    assert told["measured"] == [each for each in whole["measured"] if each["cell"]["method"] == "FedAvg"]


@pytest.mark.usefixtures("blank_pictures")
def test_a_copy_that_a_kill_left_is_no_run_and_costs_none(tmp_path: Path) -> None:
    study = read_study(CURVES, ["experiment.seeds=[0]"])
    out, (run, *_) = tmp_path / "out", runs(study)
    ran(study, out)
    folder = out / run.slug
    shutil.copytree(folder, folder.with_name(f".{folder.name}.new"))
    (folder / "summary.json").unlink()  # begun, and not finished
    assert adoption.adopt([run], out, [tmp_path]) == 0 and (folder / "metrics.jsonl").exists()


@pytest.mark.usefixtures("blank_pictures")
def test_a_run_made_before_there_was_a_setting_is_finished(tmp_path: Path) -> None:
    study = read_study(CURVES, ["experiment.seeds=[0]"])
    ran(study, tmp_path / "old")
    for run in runs(study):
        config = tmp_path / "old" / run.slug / "config.toml"
        text = config.read_text()
        config.write_text(text.replace('weights = "examples"\n', ""))
        assert config.read_text() != text and stacks.finished(run.experiment, config.parent)
    assert adoption.adopt(runs(study), tmp_path / "new", [tmp_path / "old"]) == len(runs(study))


def test_other_settings_in_the_same_folder_are_refused(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran(read_study(file, scale="smoke"), out, file)
    ran(read_study(file), out, file)  # more seeds: those that are there stay
    before = (out / "config.toml").read_text()
    with pytest.raises(FedloomError, match=r"seed0, rounds: expected 2, got a run with 3: choose another --out"):
        ran(read_study(file, ["experiment.rounds=2"]), out, file)
    with pytest.raises(FedloomError, match=r"algorithms.0.client_lr: expected 0.1, got a run with 0.5"):
        ran(read_study(file, ["algorithm.client_lr=0.1"]), out, file)
    assert (out / "config.toml").read_text() == before
    with pytest.raises(FedloomError, match="expected a new folder or one of 'tiny', got one with 'out' in it"):
        ran(read_study(file), tmp_path, file)
    with pytest.raises(FedloomError, match="got that of 'tiny'"):
        ran(read_study(CURVES.replace('"tiny"', '"other"', 1)), out)


def test_a_device_that_is_not_here_leaves_no_folder(file: Path, tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"device: expected one of .*; got 'cuda:77'"):
        ran(read_study(file, ["experiment.device=cuda:77"]), tmp_path / "out", file)
    assert not (tmp_path / "out").exists()


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    wild = PLAIN.replace("values.FedAvg = {}", 'values.FedAvg = { "algorithm.server_lr" = 1e300 }')
    report, said = ran(read_study(wild, scale="smoke"), tmp_path / "out")
    assert report["diverged"] == 2 and "diverged" in said
    wild_cells = [each for each in report["measured"] if each["cell"]["method"] == "FedAvg"]
    assert all(each["value"] is None and each["diverged"] == 1 for each in wild_cells)
    assert report["claims"][0]["holds"] is True  # whoever diverged never arrived
    _, said = ran(read_study(wild, scale="smoke"), tmp_path / "out")
    assert "4 of 4 runs are finished" in said


@pytest.mark.parametrize("kind", ["lines", "bars"])
def test_a_measure_against_an_axis_is_drawn(kind: str, file: Path, tmp_path: Path) -> None:
    text = TEXT.replace("FIGURE", kind).replace('x = "X"\npanels = ["epochs"]', 'x = "epochs"\nmeasure = "rounds"')
    file.write_text(text)
    ran(read_study(file, scale="smoke"), tmp_path / "out", file)
    assert (tmp_path / "out/figure.png").stat().st_size > 8_000


def test_every_tensor_has_its_line(tmp_path: Path) -> None:
    text = CURVES.replace("client_lr = 0.5 }", "client_lr = 0.5, glad = true }")
    text = text.replace('["test_accuracy", "train_loss"]\nrunning = "highest"', '["gsi/*", "gsi/none*"]')
    ran(read_study(text, scale="smoke"), tmp_path / "out")
    assert (tmp_path / "out/figure.png").stat().st_size > 8_000


def test_without_a_terminal_no_table_is_cut() -> None:
    table = Table("a", box=None)
    table.add_row(Text("x" * 50, no_wrap=True))
    told = io.StringIO()
    console = Console(file=told, width=20, force_terminal=False)
    print_table(console, table)
    assert "x" * 50 in told.getvalue() and console.width == 20


@pytest.mark.parametrize(
    "keys",
    [
        'kind = "lines"\nx = "epochs"\nlines = ["measure"]\npanels = ["method"]',
        'kind = "bars"\nx = "epochs"\npanels = ["measure"]',
        'kind = "curves"\nx = ["round", "examples_processed"]\npanels = ["epochs"]',
    ],
)
def test_measures_and_what_goes_across_have_panels_and_lines(keys: str, file: Path, tmp_path: Path) -> None:
    file.write_text(TEXT.replace('kind = "FIGURE"\nx = "X"\npanels = ["epochs"]', keys))
    ran(read_study(file, scale="smoke"), tmp_path / "out", file)
    assert (tmp_path / "out/figure.png").stat().st_size > 20_000


def test_curves_are_of_metrics_and_not_of_measures(file: Path) -> None:
    wrong = 'kind = "curves"\nlines = ["measure"]'
    with pytest.raises(FedloomError, match="figure: expected metrics beside kind = 'curves'"):
        read_study(TEXT.replace('kind = "FIGURE"\nx = "X"\npanels = ["epochs"]', wrong))


def test_facts_stand_beside_the_papers(tmp_path: Path) -> None:
    text = """
id = "sizes"
paper = "Nobody 2020, table 9"
title = "Sizes"
facts = "models"
rows = [{ row = "regression", model = { name = "logistic", inputs = 784, classes = 10 } }]
"""
    file = tmp_path / "sizes.toml"
    file.write_text(text)
    (tmp_path / "published.toml").write_text(
        'sizes = [{ cell = { row = "regression", column = "parameters" }, value = 7850 }]'
    )
    report, said = ran(read_study(file, scale="smoke"), tmp_path / "out", file)
    assert "7,850" in said and "runs" not in said.split("results:")[0]
    assert "7,850" in write_report([tmp_path / "out"]).read_text(encoding="utf-8")
    assert report["published"][0]["matched"] is True
    counts = text.replace('"models"', '"data"').replace(
        'model = { name = "logistic", inputs = 784, classes = 10 }',
        'data = { name = "digits", partition = "iid", clients = 7 }',
    )
    report, _ = ran(read_study(counts), tmp_path / "counts")
    assert [each["value"] for each in report["measured"]] == [7.0, 1438.0, None, 359.0, 10.0]
    setting = '{ row = "B", column = "B", study = "fedadp-table1", key = "batch_size" }'
    mixed = counts.replace("rows = [", f"rows = [{setting}, ")
    report, _ = ran(read_study(mixed), tmp_path / "mixed")
    assert [each["value"] for each in report["measured"][:2]] == [32.0, 7.0]
    printed = text.replace('"models"', '"none"').replace(
        'model = { name = "logistic", inputs = 784, classes = 10 }', 'column = "parameters"'
    )
    file.write_text(printed)
    report, said = ran(read_study(file), tmp_path / "printed", file)
    assert "7,850" in said and report["published"][0]["matched"] is None
    rates = text.replace('"models"', '"hyperparameters"').replace(
        'model = { name = "logistic", inputs = 784, classes = 10 }',
        'column = "B", study = "fedadp-table1", key = "batch_size"',
    )
    report, _ = ran(read_study(rates), tmp_path / "rates")
    assert [each["value"] for each in report["measured"]] == [32.0]
    with pytest.raises(FedloomError, match="claim 'most', measure: expected the column that is meant, got none"):
        read_study(counts + '[[claims]]\ntext = "most"\nkind = "above"\nnumber = 3\n')
    assert read_study(counts, scale="smoke") == read_study(counts)  # there is nothing to make smaller
    part = text.replace("classes = 10 }", 'classes = 10 }, part = "*.bias"')
    report, _ = ran(read_study(part), tmp_path / "part")
    assert [each["value"] for each in report["measured"]] == [10.0]
    log = rates.replace('key = "batch_size"', 'key = "data.per_client", log10 = true')
    report, _ = ran(read_study(log), tmp_path / "log")
    assert [each["value"] for each in report["measured"]] == [pytest.approx(2.77815125)]
    with pytest.raises(FedloomError, match="rows: expected model in every row, for facts = 'models'"):
        read_study(text.replace("model = {", "data = {"))


def test_a_partition_is_counted_drawn_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    draw = Figure.suptitle
    monkeypatch.setattr(Figure, "suptitle", lambda self, t, **k: (titles.append(t), draw(self, t, **k))[1])
    text = """
id = "mixes"
paper = "Nobody 2020, figure 1"
title = "Mixes"
facts = "partition"
rows = [
  { row = "one", data = { name = "digits", partition = "dirichlet", clients = 10, alpha = 0.0 } },
  { row = "many", data = { name = "digits", partition = "dirichlet", clients = 10, alpha = 100.0 } },
  { row = "absent", data = { name = "emnist", partition = "natural", folder = "nowhere" } },
]

[[claims]]
text = "a large alpha gives more labels"
kind = "greater"
measure = "median labels"
axis = "row"
first = "many"
second = "one"

[scales.smoke]
says = "other clients"
stand_in = "five clients"
set = { "data.clients" = 5 }
"""
    study = read_study(text)
    report, said = ran(study, tmp_path / "out")
    assert report["claims"][0]["holds"] is True and (tmp_path / "out" / "figure.png").exists()
    values = {(each["cell"]["row"], each["cell"]["column"]): each["value"] for each in report["measured"]}
    assert (values["one", "fewest labels"], values["many", "clients"], values["absent", "clients"]) == (1.0, 10.0, None)
    assert "pass: a large alpha gives more labels (in 1 of 1 cells)" in said
    report, said = ran(study.at("smoke"), tmp_path / "smoke")
    assert report["measured"][0]["value"] == 5.0 and "stand-in, not the paper's own: five clients" in said
    assert [title.replace("\n", " ") for title in titles] == ["Mixes", "Mixes (scale smoke; stand-in: five clients)"]


def test_the_commands(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["reproduce", "tiny.toml", "--scale", "smoke"], ["run", "tiny.toml", "--set", "seeds=[0]"]):
        with pytest.raises(SystemExit) as stop:
            cli.main([*arguments, "--quiet"])
        assert stop.value.code == 0
    assert capsys.readouterr().out == ""
    stored = {scale: json.loads(Path(f"runs/tiny-{scale}/results.json").read_text()) for scale in ("smoke", "full")}
    assert stored["smoke"]["command"] == "fedloom reproduce tiny.toml --scale smoke"
    assert stored["full"]["command"] == "fedloom reproduce tiny.toml --scale full --set 'experiment.seeds=[0]'"
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "tiny.toml", "--scale", "tiny"])
    assert stop.value.code == 2 and "scale: expected one of full, smoke; got 'tiny'" in capsys.readouterr().err
    again = read_study(Path("runs/tiny-full/config.toml"))
    assert again.overrides == {"seeds": [0]} and command(again).endswith("'experiment.seeds=[0]'")


def test_a_study_of_the_package_is_repeated_by_its_id() -> None:
    file = registry.find_study("fedadp-table1")
    assert command(read_study(file), file) == "fedloom reproduce fedadp-table1 --scale full"


COUNTS = """
id = "counts"
paper = "Nobody 2020"
title = "Counts"
facts = "data"
rows = [
  { row = "here", data = { name = "digits", partition = "iid", clients = 4 } },
  { row = "gone", data = { name = "emnist", partition = "natural" } },
]
"""


def test_what_cannot_be_told_is_said_once_below_the_table(tmp_path: Path) -> None:
    report, said = ran(read_study(COUNTS), tmp_path / "out")
    missing = [line for line in said.splitlines() if "expected EMNIST/" in line]
    assert len(missing) == 1 and missing[0].startswith("gone: ")
    assert max(len(line) for line in said.splitlines() if line.startswith("here")) < 60
    values = {each["cell"]["row"]: each["value"] for each in report["measured"]}
    assert values["gone"] is None and any(each["value"] == 4 for each in report["measured"])


def test_a_mistake_in_a_row_of_facts_is_told(tmp_path: Path) -> None:
    wrong = COUNTS.replace('"digits", partition = "iid", clients = 4', '"digits"')
    with pytest.raises(FedloomError, match=r"rows, 'here': data\.partition: expected one of .*; got nothing"):
        ran(read_study(wrong), tmp_path / "out")
