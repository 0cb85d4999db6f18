"""Devices that are away, drop out or are late, and cohorts that grow."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small_federations import classification, linear, watched

import fedloom as fl
from fedloom import sampling
from fedloom.system import System, finishing_times


def play(system: System | None = None, rounds: int = 30, cohort: Any = 4, **options: Any) -> fl.History:
    data = classification([5, 10, 20, 40, 3, 8, 9, 30])
    return fl.simulate(linear(), data, fl.fedavg(0.1), rounds, cohort, system=system, dtype=torch.float64, **options)


@pytest.mark.parametrize(("straggling", "longest"), [(1.0, 22.0), (0.0, 20.0)])
def test_the_straggler_clock(straggling: float, longest: float) -> None:
    times = finishing_times(torch.tensor([10, 20]), torch.tensor([0.5, 0.1]), straggling)
    assert float(times.max()) == pytest.approx(longest, rel=1e-6)


def test_a_round_lasts_as_long_as_its_slowest_client() -> None:
    sampler, seen = watched("uniform")
    history = play(System(straggling=0.0), sampler=sampler, epochs=2)
    sizes = torch.tensor([5, 10, 20, 40, 3, 8, 9, 30])
    for cohort, record in zip(seen, history.rounds, strict=True):
        assert record["simulated_seconds"] == float(2 * sizes[cohort].max())
    processed = [2 * int(sizes[cohort].sum()) for cohort in seen]
    assert history.rounds[-1]["examples_processed"] == sum(processed)


def test_the_clocks_mean_is_that_of_an_exponential() -> None:
    clients = torch.arange(20_000)
    work = torch.full_like(clients, 10)
    reports = System(straggling=2.0).reports(0, 3, clients, work, len(clients))
    assert reports.seconds is not None and 10 + 20 * 7 < reports.seconds < 10 + 20 * 16  # log(20,000) is 9.9
    late = System(straggling=2.0, deadline=30.0).reports(0, 3, clients, work, len(clients))
    assert float(late.mask.double().mean()) == pytest.approx(1 - math.exp(-1), abs=0.02)
    assert late.seconds == 30.0


def test_clients_that_are_away_are_not_asked() -> None:
    sampler, seen = watched("uniform")
    system = System(availability=0.5)
    play(system, rounds=60, cohort=2, sampler=sampler)
    for t, cohort in enumerate(seen):
        here = system.available(0, t, 8)
        assert all(bool(here[client]) for client in cohort)
    away = torch.stack([system.available(0, t, 1000) for t in range(20)])
    assert float(away.double().mean()) == pytest.approx(0.5, abs=0.02)
    assert not torch.equal(away[0], away[1])


@pytest.mark.parametrize("sampler", ["uniform", "multinomial", "poisson", "attention"])
def test_with_nobody_there_rounds_are_void_and_the_run_goes_on(sampler: str) -> None:
    history = play(System(availability=0.0), rounds=3, sampler=sampler)
    assert [record["admitted"] for record in history.rounds] == [0, 0, 0]
    assert [record["asked"] for record in history.rounds] == [0, 0, 0]


def test_dropping_out_is_a_share_of_those_asked() -> None:
    history = play(System(dropout=0.25), rounds=100, cohort=8)
    reported = sum(record["admitted"] for record in history.rounds)
    assert reported / (100 * 8) == pytest.approx(0.75, abs=0.05)
    assert all(record["asked"] == 8 for record in history.rounds)


def test_over_selection_takes_the_first_to_finish() -> None:
    history = play(System(straggling=0.0, over_selection=2.0), rounds=20, cohort=3)
    sampler, seen = watched("uniform")
    play(None, rounds=20, cohort=6, sampler=sampler)  # the same draw, all of whom would have been asked
    sizes = torch.tensor([5, 10, 20, 40, 3, 8, 9, 30])
    for cohort, record in zip(seen, history.rounds, strict=True):
        assert record["asked"] == 6 and record["admitted"] == 3
        assert record["simulated_seconds"] == float(sizes[cohort].sort().values[2])


def test_the_same_seed_gives_the_same_devices() -> None:
    system = System(availability=0.7, dropout=0.2, straggling=1.0, over_selection=1.3, deadline=60.0)
    first, again = play(system), play(system)
    for a, b in zip(first.rounds, again.rounds, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in b.items() if k != "seconds"}, nan_ok=True, rel=0
        )
    assert any(record["admitted"] < record["asked"] for record in first.rounds)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"availability": 1.5}, "availability: expected"),
        ({"dropout": -0.1}, "dropout: expected"),
        ({"straggling": -1.0}, "straggling: expected"),
        ({"over_selection": 0.5, "straggling": 0.0}, "over_selection: expected"),
        ({"deadline": 0.0, "straggling": 0.0}, "deadline: expected"),
        ({"deadline": 5.0}, "deadline: expected a clock"),
        ({"over_selection": 1.3}, "over_selection: expected a clock"),
    ],
)
def test_mistakes(options: dict[str, Any], told: str) -> None:
    with pytest.raises(fl.FedloomError, match=told):
        System(**options)


def test_a_cohort_that_doubles() -> None:
    sizes = [sampling.doubling()(t) for t in (0, 299, 300, 600, 900, 1200, 1499)]
    assert sizes == [50, 50, 100, 200, 400, 800, 800]
    history = play(rounds=7, cohort=sampling.doubling(initial=1, every=2, most=5))
    assert [record["admitted"] for record in history.rounds] == [1, 1, 2, 2, 4, 4, 5]
    history = play(rounds=4, cohort=sampling.doubling(initial=5, every=1, most=800))
    assert [record["admitted"] for record in history.rounds] == [5, 8, 8, 8]  # at most the population


def test_a_forced_cohort_for_one_round_leaves_the_others() -> None:
    (plain, seen), (inner, told) = watched("uniform"), watched("uniform")
    play(rounds=4, sampler=plain)
    history = play(rounds=4, sampler=sampling.forced(inner, {2: [7, 0, 3]}))
    assert told == [*seen[:2], seen[3]]
    assert [record["admitted"] for record in history.rounds] == [4, 4, 3, 4]


def test_a_forced_cohort_names_clients_there_are() -> None:
    with pytest.raises(fl.FedloomError, match=r"round 1, forced cohort: expected ids in 0\.\.7, got \[0, 99\]"):
        play(rounds=2, sampler=sampling.forced("uniform", {1: [99, 0]}))
