"""Randomness as a function: even, independent of stacking and length, and the same on every machine."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom import random

seeds = st.integers(-(2**63), 2**64 - 1)


def test_known_values() -> None:
    """These numbers are part of the promise: a resumed run on another machine draws them again."""
    keys = random.key(0, 3, torch.tensor([5, 6]), "batches")
    assert keys.tolist() == [-8567650680813341518, 8316075575376990542]
    assert random.bits(keys[0], 2).tolist() == [-6640559631837356277, -5761101351189944839]
    assert random.permutation(keys[0], 6).tolist() == [0, 1, 3, 4, 2, 5]


def test_splitmix_finalizer() -> None:
    """SplitMix64 from state 0: the first outputs of the published generator."""
    state = torch.tensor([1, 2, 3]) * random._GOLDEN
    words = [word % 2**64 for word in random._mix(state).tolist()]
    assert words == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_every_part_of_a_key_matters() -> None:
    keys = [
        int(random.key(seed, round, client, purpose))
        for seed in (0, 1, -1, 2**40)
        for round in (0, 1, 2)
        for client in (0, 1, 2)
        for purpose in ("batches", "dropout", "sampling")
    ]
    assert len(set(keys)) == len(keys)


@given(seed=seeds, round=st.integers(0, 10**6), client=st.integers(0, 10**9))
def test_keys_of_a_stack_are_keys_of_its_clients(seed: int, round: int, client: int) -> None:
    stack = random.key(seed, round, torch.tensor([client, client + 1]), "batches")
    assert stack.dtype == torch.int64
    assert stack.tolist() == [int(random.key(seed, round, k, "batches")) for k in (client, client + 1)]


def test_keys_do_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    random.uniform(random.key(0, 0, 0, "x"), 100)
    random.keep_mask(random.key(0, 0, 0, "x"), 0, torch.Size([10]), 0.5)
    assert torch.get_rng_state().equal(before)


@given(seed=seeds, length=st.integers(1, 40), longer=st.integers(0, 40))
def test_a_draw_does_not_depend_on_how_many_follow(seed: int, length: int, longer: int) -> None:
    key = random.key(seed, 0, 0, "x")
    assert random.bits(key, length + longer)[:length].equal(random.bits(key, length))
    assert random.uniform(key, length + longer)[:length].equal(random.uniform(key, length))
    assert random.bits(key, length + longer)[:length].equal(random.bits(key, length))


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_uniform_numbers_are_even(seed: int) -> None:
    """Chi-squared over 64 cells, mean and variance, and the numbers lie in [0, 1)."""
    draws = random.uniform(random.key(seed, 0, torch.arange(16), "x"), 8192).flatten()
    assert draws.dtype == torch.float64
    assert bool((draws >= 0).all()) and bool((draws < 1).all())
    counts = torch.histc(draws, 64, 0, 1)
    expected = len(draws) / 64
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 63 + 5 * math.sqrt(2 * 63)
    assert float(draws.mean()) == pytest.approx(0.5, abs=5 / math.sqrt(12 * len(draws)))
    assert float(draws.var()) == pytest.approx(1 / 12, rel=0.02)


def test_neighbours_are_uncorrelated() -> None:
    """Along positions, along clients, rounds and seeds: counters that differ by one."""
    count = 20000
    bound = 5 / math.sqrt(count)
    one = random.uniform(random.key(0, 0, 0, "x"), count + 1)
    others = {
        "position": one[1:],
        "client": random.uniform(random.key(0, 0, 1, "x"), count),
        "round": random.uniform(random.key(0, 1, 0, "x"), count),
        "seed": random.uniform(random.key(1, 0, 0, "x"), count),
        "purpose": random.uniform(random.key(0, 0, 0, "y"), count),
    }
    for name, other in others.items():
        correlation = float(torch.corrcoef(torch.stack([one[:count], other]))[0, 1])
        assert abs(correlation) < bound, name


def test_all_64_bits_are_fair() -> None:
    words = random.bits(random.key(3, 0, 0, "x"), 20000)
    for position in range(64):
        share = float(((words >> position) & 1).double().mean())
        assert share == pytest.approx(0.5, abs=5 / math.sqrt(4 * 20000)), position


@given(seed=seeds, count=st.integers(1, 50))
def test_a_permutation_holds_everything_once(seed: int, count: int) -> None:
    keys = random.key(seed, 0, torch.arange(3), "batches")
    for row in random.permutation(keys, count):
        assert sorted(row.tolist()) == list(range(count))


@given(seed=seeds, lengths=st.lists(st.integers(0, 20), min_size=1, max_size=4), extra=st.integers(0, 10))
def test_a_clients_order_is_the_same_in_every_stack(seed: int, lengths: list[int], extra: int) -> None:
    """The first `length` entries permute the client's rows, whatever the padding; the padding follows in order."""
    count = max(lengths) + extra
    keys = random.key(seed, 0, torch.arange(len(lengths)), "batches")
    stacked = random.permutation(keys, count, torch.tensor(lengths))
    for key, length, row in zip(keys, lengths, stacked, strict=True):
        assert row[:length].tolist() == random.permutation(key, length).tolist()
        assert row[length:].tolist() == list(range(length, count))


def test_permutations_are_even() -> None:
    """All 24 orders of four come about equally often."""
    orders = random.permutation(random.key(0, 0, torch.arange(12000), "x"), 4)
    counts = torch.unique(orders, dim=0, return_counts=True)[1]
    assert len(counts) == 24
    chi2 = float(((counts - 500) ** 2 / 500).sum())
    assert chi2 < 23 + 5 * math.sqrt(46)


def test_vmap_gives_the_bits_of_a_loop() -> None:
    keys = random.key(7, 2, torch.arange(5), "x")
    lengths = torch.tensor([3, 0, 9, 5, 1])
    shape = torch.Size([4, 6])
    assert torch.func.vmap(lambda k: random.bits(k, 9))(keys).equal(torch.stack([random.bits(k, 9) for k in keys]))
    assert torch.func.vmap(lambda k: random.uniform(k, 9))(keys).equal(random.uniform(keys, 9))
    stacked = torch.func.vmap(lambda k, n: random.permutation(k, 9, n))(keys, lengths)
    assert stacked.equal(torch.stack([random.permutation(k, 9, n) for k, n in zip(keys, lengths, strict=True)]))
    masks = torch.func.vmap(lambda k: random.keep_mask(k, 1, shape, 0.3))(keys)
    assert masks.equal(torch.stack([random.keep_mask(k, 1, shape, 0.3) for k in keys]))


@pytest.mark.parametrize("drop", [0.0, 0.1, 0.5, 0.9])
def test_masks_keep_the_right_share(drop: float) -> None:
    mask = random.keep_mask(random.key(0, 0, 0, "dropout"), 0, torch.Size([200, 500]), drop)
    assert mask.dtype == torch.bool
    share = float(mask.double().mean())
    assert share == pytest.approx(1 - drop, abs=5 * math.sqrt(drop * (1 - drop) / mask.numel()))


def test_dropping_everything_keeps_nothing() -> None:
    assert not bool(random.keep_mask(random.key(0, 0, 0, "dropout"), 0, torch.Size([50]), 1.0).any())


def test_a_rows_mask_does_not_depend_on_the_rows_after_it() -> None:
    key = random.key(0, 0, 0, "dropout")
    long, short = (random.keep_mask(key, 2, torch.Size([rows, 7]), 0.5) for rows in (9, 4))
    assert long[:4].equal(short)


def test_masks_differ_between_sites_and_keys() -> None:
    shape = torch.Size([4096])
    keys = random.key(0, 0, torch.arange(2), "dropout")
    masks = [random.keep_mask(key, site, shape, 0.5) for key in keys for site in (0, 1, 2)]
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert float((one == other).double().mean()) == pytest.approx(0.5, abs=5 / math.sqrt(4 * 4096))


def test_neighbouring_entries_of_a_mask_are_independent() -> None:
    mask = random.keep_mask(random.key(5, 0, 0, "dropout"), 0, torch.Size([40000]), 0.5).double()
    for lag in (1, 2, 64, 1000):
        correlation = float(torch.corrcoef(torch.stack([mask[:-lag], mask[lag:]]))[0, 1])
        assert abs(correlation) < 5 / math.sqrt(40000), lag


def test_the_host_hashes_what_a_stack_and_a_device_hash() -> None:
    """NumPy's words where numbers can be looked at, torch's where they cannot."""
    clients, seeds = torch.arange(-3, 40), [k % 4 for k in range(43)]
    keys = random.key(seeds, 2, clients, "batches")
    assert torch.func.vmap(lambda key: random.bits(key, 9))(keys).equal(random.bits(keys, 9))
    assert torch.func.vmap(lambda key: random.permutation(key, 9))(keys).equal(random.permutation(keys, 9))
    assert torch.func.vmap(lambda client: random.key(5, 2, client, "x"))(clients).equal(random.key(5, 2, clients, "x"))
    alone = [random.key(seed, 2, int(client), "batches") for seed, client in zip(seeds, clients, strict=True)]
    assert keys.equal(torch.stack(alone))
    assert random.key([1, 2, 3], 0, torch.tensor([5]), "x").equal(random.key([1, 2, 3], 0, torch.tensor([5] * 3), "x"))
