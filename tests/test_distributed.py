"""Several processes share a run, by `torchrun` and gloo: the same bits for any number of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, json, hashlib, os, signal
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
import fedloom as fl
from small_federations import classification
from test_executors import BatchNormed, Dense

ALGORITHMS = {
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
found = {}
for name, algorithm in ALGORITHMS.items():
    for model, executor in ((Dense, "vectorized"), (Dense, "loop"), (BatchNormed, "loop")):
        options = {"drop_last": model is BatchNormed, "sampler": "attention" if name == "fedavg" else "uniform"}
        history = fl.simulate(fl.Task(model), data, algorithm, rounds=3, cohort=10, batch_size=8, executor=executor,
                              dtype=torch.float32, **options)
        digest = hashlib.sha256()
        for leaf in (*history.params.values(), *history.buffers.values()):
            digest.update(leaf.numpy().tobytes())
        for record in history.rounds:
            told = [record[key] for key in ("train_loss", "cosine", "admitted", "mean_update_norm")]
            digest.update(repr(told).encode())
        found[f"{name} {model.__name__} {executor}"] = digest.hexdigest()
if os.environ["RANK"] == "0":
    json.dump(found, open(sys.argv[1], "w"))
"""


def torchrun(ranks: int, *arguments: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)


def test_the_same_bits_for_one_two_and_four_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found = {}
    for ranks in (1, 2, 4):
        out = tmp_path / f"{ranks}.json"
        done = torchrun(ranks, str(script), str(out), str(Path(__file__).parent))
        assert done.returncode == 0, done.stderr[-3000:]
        found[ranks] = out.read_text()
    assert found[1] == found[2] == found[4]


EXPERIMENT = """
name = "shared"
rounds = 12
cohort = 8
seeds = [0]
batch_size = 10

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
        os._exit(1)
    return begin(self, t, trusting)
trial.Trial.begin = die
main(sys.argv[1:])
"""


def test_a_rank_that_dies_costs_a_round_at_most(tmp_path: Path) -> None:
    """All ranks start again and go on from the last round; the outcome is that of a run in which nobody died."""
    experiment, script = tmp_path / "experiment.toml", tmp_path / "dying.py"
    experiment.write_text(EXPERIMENT)
    script.write_text(DYING)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = torchrun(2, "-m", "fedloom", "run", str(experiment), "--out", str(whole), "--quiet")
    assert done.returncode == 0, done.stderr[-3000:]
    done = torchrun(2, str(script), "run", str(experiment), "--out", str(broken), "--quiet", restarts=1)
    assert done.returncode == 0, done.stderr[-3000:]
    states = [folder / "checkpoints" / "round-000012" / "state.safetensors" for folder in (whole, broken)]
    assert states[0].read_bytes() == states[1].read_bytes()
    assert len((broken / "metrics.jsonl").read_text().splitlines()) == 12


def test_ranks_must_agree_on_the_folder(tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(EXPERIMENT)
    done = torchrun(1, "-m", "fedloom", "run", str(experiment))
    assert "--out: expected a folder that all ranks agree on" in done.stderr
