"""How the program ends: what an interrupt says is true whenever it comes, and no later signal changes the exit code."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import forked
import pytest

import fedloom
from fedloom import cli, doctor
from fedloom.experiments import reproduce, runner, stacks, tune_report

SETTINGS = """
rounds = 2
cohort = 2
data = { name = "digits", partition = "iid", clients = 40 }
model = { name = "logistic" }
"""
RUN = f'name = "tiny"\nalgorithms = [{{ name = "fedavg", client_lr = 0.1 }}]\n{SETTINGS}'
TUNE = f'{RUN}\n[tune.grid]\n"algorithm.client_lr" = [0.1, 0.2]\n'
STUDY = f"""
id = "tiny"
paper = "Nobody 2020, table 0"
title = "A tiny study"
[experiment]
{SETTINGS}
algorithm = {{ name = "fedavg", client_lr = 0.5 }}
[[axes]]
name = "epochs"
key = "epochs"
values = [1, 2]
[[measures]]
name = "accuracy"
kind = "final"
[table]
rows = ["epochs"]
columns = ["measure"]
"""
FILES = {"run": RUN, "tune": TUNE, "reproduce": STUDY}


def interrupt(*_: Any, **__: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str]:
    """The program's exit code, and what it said on stderr."""
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    return stop.value.code, capsys.readouterr().err


def begun(command: str, folder: Path) -> list[str]:
    """The arguments of a command on a small file."""
    (folder / "tiny.toml").write_text(FILES[command])
    return [command, str(folder / "tiny.toml"), "--out", str(folder / "out"), "--quiet"]


@pytest.mark.parametrize(
    ("command", "module", "last", "goes_on"),
    [
        ("run", runner, "_picture", "fedloom resume goes on"),
        ("reproduce", reproduce, "_print", "the same command goes on"),
        ("tune", tune_report, "show", "the same command with --out .* goes on"),
    ],
)
@pytest.mark.usefixtures("blank_pictures")
def test_an_interrupt_after_the_last_round_says_what_is_kept_and_it_can_be_told_again(
    command: str, module: Any, last: str, goes_on: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = begun(command, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, last, interrupt)
        code, said = ended(capsys, *arguments)
    assert code == 130 and re.fullmatch(rf"fedloom: interrupted; what ran is kept in .*out: {goes_on}\n", said)
    assert ended(capsys, *(["resume", arguments[3]] if command == "run" else arguments)) == (0, "")


def test_an_interrupt_before_the_first_round_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run_experiment", interrupt)
    assert ended(capsys, *begun("run", tmp_path)) == (130, "fedloom: interrupted before the first round\n")


def test_a_study_counts_the_runs_that_are_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = stacks.train

    def then_interrupt(*given: Any) -> None:
        train(*given)
        interrupt()

    monkeypatch.setattr(stacks, "train", then_interrupt)
    code, said = ended(capsys, *begun("reproduce", tmp_path))
    assert code == 130 and said.startswith("fedloom: interrupted with 1 of 2 runs finished, kept in ")


def test_an_interrupt_of_a_command_that_keeps_nothing_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", interrupt)
    assert ended(capsys, "doctor") == (130, "fedloom: interrupted\n")


@pytest.mark.parametrize(
    ("command", "goes_on"),
    [
        ("run", "fedloom resume goes on"),
        ("reproduce", "the same command goes on"),
        ("tune", "the same command with --out out goes on"),
    ],
)
def test_a_full_disk_is_told_with_what_it_refused_and_what_to_do(command: str, goes_on: str, tmp_path: Path) -> None:
    """No file may grow beyond 2 KiB, which the first state would."""
    (tmp_path / "tiny.toml").write_text(FILES[command])
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
    process = forked.program(tmp_path, command, "tiny.toml", "--out", "out", "--quiet", first=full)
    process.join(60)
    said = (tmp_path / "said").read_text()
    assert process.exitcode == 2
    assert re.match(r"fedloom: out(/.*)?/checkpoints/round-000001: File too large; ", said)
    assert said.endswith(f"kept in out: put that right, then {goes_on}\n") and said.count("\n") == 1


# From the first import to the end -------------------------------------------------------------------------------------

STARTING = """
class Interrupts:
    def find_spec(self, name, *_):
        if name == "typer":
            exec("signal.raise_signal(signal.SIGINT)")  # as in the making of a dataclass
sys.meta_path.insert(0, Interrupts())
"""
ENDING = "atexit.register(lambda: signal.raise_signal(signal.{name}))"


def program(folder: Path, first: str, *arguments: str) -> tuple[int, str]:
    """The exit code and the stderr of a process in which `first` is done before the program begins."""
    (folder / "sitecustomize.py").write_text(f"import atexit, signal, sys\n{first}")
    search = os.pathsep.join([str(folder), str(Path(fedloom.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "fedloom", *arguments],
        env=os.environ | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr


def test_an_interrupt_while_the_program_is_imported_is_one_line(tmp_path: Path) -> None:
    assert program(tmp_path, STARTING, "list") == (130, "fedloom: interrupted\n")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_after_the_last_line_does_not_change_the_exit_code(name: str, tmp_path: Path) -> None:
    code, said = program(tmp_path, ENDING.format(name=name), "runn")
    assert code == 2 and said.count("\n") == 1
