"""Laws of the batch plan: every epoch is a fresh permutation of the client's own rows, and nobody else's business."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_federations import split
from torch import Tensor

import fedloom as fl
from fedloom import random
from fedloom.batches import Batching, Plan, joined, plan

SIZES = st.lists(st.integers(1, 23), min_size=1, max_size=6)
EPOCHS = st.integers(1, 3)
BATCH = st.one_of(st.none(), st.integers(1, 25))
SEED = st.integers(0, 2**40)
ROUND = st.integers(0, 10_000)


def federation(sizes: list[int]) -> fl.FederatedData:
    """Clients whose rows lie scattered over the data set, so that a row number is not its place."""
    total = sum(sizes)
    scattered = torch.randperm(total, generator=torch.Generator().manual_seed(total))
    parts = [scattered[part] for part in split(sizes)]
    return fl.federate(torch.zeros(total, 1), torch.zeros(total, dtype=torch.int64), parts)


def everyone(sizes: list[int], batching: Batching, seed: int = 0, round: int = 0, **options: Any) -> Plan:
    return plan(federation(sizes), torch.arange(len(sizes)), batching, seed, round, **options)


def batches(made: Plan, place: int) -> list[list[int]]:
    """The rows of each step of the client at `place`, without padding."""
    return [made.index[place, s, : made.sizes[place, s]].tolist() for s in range(int(made.steps[place]))]


def epochs_of(made: Plan, place: int, count: int) -> list[list[int]]:
    """The client's rows in the order it sees them, cut into `count` epochs."""
    steps = batches(made, place)
    size = len(steps) // count
    return [list(chain(*steps[epoch * size : (epoch + 1) * size])) for epoch in range(count)]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@given(SIZES, EPOCHS, BATCH, SEED, ROUND)
def test_every_epoch_covers_each_row_once(sizes: list[int], epochs: int, batch: int | None, seed: int, t: int) -> None:
    data = federation(sizes)
    made = plan(data, torch.arange(len(sizes)), Batching(epochs=epochs, batch_size=batch), seed, t)
    for client, size in enumerate(sizes):
        own = sorted(data.rows(client).tolist())
        assert [sorted(epoch) for epoch in epochs_of(made, client, epochs)] == [own] * epochs
        per_epoch = 1 if batch is None else ceil_div(size, batch)
        lengths = [len(rows) for rows in batches(made, client)]
        full = size if batch is None else batch
        last = size - full * (per_epoch - 1)  # the short last batch is kept
        assert lengths == ([full] * (per_epoch - 1) + [last]) * epochs
        assert not made.sizes[client, len(lengths) :].any()


@given(SIZES, EPOCHS, st.integers(1, 25), SEED)
def test_dropping_the_last_leaves_whole_batches(sizes: list[int], epochs: int, batch: int, seed: int) -> None:
    data = federation(sizes)
    made = plan(data, torch.arange(len(sizes)), Batching(epochs=epochs, batch_size=batch, drop_last=True), seed, 0)
    assert made.steps.tolist() == [epochs * (size // batch) for size in sizes]
    assert made.examples.tolist() == [size // batch * batch for size in sizes]
    for client in range(len(sizes)):
        own, steps = set(data.rows(client).tolist()), batches(made, client)
        assert all(len(rows) == batch for rows in steps)
        for epoch in epochs_of(made, client, epochs) if steps else []:
            assert len(set(epoch)) == len(epoch) and set(epoch) <= own


@given(SIZES, BATCH, st.integers(1, 12), SEED)
def test_fixed_steps_go_round_through_reshuffled_epochs(
    sizes: list[int], batch: int | None, steps: int, seed: int
) -> None:
    """A client sees the beginning of what it would see in ever more epochs."""
    fixed = everyone(sizes, Batching(steps=steps, batch_size=batch), seed)
    assert fixed.steps.tolist() == [steps] * len(sizes)
    long = everyone(sizes, Batching(epochs=steps, batch_size=batch), seed)
    for client in range(len(sizes)):
        assert batches(fixed, client) == batches(long, client)[:steps]


@given(SIZES, EPOCHS, BATCH, SEED, ROUND, st.data())
def test_a_clients_order_does_not_depend_on_its_stack(
    sizes: list[int], epochs: int, batch: int | None, seed: int, t: int, data: st.DataObject
) -> None:
    batching = Batching(epochs=epochs, batch_size=batch)
    federated = federation(sizes)
    together = plan(federated, torch.arange(len(sizes)), batching, seed, t)
    chosen = data.draw(st.permutations(range(len(sizes))))[: data.draw(st.integers(1, len(sizes)))]
    some = plan(federated, torch.tensor(chosen), batching, seed, t)
    for place, client in enumerate(chosen):
        assert batches(some, place) == batches(together, client)
        count = int(some.steps[place])
        assert torch.equal(some.keys[place, :count], together.keys[client, :count])


@given(SIZES, EPOCHS, BATCH, SEED)
def test_a_part_of_a_plan_is_the_plan_of_those_clients(
    sizes: list[int], epochs: int, batch: int | None, seed: int
) -> None:
    whole = everyone(sizes, Batching(epochs=epochs, batch_size=batch), seed)
    for place in range(len(sizes)):
        alone = plan(federation(sizes), torch.tensor([place]), Batching(epochs=epochs, batch_size=batch), seed, 0)
        part = whole.of(slice(place, place + 1))
        assert batches(part, 0) == batches(alone, 0)
        assert torch.equal(part.keys[:, : alone.keys.shape[1]], alone.keys)
        for name in ("clients", "examples", "steps"):
            assert torch.equal(getattr(part, name), getattr(alone, name))


@given(SIZES, BATCH)
def test_padding_repeats_rows_of_the_same_client(sizes: list[int], batch: int | None) -> None:
    data = federation(sizes)
    made = plan(data, torch.arange(len(sizes)), Batching(epochs=2, batch_size=batch), 0, 0)
    for client in range(len(sizes)):
        assert set(made.index[client].flatten().tolist()) <= set(data.rows(client).tolist())


@given(st.lists(st.integers(0, 100), min_size=1), EPOCHS, st.integers(1, 30))
def test_counts(sizes: list[int], epochs: int, batch: int) -> None:
    """tau_k = E ceil(n_k / B) (specification, section 0)."""
    rows = torch.tensor(sizes)

    def counts(batching: Batching) -> list[list[int]]:
        return [column.tolist() for column in batching.counts(rows)]

    assert counts(Batching(epochs=epochs, batch_size=batch)) == [sizes, [epochs * ceil_div(n, batch) for n in sizes]]
    whole = [n // batch for n in sizes]
    used = [batch * n for n in whole]
    assert counts(Batching(epochs=epochs, batch_size=batch, drop_last=True)) == [used, [epochs * n for n in whole]]
    assert counts(Batching(epochs=epochs, batch_size=None)) == [sizes, [epochs * (n > 0) for n in sizes]]
    assert counts(Batching(steps=7, batch_size=batch)) == [sizes, [7 * (n > 0) for n in sizes]]
    assert counts(Batching(steps=7, batch_size=batch, drop_last=True)) == [used, [7 * (n > 0) for n in whole]]


def order(seed: int, round: int, client: int, epoch: int = 0, purpose: str = "batches") -> list[int]:
    """A permutation of 20 rows as places within the client."""
    data = fl.federate(torch.zeros(60, 1), torch.zeros(60, dtype=torch.int64), split([20] * 3))
    made = plan(data, torch.tensor([client]), Batching(epochs=2, batch_size=None), seed, round, purpose)
    return (made.index[0, epoch] - 20 * client).tolist()


def test_orders_differ_by_seed_round_client_epoch_and_purpose() -> None:
    orders = [
        order(0, 0, 0),
        order(1, 0, 0),
        order(0, 1, 0),
        order(1, 1, 0),
        order(0, 0, 1),
        order(0, 0, 2),
        order(0, 0, 0, epoch=1),
        order(0, 0, 0, purpose="gradient"),
    ]
    assert len({tuple(each) for each in orders}) == len(orders)
    assert order(0, 0, 0) == orders[0]


def test_orders_are_even() -> None:
    """Over many rounds every row is first about equally often."""
    firsts = torch.tensor([order(0, t, 0)[0] for t in range(400)]).bincount(minlength=20)
    assert float(((firsts - 20.0) ** 2 / 20.0).sum()) < 44  # chi square, 19 degrees of freedom: 0.1 %


def test_dropout_keys_are_all_different_and_not_those_of_the_order() -> None:
    made = everyone([20, 20], Batching(epochs=4, batch_size=5), seed=3, round=2)
    again = everyone([20, 20], Batching(epochs=4, batch_size=5), seed=3, round=3)
    other = everyone([20, 20], Batching(epochs=4, batch_size=5), seed=3, round=2, purpose="gradient")
    keys: Tensor = torch.cat([made.keys.flatten(), again.keys.flatten(), other.keys.flatten()])
    assert made.keys.shape == (2, 16)
    assert len(keys.unique()) == len(keys)


@pytest.mark.parametrize("drop_last", [False, True])
def test_sizes_are_padded_with_zero_beyond_the_last_step(drop_last: bool) -> None:
    made = everyone([1, 7, 10], Batching(batch_size=3, drop_last=drop_last))
    expected = [[0, 0, 0], [3, 3, 0], [3, 3, 3]] if drop_last else [[1, 0, 0, 0], [3, 3, 1, 0], [3, 3, 3, 1]]
    assert made.sizes.tolist() == expected
    assert made.index.shape == (3, len(expected[0]), 3)


def test_nobody_with_a_whole_batch() -> None:
    made = everyone([2, 1], Batching(batch_size=3, drop_last=True))
    assert made.steps.tolist() == [0, 0] and made.examples.tolist() == [0, 0]
    assert made.sizes.shape == (2, 0)


def test_a_small_client_does_not_go_through_a_large_ones_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fixed steps the small one has many epochs, the large one many rows: a table of both would be huge."""
    shuffled = 0

    def counting(*arguments: Any) -> Tensor:
        nonlocal shuffled
        order = permutation(*arguments)
        shuffled += order.numel()
        return order

    permutation = random.permutation
    monkeypatch.setattr(random, "permutation", counting)
    made = everyone([2000, 4], Batching(steps=50, batch_size=4))
    assert made.steps.tolist() == [50, 50]
    assert 2000 + 50 * 4 <= shuffled <= 4 * (2000 + 50 * 4)


def test_a_client_without_a_batch_stands_beside_others() -> None:
    data, batching = federation([2, 9]), Batching(1, None, 4, drop_last=True)
    none, some = (plan(data, torch.tensor([client]), batching, 0, 0) for client in (0, 1))
    for plans in ([none, some], [some, none]):
        made = joined(plans)
        assert sorted(made.steps.tolist()) == [0, 2] and made.index.shape == (2, 2, 4)
        place = int(made.clients.tolist().index(1))
        assert batches(made, place) == batches(some, 0)
