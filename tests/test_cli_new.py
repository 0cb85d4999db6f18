"""`fedloom new`, what help shows, and what the shell completes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import typer

from fedloom import cli
from fedloom.experiments import registry
from fedloom.experiments.algorithm_sections import Served
from fedloom.experiments.data_sections import DataSection
from fedloom.experiments.robust_sections import FaultSection
from fedloom.experiments.schema import Experiment, SystemSection, read

TEMPLATE = (files("fedloom.experiments") / registry.TEMPLATE).read_text(encoding="utf-8")
SETTING = re.compile(r"^# (?=[a-z_]+ = |\[+[a-z]+\])", re.MULTILINE)


def exit_code(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    return stop.value.code


def test_a_new_experiment_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code("new", "mine") == 0
    assert exit_code("run", "mine.toml", "--set", "rounds=2", "--set", "seeds=[0]", "--quiet") == 0
    assert (tmp_path / "runs" / "mine" / "summary.json").exists()
    assert "NAME" not in (tmp_path / "mine.toml").read_text().replace("data get NAME", "")


def test_every_setting_that_is_commented_out_can_be_taken_in() -> None:
    full = read(SETTING.sub("", TEMPLATE))
    assert len(SETTING.findall(TEMPLATE)) >= 15
    assert (full.system.availability, full.target) == (0.9, 0.9) and full.algorithms[0].glad is not None


def test_no_setting_is_left_out() -> None:
    """Of any experiment, and of any algorithm; `fedloom list` has what each takes beside them."""
    sections = Experiment, SystemSection, FaultSection, DataSection, Served
    named = {name for section in sections for name in section.model_fields} - {"algorithms", "strength"}
    assert {name for name in named if not re.search(rf"(^|[ \[]){name}( =|\])", TEMPLATE, re.MULTILINE)} == set()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("taken", "taken.toml: expected a new file, got one that is there already"),
        ("no/where", "no/where.toml: expected a folder that exists, got 'no', which does not"),
        ("two words", "name: expected a name of letters, digits, '.', '_' and '-', that a folder can have"),
        ('a"b', "name: expected a name of letters"),
    ],
)
def test_a_name_that_cannot_be_is_one_line(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.toml").write_text("mine")
    assert exit_code("new", name) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["taken.toml"]
    assert (tmp_path / "taken.toml").read_text() == "mine"


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


def test_the_help_of_every_command_shows_an_example() -> None:
    found = dict(commands(typer.main.get_command(cli.app), "fedloom"))
    assert len(found) > 12
    for path, command in found.items():
        assert re.search(rf"^ *{path}\b", command.help, re.MULTILINE), path


def test_the_shell_completes_commands_and_experiments() -> None:
    def completed(words: str) -> str:
        environment = {"_FEDLOOM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-m", "fedloom.cli"]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        return done.stdout

    assert completed("fedloom re").split() == ["resume", "reproduce", "report"]
    assert completed("fedloom run quick").split() == ["quickstart"]
