"""Whatever fails, and whenever: a run's directory has the old state or the new one, whole, and no debris for long."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from failing_disk import FailingDisk

from fedloom import checkpoint
from fedloom.errors import Damaged
from fedloom.resumption import Found, newest
from fedloom.rundir import CONFIG, RunDirectory, enter, states, write_whole

WAYS = ("refuse", "die", "power cut")


def state(round: int) -> dict[str, Any]:
    return {"round": round, "params": {"w": torch.arange(300.0) + round, "b": torch.full((7,), float(round))}}


def begin(path: Path, rounds: int) -> RunDirectory:
    """A run that has come so far, with a state after each round."""
    run = RunDirectory(path)
    run.config({"name": "x"})
    for round in range(1, rounds + 1):
        add(run, round)
    return run


def add(run: RunDirectory, round: int) -> None:
    run.record({"round": round - 1, "loss": 1 / round})
    run.checkpoint(round, state(round), {"seconds": float(round)})


def is_whole(found: Found, *rounds: int) -> bool:
    """One of these states, to the bit, with nothing damaged in sight and as many lines of metrics."""
    round = found.round
    params = found.value["params"] if found.state else {}
    same = all(torch.equal(leaf, params[name]) for name, leaf in state(round)["params"].items())
    return round in rounds and same and not found.passed_over


def names(path: Path) -> list[str]:
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*") if entry.is_dir() or entry.name[0] == ".")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run after three rounds."""
    return begin(tmp_path_factory.mktemp("runs") / "three", 3).path


def again(source: Path, path: Path) -> RunDirectory:
    """A copy of a run, gone on with."""
    run, found = RunDirectory(shutil.copytree(source, path), resume=True), newest(path)
    run.rewind(found.state, found.size)
    return run


def moments(path: Path, how: str, prepare: Callable[[Path], Any], act: Callable[[Any], None]) -> Iterator[Path]:
    """A directory for every moment at which the disk can fail during `act`, after it did; at last, one without."""
    for at in range(200):
        folder = path / str(at)
        given = prepare(folder)
        disk = FailingDisk(at, how)
        with disk.mounted():
            act(given)
        yield folder
        if disk.failed is None:
            assert at > 5  # calls were seen, and each of them has failed once
            return
    pytest.fail("there was always one more call")


@pytest.mark.parametrize("how", WAYS)
def test_a_state_is_old_or_new_wherever_writing_it_fails(how: str, three: Path, tmp_path: Path) -> None:
    seen = set()
    for folder in moments(tmp_path, how, lambda path: again(three, path), lambda run: add(run, 4)):
        found = newest(folder)
        assert is_whole(found, 3, 4)
        seen.add(found.round)
        with enter(folder, resume=True):
            run = RunDirectory(folder, resume=True)
            assert len(run.rewind(found.state, found.size)) == found.round
            add(run, found.round + 1)
        assert is_whole(newest(folder), found.round + 1)
        kept = [each.name for each in states(folder)]
        assert names(folder) == ["checkpoints", *(f"checkpoints/{name}" for name in kept)]
    assert seen == {3, 4}


@pytest.mark.parametrize("how", WAYS)
def test_going_back_to_a_state_may_fail_anywhere_and_be_done_again(how: str, three: Path, tmp_path: Path) -> None:
    def prepare(path: Path) -> RunDirectory:
        run = again(three, path)
        damaged = states(path)[-1] / checkpoint.TENSORS
        damaged.write_bytes(damaged.read_bytes()[:-1])
        return run

    def back(run: RunDirectory) -> None:
        found = newest(run.path)
        run.rewind(found.state, found.size)

    for folder in moments(tmp_path, how, prepare, back):
        found = newest(folder)
        assert found.round == 2 and all("round-000003" in why for why in found.passed_over)
        back(RunDirectory(folder, resume=True))
        assert is_whole(newest(folder), 2)


@pytest.mark.parametrize("how", WAYS)
def test_a_file_is_old_or_new_wherever_writing_it_fails(how: str, tmp_path: Path) -> None:
    def prepare(path: Path) -> Path:
        path.mkdir()
        (path / CONFIG).write_text("old" * 1000)
        return path / CONFIG

    contents = set()
    for folder in moments(tmp_path, how, prepare, lambda path: write_whole(path, "new" * 2000)):
        contents.add((folder / CONFIG).read_text())
        with enter(folder, resume=True):
            pass
        assert [entry.name for entry in folder.iterdir()] == [CONFIG]
    assert contents == {"old" * 1000, "new" * 2000}


# Damage ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two states, the newer of some 20 KiB."""
    path = tmp_path_factory.mktemp("runs") / "sound"
    run = begin(path, 1)
    run.record({"round": 1})
    run.checkpoint(2, {"round": 2, "w": torch.arange(5000.0)}, {"note": "x" * 2000})
    return path


def falls_back(path: Path, file: str) -> bool:
    found = newest(path)
    [why] = found.passed_over
    return found.round == 1 and file in why and "round-000002" in why


@pytest.mark.parametrize("file", [checkpoint.TENSORS, checkpoint.SKELETON])
def test_a_state_cut_at_any_kibibyte_is_passed_over(file: str, sound: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sound, tmp_path / "run")
    damaged = states(run)[-1] / file
    whole = damaged.read_bytes()
    for size in range(0, len(whole), 1024):
        damaged.write_bytes(whole[:size])
        assert falls_back(run, file)
    damaged.unlink()
    assert falls_back(run, file)
    damaged.write_bytes(whole)
    assert newest(run).round == 2


def test_a_thousand_flipped_bits_are_found(sound: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sound, tmp_path / "run")
    files = [states(run)[-1] / name for name in (checkpoint.TENSORS, checkpoint.SKELETON)]
    whole = [file.read_bytes() for file in files]
    draw = random.Random(0)
    for _ in range(1000):
        which = draw.randrange(2)
        flipped = bytearray(whole[which])
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        files[which].write_bytes(flipped)
        with pytest.raises(Damaged, match=files[which].name):
            checkpoint.read(files[which].parent)
        files[which].write_bytes(whole[which])


def test_the_metrics_are_part_of_a_state(sound: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sound, tmp_path / "run")
    metrics = run / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole + b'{"round": 2, "torn')
    assert newest(run).round == 2
    metrics.write_bytes(whole[:-1] + b" ")
    found = newest(run)
    assert found.round == 1 and "metrics.jsonl: its first" in found.passed_over[0]
    metrics.unlink()
    found = newest(run)
    assert found.round == 0 and len(found.passed_over) == 2
