"""Who takes part: draws that follow the key alone, and what each sampler promises of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_federations import EXECUTORS, POINT, always, classification, digest, distance, linear, quadratics, watched
from torch import Tensor

import fedloom as fl
from fedloom import checkpoint, random
from fedloom.sampling import SAMPLERS, Drawn, Sampler, attention, multinomial, poisson, uniform
from fedloom.types import ClientReport, Report


def at(seed: int, round: int = 0) -> Tensor:
    return random.key(seed, round, 0, "cohort")


EXAMPLES = torch.tensor([30, 10, 5, 40, 15, 20])


@pytest.mark.parametrize("name", SAMPLERS)
@given(seed=st.integers(0, 2**32), t=st.integers(0, 5000), size=st.integers(1, 6))
def test_a_cohort_is_sorted_known_and_repeatable(name: str, seed: int, t: int, size: int) -> None:
    sampler = SAMPLERS[name]()
    first, again = (sampler.draw(at(seed, t), size, EXAMPLES, sampler.init(6)) for _ in range(2))
    assert first.clients.tolist() == again.clients.tolist() == sorted(set(first.clients.tolist()))
    assert all(0 <= client < 6 for client in first.clients.tolist())
    if name == "multinomial":
        assert first.multiplicity is not None and int(first.multiplicity.sum()) == size
    elif name != "poisson":
        assert len(first.clients) == size


def frequencies(name: str, size: int, draws: int = 600, state: Any = None) -> Tensor:
    sampler = SAMPLERS[name]()
    counts = torch.zeros(6)
    for t in range(draws):
        drawn = sampler.draw(at(1, t), size, EXAMPLES, sampler.init(6) if state is None else state)
        times = torch.ones(len(drawn.clients)) if drawn.multiplicity is None else drawn.multiplicity.float()
        counts.index_add_(0, drawn.clients, times)
    return counts / draws


def test_frequencies() -> None:
    """Within five standard deviations of what each rule says."""
    bound = 5 * (0.25 / 600) ** 0.5
    for name in ("uniform", "attention", "poisson"):
        assert float((frequencies(name, 2) - 2 / 6).abs().max()) < bound
    shares = EXAMPLES / EXAMPLES.sum()
    assert float((frequencies("multinomial", 1) - shares).abs().max()) < bound
    mass = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    assert float((frequencies("attention", 1, state={"attention": mass}) - mass).abs().max()) < bound


def test_rounds_are_drawn_apart() -> None:
    """Two rounds in a row share a client of six about as often as two independent draws would."""
    drawn = [set(uniform().draw(at(0, t), 2, EXAMPLES, {}).clients.tolist()) for t in range(300)]
    shared = sum(bool(one & other) for one, other in pairwise(drawn)) / 299
    assert abs(shared - 0.6) < 0.12  # 1 - C(4, 2) / C(6, 2)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_draw_of_the_multinomial_counts_alike(executor: str) -> None:
    """A client drawn twice counts twice, whatever its size (specification, section 7)."""
    centres = torch.tensor([[1.0, 0.0], [-1.0, 2.0]], dtype=torch.float64)
    options: dict[str, Any] = {"batch_size": None, "dtype": torch.float64, "executor": executor}
    sampler, seen = watched(multinomial())
    history = fl.simulate(
        POINT, quadratics(centres.tolist(), [30, 10]), fl.fedavg(0.1), 6, 2, sampler=sampler, **options
    )
    x = torch.zeros(2, dtype=torch.float64)
    for draws in seen:
        x = torch.stack([x - 0.1 * (x - centres[client]) for client in draws]).mean(0)
    torch.testing.assert_close(history.params["y"], x, rtol=1e-12, atol=1e-15)
    assert all(len(draws) == 2 for draws in seen)
    assert any(len(set(draws)) == 1 for draws in seen) and any(len(set(draws)) == 2 for draws in seen)


def test_drawn_twice_and_once_weigh_two_thirds_and_one_third() -> None:
    """n = (30, 10), draws (1, 1, 2): weights 2/3 and 1/3 (specification, section 7)."""
    fixed = Sampler("fixed", lambda *_: Drawn(torch.tensor([0, 1]), torch.tensor([2, 1])), each_draw_counts=True)
    data = quadratics([[3.0, 0.0], [0.0, 3.0]], [30, 10])
    options: dict[str, Any] = {"batch_size": None, "dtype": torch.float64, "sampler": fixed}
    history = fl.simulate(POINT, data, fl.fedavg(1.0), 1, 2, **options)
    torch.testing.assert_close(history.params["y"], torch.tensor([2.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("make", [fl.fedavg, fl.fedadam, fl.scaffold, fl.fedadp], ids=lambda make: make.__name__)
def test_an_empty_cohort_is_a_void_round_and_the_run_goes_on(executor: str, make: Any) -> None:
    models: list[str] = []
    data = classification([4, 9, 6])
    sampler, seen = watched(poisson())
    options: dict[str, Any] = {"dtype": torch.float64, "executor": executor, "seed": 3}
    history = fl.simulate(linear(), data, make(0.1), 10, 1, sampler=sampler, **options)
    sizes = [len(cohort) for cohort in seen]
    assert 0 in sizes and max(sizes) > 0
    assert [record["admitted"] for record in history.rounds] == sizes
    assert history.state is not None and history.state.round == sum(size > 0 for size in sizes)
    void = sizes.index(0)
    for rounds in (void, void + 1):
        if rounds:
            models.append(
                digest(fl.simulate(linear(), data, make(0.1), rounds, 1, sampler="poisson", **options).params)
            )
    assert len(set(models)) == 1
    assert all(record["train_loss"] != record["train_loss"] for record in history.rounds if not record["admitted"])


def report(ids: list[int], distances: list[float] | None, admitted: list[bool] | None = None) -> Report:
    result = Report()
    taken = torch.tensor(admitted or [True] * len(ids))
    result.clients = ClientReport(
        ids=torch.tensor(ids),
        admitted=taken,
        reasons=[None if yes else "refused" for yes in taken.tolist()],
        weight=taken.double(),
        norm=taken.double(),
        distance=None if distances is None else torch.tensor(distances, dtype=torch.float64),
    )
    return result


def test_attention_moves_towards_the_clients_that_are_far() -> None:
    """N = 4, S = {0, 2}, distances (0.3, 0.1) (specification, section 7)."""
    sampler = attention()
    state = sampler.observe(sampler.init(4), report([0, 2], [0.3, 0.1]))
    expected = torch.tensor([0.2625, 0.25, 0.2375, 0.25], dtype=torch.float64)
    torch.testing.assert_close(state["attention"], expected, rtol=1e-12, atol=0)


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True),
    st.lists(st.floats(0, 1e3), min_size=8, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_attention_sums_to_one(ids: list[int], distances: list[float], admitted: list[bool]) -> None:
    sampler = attention()
    state = sampler.init(8)
    for _ in range(3):
        before = state["attention"]
        state = sampler.observe(state, report(ids, distances[: len(ids)], admitted[: len(ids)]))
        after = state["attention"]
        assert float(after.sum()) == pytest.approx(1, rel=1e-12) and bool((after > 0).all())
        absent = [k for k in range(8) if k not in ids or not admitted[ids.index(k)]]
        torch.testing.assert_close(after[absent], before[absent], rtol=1e-12, atol=0)


def test_attention_stays_when_nothing_was_learnt() -> None:
    sampler = attention()
    start = sampler.init(4)
    for seen in (report([0, 2], [0.0, 0.0]), report([0, 2], [0.5, 0.5], [False, False]), report([], None)):
        assert torch.equal(sampler.observe(start, seen)["attention"], start["attention"])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_attention_in_a_run_reads_the_distances_to_the_mean_model(executor: str, tmp_path: Path) -> None:
    """dist_k = ||mean of y - y_k||; here y_k = x - 0.1 (x - c_k), so that distances are those of the centres."""
    centres = torch.tensor([[1.0, 0.0], [-1.0, 2.0], [4.0, 4.0]], dtype=torch.float64)
    sizes = torch.tensor([30.0, 10.0, 20.0], dtype=torch.float64)
    sampler, seen = watched("attention")
    options: dict[str, Any] = {"batch_size": None, "dtype": torch.float64, "executor": executor, "run_dir": tmp_path}
    fl.simulate(POINT, quadratics(centres.tolist(), [30, 10, 20]), fl.fedavg(0.1), 5, 2, sampler=sampler, **options)
    mass = torch.full((3,), 1 / 3, dtype=torch.float64)
    for cohort in seen:
        mean = (sizes[cohort, None] * centres[cohort]).sum(0) / sizes[cohort].sum()
        far = (centres[cohort] - mean).norm(dim=1)
        mass[cohort] = 0.9 * mass[cohort] + 0.1 * mass[cohort].sum() * far / far.sum()
    found = checkpoint.load(tmp_path / "checkpoints" / "round-000005")["sampler"]["attention"]
    torch.testing.assert_close(found, mass, rtol=1e-9, atol=0)
    assert float(mass.std()) > 0.005


def test_attention_goes_on_after_a_round_nobody_was_admitted_in() -> None:
    data = quadratics([[float("nan"), 0.0], [1.0, 0.0], [0.0, 1.0]], [3, 3, 3])
    sampler, seen = watched("attention")
    history = fl.simulate(POINT, data, fl.fedavg(0.1), 6, 1, sampler=sampler, dtype=torch.float64)
    assert [record["admitted"] for record in history.rounds] == [int(cohort != [0]) for cohort in seen]
    assert [0] in seen and seen[-1] != [0]


def test_a_sampler_of_ones_own() -> None:
    data = classification([4, 9, 6])
    options: dict[str, Any] = {"dtype": torch.float64}
    own = fl.simulate(linear(), data, fl.fedavg(0.1), 2, 3, sampler=always([0, 1, 2]), **options)
    assert distance(fl.simulate(linear(), data, fl.fedavg(0.1), 2, 3, **options), own) == 0
