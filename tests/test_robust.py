"""Rules that stand hostile clients: their numbers, the bounds they keep, and what they are used together with."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_federations import noise
from test_lanes import Shared
from test_server_graphs import play as rounds
from test_server_graphs import recorded, same
from torch import Tensor

import fedloom as fl
from fedloom.algorithm import Algorithm
from fedloom.ranks import ALONE
from fedloom.server_graphs import ServerGraphs
from fedloom.types import Params, Report
from fedloom.weighting import Weighting

RULES: dict[str, Weighting] = {
    "multi_krum": fl.multi_krum(0.3),
    "krum": fl.multi_krum(0.3, selected=1),
    "geometric_median": fl.geometric_median(),
    "centred_clipping": fl.centred_clipping(0.5, iterations=2),
    "coordinate_median": fl.coordinate_median(),
    "trimmed_mean": fl.trimmed_mean(0.3),
    "norm_bounding": fl.norm_bounding(0.5, base=fl.by_examples()),
}


def cohort(rows: Tensor, **fields: Any) -> fl.Cohort:
    """Client k sends row k."""
    count = len(rows)
    given: dict[str, Any] = {
        "clients": torch.arange(count),
        "examples": 1 + torch.arange(count),
        "updates": {"w": rows},
    }
    return fl.Cohort(**(given | fields))


def combined(rule: Weighting, *rounds: Tensor, **fields: Any) -> tuple[Tensor, Report]:
    """The last round's pseudo-gradient: FedAvg from zero, with every round's rows."""
    algorithm = fl.replace(fl.fedavg(client_lr=0.1), combine=rule)
    params: Params = {"w": torch.zeros(rounds[0].shape[1], dtype=torch.float64)}
    state = algorithm.init(params, 100)
    before = params
    for rows in rounds:
        before = params
        params, state, report = algorithm.apply(params, state, cohort(rows, **fields))
    return before["w"] - params["w"], report


def krum_by_hand(rows: np.ndarray, f: int, m: int) -> list[int]:
    """Blanchard et al. 2017, section 4, word for word."""
    n = len(rows)
    scores = []
    for i in range(n):
        apart = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(apart[: n - f - 2]))
    return sorted(np.argsort(scores, kind="stable")[:m].tolist())


@pytest.mark.parametrize("seed", range(5))
def test_multi_krum_selects_as_brute_force_does_far_from_the_origin(seed: int) -> None:
    """Updates of 1e-2 around a point of norm 50, in float32: a matrix of inner products would lose the differences."""
    point = 50 * torch.nn.functional.normalize(noise(400, seed=seed), dim=0)
    rows = (point + 1e-2 * torch.nn.functional.normalize(noise(12, 400, seed=100 + seed), dim=1)).float()
    got, report = combined(fl.multi_krum(0.25), rows)
    exact = rows.double().numpy()
    chosen = krum_by_hand(exact, f=3, m=9)
    assert torch.nonzero(report.clients.weight).flatten().tolist() == chosen
    np.testing.assert_allclose(got.numpy(), exact[chosen].mean(0), rtol=1e-12)


def test_krum_counts_a_client_as_often_as_it_was_drawn() -> None:
    rows = torch.cat([noise(6, 5), 100 + noise(2, 5, seed=1)])
    twice = torch.tensor([1, 1, 3, 1, 1, 1, 1, 1])
    _, report = combined(fl.multi_krum(0.2, selected=4), rows, multiplicity=twice)
    stood = rows.repeat_interleave(twice, 0).numpy()
    owner = torch.arange(8).repeat_interleave(twice)
    expected = torch.bincount(owner[krum_by_hand(stood, f=2, m=4)], minlength=8) / 4
    torch.testing.assert_close(report.clients.weight, expected.double())


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_the_geometric_median_is_where_all_pulls_cancel(scale: float) -> None:
    rows = scale * noise(9, 6)
    got, report = combined(fl.geometric_median(iterations=300, smoothing=1e-9 * scale), rows)
    pulls = torch.nn.functional.normalize(rows - got, dim=1).sum(0)
    assert float(pulls.norm()) < 1e-8
    assert float(report.clients.weight.sum()) == pytest.approx(1)


def test_the_geometric_median_weighs_by_its_base() -> None:
    rows = noise(5, 3)
    got, _ = combined(fl.geometric_median(300, base=fl.by_examples()), rows)
    pulls = (torch.arange(1.0, 6).unsqueeze(1) * torch.nn.functional.normalize(rows - got, dim=1)).sum(0)
    assert float(pulls.norm()) < 1e-8


def test_a_far_update_costs_the_geometric_median_no_iterations() -> None:
    rows = torch.cat([1e-2 * noise(8, 40), 1e30 * noise(3, 40, seed=1)])
    few, _ = combined(fl.geometric_median(10), rows)
    many, _ = combined(fl.geometric_median(500), rows)
    assert float((few - many).norm()) < 1e-3 * float(rows[:8].norm(dim=1).mean())


def test_centred_clipping_goes_on_from_the_last_round() -> None:
    first, second = noise(5, 4), noise(5, 4, seed=1)
    v = np.zeros(4)
    for rows in (first.numpy(), second.numpy()):
        for _ in range(3):
            away = rows - v
            v = v + (away * np.minimum(1, 0.7 / np.linalg.norm(away, axis=1, keepdims=True))).mean(0)
    got, _ = combined(fl.centred_clipping(0.7, iterations=3), first, second)
    np.testing.assert_allclose(got.numpy(), v, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_median_and_trimmed_mean_by_coordinate(count: int) -> None:
    rows = noise(count, 7)
    median, _ = combined(fl.coordinate_median(), rows)
    np.testing.assert_allclose(median.numpy(), np.median(rows.numpy(), axis=0), rtol=1e-15)
    trimmed, _ = combined(fl.trimmed_mean(0.2), rows)
    cut = {1: 0, 2: 0, 5: 1, 8: 2}[count]
    expected = np.sort(rows.numpy(), axis=0)[cut : count - cut].mean(0)
    np.testing.assert_allclose(trimmed.numpy(), expected, rtol=1e-14)


def test_the_median_takes_buffers_too() -> None:
    algorithm = fl.replace(fl.fedavg(0.1), combine=fl.coordinate_median())
    params = {"w": torch.zeros(2)}
    state = algorithm.init(params, 3, buffers={"mean": torch.zeros(1)})
    sent = cohort(torch.zeros(3, 2), buffers={"mean": torch.tensor([[1.0], [1e30], [2.0]])})
    assert algorithm.apply(params, state, sent)[1].buffers["mean"].tolist() == [2.0]


def test_norm_bounding_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    got, _ = combined(fl.norm_bounding(1.0), rows)
    torch.testing.assert_close(got, torch.tensor([0.45, 0.6], dtype=torch.float64))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_clients_that_agree_are_followed(rule: Weighting) -> None:
    """Within its radius every rule is the mean of clients that all say the same."""
    row = 0.4 * torch.nn.functional.normalize(noise(1, 6), dim=1)
    got, _ = combined(rule, row.expand(7, 6).contiguous())
    torch.testing.assert_close(got, row[0])


# Bounds that hostile clients cannot break -----------------------------------------------------------------------------

SEEDS = st.integers(0, 10**6)
SIZES = st.tuples(st.integers(5, 16), st.floats(0, 0.45)).map(lambda pair: (pair[0], int(pair[0] * pair[1])))
"""Clients, and how many of them are hostile."""
FAR = st.sampled_from([1e-3, 1.0, 1e3, 1e12, 1e100])


def attacked(size: tuple[int, int], far: float, seed: int, together: bool) -> tuple[Tensor, Tensor]:
    """Rows of honest clients, and of all in some order; the hostile ones say the same, or each something else."""
    n, f = size
    honest = noise(1, 5, seed=seed) + noise(n - f, 5, seed=seed + 1)
    hostile = far * (noise(1, 5, seed=seed + 2).expand(f, 5) if together else noise(f, 5, seed=seed + 2))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return honest, torch.cat([honest, hostile])[order]


@settings(max_examples=60, deadline=None)
@given(SIZES, FAR, SEEDS, st.booleans())
def test_no_minority_moves_the_median_beyond_the_honest(size: Any, far: float, seed: int, together: bool) -> None:
    honest, rows = attacked(size, far, seed, together)
    got, _ = combined(fl.coordinate_median(), rows)
    assert bool((got >= honest.amin(0)).all()) and bool((got <= honest.amax(0)).all())


@settings(max_examples=60, deadline=None)
@given(SIZES, FAR, SEEDS, st.booleans())
def test_whom_it_cuts_cannot_move_the_trimmed_mean(size: Any, far: float, seed: int, together: bool) -> None:
    honest, rows = attacked(size, far, seed, together)
    got, _ = combined(fl.trimmed_mean(size[1] / size[0]), rows)
    slack = 1e-12 * honest.abs().amax()
    assert bool((got >= honest.amin(0) - slack).all()) and bool((got <= honest.amax(0) + slack).all())


@settings(max_examples=60, deadline=None)
@given(SIZES.filter(lambda size: 2 * size[1] + 2 < size[0]), FAR, SEEDS, st.booleans())
def test_multi_krum_stays_near_the_honest(size: Any, far: float, seed: int, together: bool) -> None:
    """Whoever is chosen scores no worse than an honest client, and has one among its nearest (2 f + 2 < n)."""
    honest, rows = attacked(size, far, seed, together)
    n, f = size
    got, _ = combined(fl.multi_krum(f / n), rows)
    across = float(torch.cdist(honest, honest).amax())
    assert float((got - honest).norm(dim=1).amin()) <= (1 + (n - f - 2) ** 0.5) * across * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(SIZES, FAR, SEEDS, st.booleans(), st.integers(1, 10))
def test_the_geometric_median_is_bounded_after_any_step(
    size: Any, far: float, seed: int, together: bool, iterations: int
) -> None:
    """No step increases the sum of distances, which at z is at least (1 - 2 e) ||z|| - 2 (1 - e) H above that at 0."""
    honest, rows = attacked(size, far, seed, together)
    got, _ = combined(fl.geometric_median(iterations), rows)
    e, most = size[1] / size[0], float(honest.norm(dim=1).amax())
    assert float(got.norm()) <= (3 - 2 * e) / (1 - 2 * e) * most + 1e-5


@settings(max_examples=40, deadline=None)
@given(SIZES, FAR, SEEDS, st.booleans(), st.integers(1, 3))
def test_clipping_bounds_how_far_a_round_goes(
    size: Any, far: float, seed: int, together: bool, iterations: int
) -> None:
    _, rows = attacked(size, far, seed, together)
    centred, _ = combined(fl.centred_clipping(0.5, iterations), rows)
    bounded, _ = combined(fl.norm_bounding(0.5), rows)
    assert float(centred.norm()) <= 0.5 * iterations * (1 + 1e-12)
    assert float(bounded.norm()) <= 0.5 * (1 + 1e-12)


# In company -----------------------------------------------------------------------------------------------------------


def clipped_yogi() -> Algorithm:
    return fl.replace(fl.fedyogi(client_lr=0.1, server_lr=0.1), upload=fl.adaptive_clip(initial=0.4))


BESIDE = {
    "multi_krum": lambda: fl.fedglad(fl.fedavgm(client_lr=0.1), gamma=0.5),
    "krum": lambda: fl.fednova(client_lr=0.1),
    "geometric_median": lambda: fl.scaffold(client_lr=0.1),
    "centred_clipping": lambda: fl.fedglad(clipped_yogi(), gamma=0.5),
    "coordinate_median": lambda: fl.fedglad(fl.feddyn(client_lr=0.1, alpha=0.5), gamma=0.5),
    "trimmed_mean": clipped_yogi,
    "norm_bounding": lambda: fl.fedlamb(client_lr=0.1, server_lr=0.1),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_keep_the_laws_in_any_algorithm(name: str) -> None:
    fl.check_algorithm(fl.replace(BESIDE[name](), combine=RULES[name]))


@pytest.mark.parametrize("name", RULES)
def test_glads_spread_is_at_least_one_where_clients_differ(name: str) -> None:
    """GSI^2 = sum_k p_k ||u_k||^2 / ||sum_k p_k u_k||^2, u_k being what the rule takes of client k."""
    algorithm = fl.replace(fl.fedglad(fl.fedavg(client_lr=0.1)), combine=RULES[name])
    params: Params = {"w": torch.zeros(6, dtype=torch.float64)}
    state = algorithm.init(params, 9)
    for seed in range(3):
        params, state, report = algorithm.apply(params, state, cohort(0.3 + noise(9, 6, seed=seed)))
        assert report["gsi"] >= 1 - 1e-12


def test_glads_spread_is_that_of_the_clipped_updates() -> None:
    """Three rounds carry the centre to v, of norm 3; then everybody is far away."""
    algorithm = fl.replace(fl.fedglad(fl.fedavg(client_lr=0.1)), combine=fl.centred_clipping(1.0))
    v = 3 * torch.nn.functional.normalize(noise(6), dim=0)
    params: Params = {"w": torch.zeros(6, dtype=torch.float64)}
    state = algorithm.init(params, 9)
    for _ in range(3):
        params, state, _ = algorithm.apply(params, state, cohort(v.expand(9, 6)))
    far = 1e3 * noise(9, 6, seed=1)
    clipped = v + torch.nn.functional.normalize(far - v, dim=1)
    report = algorithm.apply(params, state, cohort(far))[2]
    expected = float((clipped**2).sum(1).mean() / (clipped.mean(0) ** 2).sum()) ** 0.5
    assert report["gsi"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_ranks_and_lanes_come_to_the_bits_of_one_process(name: str) -> None:
    algorithm = fl.replace(fl.fedglad(fl.fedavg(client_lr=0.1)), combine=RULES[name])
    params: Params = {"w": torch.zeros(30, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}
    state = algorithm.init(params, 12)

    def chunk(lane: int) -> fl.Cohort:
        rows = noise(3, 31, seed=lane, dtype=torch.float32)
        own = 3 * lane + torch.arange(3)
        return fl.Cohort(own, 1 + own, {"w": rows[:, :30], "b": rows[:, 30]})

    def play(rank: int, world: int) -> tuple[Any, Any]:
        ranks = Shared(rank, world) if world > 1 else ALONE
        x, now = params, state
        for _ in range(2):
            intake = algorithm.open(x, now, ranks=ranks)
            for lane in range(4 * rank // world, 4 * (rank + 1) // world):
                intake.take(chunk(lane), lane)
            after = intake.close()
            x, now = after.params, after.state
        return x, now.combine

    alone, found = play(0, 1), {}
    threads = [threading.Thread(target=lambda r=rank: found.update({r: play(r, 2)})) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(2):
        for got, expected in zip(found[rank], alone, strict=True):
            assert got.keys() == expected.keys()
            assert all(torch.equal(got[leaf], expected[leaf]) for leaf in expected)


@pytest.mark.parametrize("name", RULES)
def test_rules_can_be_recorded(name: str) -> None:
    """On a GPU the server's side of a round is one launch: nothing waits for a number."""
    algorithm = fl.replace(fl.fedavg(client_lr=0.1), combine=RULES[name])
    graphs = ServerGraphs(recorded)
    for expected, got in zip(rounds(algorithm, 5, None), rounds(algorithm, 5, graphs), strict=True):
        same(expected[0], got[0])
        same(expected[1].combine, got[1].combine)
    assert graphs.made and not graphs.refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.multi_krum(0.5), "multi_krum attackers: expected a share below 0.5, a minority, got 0.5"),
        (lambda: fl.trimmed_mean(-0.1), r"trimmed_mean share: expected a number in \[0, 1\], got -0.1"),
        (lambda: fl.geometric_median(0), "iterations: expected a whole number of at least 1, got 0"),
        (lambda: fl.centred_clipping(0.0), "radius: expected a positive number, got 0.0"),
        (
            lambda: fl.norm_bounding(1.0, base=fl.multi_krum()),
            r"expected fl.by_examples\(\) or fl.uniform\(\) as a base",
        ),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(fl.FedloomError, match=message):
        make()


# Too few reports ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: fl.fedadam(0.1), lambda: fl.scaffold(0.1), lambda: fl.fedadp(0.1)])
def test_below_the_minimum_of_reports_nothing_changes(make: Any) -> None:
    algorithm = fl.replace(make(), upload=fl.adaptive_clip())
    params: Params = {"w": noise(5)}
    state = algorithm.init(params, 9)
    extra = {"control": {"w": noise(4, 5, seed=2)}}
    rows = noise(4, 5, seed=1)
    rows[2] = torch.nan
    after, unchanged, report = algorithm.apply(params, state, cohort(rows, extra=extra), min_reports=4)
    assert report["admitted"] == 3 and report["pseudo_gradient_norm"] == 0
    assert torch.equal(after["w"], params["w"]) and unchanged is state
    after, changed, report = algorithm.apply(params, state, cohort(rows, extra=extra), min_reports=3)
    assert not torch.equal(after["w"], params["w"]) and changed.round == 1
