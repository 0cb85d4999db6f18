"""Partitioners against the laws, worked numbers and processes of spec section 9."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import partition
from fedloom.data.allocation import choose_classes, reassign, renormalise, round_shares, take_or_reassign
from fedloom.errors import FedloomError

Parts = list[np.ndarray]
LAW = settings(deadline=None, max_examples=50)

# name -> (partitioner of labels, clients and seed; the size that every client must have, or None where it varies)
TABLE: dict[str, tuple[Callable[[np.ndarray, int, int], Parts], Callable[[int, int], int] | None]] = {
    "iid": (lambda y, n, s: partition.iid(len(y), n, s), None),
    "dirichlet 0": (lambda y, n, s: partition.dirichlet(y, n, 0.0, s), lambda rows, n: rows // n),
    "dirichlet 1e-300": (lambda y, n, s: partition.dirichlet(y, n, 1e-300, s), lambda rows, n: rows // n),
    "dirichlet 0.1": (lambda y, n, s: partition.dirichlet(y, n, 0.1, s), lambda rows, n: rows // n),
    "dirichlet inf": (lambda y, n, s: partition.dirichlet(y, n, math.inf, s), lambda rows, n: rows // n),
    "dirichlet frequency": (
        lambda y, n, s: partition.dirichlet(y, n, 1.0, s, concentration="alpha", prior="frequency"),
        lambda rows, n: rows // n,
    ),
    "dirichlet_fednlp": (lambda y, n, s: partition.dirichlet_fednlp(y, n, 0.5, s), None),
    "pachinko": (lambda y, n, s: partition.pachinko(y, y // 2, n, len(y) // n, seed=s), lambda rows, n: rows // n),
    "class_mix": (
        lambda y, n, s: partition.class_mix(y, iid=n, skewed=0, per_client=len(y) // n, seed=s),
        lambda rows, n: rows // n,
    ),
    "shards": (lambda y, n, s: partition.shards(y, n, 2, s), lambda rows, n: 2 * (rows // (2 * n))),
    "blocks": (lambda y, n, s: partition.blocks(y, n, 1, s), lambda rows, n: rows // n),
}


def class_counts(parts: Parts, labels: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(labels[part], minlength=int(labels.max()) + 1) for part in parts])


def check_disjoint(parts: Parts, rows: int) -> None:
    assert all(part.dtype == np.int64 and part.ndim == 1 and part.size for part in parts)
    everything = np.concatenate(parts)
    assert everything.min() >= 0
    assert everything.max() < rows
    assert np.unique(everything).size == everything.size


@pytest.mark.parametrize("name", TABLE)
@settings(LAW, max_examples=25)
@given(
    labels=st.lists(st.integers(0, 6), min_size=2, max_size=60).map(np.array),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**64),
)
def test_laws(name: str, labels: np.ndarray, clients: int, seed: int) -> None:
    clients = min(clients, len(labels) // 2 if name == "shards" else len(labels))
    make, size = TABLE[name]
    parts = make(labels, clients, seed)
    assert len(parts) == clients
    check_disjoint(parts, len(labels))
    if size is not None:
        assert [len(part) for part in parts] == [size(len(labels), clients)] * clients
    again = make(labels, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("name", TABLE)
def test_another_seed_is_another_partition(name: str) -> None:
    labels = np.arange(400) % 8
    first, second = (TABLE[name][0](labels, 10, seed) for seed in (1, 2))
    assert any(not np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", [name for name in TABLE if name not in {"shards", "blocks"}])
def test_rows_of_one_class_are_dealt_at_random(name: str) -> None:
    first = TABLE[name][0](np.zeros(100, int), 2, 0)[0]
    assert 10 < np.sum(first < 50) < 40  # hypergeometric: 25, give or take 2.5
    assert not np.array_equal(first, np.sort(first))


@pytest.mark.parametrize("name", [name for name in TABLE if name not in {"iid", "pachinko", "class_mix"}])
def test_labels_may_be_tensors_or_lists(name: str) -> None:
    labels = np.repeat(np.arange(5), 12)
    expected = TABLE[name][0](labels, 6, 3)
    for same in (torch.from_numpy(labels), labels.tolist(), np.array(list("abcde"))[labels]):
        assert all(np.array_equal(a, b) for a, b in zip(expected, TABLE[name][0](same, 6, 3), strict=True))


@pytest.mark.parametrize("name", [name for name in TABLE if name not in {"shards", "class_mix", "pachinko"}])
def test_more_clients_than_rows_is_an_error(name: str) -> None:
    with pytest.raises(FedloomError, match=r"expected at most 3.*got (clients )?4"):
        TABLE[name][0](np.array([0, 1, 1]), 4, 0)


# 9.1 Hsu Dirichlet


def one_draw_at_a_time(
    sizes: np.ndarray, clients: int, concentration: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Section 9.1 to the letter: after every single draw, zero and renormalise all rows, reset the all-zero ones."""
    unused, counts = sizes.copy(), np.zeros((clients, sizes.size), int)
    q = rng.dirichlet(concentration, clients)
    for k in range(clients):
        for uniform in rng.random(sizes.sum() // clients):
            c = min(int(np.searchsorted(np.cumsum(q[k]), uniform, side="right")), int(np.flatnonzero(q[k])[-1]))
            counts[k, c] += 1
            unused[c] -= 1
            if unused[c] == 0 and unused.any():
                q[:, c] = 0
                q[q.sum(1) == 0] = unused
                q /= q.sum(1, keepdims=True)
    return counts


@pytest.mark.parametrize("alpha", [0.03, 1.0, 30.0])
def test_blocks_of_draws_are_the_one_at_a_time_process(alpha: float) -> None:
    sizes, clients, trials = np.array([6, 14, 20]), 5, 600
    labels = np.repeat(np.arange(3), sizes)
    rng = np.random.default_rng(8)
    ours = np.stack([class_counts(partition.dirichlet(labels, clients, alpha, s), labels) for s in range(trials)])
    theirs = np.stack([one_draw_at_a_time(sizes, clients, np.full(3, alpha / 3), rng) for _ in range(trials)])
    for moment in (1, 2):
        a, b = ours.astype(float) ** moment, theirs.astype(float) ** moment
        error = np.sqrt((a.var(0) + b.var(0)) / trials)
        assert (np.abs(a.mean(0) - b.mean(0)) < 4.5 * error + 1e-9).all()


def test_large_alpha_is_multinomial_noise() -> None:
    labels = np.repeat(np.arange(10), 1000)
    counts = class_counts(partition.dirichlet(labels, 50, 1e6), labels)[:40]  # the last ones take what is left
    chi_square = ((counts - 20) ** 2 / 20).sum(1)
    assert abs(chi_square.mean() - 9) < 4 * math.sqrt(18 / 40)
    assert np.array_equal(counts.sum(1), np.full(40, 200))


def test_small_alpha_is_one_class_until_classes_run_out() -> None:
    labels = np.repeat(np.arange(10), 1000)
    counts = class_counts(partition.dirichlet(labels, 50, 1e-6), labels)
    assert (counts[:5] == 200).sum() == 5
    assert ((counts == 200).sum(1) == 1).mean() > 0.6


def test_alpha_zero_gives_every_class_the_same_number_of_clients() -> None:
    labels = np.tile(np.arange(10), 100)
    counts = class_counts(partition.dirichlet(labels, 20, 0), labels)
    assert np.array_equal(np.sort(counts.argmax(1)), np.repeat(np.arange(10), 2))
    assert (counts.max(1) == 50).all()
    assert not np.array_equal(counts.argmax(1), np.sort(counts.argmax(1)))


def test_alpha_zero_apportions_clients_by_the_prior() -> None:
    labels = np.repeat([0, 1], [300, 100])
    counts = class_counts(partition.dirichlet(labels, 8, 0, prior="frequency"), labels)
    assert counts.max(1).tolist() == [50] * 8
    assert (counts[:, 0] == 50).sum() == 6


def test_alpha_zero_leaves_an_uneven_share_to_chance() -> None:
    clients = [np.bincount(partition._apportion(15, np.full(10, 0.1), np.random.default_rng(s))) for s in range(20)]
    assert all(sorted(each) == [1] * 5 + [2] * 5 for each in clients)
    assert len({tuple(each) for each in clients}) > 10


def test_the_two_readings_differ_by_the_number_of_classes() -> None:
    labels = np.tile(np.arange(10), 100)
    entries_alpha = partition.dirichlet(labels, 20, 0.1, seed=5, concentration="alpha")
    ten_times = partition.dirichlet(labels, 20, 1.0, seed=5, concentration="alpha*p")
    paper = partition.dirichlet(labels, 20, 0.1, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(entries_alpha, ten_times, strict=True))
    distinct = [np.mean((class_counts(parts, labels) > 0).sum(1)) for parts in (paper, entries_alpha)]
    assert distinct[0] < distinct[1]


def test_prior_is_the_mean_of_the_mixes() -> None:
    labels = np.repeat([0, 1, 2], [3000, 3000, 3000])
    counts = class_counts(partition.dirichlet(labels, 90, math.inf, prior=[3, 1, 0]), labels)[:20]
    assert counts[:, 2].sum() == 0
    assert abs(counts[:, 0].mean() - 75) < 4 * math.sqrt(100 * 0.75 * 0.25 / 20)
    by_frequency = class_counts(
        partition.dirichlet([0] * 90 + [1] * 10, 5, 1e9, prior="frequency"), np.repeat([0, 1], [90, 10])
    )
    assert by_frequency[0, 0] > 12


def test_an_exhausted_row_is_reset_to_what_remains() -> None:
    labels = np.repeat([0, 1, 2], [10, 60, 30])
    shares = [class_counts(partition.dirichlet(labels, 2, 1e9, s, prior=[1, 0, 0]), labels)[0] for s in range(200)]
    mean = np.mean(shares, axis=0)
    assert mean[0] == 10
    assert abs(mean[1] - 40 * 2 / 3) < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -1}, "alpha: expected a number, 0 or more, got -1"),
        ({"alpha": math.nan}, "alpha: .* got nan"),
        ({"alpha": "much"}, "alpha: .* got 'much'"),
        ({"alpha": 1, "concentration": "alpha*q"}, r"concentration: .* did you mean 'alpha\*p'"),
        ({"alpha": 1, "prior": "frequencies"}, "prior: .* did you mean 'frequency'"),
        ({"alpha": 1, "prior": [1, 2, 3]}, "prior: expected 2 non-negative numbers"),
        ({"alpha": 1, "prior": [0, 0]}, "prior: expected 2 non-negative numbers"),
        ({"alpha": 1, "seed": -3}, "seed: expected a whole number, 0 or more, got -3"),
        ({"alpha": 1, "clients": 0}, "clients: expected a whole number, 1 or more, got 0"),
        ({"alpha": 1, "clients": 1.5}, "clients: .* got 1.5"),
        ({"alpha": 1, "labels": np.eye(2)}, r"labels: expected one label per row, got shape \(2, 2\)"),
        ({"alpha": 1, "labels": []}, r"labels: expected one label per row, got shape \(0,\)"),
    ],
)
def test_dirichlet_errors(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(FedloomError, match=message):
        partition.dirichlet(**{"labels": [0, 1, 0, 1], "clients": 2, **arguments})  # type: ignore[arg-type]


# 9.2 FedNLP


def reassign_as_written(need: int, unused: list[int]) -> list[int]:
    """REASSIGN of section 9.2, class by class, in exact fractions, second pass included."""
    total, given, left = sum(unused), [0] * len(unused), need
    for _ in range(2):
        wanted = left
        for j in sorted(range(len(unused)), key=lambda j: unused[j]):
            share = min(-(-unused[j] * wanted // max(total, 1)), unused[j] - given[j], left)
            given[j] += share
            left -= share
    return given


def fednlp_as_written(q: list[float], size: int, unused: list[int]) -> list[int]:
    """One client of section 9.2, class by class."""
    taken, room = [0] * len(q), size
    for c in range(len(q)):
        want = round(q[c] * size)
        if want >= room:
            want, room = room, 0
        else:
            want = room if c == len(q) - 1 else want
            room -= want
        here = min(want, unused[c])
        taken[c] += here
        unused[c] -= here
        if here < want:
            unused[c] = 0
            for j, more in enumerate(reassign_as_written(want - here, unused)):
                taken[j] += more
                unused[j] -= more
    return taken


def test_reassign_example() -> None:
    assert reassign(2, np.array([0, 3, 1])).tolist() == [0, 1, 1]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 60))
@LAW
def test_reassign_gives_what_is_needed_or_everything(unused: list[int], need: int) -> None:
    given = reassign(need, np.array(unused))
    assert given.sum() == min(need, sum(unused))
    assert (given <= unused).all()
    assert given.tolist() == reassign_as_written(need, unused)


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0.001, 1)), min_size=1, max_size=7), st.data())
@LAW
def test_fednlp_client_as_written(classes: list[tuple[int, float]], data: st.DataObject) -> None:
    unused = [count for count, _ in classes]
    size = data.draw(st.integers(0, sum(unused)))
    q = np.array([share for _, share in classes])
    q /= q.sum()
    left = np.array(unused)
    taken = take_or_reassign(round_shares(q[None], size)[0], left)
    assert taken.tolist() == fednlp_as_written(q.tolist(), size, unused)
    assert left.tolist() == unused
    assert taken.sum() == size


def test_fednlp_rounds_half_to_even() -> None:
    assert round_shares(np.array([[0.25, 0.25, 0.5]]), 10).tolist() == [[2, 2, 6]]


def test_fednlp_sizes_of_20_newsgroups() -> None:
    labels = np.random.default_rng(0).integers(0, 20, 11314)
    sizes = [len(part) for part in partition.dirichlet_fednlp(labels, 100, 0.1)]
    assert sizes == [113] * 99 + [127]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 40), st.floats(1e-3, 1e3))
@LAW
def test_fednlp_covers_every_row(labels: list[int], clients: int, alpha: float) -> None:
    clients = min(clients, len(labels))
    parts = partition.dirichlet_fednlp(labels, clients, alpha)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert [len(part) for part in parts[:-1]] == [len(labels) // clients] * (clients - 1)


def test_fednlp_skew_follows_alpha() -> None:
    labels = np.tile(np.arange(10), 500)
    most = [class_counts(partition.dirichlet_fednlp(labels, 50, alpha), labels).max(1).mean() for alpha in (0.1, 1e6)]
    assert most[0] > 70
    assert most[1] < 13


# 9.3 Pachinko


def test_renormalise_example() -> None:
    theta = renormalise(np.log([0.2, 0.3, 0.5]), np.array([True, False, True]))
    assert theta == pytest.approx([0.2857142857, 0, 0.7142857143], abs=1e-10)


def test_renormalise_survives_what_a_sum_would_not() -> None:
    theta = renormalise(np.array([[0.0, -2000.0, -2001.0]]), np.array([[False, True, True]]))
    assert theta[0] == pytest.approx([0, 1 / (1 + math.exp(-1)), 1 / (1 + math.e)])
    assert renormalise(np.zeros(2), np.array([False, False])).tolist() == [0, 0]


def pachinko_one_draw_at_a_time(
    tree: dict[int, dict[int, int]], clients: int, size: int, alpha: float, beta: float, rng: np.random.Generator
) -> np.ndarray:
    """Algorithm 5 to the letter, on counts."""
    counts = np.zeros((clients, sum(map(len, tree.values()))), int)
    tree = {c: dict(children) for c, children in tree.items()}

    def drop(theta: dict[int, float], entry: int) -> dict[int, float]:
        total = sum(value for key, value in theta.items() if key != entry)
        return {key: value / total for key, value in theta.items() if key != entry}

    for k in range(clients):
        root = dict(zip(tree, rng.dirichlet([alpha] * len(tree)), strict=True))
        leaves = {c: dict(zip(tree[c], rng.dirichlet([beta] * len(tree[c])), strict=True)) for c in tree}
        for _ in range(size):
            c = list(root)[np.searchsorted(np.cumsum(list(root.values()))[:-1], rng.random())]
            y = list(leaves[c])[np.searchsorted(np.cumsum(list(leaves[c].values()))[:-1], rng.random())]
            counts[k, y] += 1
            tree[c][y] -= 1
            if tree[c][y] == 0:
                del tree[c][y]
                if tree[c]:
                    leaves[c] = drop(leaves[c], y)
                else:
                    del tree[c]
                    root = drop(root, c) if tree else root
    return counts


def test_pachinko_is_the_one_at_a_time_process() -> None:
    tree, trials = {0: {0: 3, 1: 7}, 1: {2: 6}, 2: {3: 8, 4: 5, 5: 3}}, 600
    fine = np.repeat(np.arange(6), [3, 7, 6, 8, 5, 3])
    coarse = np.array([0, 0, 1, 2, 2, 2])[fine]
    rng = np.random.default_rng(3)
    ours = np.stack(
        [class_counts(partition.pachinko(fine, coarse, 4, 8, 0.5, 2.0, seed), fine) for seed in range(trials)]
    )
    theirs = np.stack([pachinko_one_draw_at_a_time(tree, 4, 8, 0.5, 2.0, rng) for _ in range(trials)])
    for moment in (1, 2):
        a, b = ours.astype(float) ** moment, theirs.astype(float) ** moment
        error = np.sqrt((a.var(0) + b.var(0)) / trials)
        assert (np.abs(a.mean(0) - b.mean(0)) < 4.5 * error + 1e-9).all()


def test_pachinko_small_alpha_stays_under_one_coarse_label() -> None:
    fine = np.tile(np.arange(20), 100)
    parts = partition.pachinko(fine, fine // 5, 8, 50, alpha=1e-4, beta=10.0)
    assert all(np.unique(fine[part] // 5).size == 1 for part in parts)
    assert all(np.unique(fine[part]).size == 5 for part in parts)


def test_pachinko_on_cifar_100() -> None:
    root = os.environ.get("FEDLOOM_DATA")
    if not root:
        pytest.skip("FEDLOOM_DATA is not set")
    path = Path(root) / "CIFAR100" / "labels.npz"
    if not path.exists():
        pytest.skip(f"{path} is missing")
    with np.load(path, allow_pickle=False) as labels:
        fine, coarse = labels["train_fine"], labels["train_coarse"]
    parts = partition.pachinko(fine, coarse, clients=500, per_client=100)
    check_disjoint(parts, 50_000)
    assert {len(part) for part in parts} == {100}
    distinct = [np.unique(fine[part]).size for part in parts]
    assert 20 <= np.median(distinct) <= 30
    assert max(distinct) > 35


def test_pachinko_errors() -> None:
    with pytest.raises(FedloomError, match=r"per_client: expected at most 2 \(4 rows over 2 clients\), got 3"):
        partition.pachinko([0, 1, 2, 3], [0, 0, 1, 1], 2, 3)
    with pytest.raises(FedloomError, match="coarse: expected 4 labels, as many as fine, got 3"):
        partition.pachinko([0, 1, 2, 3], [0, 0, 1], 2, 1)
    with pytest.raises(FedloomError, match="row 0: expected one coarse label for every fine label"):
        partition.pachinko([0, 1, 0, 3], [0, 0, 1, 1], 2, 1)
    with pytest.raises(FedloomError, match="beta: expected a number, more than 0 and finite, got 0"):
        partition.pachinko([0, 1, 2, 3], [0, 0, 1, 1], 2, 1, beta=0)


# 9.4 FedAdp's mixes


def test_class_mix_has_iid_and_skewed_clients() -> None:
    labels = np.tile(np.arange(10), 6000)
    parts = partition.class_mix(labels, iid=3, skewed=7, classes=2, per_client=600)
    check_disjoint(parts, 60_000)
    counts = class_counts(parts, labels)
    assert (counts > 0).sum(1).tolist() == [10] * 3 + [2] * 7
    assert counts.sum(1).tolist() == [600] * 10
    assert (np.abs(counts[3:].max(1) - 300) < 60).all()  # uniform over the union of two equal classes


def test_class_mix_of_several_kinds() -> None:
    labels = np.repeat(np.arange(10), 1000)
    parts = partition.class_mix(labels, iid=2, skewed=3, classes=[1, 1, 2], per_client=300)
    assert (class_counts(parts, labels) > 0).sum(1).tolist() == [10, 10, 1, 1, 2]


@pytest.mark.parametrize(("skewed", "classes"), [(7, 1), (5, 2), (7, 2), (10, 3)])
def test_class_mix_without_repeats_deals_every_class_before_one_comes_again(skewed: int, classes: int) -> None:
    labels = np.tile(np.arange(10), 1000)
    for seed in range(5):
        parts = partition.class_mix(
            labels, iid=2, skewed=skewed, classes=classes, per_client=100, seed=seed, repeat=False
        )
        has = class_counts(parts[2:], labels) > 0
        assert (has.sum(1) == classes).all()
        for clients in range(1, skewed + 1):
            owners = has[:clients].sum(0)
            assert owners.max() - owners.min() <= 1
    draws = [
        class_counts(partition.class_mix(labels, 0, 7, seed=s, repeat=False), labels)[0].argmax() for s in range(9)
    ]
    assert len(set(draws)) > 1


def test_class_mix_cases() -> None:
    labels = np.tile(np.arange(10), 6000)
    one = (class_counts(partition.class_mix(labels, case=1, seed=4), labels) > 0).sum(1)
    assert sorted(one) == list(range(1, 11))
    assert one.tolist() != sorted(one)
    two = (class_counts(partition.class_mix(labels, case=2, seed=4), labels) > 0).sum(1)
    assert ((two[:5] >= 1) & (two[:5] <= 5)).all()
    assert ((two[5:] >= 6) & (two[5:] <= 10)).all()


def test_class_mix_redraws_classes_that_are_spent() -> None:
    labels = np.repeat(np.arange(4), 100)  # one class serves one client of 60, so four clients need all four
    for seed in range(20):
        counts = class_counts(partition.class_mix(labels, iid=0, skewed=4, classes=1, per_client=60, seed=seed), labels)
        assert sorted(counts.argmax(1)) == [0, 1, 2, 3]


def test_class_mix_without_repeats_redraws_among_those_that_fewest_have() -> None:
    labels = np.repeat(np.arange(4), [30, 20, 100, 400])  # the first two together are too few for a client of 60
    for seed in range(20):
        parts = partition.class_mix(labels, iid=0, skewed=2, classes=2, per_client=60, seed=seed, repeat=False)
        first, second = (set(labels[part]) for part in parts)
        assert first != second


def test_class_mix_error_when_no_classes_suffice() -> None:
    labels = np.repeat(np.arange(4), 100)
    with pytest.raises(FedloomError, match="client 4: expected 1 classes that hold 60 unused rows, got at most 40"):
        partition.class_mix(labels, iid=0, skewed=5, classes=1, per_client=60)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.data())
@LAW
def test_chosen_classes_suffice_whenever_any_do(unused: list[int], data: st.DataObject) -> None:
    number = data.draw(st.integers(1, len(unused)))
    need = data.draw(st.integers(1, sum(unused) + 1))
    chosen = choose_classes(number, need, np.array(unused), np.random.default_rng(data.draw(st.integers(0, 99))))
    if sum(sorted(unused)[-number:]) < need:
        assert chosen is None
    else:
        assert chosen is not None
        assert len(set(chosen.tolist())) == number
        assert sum(unused[c] for c in chosen) >= need


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 5}, "classes: expected at most 4"),
        ({"classes": [1, 2]}, "classes: expected 7 numbers, one per skewed, got 2"),
        ({"iid": 0, "skewed": 0}, "at least 1 client"),
        ({"repeat": "false"}, "repeat: expected True or False, got 'false'"),
        ({"case": 3}, "case: expected 1, 2 or None, got 3"),
        ({"case": 1}, "expected at least 10 classes in labels, got 4"),
        ({"case": 2, "iid": 5}, "case=2: expected no iid, skewed or classes beside it, got iid=5"),
        ({"per_client": 41}, r"per_client: expected at most 40 \(400 rows over 10 clients\), got 41"),
    ],
)
def test_class_mix_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FedloomError, match=message):
        partition.class_mix(np.repeat(np.arange(4), 100), **{"per_client": 10, **arguments})


# 9.5 and 9.6 shards and blocks


def test_shards_are_runs_of_the_sorted_rows() -> None:
    labels = np.random.default_rng(1).integers(0, 10, 6000)
    place = np.empty(6000, int)
    place[np.argsort(labels, kind="stable")] = np.arange(6000)
    parts = partition.shards(labels, 100)
    assert sorted(np.concatenate(parts)) == list(range(6000))
    for part in parts:
        shards, counts = np.unique(place[part] // 30, return_counts=True)
        assert counts.tolist() == [30, 30]
        assert len(shards) == 2


def test_shards_leave_out_a_random_remainder() -> None:
    labels = np.repeat(np.arange(10), 11)
    left_out = [np.setdiff1d(np.arange(110), np.concatenate(partition.shards(labels, 10, 2, seed))) for seed in (0, 1)]
    assert [rows.size for rows in left_out] == [10, 10]
    assert np.unique(labels[left_out[0]]).size > 3
    assert not np.array_equal(*left_out)


def test_blocks_of_one_class() -> None:
    labels = np.random.default_rng(2).permutation(np.repeat(np.arange(10), 50))
    counts = class_counts(partition.blocks(labels, 10), labels)
    assert np.array_equal(np.sort(counts.argmax(1)), np.arange(10))
    assert (counts.max(1) == 50).all()


@given(st.integers(0, 1000), st.integers(1, 5))
@LAW
def test_blocks_are_of_different_classes(seed: int, each: int) -> None:
    labels = np.repeat(np.arange(5), 120)  # 2 * each blocks of 60 // each rows a class; at each=5, one for every client
    counts = class_counts(partition.blocks(labels, 10, each, seed), labels)
    assert (np.sort(counts, axis=1)[:, -each:] == 60 // each).all()
    assert (counts.sum(1) == 60).all()


def test_blocks_pair_classes_at_random() -> None:
    labels = np.repeat(np.arange(10), 40)
    pairs = {tuple(np.unique(labels[part])) for seed in range(20) for part in partition.blocks(labels, 10, 2, seed)}
    assert len(pairs) > 40  # of 45


def test_blocks_and_shards_errors() -> None:
    with pytest.raises(FedloomError, match="class 0: expected at most 5 blocks, one per client, got 9 of 10"):
        partition.blocks([0] * 90 + [1] * 10, 5, 2)
    with pytest.raises(FedloomError, match="expected at most 3 shards of a row each, got 2 clients x 2 shards"):
        partition.shards([0, 1, 1], 2)


# 9.7 IID and natural


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 9))
@LAW
def test_iid_covers_with_sizes_that_differ_by_one(count: int, clients: int, seed: int) -> None:
    clients = min(clients, count)
    parts = partition.iid(count, clients, seed)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    assert {len(part) for part in parts} <= {count // clients, -(-count // clients)}


@given(st.lists(st.integers(-3, 70000), min_size=1, max_size=50))
@LAW
def test_natural_is_by_owner(owners: list[int]) -> None:
    parts = partition.natural(owners)
    assert [{owners[row] for row in part} for part in parts] == [{owner} for owner in sorted(set(owners))]
    assert all((np.diff(part) > 0).all() for part in parts)
    assert sum(map(len, parts)) == len(owners)


def test_natural_with_more_owners_than_sixteen_bits() -> None:
    owners = np.arange(70_000)[::-1] // 2
    parts = partition.natural(np.concatenate([owners, np.arange(70_000)]))
    assert len(parts) == 70_000
    assert parts[3].tolist() == [69_992, 69_993, 70_003]
