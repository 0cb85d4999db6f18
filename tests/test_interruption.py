"""A signal while rounds run: they end where the state is whole, and going on from there comes to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_federations import classification, linear

import fedloom as fl
from fedloom.interruption import Interrupted, heard, noted
from fedloom.rundir import states

OPTIONS: dict[str, Any] = {
    "rounds": 4,
    "cohort": 3,
    "steps": 2,
    "batch_size": 7,
    "sampler": "attention",
    "dtype": torch.float64,
    "executor": "loop",
    "eval_every": 2,
}
DATA, ALGORITHM = classification([300] * 4), fl.scaffold(0.1)
FIRST = 1024
"""Rows in the first of the two batches in which the 1,200 are evaluated."""


def signalling(at: int, evaluating: bool) -> fl.Task:
    """A task that gets a SIGINT in its `at`-th batch of training, or of evaluation."""
    seen = 0

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        if len(target) == (FIRST if evaluating else OPTIONS["batch_size"]):
            seen += 1
            if seen == at:
                signal.raise_signal(signal.SIGINT)
        return fl.cross_entropy(output, target)

    return fl.Task(model=linear().model, loss=loss)


@pytest.mark.parametrize(("at", "evaluating"), [(2, False), (9, False), (1, True), (2, True)])
def test_a_run_leaves_between_chunks_and_goes_on_from_there(at: int, evaluating: bool, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fl.simulate(signalling(at, evaluating), DATA, ALGORITHM, run_dir=tmp_path / "run", **OPTIONS)
    metrics = tmp_path / "run" / "metrics.jsonl"
    told = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    assert told < 4 and states(tmp_path / "run")[-1].name == f"round-{told:06d}"
    again = fl.simulate(signalling(0, False), DATA, ALGORITHM, run_dir=tmp_path / "run", resume=True, **OPTIONS)
    whole = fl.simulate(signalling(0, False), DATA, ALGORITHM, run_dir=tmp_path / "whole", **OPTIONS)
    assert [record["round"] for record in again.rounds] == [0, 1, 2, 3]
    assert all(torch.equal(leaf, whole.params[name]) for name, leaf in again.params.items())
    one, other = (states(tmp_path / name)[-1] / "state.safetensors" for name in ("run", "whole"))
    assert one.read_bytes() == other.read_bytes()


def test_a_signal_in_the_evaluation_that_ends_a_run_takes_the_round_back(tmp_path: Path) -> None:
    """A callback ends the run in a round that was not to be evaluated; the signal comes while it is after all."""
    options = OPTIONS | {"callbacks": [lambda record: record["round"] == 2], "eval_every": 4}
    with pytest.raises(Interrupted):
        fl.simulate(signalling(1, True), DATA, ALGORITHM, run_dir=tmp_path / "run", **options)
    assert states(tmp_path / "run")[-1].name == "round-000002"
    again = fl.simulate(signalling(0, False), DATA, ALGORITHM, run_dir=tmp_path / "run", resume=True, **options)
    assert [record["round"] for record in again.rounds] == [0, 1, 2] and "test_loss" in again.rounds[2]


def test_without_a_directory_a_signal_raises_at_once() -> None:
    with pytest.raises(KeyboardInterrupt) as stop:
        fl.simulate(signalling(1, False), DATA, ALGORITHM, **OPTIONS)
    assert not isinstance(stop.value, Interrupted)


def test_a_second_signal_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt) as stop, noted():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert not isinstance(stop.value, Interrupted)


def test_a_signal_nobody_looked_for_is_told_at_the_end() -> None:
    with pytest.raises(Interrupted), noted():
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_while_torch_is_imported_is_raised_afterwards(tmp_path: Path) -> None:
    """One that is broken off cannot be made again; here it stands still half way."""
    (tmp_path / "torch.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n")
    code = """
import sys
from fedloom.interruption import heard, import_torch
try:
    with heard():
        import_torch()
except KeyboardInterrupt:
    print(sys.modules["torch"].whole)
"""
    paths = os.pathsep.join([str(tmp_path), str(Path(fl.__file__).parents[1])])
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, capture_output=True)
    assert done.stdout == b"True\n", done.stderr


def test_handlers_are_put_back_and_ones_own_are_left_alone() -> None:
    heard_by: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard_by.append(number))
    own = signal.getsignal(signal.SIGTERM)
    try:
        with noted():
            signal.raise_signal(signal.SIGTERM)
        assert heard_by == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt), heard():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
