"""Several processes share a run, by `torchrun` and gloo: the same bits for any number of them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from forked import on_ranks
from small_federations import classification, digest
from test_executors import BatchNormed, Dense
from torch import distributed

import fedloom as fl
from fedloom import cli, ranks


def trained() -> dict[str, list[object]]:
    """Three rounds of every algorithm whose ranks exchange something of its own: what each came to, and told."""
    algorithms = {
        "fedavg": fl.fedavg(0.1),
        "fedadam-clip": fl.replace(fl.fedadam(0.1, server_lr=0.01), upload=fl.adaptive_clip(initial=0.05)),
        "fedadp": fl.fedadp(0.1),
        "scaffold": fl.scaffold(0.1),
        "feddyn": fl.feddyn(0.1, alpha=0.1),
        "fednova": fl.fednova(0.1),
        "fedglad": fl.fedglad(fl.fedavgm(0.1)),
        "fedsgd": fl.fedsgd(),
    }
    data = classification([20, 9, 31, 20, 5, 14, 7, 12, 40, 3, 18, 22])
    found: dict[str, list[object]] = {}
    for name, algorithm in algorithms.items():
        for model, executor in ((Dense, "vectorized"), (BatchNormed, "loop")):
            history = fl.simulate(
                *(fl.Task(model), data, algorithm, 3, 10),
                batch_size=8,
                executor=executor,
                dtype=torch.float32,
                drop_last=model is BatchNormed,
                sampler="attention" if name == "fedavg" else "uniform",
            )
            told = ("train_loss", "cosine", "admitted", "mean_update_norm")
            numbers = [[record[key] for key in told] for record in history.rounds]
            found[f"{name} {executor}"] = [digest(history.params), digest(history.buffers), numbers]
    return found


@pytest.mark.slow
def test_the_same_bits_for_one_two_and_four_ranks() -> None:
    [alone] = on_ranks(1, trained)
    for world in (2, 4):
        for found in on_ranks(world, trained):
            assert found == alone


def left() -> bool:
    """Whether nothing keeps the group of a rank that has left it."""
    for name in [each for each in sys.modules if each.startswith("torch.distributed.nn")]:
        del sys.modules[name]  # as in a process that has not imported vmap yet
    together = ranks.current(torch.device("cpu"))
    together.gather(torch.ones(1))
    importlib.import_module("torch.distributed.nn.functional")
    group = weakref.ref(distributed.group.WORLD)
    ranks._leave()
    return group() is None


def test_a_rank_leaves_nothing_of_its_group_behind() -> None:
    """Its threads would else be ended after the interpreter, which aborts the process now and then."""
    assert on_ranks(2, left) == [True, True]


EXPERIMENT = """
name = "shared"
rounds = 12
cohort = 8
seeds = [0]
batch_size = 10
threads = 1

[data]
name = "digits"
partition = "iid"
clients = 16

[model]
name = "logistic"

[[algorithms]]
name = "scaffold"
client_lr = 0.1
"""

DYING = """
import os, sys
import fedloom.trial as trial
from fedloom.cli import main

begin = trial.Trial.begin
def die(self, t, trusting):
    if t == 7 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        open(sys.argv[2] + ".died", "w").close()
        os._exit(1)
    return begin(self, t, trusting)
trial.Trial.begin = die
main(sys.argv[1:])
"""


def torchrun(ranks: int, *arguments: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)


@pytest.mark.slow
def test_a_rank_that_dies_costs_a_round_at_most(tmp_path: Path) -> None:
    """All ranks start again and go on from the last round; the outcome is that of one process in which nobody died."""
    experiment, script = tmp_path / "experiment.toml", tmp_path / "dying.py"
    experiment.write_text(EXPERIMENT)
    script.write_text(DYING)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with pytest.raises(SystemExit, match="0"):
        cli.main(["run", str(experiment), "--out", str(whole), "--quiet"])
    done = torchrun(2, str(script), "run", str(experiment), "--out", str(broken), "--quiet", restarts=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "experiment.toml.died").exists()
    states = [folder / "checkpoints" / "round-000012" / "state.safetensors" for folder in (whole, broken)]
    assert states[0].read_bytes() == states[1].read_bytes()
    assert len((broken / "metrics.jsonl").read_text().splitlines()) == 12


def test_ranks_must_agree_on_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run", str(tmp_path / "experiment.toml")])
    assert "--out: expected a folder that all ranks agree on" in capsys.readouterr().err
