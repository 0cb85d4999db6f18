"""`fedloom resume`: what was interrupted comes to the same bits; what is damaged or different is told, and refused."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import program
from small_federations import classification, half_frozen, linear

import fedloom as fl
from fedloom import cli, lock, resumption
from fedloom.errors import Damaged
from fedloom.rundir import states

TINY = """
name = "tiny"
rounds = 6
cohort = 3
steps = 2
data = { name = "digits", partition = "iid", clients = 40 }
model = { name = "logistic" }
algorithms = [{ name = "scaffold", client_lr = 0.1, adaptive_clip = true }]
executor = "loop"
sampler = "attention"
"""
pytestmark = pytest.mark.usefixtures("blank_pictures")

TWO = "algorithms=[{name='fedavg',client_lr=0.1},{name='fedadam',client_lr=0.1,server_lr=0.01}]"


def code(*arguments: str | Path) -> Any:
    """The exit code of the program, run inside this process."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(argument) for argument in arguments])
    return stop.value.code


def lines(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def final(run: Path) -> tuple[str, bytes, Any, list[dict[str, Any]]]:
    """What a run came to."""
    last = states(run)[-1]
    skeleton = json.loads((last / "state.json").read_text())["skeleton"]
    return last.name, (last / "state.safetensors").read_bytes(), skeleton, lines(run)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed, with its experiment beside it."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.toml").write_text(TINY)
    assert code("run", folder / "tiny.toml", "--out", folder / "run", "--quiet") == 0
    return folder / "run"


@pytest.fixture
def stopped(whole: Path, tmp_path: Path) -> Path:
    """The same run as if it had been killed in its fourth round or so, after the first state and before the last."""
    return stop(shutil.copytree(whole, tmp_path / "run"))


def stop(run: Path) -> Path:
    (run / "summary.json").unlink()
    for state in states(run)[1:]:
        shutil.rmtree(state)
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[: len(text) // 2])
    return run


# To the same bits -----------------------------------------------------------------------------------------------------


def test_a_stopped_run_comes_to_the_same_bits(stopped: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads((states(stopped)[0] / "state.json").read_text())["notes"]["seconds"]
    assert code("resume", stopped) == 0
    said = capsys.readouterr()
    assert "scaffold-seed0: 1 rounds are kept, 5 to go" in said.out and said.err == ""
    assert final(stopped) == final(whole)
    summary = json.loads((stopped / "summary.json").read_text())
    assert summary["resolved"]["resumed"] == {"passed_over": [], "round": 1} and summary["seconds"] > before
    assert [entry.name for entry in stopped.rglob(".*")] == []


def test_a_finished_run_stays_as_it_is(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (whole / "metrics.jsonl").read_bytes(), (whole / "summary.json").read_bytes()
    assert code("resume", whole) == 0
    assert "scaffold" in capsys.readouterr().out
    assert before == ((whole / "metrics.jsonl").read_bytes(), (whole / "summary.json").read_bytes())


def test_of_several_runs_those_that_are_not_finished_go_on(whole: Path, tmp_path: Path) -> None:
    experiment, top, other = whole.parent / "tiny.toml", tmp_path / "top", tmp_path / "other"
    for out in (top, other):
        assert code("run", experiment, "--out", out, "--quiet", "--set", TWO, "--set", "seeds=[0,1]") == 0
    expected = {run.name: final(run) for run in sorted(other.glob("*-seed*"))}
    stop(top / "fedadam-seed0")
    shutil.rmtree(top / "fedadam-seed1")
    (top / "summary.json").unlink()
    kept = (top / "fedavg-seed0" / "metrics.jsonl").stat().st_mtime_ns
    assert code("resume", top, "--quiet") == 0
    assert {run.name: final(run) for run in sorted(top.glob("*-seed*"))} == expected and len(expected) == 4
    assert (top / "fedavg-seed0" / "metrics.jsonl").stat().st_mtime_ns == kept
    summary = json.loads((top / "summary.json").read_text())
    assert summary["complete"] and len(summary["runs"]) == 4


def test_a_run_that_was_over_before_its_summary_was_written_stays_over(whole: Path, tmp_path: Path) -> None:
    """It reached its target: its state says so."""
    run = tmp_path / "run"
    assert code("run", whole.parent / "tiny.toml", "--out", run, "--quiet", "--set", "target=0.3") == 0
    (run / "summary.json").unlink()
    before = final(run)
    assert len(before[3]) < 6
    assert code("resume", run, "--quiet") == 0
    assert final(run) == before


# Damage ---------------------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("count", [1, 3])
def test_a_damaged_state_is_passed_over_by_name(
    count: int, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest sound state is taken; where none is, the run begins again."""
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "summary.json").unlink()
    damaged = states(run)[-count:]
    for state in damaged:
        flip(state / "state.safetensors")
    assert code("resume", run, "--quiet") == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(damaged)
    for line, state in zip(said, reversed(damaged), strict=True):
        assert f"{state / 'state.safetensors'}: changed since it was written" in line and "passed over" in line
    assert final(run) == final(whole)


@pytest.mark.parametrize(
    ("damage", "exit", "told"),
    [
        (lambda run: (run / "config.toml").unlink(), 3, "config.toml: expected the settings of a run, got nothing"),
        (lambda run: (run / "config.toml").rename(run / "tune.toml"), 3, "got a tuning: the same fedloom tune --out"),
        (lambda run: (run / "config.toml").write_text("rounds = "), 3, "config.toml: expected TOML, got a mistake"),
        (lambda run: (run / "config.toml").write_text("rounds = 3"), 3, "name: expected"),
        (lambda run: (run / "config.toml").write_text('paper = "x"'), 3, "got a study: the same fedloom reproduce"),
        (lambda run: (run / "config.toml").write_text('algorithm = "x"'), 3, "got a script's: simulate(resume=True)"),
        (shutil.rmtree, 2, "expected a run directory, or one that holds several; got nothing there"),
    ],
)
def test_a_foreign_directory_is_one_line(
    damage: Callable[[Path], Any], exit: int, told: str, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(stopped)
    assert code("resume", stopped) == exit
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("summary.json", "{", "summary.json: expected JSON, got a mistake in it"),
        ("summary.json", '{"seconds": "x"}', "summary.json, seconds: expected a number, got 'x'"),
        ("metrics.jsonl", '{"round": 0, "test_accuracy": "y"}\n', "'test_accuracy': expected a finite number, got 'y'"),
    ],
)
def test_a_finished_run_that_is_damaged_can_be_finished_again(
    name: str, text: str, told: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    (run / name).write_text(text)
    assert code("resume", run, "--quiet") == 3
    said = capsys.readouterr().err
    assert told in said and f": remove {run / 'summary.json'}, then fedloom resume goes on" in said
    assert said.count("\n") == 1
    (run / "summary.json").unlink()
    assert code("resume", run, "--quiet") == 0
    assert final(run) == final(whole)


def file_for_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


def folder_for_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "change", "expected", "remove"),
    [
        ("checkpoints", file_for_folder, "expected a folder, got something else: remove it", Path.unlink),
        ("metrics.jsonl", folder_for_file, "expected a file, got something else: remove it", Path.rmdir),
    ],
)
def test_a_file_for_a_folder_is_told_and_a_folder_for_a_file(
    name: str,
    change: Callable[[Path], None],
    expected: str,
    remove: Callable[[Path], None],
    stopped: Path,
    whole: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(stopped / name)
    assert code("resume", stopped, "--quiet") == 3
    said = capsys.readouterr().err
    assert f"{stopped / name}: {expected}" in said and said.count("\n") == 1
    remove(stopped / name)
    assert code("resume", stopped, "--quiet") == 0
    assert final(stopped) == final(whole)


def test_a_run_of_several_that_lost_its_settings_is_told_before_any_goes_on(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top = tmp_path / "top"
    assert code("run", whole.parent / "tiny.toml", "--out", top, "--quiet", "--set", "seeds=[0,1]") == 0
    for run in top.glob("*-seed*"):
        stop(run)
    (top / "scaffold-seed1" / "config.toml").unlink()
    assert code("resume", top, "--quiet") == 3
    said = capsys.readouterr().err
    assert "scaffold-seed1/config.toml: expected the settings of a run, got none beside 'checkpoints': put them" in said
    assert "move scaffold-seed1 away" in said and not (top / "scaffold-seed0" / "summary.json").exists()
    shutil.rmtree(top / "scaffold-seed1")
    assert code("resume", top, "--quiet") == 0
    assert final(top / "scaffold-seed0") == final(whole)


# Another run ----------------------------------------------------------------------------------------------------------


def edit(run: Path, old: str, new: str) -> None:
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))


def test_other_settings_are_refused_unless_allowed(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(stopped, "rounds = 6", "rounds = 8")
    assert code("resume", stopped, "--quiet") == 3
    said = capsys.readouterr().err
    assert f"{stopped}, rounds: expected 6 as when its state was made, got 8" in said and "--allow rounds" in said
    edit(stopped, "client_lr = 0.1", "client_lr = 0.2")
    assert code("resume", stopped, "--quiet", "--allow", "rounds") == 3
    assert "algorithms.0.client_lr: expected 0.1 as when its state was made, got 0.2" in capsys.readouterr().err
    assert code("resume", stopped, "--quiet", "--allow", "rounds", "--allow", "algorithms") == 0
    assert len(lines(stopped)) == 8


def test_settings_above_that_differ_from_a_runs_own_are_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top = tmp_path / "top"
    assert code("run", whole.parent / "tiny.toml", "--out", top, "--quiet", "--set", "seeds=[0,1]") == 0
    edit(top, "cohort = 3", "cohort = 4")
    assert code("resume", top, "--quiet") == 3
    assert "scaffold-seed0, cohort: expected 3 as when it began, got 4 in config.toml above" in capsys.readouterr().err


def test_what_is_allowed_is_taken_from_the_settings_above(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All runs of an experiment come to the same rounds; a finished one goes on only when it is told to."""
    top = tmp_path / "top"
    assert code("run", whole.parent / "tiny.toml", "--out", top, "--quiet", "--set", "seeds=[0,1,2]") == 0
    stop(top / "scaffold-seed0")
    shutil.rmtree(top / "scaffold-seed1")
    edit(top, "rounds = 6", "rounds = 8")
    assert code("resume", top, "--quiet", "--allow", "rounds") == 3
    said = capsys.readouterr().err
    assert "scaffold-seed2, rounds: expected 6 as when it began, got 8 in config.toml above: put it back" in said
    assert "or remove its summary.json, to go on from its last state with --allow rounds" in said
    (top / "scaffold-seed2" / "summary.json").unlink()
    assert code("resume", top, "--quiet", "--allow", "rounds") == 0
    assert [len(lines(run)) for run in sorted(top.glob("*-seed*"))] == [8, 8, 8]
    assert lines(top / "scaffold-seed1") != lines(top / "scaffold-seed0")
    assert 'executor = "loop"' in (top / "scaffold-seed0" / "config.toml").read_text()


@pytest.mark.parametrize(("key", "told"), [("round", "did you mean 'rounds'?"), ("foo.rounds", "got 'foo.rounds'")])
def test_a_key_that_nothing_has_is_not_allowed(
    key: str, told: str, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (stopped / "metrics.jsonl").read_bytes()
    assert code("resume", stopped, "--quiet", "--allow", key) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedloom: --allow: expected one of ") and told in said and said.count("\n") == 1
    assert (stopped / "metrics.jsonl").read_bytes() == before


def test_another_version_is_refused_unless_allowed(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resumption, "BITS", resumption.BITS | {"torch": "99.0"})
    assert code("resume", stopped, "--quiet") == 3
    assert f"versions.torch: expected {str(torch.__version__)!r}" in capsys.readouterr().err
    assert code("resume", stopped, "--quiet", "--allow", "versions.torch") == 0


def test_another_part_that_does_not_train_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No state holds it, and no setting: a pretrained layer, vectors of words."""

    def stop(record: dict[str, Any]) -> Any:
        return record["round"] == 2 and 1 / 0

    run = partial(
        fl.simulate,
        data=classification([6, 7, 8]),
        algorithm=fl.fedavg(0.1),
        run_dir=tmp_path / "run",
        dtype=torch.float64,
    )
    with pytest.raises(ZeroDivisionError):
        run(half_frozen(1.0), rounds=4, cohort=2, callbacks=[stop])
    with pytest.raises(Damaged, match=r"run, frozen: expected '\w{64}' .*allow=\['frozen'\]"):
        run(half_frozen(2.0), rounds=4, cohort=2, resume=True)
    resumed = run(half_frozen(1.0), rounds=4, cohort=2, resume=True)
    assert resumed.resolved["resumed"]["round"] and len(resumed.rounds) == 4
    noted = resumption.notes
    with monkeypatch.context() as before:  # before it was noted
        before.setattr(resumption, "notes", lambda *of: {k: v for k, v in noted(*of).items() if k != "frozen"})
        with pytest.raises(ZeroDivisionError):
            run(half_frozen(1.0), rounds=4, cohort=2, callbacks=[stop], run_dir=tmp_path / "older")
    older = run(half_frozen(1.0), rounds=4, cohort=2, resume=True, run_dir=tmp_path / "older")
    assert older.resolved["resumed"]["round"] and len(older.rounds) == 4


def test_what_is_sparse_and_does_not_train_has_a_digest(tmp_path: Path) -> None:
    """The neighbours in a graph, say."""

    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(6, 4)
            self.register_buffer("neighbours", torch.eye(6, dtype=torch.float64).to_sparse(), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last((self.neighbours @ x.T).T)

    data = classification([6, 7, 8])
    options: dict[str, Any] = {"rounds": 1, "cohort": 2, "dtype": torch.float64, "executor": "loop"}
    fl.simulate(fl.Task(Graph), data, fl.fedavg(0.1), run_dir=tmp_path / "run", **options)


def test_other_data_are_refused_and_a_script_can_resume_too(tmp_path: Path) -> None:
    grown = {"cohort": lambda t: 2 if t < 2 else 3}
    options: dict[str, Any] = {"rounds": 4, "dtype": torch.float64, "executor": "loop", **grown}
    run = partial(fl.simulate, linear(), run_dir=tmp_path / "run", **options)
    data, algorithm = classification([6, 7, 8]), fl.fedavgm(0.1)
    with pytest.raises(ZeroDivisionError):
        run(data, algorithm, callbacks=[lambda record: record["round"] == 2 and 1 / 0])
    with pytest.raises(Damaged, match="data_fingerprint: expected"):
        run(classification([6, 7, 9]), algorithm, resume=True)
    with pytest.raises(Damaged, match=r"algorithm: expected .*momentum.*, got "):
        run(data, fl.fedavg(0.1), resume=True)
    with pytest.raises(Damaged, match=r"cohort: expected '2 from round 0, 3 from round 2' .*, got '2 from round 0'"):
        run(data, algorithm, cohort=lambda t: 2, resume=True)
    with pytest.raises(Damaged, match=r"cohort: expected .*, got 2: put it back, .* in a script allow=\['cohort'\]$"):
        run(data, algorithm, cohort=np.int64(2), resume=True)
    resumed = run(data, algorithm, cohort=lambda t: 2 + (t > 1), resume=True)
    assert [record["round"] for record in resumed.rounds] == [0, 1, 2, 3]
    undisturbed = fl.simulate(linear(), data, algorithm, **options)
    assert all(torch.equal(leaf, undisturbed.params[name]) for name, leaf in resumed.params.items())


def test_a_bar_begins_where_a_resumed_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"rounds": 4, "cohort": 2, "dtype": torch.float64, "progress": True}
    run = partial(fl.simulate, linear(), classification([6, 7]), fl.fedavg(0.1), **options)
    with pytest.raises(ZeroDivisionError):
        run(run_dir=tmp_path / "run", callbacks=[lambda record: record["round"] == 2 and 1 / 0])
    assert "3/4" in capsys.readouterr().out
    resumed = run(run_dir=tmp_path / "run", resume=True)
    assert resumed.resolved["resumed"]["round"] > 0 and "4/4" in capsys.readouterr().out


# Two at once ----------------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from fedloom import lock
with lock.alone(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(stopped: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(stopped)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        yield process
        process.kill()


@pytest.mark.parametrize("command", ["run", "resume", "reproduce", "tune"])
def test_a_second_process_is_told_of_the_first(command: str, stopped: Path, holder: subprocess.Popen[str]) -> None:
    given = {"run": "quickstart", "reproduce": "fedadp-table1", "tune": "my.toml"}
    arguments = [command, *([given[command], "--out"] if command in given else []), str(stopped)]
    script = "import sys; from fedloom import cli\n"
    script += (
        f"try: cli.main({arguments!r})\nfinally: print(*{{'torch', 'fedloom.experiments.schema'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "\n")  # it waited for nothing
    assert f"got one of process {holder.pid} on " in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.usefixtures("holder")
def test_ranks_do_not_lock_each_other_out(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of those that `torchrun` started may have the lock before the second looks; it has it for both."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    lock.check(stopped)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(fl.FedloomError, match="nobody works in"):
        lock.check(stopped)


def test_a_lock_goes_with_its_process(stopped: Path, whole: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(fl.FedloomError, match=f"process {holder.pid}"):
        fl.simulate(linear(), classification([6]), fl.fedavg(0.1), cohort=1, dtype=torch.float64, run_dir=stopped)
    holder.kill()
    holder.wait()
    assert (stopped / ".lock").exists()
    assert code("resume", stopped, "--quiet") == 0
    assert final(stopped) == final(whole) and not (stopped / ".lock").exists()


# Signals and full disks -----------------------------------------------------------------------------------------------


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("number", "ignored"), [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGINT, True)]
)
def test_a_signal_saves_and_leaves_with_130(number: signal.Signals, ignored: bool, tmp_path: Path) -> None:
    """SIGINT even where it is ignored at the start, as in a shell's background job."""
    (tmp_path / "tiny.toml").write_text(TINY.replace("rounds = 6", "rounds = 1000000"))
    metrics = tmp_path / "run" / "metrics.jsonl"
    process = program(tmp_path, "run", "tiny.toml", "--out", "run", first=ignore_interrupts if ignored else None)
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size > 3000) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == 130
    done, said = len(lines(tmp_path / "run")), (tmp_path / "said").read_text()
    assert said.startswith(f"fedloom: interrupted in scaffold-seed0 after {done} of 1000000 rounds")
    assert "what ran is kept in run" in said and "fedloom resume" in said and said.count("\n") == 1
    assert states(tmp_path / "run")[-1].name == f"round-{done:06d}"  # nothing has to be run again
    assert [entry.name for entry in tmp_path.rglob(".*")] == []


def test_a_full_disk_costs_no_state(whole: Path, tmp_path: Path) -> None:
    """No file may grow beyond 2 KiB: the metrics are refused after a few rounds."""
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
    run = tmp_path / "run"
    process = program(tmp_path, "run", str(whole.parent / "tiny.toml"), "--out", "run", "--quiet", first=full)
    process.join(60)
    said = (tmp_path / "said").read_text()
    assert process.exitcode == 2 and said.count("\n") == 1
    assert "File too large; the last state is kept in run" in said and "fedloom resume goes on" in said
    assert not (run / "summary.json").exists()
    assert code("resume", run, "--quiet") == 0
    assert final(run) == final(whole) and [entry.name for entry in run.rglob(".*")] == []


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["with a space", "Grüße", "联邦学习", "n" * 200, "[x]*?$'\""])
def test_any_name_will_do(name: str, whole: Path, tmp_path: Path) -> None:
    run = stop(shutil.copytree(whole, tmp_path / name))
    assert code("resume", run, "--quiet") == 0
    assert final(run) == final(whole)


def test_a_link_is_followed(stopped: Path, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(stopped, target_is_directory=True)
    assert code("resume", tmp_path / "link", "--quiet") == 0
    assert final(stopped) == final(whole)


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no folder here that nobody can write to")
def test_a_folder_that_cannot_be_written_is_one_line(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("run", whole.parent / "tiny.toml", "--out", "/sys/kernel/fedloom") == 2
    said = capsys.readouterr().err
    assert said.startswith("fedloom: /sys/kernel/fedloom: ") and said.count("\n") == 1


def test_a_name_too_long_is_one_line(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("run", whole.parent / "tiny.toml", "--out", tmp_path / ("n" * 300)) == 2
    said = capsys.readouterr().err
    assert os.strerror(36) in said and said.count("\n") == 1


def test_labels_of_any_script_have_folders(whole: Path, tmp_path: Path) -> None:
    labels = ["联邦", "Müller", "a" * 200]
    algorithms = ",".join(f"{{name='fedavg',client_lr=0.1,label='{label}'}}" for label in labels)
    given = ["--set", f"algorithms=[{algorithms}]", "--set", "rounds=1", "--quiet", "--out"]
    assert code("run", whole.parent / "tiny.toml", *given, tmp_path / "run") == 0
    found = [tomllib.loads(path.read_text()) for path in (tmp_path / "run").glob("*/config.toml")]
    assert {each["algorithms"][0]["label"] for each in found} == set(labels)
