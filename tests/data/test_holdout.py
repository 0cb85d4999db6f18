"""Clients held out for validation: who they are, what they are measured by, and that nobody trains on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_federations import classification, linear, split

import fedloom as fl
from fedloom import random
from fedloom.evaluation import evaluate
from fedloom.functional import Functional

DATA = classification([3, 4, 5, 6, 7])


def test_the_first_four_fifths_of_the_shuffled_ids_train() -> None:
    kept = fl.hold_out(DATA, 0.2, seed=3)
    order = random.permutation(random.key(3, 0, 0, "validation"), 5)
    training = sorted(order[:4].tolist())  # spec 13: ceil(0.8 N)
    assert kept.sizes.tolist() == [int(DATA.sizes[client]) for client in training]
    for place, client in enumerate(training):
        assert torch.equal(kept.rows(place), DATA.rows(client))
    assert kept.held_out is not None and torch.equal(kept.held_out, DATA.rows(int(order[4])).sort().values)


@pytest.mark.parametrize(("population", "share", "training"), [(5, 0.2, 4), (7, 0.2, 6), (10, 0.3, 7), (3, 0.5, 2)])
def test_the_number_is_rounded_up(population: int, share: float, training: int) -> None:
    assert fl.hold_out(classification([2] * population), share).population == training


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_both_sides_have_clients(share: float) -> None:
    with pytest.raises(fl.FedloomError, match="leaves clients on both sides"):
        fl.hold_out(DATA, share)


def test_a_row_that_a_training_client_has_too_is_not_validated_on() -> None:
    shared = fl.federate(torch.zeros(5, 1), torch.zeros(5), [[0, 1], [1, 2, 4], [2, 3]], overlap=True)
    kept = fl.hold_out(shared, 0.4)
    assert kept.held_out is not None and not torch.isin(kept.held_out, kept.indices).any() and len(kept.held_out)
    alike = fl.federate(torch.zeros(2, 1), torch.zeros(2), [[0, 1], [0, 1]], overlap=True)
    with pytest.raises(fl.FedloomError, match="rows that no training client has"):
        fl.hold_out(alike, 0.5)


def test_a_run_measures_the_held_out_rows() -> None:
    kept = fl.hold_out(DATA, 0.2)
    history = fl.simulate(linear(), kept, fl.fedavg(0.1), 2, 2, evaluate_on=["validation"], dtype=torch.float64)
    task, rows = linear(), kept.held_out
    assert rows is not None
    functional = Functional.of(task, 0, torch.device("cpu"), torch.float64)
    expected = evaluate(functional, history.params, {}, DATA.x[rows], DATA.y[rows], task.metrics)  # type: ignore[index]
    last = history.rounds[-1]
    assert {name: last[f"validation_{name}"] for name in expected} == expected
    assert "test_accuracy" not in last


def test_held_out_rows_are_seen_as_the_test_rows_are() -> None:
    """What augmentation is to an example at rest is done to them."""

    class Twice:
        def __call__(self, x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return 2 * x

        plain = staticmethod(lambda x: 3 * x)

    kept = fl.hold_out(DATA, 0.2)
    tripled = replace(kept, x=3 * DATA.x)  # type: ignore[operator]
    options = {"rounds": 1, "cohort": 2, "evaluate_on": ["validation"], "dtype": torch.float64}
    seen = fl.simulate(linear(), replace(kept, augment=Twice()), fl.fedavg(0.0), **options)
    plain = fl.simulate(linear(), tripled, fl.fedavg(0.0), **options)
    assert seen.rounds[0]["validation_loss"] == pytest.approx(plain.rounds[0]["validation_loss"])


def test_without_held_out_clients_it_is_an_error() -> None:
    with pytest.raises(fl.FedloomError, match="'validation': expected clients held out"):
        fl.simulate(linear(), DATA, fl.fedavg(0.1), 1, 2, evaluate_on=["validation"], dtype=torch.float64)


def test_the_fingerprint_tells_what_is_held_out() -> None:
    assert fl.federate(DATA.x, DATA.y, split([3, 4, 5, 6, 7]), test=DATA.test).fingerprint() == DATA.fingerprint()
    assert fl.hold_out(DATA).fingerprint() != replace(fl.hold_out(DATA), held_out=None).fingerprint()
