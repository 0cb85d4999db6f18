"""A run's directory: what is written, strictly and whole, and which directories are refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom import checkpoint
from fedloom.errors import FedloomError
from fedloom.resumption import newest
from fedloom.rundir import RunDirectory, enter, states, write_whole


def files(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_config_is_replaced_whole_and_has_no_null(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "a" / "b")
    run.config({"executor": "auto", "chunk": None, "data": {"alpha": float("inf"), "prior": None}})
    run.config({"executor": "loop", "algorithms": [{"label": "é", "clip": None}]})
    found = tomllib.loads((run.path / "config.toml").read_text(encoding="utf-8"))
    assert found == {"executor": "loop", "algorithms": [{"label": "é"}]}
    assert files(run.path) == ["config.toml"]


def test_a_line_per_round_of_strict_json(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.record({"round": 0, "test_loss": float("nan"), "ratio": float("-inf"), "note": None, "many": (1, float("inf"))})
    first = (tmp_path / "metrics.jsonl").read_text()
    assert first == '{"round": 0, "test_loss": null, "ratio": null, "note": null, "many": [1, null]}\n'
    run.record({"round": 1, "test_loss": np.float64(0.5), "ok": True})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1]
    assert json.loads(lines[1]) == {"round": 1, "test_loss": 0.5, "ok": True}


@pytest.mark.parametrize(("value", "kind"), [(torch.tensor(1.0), "Tensor"), ({1, 2}, "set"), (Path("x"), "PosixPath")])
def test_what_json_has_no_form_for_is_refused_by_name(tmp_path: Path, value: Any, kind: str) -> None:
    run = RunDirectory(tmp_path)
    with pytest.raises(FedloomError, match=rf"^metrics\.jsonl, 'deep', 'x'\[1\]: expected numbers.*got {kind}"):
        run.record({"round": 0, "deep": {"x": [0, value]}})
    assert files(tmp_path) == []


def test_summary_is_strict_sorted_and_whole(tmp_path: Path) -> None:
    RunDirectory(tmp_path).summary({"b": float("nan"), "a": {"z": 1, "y": 2}})
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"a": {"y": 2, "z": 1}, "b": None}
    assert text.index('"a"') < text.index('"b"') and text.index('"y"') < text.index('"z"')
    assert files(tmp_path) == ["summary.json"]


def test_checkpoints_are_numbered(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.checkpoint(12, {"round": 12, "w": torch.arange(3)})
    loaded = checkpoint.load(tmp_path / "checkpoints" / "round-000012")
    assert loaded["round"] == 12 and torch.equal(loaded["w"], torch.arange(3))


def test_the_first_state_and_the_last_two_are_kept(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for round in (1, 5, 9, 999_999, 1_000_000):
        run.checkpoint(round, {"round": round})
    kept = ["round-000001", "round-1000000", "round-999999"]
    assert files(tmp_path / "checkpoints") == kept
    assert [folder.name for folder in states(tmp_path)] == ["round-000001", "round-999999", "round-1000000"]


def test_going_back_to_a_state_takes_back_what_came_after_it(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.config({"name": "x"})
    for round in range(3):
        run.record({"round": round})
        run.checkpoint(round + 1, {"round": round + 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "tor')
    again = RunDirectory(tmp_path, resume=True)
    state = states(tmp_path)[1]
    size = checkpoint.read(state)[1]["metrics"]["bytes"]
    assert again.rewind(state, size) == [{"round": 0}, {"round": 1}]
    assert files(tmp_path / "checkpoints") == ["round-000001", "round-000002"]
    again.record({"round": 2})
    again.checkpoint(3, {"round": 3})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"round": 0}\n{"round": 1}\n{"round": 2}\n'
    assert newest(tmp_path).state == tmp_path / "checkpoints" / "round-000003"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "summary.json"
    write_whole(target, "old")

    def refuse(self: Path, other: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_whole(target, "new")
    assert target.read_text() == "old"
    assert files(tmp_path) == ["summary.json"]


def test_a_finished_run_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.config({"name": "x"})
    run.summary({"rounds": 1})
    for resume in (False, True):
        with pytest.raises(FedloomError, match="got one with a finished run: choose another directory"):
            RunDirectory(tmp_path, resume=resume)


def test_foreign_files_and_plain_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FedloomError, match=r"got one with 'thesis\.tex' in it"):
        RunDirectory(tmp_path)
    with pytest.raises(FedloomError, match="expected a directory for the run, got a file"):
        RunDirectory(tmp_path / "thesis.tex")
    assert files(tmp_path) == ["thesis.tex"]


def test_an_unfinished_run_is_kept_unless_it_is_to_go_on(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.config({"name": "x"})
    RunDirectory(tmp_path).config({"name": "y"})  # settings alone are not a run yet
    run.record({"round": 0})
    with pytest.raises(FedloomError, match="got one with an unfinished run"):
        RunDirectory(tmp_path)
    RunDirectory(tmp_path, resume=True).record({"round": 1})
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_what_a_killed_write_left_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".config.toml.123.new").write_text("half")
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "checkpoints" / ".round-000001.123.new").mkdir(parents=True)
    (tmp_path / ".note").write_text("mine")
    with enter(tmp_path, resume=True):
        RunDirectory(tmp_path, resume=True).config({"name": "x"})
    assert files(tmp_path) == [".note", "checkpoints", "config.toml"] and files(tmp_path / "checkpoints") == []
