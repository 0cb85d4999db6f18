"""Several processes share a private run: one of them draws, all have the same, and a crash is paid for."""

from __future__ import annotations

import json
import os
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import on_ranks
from small_federations import classification, digest, linear

import fedloom as fl
from fedloom import cli, privacy
from fedloom.types import State

pytestmark = pytest.mark.slow


def trained() -> dict[str, list[object]]:
    data = classification([20, 9, 31, 20, 5, 14, 7, 12, 40, 3, 18, 22])
    base = fl.fedadam(0.1, server_lr=0.01, weighting=fl.uniform())
    found: dict[str, list[object]] = {}
    for clip in (0.5, fl.adaptive_clip(initial=0.05)):
        for seeded in (False, True):
            algorithm = fl.private(
                base, clip=clip, noise_multiplier=1.0, delta=1e-5, count_noise=1.0, seeded_noise=seeded
            )
            history = fl.simulate(linear(), data, algorithm, 4, 6, sampler="poisson", batch_size=8, dtype=torch.float64)
            told = [[record["epsilon"], record["clip_norm"]] for record in history.rounds]
            found[f"{clip} {seeded}"] = [digest(history.params), told]
    return found


def test_all_ranks_have_the_noise_and_the_cohorts_of_the_first() -> None:
    pytest.importorskip("dp_accounting")
    [alone] = on_ranks(1, trained)
    first, second = on_ranks(2, trained)
    assert first == second
    for run, outcome in alone.items():
        assert (outcome == first[run]) == run.endswith("True")  # seeded noise is the same for any number of ranks


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


def run(experiment: Path, out: Path, dies: bool) -> None:
    """The program, which may die once the noise of its fourth round is drawn."""
    release = privacy.Privacy.release

    def die(self: privacy.Privacy, got: Any, upload: Any, params: Any, state: State, ranks: Any) -> Any:
        found = release(self, got, upload, params, state, ranks)
        if state.round == 3:
            os._exit(1)
        return found

    if dies:
        privacy.Privacy.release = die  # type: ignore[method-assign]
    try:
        cli.main(["run", str(experiment), "--out", str(out), "--quiet"])
    except SystemExit as stop:
        assert stop.code == 0


def test_a_round_that_is_computed_again_is_charged_again(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    experiment, out = tmp_path / "private.toml", tmp_path / "out"
    experiment.write_text(EXPERIMENT)
    with pytest.raises(BrokenProcessPool):
        on_ranks(1, partial(run, experiment, out, dies=True))
    on_ranks(1, partial(run, experiment, out, dies=False), restarts=1)
    spent = [json.loads(line)["epsilon"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    charged = (1, 2, 3, 5, 6, 7)  # the fourth was drawn, and lost
    assert spent == pytest.approx([fl.epsilon(1.0, 0.5, count, 1e-3) for count in charged])
    assert json.loads((out / "summary.json").read_text())["privacy"]["charged"] == 7
