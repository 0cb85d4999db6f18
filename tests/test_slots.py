"""What slots share: rates that follow the client, sums that FedDyn reads, and mistakes told in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_federations import classification, digest, distance, linear
from torch import nn

import fedloom as fl
from fedloom.batches import Batching

UPDATES = {"w": torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)}


@pytest.mark.parametrize(
    ("change", "multiplicity"),
    [({}, None), ({"upload": fl.clip(0.1)}, None), ({"combine": fl.by_examples()}, None), ({}, torch.tensor([3, 1]))],
    ids=["plain", "clipped", "weighted", "drawn twice"],
)
def test_feddyns_h_is_the_mean_of_the_clients_duals(change: dict[str, Any], multiplicity: torch.Tensor | None) -> None:
    """q_k moves by alpha times the raw update, so h moves by alpha / N times their sum, whatever else is done."""
    algorithm = fl.replace(fl.feddyn(client_lr=0.1, alpha=0.5), **change)
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    sent = fl.Cohort(torch.tensor([0, 1]), torch.tensor([30, 10]), UPDATES, multiplicity=multiplicity)
    _, state, _ = algorithm.apply(params, algorithm.init(params, 4), sent)
    torch.testing.assert_close(state.server["h"]["w"], torch.full((2,), 0.125, dtype=torch.float64))


def test_a_memory_follows_the_rate_of_the_client_slot() -> None:
    data = classification([5, 9, 14])
    swapped = fl.replace(fl.scaffold(0.5), client=fl.scaffold(0.05).client)
    runs = [
        fl.simulate(linear(), data, algorithm, 3, 2, dtype=torch.float64) for algorithm in (fl.scaffold(0.05), swapped)
    ]
    assert digest(runs[0].params) == digest(runs[1].params)


@pytest.mark.parametrize(
    ("batching", "rows"),
    [
        (Batching(epochs=3, batch_size=4), [3, 30, 12]),
        (Batching(epochs=3, batch_size=4, drop_last=True), [0, 24, 12]),
        (Batching(steps=1, batch_size=2), [1, 2, 2]),
        (Batching(steps=5, batch_size=4), [5, 18, 20]),  # 4, 4, 2, 4, 4 of ten
        (Batching(steps=2, batch_size=None), [2, 20, 8]),
    ],
)
def test_rows_gone_through(batching: Batching, rows: list[int]) -> None:
    assert batching.rows(torch.tensor([1, 10, 4])).tolist() == rows


def test_a_full_gradient_goes_through_every_row_once() -> None:
    history = fl.simulate(linear(), classification([5, 9]), fl.fedsgd(0.1), 2, 2, epochs=5, dtype=torch.float64)
    assert [record["examples_processed"] for record in history.rounds] == [14, 28]


def test_more_draws_than_clients_where_they_are_put_back() -> None:
    data, options = classification([5, 9]), {"dtype": torch.float64}
    history = fl.simulate(linear(), data, fl.fedavg(0.1), 1, 20, sampler="multinomial", **options)
    assert history.rounds[0]["admitted"] == 2
    with pytest.raises(fl.FedloomError, match="cohort: expected 1 to 2"):
        fl.simulate(linear(), data, fl.fedavg(0.1), 1, 20, **options)


def test_devices_are_drawn_with_the_cohorts() -> None:
    options: dict[str, Any] = {"sampling_seed": 7, "system": fl.System(availability=0.5), "dtype": torch.float64}
    data = classification([5, 9, 4, 6])
    runs = [fl.simulate(linear(), data, fl.fedavg(0.1), 8, 3, seed=seed, **options) for seed in (0, 1)]
    asked = [[record["examples_processed"] for record in run.rounds] for run in runs]
    assert asked[0] == asked[1] and distance(*runs) > 0


def test_the_last_round_is_evaluated_when_a_callback_ends_the_run() -> None:
    history = fl.simulate(
        linear(),
        classification([5, 9]),
        fl.fedavg(0.1),
        9,
        2,
        eval_every=5,
        callbacks=[lambda record: record["round"] == 2],
        dtype=torch.float64,
    )
    assert ["test_accuracy" in record for record in history.rounds] == [False, False, True]


def test_the_callers_module_is_left_alone() -> None:
    module = nn.Linear(6, 4)
    fl.simulate(fl.Task(lambda: module), classification([5, 9]), fl.fedavg(0.1), 1, 2, dtype=torch.float64)
    assert module.weight.dtype == torch.float32 and module.training


def averaged(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).double().mean()


DATA = classification([5, 9])
TASK = linear()
MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: fl.fedavg(0.1, weighting="uniform"), "combine: expected a Weighting, got 'uniform'"),  # type: ignore[arg-type]
    (lambda: fl.fedavg(0.1, weighting=fl.uniform), "expected a Weighting, .*: call it"),  # type: ignore[arg-type]
    (lambda: fl.fednova(0.1, weighting="uniform"), "weighting: expected"),  # type: ignore[arg-type]
    (lambda: fl.replace(fl.fedavg(0.1), upload=fl.uniform()), "upload: expected a Upload"),
    (lambda: fl.replace("fedavg", name="x"), "replace: expected an Algorithm"),  # type: ignore[arg-type]
    (lambda: fl.fedglad("fedavg"), "fedglad: expected an Algorithm"),  # type: ignore[arg-type]
    (lambda: fl.simulate(TASK, DATA, fl.fedavg), "algorithm: expected a Algorithm, .*: call it"),  # type: ignore[arg-type]
    (lambda: fl.simulate(nn.Linear(6, 4), DATA, fl.fedavg(0.1)), "task: expected a Task"),  # type: ignore[arg-type]
    (lambda: fl.simulate(fl.Task(nn.Linear(6, 4)), DATA, fl.fedavg(0.1), 1, 2), "Task.model: expected a function"),
    (lambda: fl.simulate(fl.Task(lambda: nn.Linear(5, 4)), DATA, fl.fedavg(0.1), 1, 2), r"float64 \(6,\), int64 \(\)"),
    (
        lambda: fl.simulate(fl.Task(lambda: nn.Linear(6, 2)), DATA, fl.fedavg(0.1), 1, 2, dtype=torch.float64),
        "failed on",
    ),
    (lambda: fl.simulate(TASK, DATA, fl.fedavg(0.1), 1, 2, device="abacus"), "device: expected one"),
    (lambda: fl.simulate(TASK, DATA, fl.fedavg(0.1), None, 2), "rounds: expected a whole number"),  # type: ignore[arg-type]
    (lambda: fl.simulate(TASK, DATA, fl.fedavg(0.1), 1, "3"), "cohort: expected 1 to 2"),  # type: ignore[arg-type]
    (
        lambda: fl.simulate(
            fl.Task(lambda: nn.Linear(6, 4), metrics={"mean": averaged}),
            DATA,
            fl.fedavg(0.1),
            1,
            2,
            dtype=torch.float64,
        ),
        "metric 'mean': expected one value per example",
    ),
    (lambda: fl.personalize(TASK, DATA, {}, fl.fedsgd(0.1)), "personalize: expected"),
    (lambda: fl.schedule.constant(-0.1), "rate: expected"),
    (lambda: fl.schedule.staircase(0.1, every=0), "every: expected"),
    (lambda: fl.schedule.scaled(0.1, 100, reference=0), "reference: expected"),
    (lambda: fl.fedavg(0.1, client_weight_decay=-1.0), "client_weight_decay: expected"),
    (lambda: fl.fedadp(0.1, alpha=-5.0), "alpha: expected"),
    (lambda: fl.feddyn(0.1, alpha="a"), "alpha: expected"),  # type: ignore[arg-type]
    (lambda: fl.adaptive_clip(lr=-1.0), "lr: expected"),
    (lambda: fl.fedlars(0.1, eps=-1.0), "eps: expected"),
    (lambda: fl.from_torch(3), "from_torch: expected a class"),  # type: ignore[arg-type]
    (lambda: fl.fedavg(0.1).init({"w": torch.zeros(2)}, 2, examples=[1, 2]), "examples: expected"),  # type: ignore[arg-type]
    (lambda: fl.fedavg(0.1).init({"w": [1.0]}, 2), "params"),  # type: ignore[dict-item]
    (lambda: fl.History([{"round": 0, "test_accuracy": 0.5}]).last("accuracy"), "did you mean 'test_accuracy'"),
]


@pytest.mark.parametrize(("make", "told"), MISTAKES, ids=[told for _, told in MISTAKES])
def test_a_mistake_is_told_in_one_line(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(fl.FedloomError, match=told) as error:
        make()
    assert "\n" not in str(error.value)


def test_numpys_whole_numbers_are_whole_numbers() -> None:
    import numpy as np

    assert fl.simulate(TASK, DATA, fl.fedavg(0.1), 1, np.int64(2), dtype=torch.float64).rounds[0]["asked"] == 2  # type: ignore[arg-type]


def test_apply_takes_cohorts() -> None:
    algorithm, params = fl.fedavg(0.1), {"w": torch.zeros(2)}
    state = algorithm.init(params, 2)
    with pytest.raises(fl.FedloomError, match="apply: expected a Cohort"):
        algorithm.apply(params, state, {"w": torch.zeros(1, 2)})  # type: ignore[arg-type]
    with pytest.raises(fl.FedloomError, match="clients: expected a tensor"):
        algorithm.apply(params, state, fl.Cohort([0], torch.ones(1), {"w": torch.zeros(1, 2)}))  # type: ignore[arg-type]
