"""Runs that are stacked as one program come to what they come to alone."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_federations import classification, distance
from test_executors import Dense
from torch import Tensor, nn

import fedloom as fl
from fedloom.errors import Damaged
from fedloom.transforms.base import chain
from fedloom.transforms.optimizers import momentum, scale


def noisy(x: Tensor, key: Tensor) -> Tensor:
    return x + 1


DATA = classification([20, 9, 31, 20, 5, 14])
TASK = fl.Task(Dense)
SHARED: dict[str, Any] = {"rounds": 3, "cohort": 3, "batch_size": 8, "dtype": torch.float64}


def check(trials: list[dict[str, Any]], **options: Any) -> list[fl.History]:
    histories = fl.simulate_trials(TASK, DATA, trials, **SHARED, **options)
    for trial, together in zip(trials, histories, strict=True):
        own = {"data": DATA} | trial
        alone = fl.simulate(TASK, own.pop("data"), own.pop("algorithm"), **SHARED, **own)
        assert distance(alone, together) <= 1e-12
        for name in ("train_loss", "cosine", "admitted", "train_accuracy"):
            assert [r[name] for r in alone.rounds] == pytest.approx([r[name] for r in together.rounds], nan_ok=True)
    return histories


@pytest.mark.parametrize("options", [{}, {"compile": False}, {"executor": "loop"}, {"chunk": 4}])
def test_seeds(options: dict[str, Any]) -> None:
    check([{"algorithm": fl.fedavg(0.1), "seed": seed} for seed in range(4)], **options)


@pytest.mark.parametrize("compile", [None, False])
def test_a_grid_of_client_and_server_rates(compile: bool | None) -> None:
    grid = [(c, s) for c in (0.03, 0.1, 0.3) for s in (0.5, 1.0)]
    check([{"algorithm": fl.fedavgm(c, server_lr=s)} for c, s in grid], compile=compile)


def test_server_optimizers_of_different_kinds() -> None:
    makers = fl.fedavg, fl.fedavgm, fl.fedadagrad, fl.fedadam, fl.fedyogi, fl.fedadp
    check([{"algorithm": make(client_lr=0.1)} for make in makers])


def test_memories() -> None:
    check([{"algorithm": fl.scaffold(rate), "seed": seed} for rate in (0.05, 0.1) for seed in (0, 1)])


def test_other_partitions_of_the_same_rows_and_other_samplers() -> None:
    parts = [DATA.rows(client) for client in (5, 1, 2, 0, 4, 3)]
    other = fl.FederatedData(DATA.x, DATA.y, torch.cat(parts), torch.tensor([0, *[len(p) for p in parts]]).cumsum(0))
    other = type(DATA)(DATA.x, DATA.y, other.indices, other.offsets, test=DATA.test)
    algorithm = fl.fedavg(0.1)
    check(
        [
            {"algorithm": algorithm, "data": other},
            {"algorithm": algorithm, "sampler": "attention"},
            {"algorithm": algorithm, "sampler": "multinomial"},
        ]
    )


def test_other_partitions_of_rows_that_are_a_tuple() -> None:
    both = dataclasses.replace(DATA, x=(DATA.x, 2 * DATA.x), test=None)  # type: ignore[operator]
    other = dataclasses.replace(both, indices=both.indices.flip(0))
    shared = SHARED | {"dtype": torch.float32}
    trials: list[dict[str, Any]] = [{"algorithm": fl.fedavg(0.1), "data": data} for data in (both, other)]
    stacked = fl.simulate_trials(fl.Task(Sum), both, trials, **shared)
    for trial, together in zip(trials, stacked, strict=True):
        alone = fl.simulate(fl.Task(Sum), trial["data"], trial["algorithm"], **shared)
        assert distance(alone, together) <= 1e-5


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = Dense()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.dense(x + y)


def test_seeds_are_whole_numbers_of_any_kind(tmp_path: Path) -> None:
    check(
        [
            {"algorithm": fl.fedavg(0.1), "seed": np.int64(3)},
            {"algorithm": fl.fedavg(0.1), "sampling_seed": np.int64(1)},
        ]
    )
    fl.simulate(TASK, DATA, fl.fedavg(0.1), seed=np.int64(3), run_dir=tmp_path / "run", **SHARED)  # type: ignore[arg-type]
    assert "seed = 3" in (tmp_path / "run" / "config.toml").read_text()
    with pytest.raises(fl.FedloomError, match=r"sampling_seed: expected a whole number, got 1\.5"):
        fl.simulate(TASK, DATA, fl.fedavg(0.1), sampling_seed=1.5, **SHARED)  # type: ignore[arg-type]


def test_rates_that_go_alike_within_a_round() -> None:
    within = fl.schedule.within_round
    check([{"algorithm": fl.fednova(within(rate, 0.4)), "epochs": 1} for rate in (0.05, 0.1)])


@pytest.mark.parametrize("options", [{}, {"executor": "loop"}])
def test_servers_in_different_rounds(options: dict[str, Any]) -> None:
    """A round with too few reports is none for a server; a link of the clients' chain may read which it is."""
    falling = chain(scale(fl.schedule.staircase(1.0, 0.5, 1)), momentum(0.9), scale(0.1))
    algorithm = fl.replace(fl.fedavg(0.1), client=falling, name="falling")
    faulty = {"faults": fl.Fault("dropout", 0.5), "min_reports": 3, "seed": 1}
    trials: list[dict[str, Any]] = [{"algorithm": algorithm}, {"algorithm": algorithm, **faulty}]
    shared = SHARED | {"rounds": 6}
    stacked = fl.simulate_trials(TASK, DATA, trials, **shared, **options)
    assert not all(record["admitted"] for record in stacked[1].rounds)
    for trial, together in zip(trials, stacked, strict=True):
        assert distance(fl.simulate(TASK, DATA, **trial, **shared), together) <= 1e-12


def test_one_that_diverges_ends_alone() -> None:
    steep = {"algorithm": fl.fedavg(client_lr=1e200, server_lr=1e200)}
    calm = {"algorithm": fl.fedavg(client_lr=0.1)}
    with_it = fl.simulate_trials(TASK, DATA, [steep, calm], **SHARED)
    assert with_it[0].diverged is not None and with_it[1].diverged is None
    alone = fl.simulate(TASK, DATA, calm["algorithm"], **SHARED)
    assert distance(alone, with_it[1]) <= 1e-12 and len(with_it[1].rounds) == 3


def test_one_that_stops_leaves_the_others() -> None:
    stop = {"algorithm": fl.fedavg(0.1), "callbacks": [lambda record: record["round"] == 0]}
    stopped, other = fl.simulate_trials(TASK, DATA, [stop, {"algorithm": fl.fedavg(0.1)}], **SHARED)
    assert (len(stopped.rounds), len(other.rounds)) == (1, 3)


@pytest.mark.parametrize(
    ("trials", "match"),
    [
        ([], "at least one trial"),
        ([{}], "trial 0: expected an algorithm"),
        ([{"algorithm": fl.fedavg(0.1), "colour": 1}], "colour"),
        ([{"algorithm": fl.fedavg(0.1), "epochs": 3}], "epochs must be the same in all: expected 1, got 3"),
        (
            [{"algorithm": fl.fedavg(0.1)}, {"algorithm": fl.fedprox(0.1, mu=1.0)}],
            "differ from trial 0's in their rate",
        ),
        (
            [{"algorithm": fl.fedavg(0.1)}, {"algorithm": fl.fedavg(0.1), "data": classification([9, 9, 9])}],
            "trial 1: expected the rows of trial 0's data",
        ),
        (
            [{"algorithm": fl.fedavg(0.1)}, {"algorithm": fl.fedavg(fl.schedule.within_round(0.1, 0.5))}],
            "differ from trial 0's in their rate",
        ),
        (
            [{"algorithm": fl.fedavg(fl.schedule.within_round(0.1, share))} for share in (0.1, 0.5)],
            "differ from trial 0's in their rate",
        ),
        (
            [
                {"algorithm": fl.replace(fl.fedavg(0.1), client=chain(scale(r), momentum(0.9), scale(r)))}
                for r in (0.1, 0.5)
            ],
            "differ from trial 0's in their rate",
        ),
        (
            [
                {"algorithm": fl.fedavg(0.1)},
                {"algorithm": fl.fedavg(0.1), "data": dataclasses.replace(DATA, augment=noisy)},
            ],
            "trial 1: expected trial 0's augmentation",
        ),
        (
            [{"algorithm": fl.fedavg(0.1), "faults": fl.Fault("label_flip", 0.5), "seed": seed} for seed in range(2)],
            "trial 1: expected labels flipped for trial 0's clients",
        ),
        ([{"algorithm": fl.fedavg(0.1), "run_dir": "here"}] * 2, "a folder for each trial, got .*here twice"),
    ],
)
def test_mistakes(trials: list[dict[str, Any]], match: str) -> None:
    """What would train otherwise than alone is refused."""
    with pytest.raises(fl.FedloomError, match=match):
        fl.simulate_trials(TASK, DATA, trials, **SHARED)


def test_frozen_parts_that_are_drawn_with_the_seed_are_refused() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.Tanh(), nn.Linear(5, 4))

    trials = [{"algorithm": fl.fedavg(0.1), "seed": seed} for seed in (0, 1)]
    with pytest.raises(fl.FedloomError, match=r"trial 1, 0\.weight: expected what does not train as trial 0 has it"):
        fl.simulate_trials(fl.Task(model), DATA, trials, **SHARED)
    alike = [{"algorithm": fl.fedavg(rate)} for rate in (0.1, 0.2)]
    assert len(fl.simulate_trials(fl.Task(model), DATA, iter(alike), **SHARED)) == 2  # type: ignore[arg-type]


TOGETHER = SHARED | {"rounds": 6}
MAKERS = fl.fedavg(0.1), fl.fedadam(0.1, server_lr=0.01), fl.fedadp(0.3)


def in_folders(folder: Path, stop_in: int | None = None, signal_in: int | None = None) -> list[dict[str, Any]]:
    """Three trials; the second ends itself in round `stop_in`, or sends the process a signal in round `signal_in`."""

    def watch(record: dict[str, Any]) -> bool:
        if record["round"] == signal_in:
            os.kill(os.getpid(), signal.SIGTERM)
        return record["round"] == stop_in

    trials: list[dict[str, Any]] = [
        {"algorithm": algorithm, "run_dir": folder / algorithm.name, "callbacks": []} for algorithm in MAKERS
    ]
    trials[1]["callbacks"] = [watch]
    return trials


@pytest.mark.parametrize("stop_in", [None, 1, 4])
def test_a_stack_that_is_interrupted_goes_on_to_the_same_bits(tmp_path: Path, stop_in: int | None) -> None:
    whole = fl.simulate_trials(TASK, DATA, in_folders(tmp_path / "whole", stop_in), **TOGETHER)
    with pytest.raises(KeyboardInterrupt):
        fl.simulate_trials(TASK, DATA, in_folders(tmp_path / "cut", stop_in, 2 if stop_in != 1 else 1), **TOGETHER)
    for algorithm in MAKERS:
        told = (tmp_path / "cut" / algorithm.name / "metrics.jsonl").read_text().splitlines()
        assert 1 <= len(told) <= 3
    again = fl.simulate_trials(TASK, DATA, in_folders(tmp_path / "cut", stop_in), **TOGETHER, resume=True)
    for one, other in zip(whole, again, strict=True):
        assert distance(one, other) == 0.0
        assert [record["train_loss"] for record in one.rounds] == [record["train_loss"] for record in other.rounds]
        assert other.resolved["resumed"]["round"] > 0


def test_a_stack_goes_on_with_its_own_settings_alone(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fl.simulate_trials(TASK, DATA, in_folders(tmp_path, signal_in=2), **TOGETHER)
    with pytest.raises(Damaged, match="batch_size: expected 8 as when its state was made, got 4"):
        fl.simulate_trials(TASK, DATA, in_folders(tmp_path), **TOGETHER | {"batch_size": 4}, resume=True)


def test_of_a_stack_some_may_be_finished_already(tmp_path: Path) -> None:
    whole = fl.simulate_trials(TASK, DATA, in_folders(tmp_path), **TOGETHER)
    (tmp_path / "fedadp" / "summary.json").unlink()  # as if it had ended between two summaries
    again = fl.simulate_trials(TASK, DATA, in_folders(tmp_path), **TOGETHER, resume=True)
    assert [distance(one, other) for one, other in zip(whole, again, strict=True)] == [0.0] * 3
    assert all((tmp_path / algorithm.name / "summary.json").exists() for algorithm in MAKERS)
    assert [len(history.rounds) for history in again] == [6, 6, 6]


def test_one_key_may_be_allowed_as_a_string(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fl.simulate_trials(TASK, DATA, in_folders(tmp_path, signal_in=2), **TOGETHER)
    other = TOGETHER | {"batch_size": 4}
    with pytest.raises(Damaged, match="batch_size: expected 8"):
        fl.simulate_trials(TASK, DATA, in_folders(tmp_path), **other, resume=True, allow="rounds")
    fl.simulate_trials(TASK, DATA, in_folders(tmp_path), **other, resume=True, allow="batch_size")
