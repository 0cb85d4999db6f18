"""Laws of the server side, on random cohorts: what must hold whatever the clients send."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from algorithm_table import TABLE, Outcome, Row, play, ready
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedloom as fl
from fedloom.algorithm import Algorithm
from fedloom.checkpoint import pack
from fedloom.transforms.optimizers import yogi
from fedloom.types import Cohort, Info, Params

SHAPES: dict[str, tuple[int, ...]] = {"w": (3, 2), "b": (3,), "s": (1,)}
POPULATION = 6
FEW = settings(max_examples=10)  # each example is several rounds


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model(seed: int = 0) -> Params:
    return {name: randn(seed + index, *shape) for index, (name, shape) in enumerate(SHAPES.items())}


@st.composite
def cohorts(draw: st.DrawFn, smallest: int = 1, largest: int = POPULATION, equal: bool = False) -> Cohort:
    """Some clients in any order, of unequal sizes; some do not move, and all may send the same."""
    ids = draw(st.lists(st.integers(0, POPULATION - 1), min_size=smallest, max_size=largest, unique=True))
    seed = draw(st.integers(0, 2**31))
    scale = 10.0 ** draw(st.integers(-3, 3))
    updates = {}
    for index, (name, shape) in enumerate(SHAPES.items()):
        rows = scale * randn(seed + index, len(ids), *shape)
        updates[name] = rows[:1].expand_as(rows).clone() if equal else rows
    if not equal and len(ids) > 2 and draw(st.booleans()):
        updates = {name: rows.index_fill(0, torch.tensor([1]), 0.0) for name, rows in updates.items()}
    sizes = draw(st.lists(st.integers(1, 500), min_size=len(ids), max_size=len(ids)))
    steps = draw(st.lists(st.integers(1, 9), min_size=len(ids), max_size=len(ids)))
    control = {name: randn(seed + 7 + index, len(ids), *shape) for index, (name, shape) in enumerate(SHAPES.items())}
    return Cohort(
        torch.tensor(ids), torch.tensor(sizes), updates, steps=torch.tensor(steps), extra={"control": control}
    )


@st.composite
def histories(draw: st.DrawFn, rounds: int = 3, **options: Any) -> list[Cohort]:
    return [draw(cohorts(**options)) for _ in range(rounds)]


def bits(value: Any) -> Any:
    """Something that is equal exactly when all bits are."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    tensors, skeleton = pack(value)
    return {name: (tensor.dtype, tensor.shape, tensor.numpy().tobytes()) for name, tensor in tensors.items()}, skeleton


def run(algorithm: Algorithm, history: list[Cohort], params: Params | None = None) -> list[Outcome]:
    return play(algorithm, model() if params is None else params, history, POPULATION)


def assert_same_bits(one: list[Outcome], other: list[Outcome]) -> None:
    for (params, _, _), (expected, _, _) in zip(one, other, strict=True):
        assert bits(params) == bits(expected)


def assert_near(one: list[Outcome], other: list[Outcome], tolerance: float = 1e-12) -> None:
    for (params, _, _), (expected, _, _) in zip(one, other, strict=True):
        for name, leaf in params.items():
            torch.testing.assert_close(leaf, expected[name], rtol=tolerance, atol=tolerance)


def rows_of(cohort: Cohort, order: Tensor) -> Cohort:
    assert cohort.steps is not None and cohort.extra is not None
    return Cohort(
        cohort.clients[order],
        cohort.examples[order],
        {name: rows[order] for name, rows in cohort.updates.items()},
        steps=cohort.steps[order],
        extra={kind: {name: rows[order] for name, rows in tree.items()} for kind, tree in cohort.extra.items()},
    )


def squared_norms(tree: Params) -> Tensor:
    return sum((rows.flatten(1) ** 2).sum(1) for rows in tree.values())  # type: ignore[return-value]


# Any order, any cut


@settings(max_examples=50)
@given(row=st.sampled_from(TABLE), cohort=cohorts(smallest=2), data=st.data())
def test_order_and_cut_do_not_matter(row: Row, cohort: Cohort, data: st.DataObject) -> None:
    algorithm = ready(row[1])
    params = model()
    state = algorithm.init(params, POPULATION)
    for _ in range(2):
        expected = algorithm.apply(params, state, cohort)
        shuffled = data.draw(st.permutations(range(cohort.size)))
        cuts = sorted(data.draw(st.sets(st.integers(1, cohort.size - 1))))
        ascending = cohort.clients.argsort()
        parts = [ascending[a:b] for a, b in zip([0, *cuts], [*cuts, cohort.size], strict=True)]
        for other in (rows_of(cohort, torch.tensor(shuffled)), (rows_of(cohort, part) for part in parts)):
            got = algorithm.apply(params, state, other)
            assert bits(got[0]) == bits(expected[0])
            assert bits(got[1]) == bits(expected[1])
            assert bits(dict(got[2])) == bits(dict(expected[2]))
        params, state, _ = expected


@settings(max_examples=20)
@given(row=st.sampled_from(TABLE), cohort=cohorts(), data=st.data())
def test_the_order_of_the_leaves_of_a_cohort_does_not_matter(row: Row, cohort: Cohort, data: st.DataObject) -> None:
    algorithm = ready(row[1])
    params = model()
    state = algorithm.init(params, POPULATION)
    names = data.draw(st.permutations(list(SHAPES)))
    other = dataclasses.replace(cohort, updates={name: cohort.updates[name] for name in names})
    expected, got = (algorithm.apply(params, state, sent) for sent in (cohort, other))
    assert bits(got[0]) == bits(expected[0])
    assert bits(got[1]) == bits(expected[1])


# One algorithm as a special case of another


@pytest.mark.parametrize("variant", ["heavyball", "nesterov", "ema"])
@FEW
@given(history=histories())
def test_momentum_of_zero_is_fedavg(variant: str, history: list[Cohort]) -> None:
    momentum = fl.fedavgm(client_lr=0.1, server_lr=0.3, momentum=0.0, variant=variant)
    assert_same_bits(run(momentum, history), run(fl.fedavg(client_lr=0.1, server_lr=0.3), history))


@FEW
@given(history=histories(), tau=st.integers(1, 20))
def test_fednova_with_equal_steps_is_fedavg(history: list[Cohort], tau: int) -> None:
    history = [dataclasses.replace(c, steps=torch.full((c.size,), tau)) for c in history]
    for options in ({}, {"client_momentum": 0.9}, {"client_optimizer": "nesterov"}):
        assert_near(run(fl.fednova(client_lr=0.1, **options), history), run(fl.fedavg(client_lr=0.1), history))


@FEW
@given(history=histories())
def test_fedsgd_is_fedavg_on_the_same_updates(history: list[Cohort]) -> None:
    """With one full-batch step of rate 1 a client's update is its gradient; the server does not know the difference."""
    assert_same_bits(run(fl.fedsgd(server_lr=0.3), history), run(fl.fedavg(client_lr=1.0, server_lr=0.3), history))


@FEW
@given(history=histories(smallest=POPULATION, equal=True))
def test_scaffold_with_identical_clients_is_fedavg(history: list[Cohort]) -> None:
    """All clients send the same update and the same change of control: c is every c_k, and x goes as FedAvg's."""
    same = []
    for cohort in history:
        control = {name: rows[:1].expand_as(rows) for name, rows in cohort.extra["control"].items()}
        same.append(dataclasses.replace(cohort, extra={"control": control}))
    outcomes = run(fl.scaffold(client_lr=0.1), same)
    assert_near(outcomes, run(fl.fedavg(client_lr=0.1), same), 1e-11)
    own = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for cohort, (_, state, _) in zip(same, outcomes, strict=True):
        own = {name: leaf + cohort.extra["control"][name][0] for name, leaf in own.items()}
        for name, c in state.memory.items():
            torch.testing.assert_close(c, own[name], rtol=1e-12, atol=1e-12)


@FEW
@given(history=histories(rounds=6))
def test_scaffold_control_is_the_mean_of_all_clients_controls(history: list[Cohort]) -> None:
    """Clients never asked keep zero."""
    controls = {name: torch.zeros(POPULATION, *shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for cohort, (_, state, _) in zip(history, run(fl.scaffold(client_lr=0.1), history), strict=True):
        for name, rows in controls.items():
            rows[cohort.clients] += cohort.extra["control"][name]
            torch.testing.assert_close(state.memory[name], rows.mean(0), rtol=1e-11, atol=1e-12)


@FEW
@given(cohort=cohorts(equal=True))
def test_fedadp_of_identical_updates_weighs_by_size(cohort: Cohort) -> None:
    [(_, _, report)] = run(fl.fedadp(client_lr=0.1), [cohort])
    n = cohort.examples.double()
    torch.testing.assert_close(report.clients.weight, n / n.sum(), rtol=1e-9, atol=0)


@FEW
@given(history=histories(rounds=4))
def test_fedadp_absent_clients_keep_their_angle(history: list[Cohort]) -> None:
    for smoothing in ("count", "round"):
        angle, count = torch.zeros(POPULATION, dtype=torch.float64), torch.zeros(POPULATION, dtype=torch.int64)
        for cohort, (_, state, report) in zip(
            history, run(fl.fedadp(client_lr=0.1, smoothing=smoothing), history), strict=True
        ):
            absent = torch.ones(POPULATION, dtype=torch.bool).index_fill(0, cohort.clients, False)
            assert bits(state.combine["angle"][absent]) == bits(angle[absent])
            assert state.combine["count"].equal(count + (~absent).long())
            present = state.combine["angle"][~absent]
            assert bool(((present >= 0) & (present <= math.pi)).all())
            assert float(report.clients.weight.sum()) == pytest.approx(1.0, rel=1e-12)
            angle, count = state.combine["angle"], state.combine["count"]


# FedGLAD

GLAD_BASES: dict[str, Callable[[], Algorithm]] = {
    "fedavg": lambda: fl.fedavg(client_lr=0.1),
    "fedavgm": lambda: fl.fedavgm(client_lr=0.1, variant="nesterov"),
    "fedadam": lambda: fl.fedadam(client_lr=0.1, server_lr=0.1),
    "fedyogi": lambda: fl.fedyogi(client_lr=0.1, server_lr=0.1, bias_correction="keras"),
    "fedlamb": lambda: fl.fedlamb(client_lr=0.1, server_lr=0.1),
    "feddyn": lambda: fl.feddyn(client_lr=0.1, alpha=0.5),
    "fednova": lambda: fl.fednova(client_lr=0.1),
    "fedadp": lambda: fl.fedadp(client_lr=0.1),
    "scaffold": lambda: fl.scaffold(client_lr=0.1),
}
glad_bases = st.sampled_from(sorted(GLAD_BASES)).map(GLAD_BASES.__getitem__)
groupings = st.sampled_from(["group", "universal"])


@settings(max_examples=15)
@given(make=glad_bases, grouping=groupings, history=histories())
def test_glad_without_room_is_its_base(make: Callable[[], Algorithm], grouping: str, history: list[Cohort]) -> None:
    base = make()
    assert_same_bits(run(fl.fedglad(base, gamma=0.0, grouping=grouping), history), run(base, history))


@settings(max_examples=15)
@given(make=glad_bases, grouping=groupings, cohort=cohorts(), gamma=st.sampled_from([0.02, 0.5, math.inf]))
def test_glad_first_round_is_its_base(
    make: Callable[[], Algorithm], grouping: str, cohort: Cohort, gamma: float
) -> None:
    base = make()
    assert_same_bits(run(fl.fedglad(base, gamma=gamma, grouping=grouping), [cohort]), run(base, [cohort]))


@settings(max_examples=15)
@given(make=glad_bases, grouping=groupings, history=histories(largest=1))
def test_glad_of_single_clients_is_its_base(
    make: Callable[[], Algorithm], grouping: str, history: list[Cohort]
) -> None:
    base = make()
    assert_near(run(fl.fedglad(base, gamma=0.5, grouping=grouping), history), run(base, history), 1e-9)


@FEW
@given(history=histories(equal=True))
def test_glad_indicator_of_identical_updates_is_one(history: list[Cohort]) -> None:
    for _, _, report in run(fl.fedglad(fl.fedavg(client_lr=0.1)), history):
        for name in ("gsi", *(f"gsi/{leaf}" for leaf in SHAPES)):
            assert report[name] == pytest.approx(1.0, rel=1e-12)
            assert report[name] >= 1  # rounding included


@settings(max_examples=15)
@given(make=glad_bases, grouping=groupings, history=histories(smallest=2), gamma=st.sampled_from([0.02, 0.5]))
def test_glad_indicator_and_ratio_stay_in_bounds(
    make: Callable[[], Algorithm], grouping: str, history: list[Cohort], gamma: float
) -> None:
    for t, (_, _, report) in enumerate(run(fl.fedglad(make(), gamma=gamma, grouping=grouping), history)):
        indicators = [report["gsi"], *(report[f"gsi/{leaf}"] for leaf in SHAPES)]
        assert all(value >= 1 for value in indicators)
        assert min(indicators[1:]) * (1 - 1e-12) <= indicators[0] <= max(indicators[1:]) * (1 + 1e-12)
        assert 1 - gamma * t <= report["glad_ratio"] <= 1 + gamma * t


@settings(max_examples=15)
@given(grouping=groupings, history=histories(smallest=2), factor=st.floats(1e-3, 1e3))
def test_glad_ratio_ignores_the_scale_of_the_updates(grouping: str, history: list[Cohort], factor: float) -> None:
    algorithm = fl.fedglad(fl.fedavg(client_lr=0.1), gamma=0.5, grouping=grouping)
    larger = [
        dataclasses.replace(c, updates={name: rows * factor for name, rows in c.updates.items()}) for c in history
    ]
    for (_, _, report), (_, _, expected) in zip(run(algorithm, larger), run(algorithm, history), strict=True):
        for name in ("glad_ratio", "gsi", *(f"gsi/{leaf}" for leaf in SHAPES)):
            assert report[name] == pytest.approx(expected[name], rel=1e-9)


@settings(max_examples=8)
@given(history=histories(smallest=2))
def test_glad_leaves_second_moments_and_drift_unscaled(history: list[Cohort]) -> None:
    for base, part in (
        (fl.fedadam(client_lr=0.1), lambda server: server[0]["v"]),
        (fl.fedyogi(client_lr=0.1), lambda server: server[0]["v"]),
        (fl.fedlamb(client_lr=0.1), lambda server: server[0]["v"]),
        (fl.feddyn(client_lr=0.1, alpha=0.5), lambda server: server["h"]),
    ):
        plain, scaled = run(base, history), run(fl.fedglad(base, gamma=0.5), history)
        for (_, state, _), (_, glad_state, _) in zip(plain, scaled, strict=True):
            assert bits(part(glad_state.server[1])) == bits(part(state.server))


# Averages and diagnostics


@FEW
@given(cohort=cohorts())
def test_a_mean_is_not_longer_than_its_parts(cohort: Cohort) -> None:
    """Jensen: ||g||^2 <= sum_k p_k ||g_k||^2, and the weights sum to one."""
    for algorithm in (fl.fedavg(client_lr=0.1), fl.fedadp(client_lr=0.1), fl.scaffold(client_lr=0.1)):
        [(_, _, report)] = run(algorithm, [cohort])
        weight = report.clients.weight
        assert float(weight.sum()) == pytest.approx(1.0, rel=1e-12)
        bound = math.sqrt(float((weight * squared_norms(cohort.updates)).sum()))
        assert report["pseudo_gradient_norm"] <= bound * (1 + 1e-12)
        assert report.clients.norm.tolist() == pytest.approx(squared_norms(cohort.updates).sqrt().tolist(), rel=1e-12)
        assert report["mean_update_norm"] == pytest.approx(float(report.clients.norm.mean()), rel=1e-12)


@FEW
@given(cohort=cohorts(smallest=2))
def test_cosine_is_the_mean_over_pairs(cohort: Cohort) -> None:
    [(_, _, report)] = run(fl.fedavg(client_lr=0.1), [cohort])
    flat = torch.cat([rows.flatten(1) for rows in cohort.updates.values()], 1)
    unit = [row / row.norm() for row in flat if row.norm() > 0]
    pairs = [float(a @ b) for i, a in enumerate(unit) for b in unit[:i]]
    assert report["cosine"] == pytest.approx(sum(pairs) / len(pairs), rel=1e-9, abs=1e-12)


# Clipping


@FEW
@given(history=histories())
def test_clipping_at_infinity_is_none(history: list[Cohort]) -> None:
    plain = fl.fedadam(client_lr=0.1)
    for upload in (fl.clip(math.inf), fl.adaptive_clip(initial=math.inf), fl.zeroing(initial=1e9)):
        assert_same_bits(run(fl.replace(plain, upload=upload), history), run(plain, history))


@FEW
@given(cohort=cohorts(), share=st.floats(0.01, 3.0))
def test_clipped_updates_are_no_longer_than_the_norm(cohort: Cohort, share: float) -> None:
    lengths = squared_norms(cohort.updates).sqrt()
    norm = share * float(lengths.max())
    assume(norm > 0 and bool(((lengths - norm).abs() > 1e-9 * norm).all()))
    [(_, _, report)] = run(fl.replace(fl.fedavg(client_lr=0.1), upload=fl.clip(norm)), [cohort])
    torch.testing.assert_close(report.clients.norm, lengths.clamp(max=norm), rtol=1e-12, atol=0)
    assert report["unclipped_fraction"] == pytest.approx(float((lengths <= norm).double().mean()))


@pytest.mark.parametrize(("initial", "factor"), [(1e-9, math.exp(0.16)), (1e9, math.exp(-0.04))])
@FEW
@given(history=histories())
def test_adaptive_clipping_drifts(initial: float, factor: float, history: list[Cohort]) -> None:
    """Up by exp(0.16) a round when all are clipped, down by exp(-0.04) when none is."""
    assume(all(bool((squared_norms(c.updates) > 0).all()) for c in history))
    outcomes = run(fl.replace(fl.fedavg(client_lr=0.1), upload=fl.adaptive_clip(initial=initial)), history)
    for t, (_, state, _) in enumerate(outcomes, start=1):
        assert state.upload["rho"] == pytest.approx(initial * factor**t, rel=1e-12)


# Server optimizers


@FEW
@given(seed=st.integers(0, 10**6), beta2=st.sampled_from([0.9, 0.99, 0.999]), initial=st.sampled_from([0.0, 1e-4, 1.0]))
def test_yogi_moves_its_second_moment_by_the_square(seed: int, beta2: float, initial: float) -> None:
    """By exactly (1 - beta2) g^2, towards g^2; equal to it, not at all; never below zero."""
    rule = yogi(beta2=beta2, initial_accumulator=initial)
    params = {"w": torch.zeros(8, dtype=torch.float64)}
    state = rule.init(params)
    for t in range(4):
        g = {"w": randn(seed + t, 8)}
        g["w"][0] = state["v"]["w"][0].sqrt()  # v = g^2 where the root is exact
        _, after, _ = rule.update(g, state, params, Info(t, g))
        before, square, now = state["v"]["w"], g["w"] ** 2, after["v"]["w"]
        change = torch.where(before == square, 0.0, (1 - beta2) * square)
        torch.testing.assert_close((now - before).abs(), change, rtol=1e-9, atol=1e-15)
        assert bool(((now - before) * (square - before) >= 0).all())
        assert bool((now >= 0).all())
        state = after


@pytest.mark.parametrize("make", [fl.fedlars, fl.fedlamb], ids=["fedlars", "fedlamb"])
@FEW
@given(history=histories())
def test_layerwise_steps_scale_with_the_tensor(make: Callable[..., Algorithm], history: list[Cohort]) -> None:
    """Doubling a tensor doubles its step and leaves the others' alone, to the bit."""
    algorithm = make(client_lr=0.1, server_lr=0.1)
    params = model()
    doubled = params | {"w": 2 * params["w"]}
    for (got, _, _), (expected, _, _) in zip(
        run(algorithm, history, doubled), run(algorithm, history, params), strict=True
    ):
        assert bits(got["w"]) == bits(2 * expected["w"])
        assert bits(got["b"]) == bits(expected["b"])


@FEW
@given(history=histories(), eta=st.sampled_from([0.1, 1.0, 3.0]))
def test_normalized_steps_have_length_eta(history: list[Cohort], eta: float) -> None:
    before = model()
    for params, _, report in run(fl.normalized_fedavg(client_lr=0.1, server_lr=eta), history, before):
        step = math.sqrt(sum(float(((before[name] - leaf) ** 2).sum()) for name, leaf in params.items()))
        assert step == pytest.approx(eta if report["pseudo_gradient_norm"] > 0 else 0.0, rel=1e-9)
        before = params


@FEW
@given(history=histories(), rate=st.floats(0.01, 10.0))
def test_a_step_is_linear_in_the_server_rate(history: list[Cohort], rate: float) -> None:
    """The first round of every optimizer; afterwards x differs, which layer-wise rules read."""
    for make in (fl.fedavg, fl.fedavgm, fl.fedadagrad, fl.fedadam, fl.fedyogi, fl.fedlars, fl.fedlamb):
        x = model()
        [(one, _, _)] = run(make(client_lr=0.1, server_lr=1.0), history[:1])
        [(other, _, _)] = run(make(client_lr=0.1, server_lr=rate), history[:1])
        for name, leaf in x.items():
            expected = leaf - rate * (leaf - one[name])
            torch.testing.assert_close(other[name], expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
