"""Several processes share a private run: one of them draws, all have the same, and a crash is paid for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_distributed import torchrun

pytestmark = pytest.mark.slow

SCRIPT = """
import hashlib, json, os, sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
import fedloom as fl
from small_federations import classification, linear

data = classification([20, 9, 31, 20, 5, 14, 7, 12, 40, 3, 18, 22])
base = fl.fedadam(0.1, server_lr=0.01, weighting=fl.uniform())
found = {}
for clip in (0.5, fl.adaptive_clip(initial=0.05)):
    for seeded in (False, True):
        algorithm = fl.private(base, clip=clip, noise_multiplier=1.0, delta=1e-5, count_noise=1.0, seeded_noise=seeded)
        history = fl.simulate(linear(), data, algorithm, rounds=4, cohort=6, sampler="poisson", batch_size=8,
                              dtype=torch.float64)
        weights = b"".join(leaf.numpy().tobytes() for leaf in history.params.values())
        told = [[record["epsilon"], record["clip_norm"]] for record in history.rounds]
        found[f"{clip} {seeded}"] = [hashlib.sha256(weights).hexdigest(), told]
json.dump(found, open(f"{sys.argv[1]}-{os.environ['RANK']}", "w"))
"""


def test_all_ranks_have_the_noise_and_the_cohorts_of_the_first(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found = {}
    for ranks in (1, 2):
        done = torchrun(ranks, str(script), str(tmp_path / f"{ranks}"), str(Path(__file__).parent))
        assert done.returncode == 0, done.stderr[-3000:]
        every = [json.loads((tmp_path / f"{ranks}-{rank}").read_text()) for rank in range(ranks)]
        assert all(one == every[0] for one in every)
        found[ranks] = every[0]
    for run, outcome in found[1].items():
        assert (outcome == found[2][run]) == run.endswith("True")  # seeded noise is the same for any number of ranks


EXPERIMENT = """
name = "private"
rounds = 6
cohort = 8
sampler = "poisson"
batch_size = 10
data = { name = "digits", partition = "iid", clients = 16 }
model = { name = "logistic" }

[[algorithms]]
name = "fedavg"
client_lr = 0.1
weighting = "uniform"
clip = 0.5
privacy = { noise_multiplier = 1.0, delta = 1e-3 }
"""

DYING = """
import os, sys
import fedloom.privacy as privacy
from fedloom.cli import main

release = privacy.Privacy.release
def die(self, got, upload, params, state, ranks):
    found = release(self, got, upload, params, state, ranks)
    if state.round == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(1)
    return found
privacy.Privacy.release = die
main(sys.argv[1:])
"""


def test_a_round_that_is_computed_again_is_charged_again(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    import fedloom as fl

    experiment, script, out = tmp_path / "private.toml", tmp_path / "dying.py", tmp_path / "out"
    experiment.write_text(EXPERIMENT)
    script.write_text(DYING)
    done = torchrun(1, str(script), "run", str(experiment), "--out", str(out), "--quiet", restarts=1)
    assert done.returncode == 0, done.stderr[-3000:]
    spent = [json.loads(line)["epsilon"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    charged = (1, 2, 3, 5, 6, 7)  # the fourth was drawn, and lost
    assert spent == pytest.approx([fl.epsilon(1.0, 0.5, count, 1e-3) for count in charged])
    assert json.loads((out / "summary.json").read_text())["privacy"]["charged"] == 7
