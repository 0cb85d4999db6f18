"""A stack goes on without the clients that have finished: the same numbers, in fewer steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from small_federations import classification, distance
from test_executors import ALGORITHMS, BatchNormed, Dense, Recurrent
from torch import nn

import fedloom as fl
from fedloom.algorithm import Algorithm
from fedloom.executors.job import Job, Stack
from fedloom.executors.vectorized import eager
from fedloom.local import Carry

LONG_AND_SHORT = classification([3, 90, 5, 4, 6, 7, 60, 3, 2, 40, 8, 1])


def run(algorithm: Algorithm, executor: str, model: Callable[[], nn.Module] = Dense, **options: object) -> fl.History:
    given = {"rounds": 2, "cohort": 11, "batch_size": 8, "dtype": torch.float64} | options
    return fl.simulate(fl.Task(model), LONG_AND_SHORT, algorithm, executor=executor, **given)  # type: ignore[arg-type]


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """(clients, first step, beyond the last) of every stack that is taken through steps."""
    seen: list[tuple[int, int, int]] = []

    def noted(job: Job, stack: Stack, step: Callable[..., Carry]) -> Carry:
        seen.append((len(stack.plan.clients), stack.begin, stack.plan.sizes.shape[1]))
        return eager(job, stack, step)

    monkeypatch.setattr("fedloom.executors.auto.eager", noted)
    return seen


def test_half_of_a_stack_goes_on_alone_and_then_half_of_that(widths: list[tuple[int, int, int]]) -> None:
    history = run(fl.fedavg(0.1), "vectorized", rounds=1, cohort=12)
    assert widths == [(12, 0, 1), (6, 1, 12)]  # 12, 8, 5 steps, and one for each of the others
    assert distance(run(fl.fedavg(0.1), "loop", rounds=1, cohort=12), history) <= 1e-12


def test_clients_alike_stay_together(widths: list[tuple[int, int, int]]) -> None:
    alike = classification([20, 24, 17, 23, 20, 22, 18, 19])
    fl.simulate(fl.Task(Dense), alike, fl.fedavg(0.1), rounds=1, cohort=8, batch_size=8, dtype=torch.float64)
    assert widths == [(8, 0, 3)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_agrees_with_the_loop(name: str) -> None:
    algorithm = ALGORITHMS[name](client_optimizer="adam")
    assert distance(run(algorithm, "loop"), run(algorithm, "vectorized")) <= 1e-11


def test_a_rate_that_changes_within_the_round_goes_on_where_it_was() -> None:
    algorithm = fl.scaffold(fl.schedule.within_round(0.2, 0.5), option="I")
    loop = run(algorithm, "loop")
    for program in (None, False):
        assert distance(loop, run(algorithm, "vectorized", compile=program)) <= 1e-11


def test_a_program_for_each_width_serves_all_rounds() -> None:
    history = run(fl.fedavg(0.1), "vectorized", rounds=3, compile=False)
    assert history.resolved["programs"] == 2  # for 11 clients and for 6


def test_recurrent_and_batch_normed_models_agree_with_the_loop() -> None:
    for model in (Recurrent, BatchNormed):
        options = {"model": model, "drop_last": model is BatchNormed}
        plain, stacked = (run(fl.fedavg(0.1), executor, **options) for executor in ("loop", "vectorized"))  # type: ignore[arg-type]
        assert distance(plain, stacked) <= 1e-12


def test_stacked_runs_narrow_together() -> None:
    task, given = fl.Task(Dense), {"rounds": 2, "cohort": 11, "batch_size": 8, "dtype": torch.float64}
    trials = [{"algorithm": fl.fedavg(rate)} for rate in (0.05, 0.1)]
    together = fl.simulate_trials(task, LONG_AND_SHORT, trials, executor="vectorized", **given)  # type: ignore[arg-type]
    for trial, history in zip(trials, together, strict=True):
        alone = fl.simulate(task, LONG_AND_SHORT, trial["algorithm"], executor="loop", **given)  # type: ignore[arg-type]
        assert distance(alone, history) <= 1e-12
