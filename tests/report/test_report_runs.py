"""Reading run directories back: what is found where, and what a damaged one says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import records, write_run, write_study, write_tuning

from fedloom.errors import Damaged, FedloomError
from fedloom.report.runs import alone, read, spent


def test_a_run_a_folder_of_runs_and_a_folder_of_folders(tmp_path: Path) -> None:
    for name in ("a/one", "a/two", "b/deep/three"):
        write_run(tmp_path / name, records([0.1, 0.2]))
    (tmp_path / ".hidden").mkdir()
    write_run(tmp_path / ".hidden" / "four", records([0.1]))
    assert [run.path.name for run in read([tmp_path]).runs] == ["one", "two", "three"]
    assert [run.path.name for run in read([tmp_path / "a" / "one"]).runs] == ["one"]
    again = read([tmp_path / "a" / "two", tmp_path / "a", tmp_path / "a" / ".." / "a" / "one"])
    assert [run.path.name for run in again.runs] == ["two", "one"]


def test_runs_come_in_the_order_of_the_summary_above_them(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_run(tmp_path / name, records([0.1]))
    listed = [{"directory": "c", "diverged": None}, {"directory": "a", "diverged": "round 3, 'w': it did"}]
    (tmp_path / "summary.json").write_text(json.dumps({"runs": listed}))
    runs = read([tmp_path]).runs
    assert [run.path.name for run in runs] == ["c", "a", "b"]
    assert [run.status for run in runs] == ["finished", "diverged", "finished"]


def test_what_a_run_says_of_itself(tmp_path: Path) -> None:
    write_run(tmp_path / "done", records([0.1, 0.2]), seed=7)
    write_run(tmp_path / "stopped", records([0.1, 0.2]), finished=False, rounds=50)
    done, stopped = read([tmp_path]).runs
    assert (done.seed, done.seconds, done.status) == (7, 2.0, "finished")
    assert (stopped.seconds, stopped.status) == (1.0, "stopped after 2 of 50 rounds")


def test_a_run_that_diverged_in_its_first_round_has_no_rounds(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "wild", [], finished=False)
    (folder / "metrics.jsonl").unlink()
    (folder / "checkpoints").mkdir()
    assert read([tmp_path]).runs[0].rounds == []
    (folder / "checkpoints").rmdir()
    (folder / "summary.json").write_text(json.dumps({"seed": 0, "diverged": "round 0, 'w': it did"}))
    assert read([folder]).runs[0].status == "diverged"


def test_a_python_run_goes_by_its_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine", records([0.1]))
    (folder / "config.toml").write_text('algorithm = "Algorithm(...)"\nseed = 3\nrounds = 1\n')
    (folder / "summary.json").unlink()
    run = read([folder]).runs[0]
    assert (run.label, run.seed) == ("mine", 3)


def test_studies_hold_their_runs_together(tmp_path: Path) -> None:
    write_run(tmp_path / "study" / "cell" / "seed0", records([0.1]))
    (tmp_path / "study" / "results.json").write_text('{"id": "table-1"}')
    found = read([tmp_path])
    assert [study.name for study in found.studies] == ["table-1"]
    assert found.runs[0].group == (tmp_path / "study").resolve()


def test_a_study_and_a_tuning_hold_their_runs_together(tmp_path: Path) -> None:
    """Whether or not they came to their ends."""
    for begun in (write_study(tmp_path / "study"), write_tuning(tmp_path / "tuning", {"0.1": 0.3, "0.2": 0.4})):
        assert {run.group for run in read([tmp_path]).runs if begun in run.path.parents} == {begun.resolve()}
    part = tmp_path / "tuning" / "points" / "fedavg"
    assert {run.group for run in read([part]).runs} == {part.resolve()}
    (tmp_path / "tuning" / "tune.json").unlink()
    runs = read([tmp_path / "tuning"]).runs
    assert {run.group for run in runs} == {(tmp_path / "tuning").resolve()}
    assert [run.told.judged for run in runs] == [None, None]


def test_what_a_tuning_says_of_its_runs(tmp_path: Path) -> None:
    write_tuning(tmp_path / "tuning", {"0.1": 2.5, "0.2": 0.5, "0.3": None}, "train_loss")
    told = [run.told.judged for run in read([tmp_path]).runs]
    assert [(each.score, each.best, each.pruned) for each in told if each is not None] == [
        (0.5, True, False),
        (2.5, False, False),
        (None, False, True),
    ]


@pytest.mark.parametrize("content", ["{}", '{"lower_is_better": false, "metric": "x", "points": [3]}'])
def test_numbers_that_are_no_tunings_are_named(tmp_path: Path, content: str) -> None:
    folder = write_tuning(tmp_path / "tuning", {"0.1": 0.5})
    (folder / "tune.json").write_text(content)
    with pytest.raises(Damaged, match=r"tune\.json: expected the numbers of a tuning"):
        read([folder])


def test_seconds_are_added_up_where_runs_were_trained_one_by_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, records([0.1]))
    runs = read([tmp_path]).runs
    assert not alone(tmp_path, runs) and spent(tmp_path, runs) is None  # who knows how they were trained
    assert spent(tmp_path, runs[:1]) == 2.0
    listed = [{"directory": "a"}, {"directory": "b"}]
    (tmp_path / "summary.json").write_text(json.dumps({"runs": listed}))
    assert alone(tmp_path, runs) and spent(tmp_path, runs) == 4.0


def test_a_studys_seconds_are_its_own(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study")
    runs = read([folder]).runs
    assert spent(folder, runs) is None
    assert not alone(folder, runs[:1])  # one of those that were perhaps trained together
    (folder / "made.json").write_text('{"seconds": 7.5}')
    assert spent(folder, runs) == 7.5
    (folder / "results.json").write_text('{"seconds": 9.5}')
    assert spent(folder, runs) == 9.5


def test_a_line_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", records([0.1, 0.2]), finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "test_acc')
    assert [record["round"] for record in read([folder]).runs[0].rounds] == [0, 1]


BROKEN = [
    ("metrics.jsonl", b'{"round": 0}\nnot json\n{"round": 2}\n', "line 2: expected a JSON object, got 'not json'"),
    ("metrics.jsonl", b'{"loss": 0.5}\n', "line 1: expected an object with a round"),
    ("metrics.jsonl", b"[1]\n", "line 1: expected an object with a round"),
    ("metrics.jsonl", b'{"round": 1}\n{"round": 1}\n', "line 2: expected a round after 1, got 1"),
    ("metrics.jsonl", b'{"round": 0}\n\xff\xfe\n', "expected UTF-8 text"),
    ("config.toml", b"rounds = = 3\n", "expected TOML"),
    ("summary.json", b'{"seed": 0', "expected JSON"),
    ("summary.json", b"[]", "expected a JSON object, got list"),
    ("results.json", b"3", "expected a JSON object, got int"),
    ("summary.json", b'{"diverged": 0}', "diverged: expected the words of an error, got 0"),
]


@pytest.mark.parametrize(("file", "content", "said"), BROKEN)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: bytes, said: str) -> None:
    folder = write_run(tmp_path / "run", records([0.1]))
    (folder / file).write_bytes(content)
    with pytest.raises(Damaged) as caught:
        read([tmp_path])
    assert str(folder / file) in str(caught.value) and said in str(caught.value)


def test_a_figure_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    (tmp_path / "figure.png").write_bytes(b"GIF89a")
    with pytest.raises(Damaged, match=r"figure\.png: expected a PNG, got something else"):
        read([tmp_path])


def test_settings_that_are_gone_are_damage(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", records([0.1]))
    (folder / "config.toml").unlink()
    with pytest.raises(Damaged, match=r"config\.toml: expected a file of a run, got nothing there"):
        read([folder])


def test_a_folder_without_runs_is_foreign_and_a_missing_one_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(Damaged, match=r"found no metrics\.jsonl"):
        read([tmp_path])
    for path, got in ((tmp_path / "nowhere", "nothing there"), (tmp_path / "notes.txt", "a file")):
        with pytest.raises(FedloomError, match=got) as caught:
            read([path])
        assert not isinstance(caught.value, Damaged)
