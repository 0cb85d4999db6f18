"""Sums over rows, lanes and ranks: one order, whoever adds what."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedloom import lanes as lane_sums
from fedloom import rows as row_sums
from fedloom.executors.job import _chunks, _far_apart
from fedloom.lanes import Lanes
from fedloom.ranks import Ranks
from fedloom.sampling import uniform


def stack(seed: int, count: int, length: int) -> Tensor:
    return torch.randn(count, length, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [1, 7, 5000, 40_000])
def test_a_row_sum_is_the_fold_of_its_rows(length: int) -> None:
    """Few entries in a few operations, many block by block: the same bits, in any number of pieces."""
    rows, coefficients = stack(0, 6, length), stack(1, 2, 6).double()
    expected = torch.zeros(2, length, dtype=torch.float64)
    for k in range(6):
        expected += rows[k].double() * coefficients[:, k : k + 1]
    whole = row_sums.add(None, rows, coefficients)
    pieces = row_sums.add(row_sums.add(None, rows[:2], coefficients[:, :2]), rows[2:], coefficients[:, 2:])
    assert torch.equal(whole, expected) and torch.equal(pieces, expected)


def tree_of(lanes: list[tuple[int, Tensor, Tensor]]) -> Tensor:
    """Row after row within a lane; four lanes or fewer, two by two."""
    sums: dict[int, Tensor] = {}
    for lane, rows, coefficients in lanes:
        total = sums.setdefault(lane, torch.zeros(len(coefficients), rows.shape[1], dtype=torch.float64))
        for row, column in zip(rows, coefficients.T, strict=True):
            total += row.double() * column.unsqueeze(1)
    halves = [[sums[lane] for lane in pair if lane in sums] for pair in ((0, 1), (2, 3))]
    pairs = [half[0] if len(half) == 1 else half[0] + half[1] for half in halves if half]
    return pairs[0] if len(pairs) == 1 else pairs[0] + pairs[1]


@pytest.mark.parametrize("length", [5, 2500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("waiting", [0, 20, 64])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 0, 1), (0, 7, 1, 9), (0, 0, 4, 0), (20, 1, 20, 1)])
def test_rows_that_wait_come_to_the_bits_of_rows_that_do_not(
    length: int, dtype: torch.dtype, waiting: int, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_sums, "_WAITING", waiting)
    monkeypatch.setattr(row_sums, "WIDE", 1000)  # columns at a time, so that few are many
    given = [
        (lane, stack(10 * lane + k, 1 + k % 2, length).to(dtype), stack(k, 2, 1 + k % 2).double())
        for lane, size in enumerate(sizes)
        for k in range(size)
    ]
    before = [rows.clone() for _, rows, _ in given]
    lanes = Lanes()
    for lane, rows, coefficients in given:
        lanes.add(lane, {"w": rows, "b": rows[:, :3]}, coefficients)
    total = lanes.total(Ranks())
    assert torch.equal(total["w"], tree_of(given)) and torch.equal(total["b"], total["w"][:, :3])
    assert all(torch.equal(rows, kept) for (_, rows, _), kept in zip(given, before, strict=True))


def test_few_rows_wait() -> None:
    """However long a lane: what is held of it is bounded."""
    lanes = Lanes()
    for k in range(100):
        lanes.add(k // 40, {"w": stack(k, 1, 10)}, torch.ones(1, 1, dtype=torch.float64))
        assert lanes.waiting < 64 and len(lanes.open.waiting) < 16


@pytest.mark.parametrize("length", [20_000, 2**18, 2**18 + 1, 700_000])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_rows_blocks_are_summed_alone(length: int, threads: int) -> None:
    """Several at a time or one after the other, with any number of threads."""
    rows, other = stack(0, 2, length), stack(1, 1, length)[0].double()
    kinds = {
        row_sums.squares: lambda row, _: row.double().square(),
        row_sums.dots: lambda row, point: row * point,
        row_sums.distances: lambda row, point: (row - point) ** 2,
    }
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for function, entries in kinds.items():
            found = function(rows) if function is row_sums.squares else function(rows, other)
            for row, value in zip(rows, found, strict=True):
                blocks = [entries(*pair).sum() for pair in zip(row.split(2**14), other.split(2**14), strict=True)]
                assert torch.equal(value, torch.stack(blocks).sum())
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("length", [3, 40_000])
def test_squares_dots_and_distances(length: int) -> None:
    rows, other = stack(0, 4, length), stack(1, 1, length)[0].double()
    exact = rows.double()
    torch.testing.assert_close(row_sums.squares(rows), (exact**2).sum(1), rtol=1e-13, atol=0)
    torch.testing.assert_close(row_sums.dots(rows, other), exact @ other, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(row_sums.distances(rows, other), ((exact - other) ** 2).sum(1), rtol=1e-13, atol=0)
    assert torch.equal(row_sums.squares(rows)[2:3], row_sums.squares(rows[2:3]))


@pytest.mark.parametrize("length", [3, 40_000])
def test_rows_are_as_they_were(length: int) -> None:
    """In float64 too, of which a copy in float64 is no copy."""
    rows, other = stack(0, 4, length).double(), stack(1, 1, length)[0].double()
    before = rows.clone(), other.clone()
    row_sums.squares(rows), row_sums.dots(rows, other), row_sums.distances(rows, other)
    row_sums.add(None, rows, torch.ones(2, 4, dtype=torch.float64))
    assert torch.equal(rows, before[0]) and torch.equal(other, before[1])


class Shared(Ranks):
    """Threads in the place of processes."""

    def gather(self, own: Tensor) -> list[Tensor]:
        return self._meet(own)

    def gather_json(self, own: object) -> list[object]:
        return self._meet(own)

    def _meet(self, own: object) -> list:
        slots, barrier = MEETINGS[self.world]
        slots[self.rank] = own
        barrier.wait()
        found = list(slots)
        barrier.wait()
        return found


MEETINGS = {world: ([None] * world, threading.Barrier(world)) for world in (2, 3, 4)}


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("lanes", [1, 5, 8])
def test_ranks_come_to_the_bits_of_one_process(world: int, lanes: int) -> None:
    rows = [stack(lane, 3, 50) for lane in range(lanes)]
    ones = torch.ones(1, 3, dtype=torch.float64)
    alone = Lanes()
    for lane in range(lanes):
        alone.add(lane, {"w": rows[lane]}, ones)
    expected = alone.total(Ranks())["w"]
    found: dict[int, Tensor] = {}

    def work(rank: int) -> None:
        mine = Lanes()
        for lane in range(rank * lanes // world, (rank + 1) * lanes // world):
            mine.add(lane, {"w": rows[lane]}, ones)
        found[rank] = mine.total(Shared(rank, world))["w"]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[rank], expected) for rank in range(world))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300), st.integers(1, 128), st.integers(1, 8))
def test_chunks_waste_little(steps: list[int], most: int, least: int) -> None:
    ascending = torch.tensor(steps).sort().values
    chunks = _chunks(ascending, most, min(least, len(steps)))
    parts = ascending.tensor_split(chunks)
    assert chunks >= min(least, len(steps))
    assert all(1 <= len(part) <= most for part in parts)
    taken = sum(int(part[-1]) * len(part) for part in parts)
    assert len(parts[0]) <= 33 or taken <= 1.2 * int(ascending.sum())


@pytest.mark.parametrize(("chunks", "world", "most"), [(10, 2, 5), (10, 4, 3), (8, 4, 2), (3, 2, 2), (30, 24, 2)])
def test_of_few_chunks_every_rank_has_its_share(chunks: int, world: int, most: int) -> None:
    lanes = max(8, world)
    turn = {lane: place for place, lane in enumerate(_far_apart(lanes))}
    shares = [
        sum(len(range(turn[lane], chunks, lanes)) for lane in range(rank * lanes // world, (rank + 1) * lanes // world))
        for rank in range(world)
    ]
    assert sum(shares) == chunks and max(shares) == most and min(shares) >= chunks // world - 1


def test_a_draw_from_a_large_population() -> None:
    """Distinct, uniform, and never of a client that cannot take part."""
    examples = torch.ones(20_000)
    examples[::2] = 0
    seen = torch.zeros(20_000)
    for key in range(300):
        clients = uniform().draw(torch.tensor(key), 50, examples, {}).clients
        assert clients.unique().equal(clients) and len(clients) == 50
        seen[clients] += 1
    assert seen[::2].sum() == 0
    thirds = seen[:19_998].reshape(3, -1).sum(1)
    assert (thirds - 5000).abs().max() < 5 * (15_000 * 2 / 9) ** 0.5
    few = torch.zeros(20_000)
    few[[3, 70, 15_000]] = 1
    assert uniform().draw(torch.tensor(0), 50, few, {}).clients.tolist() == [3, 70, 15_000]
