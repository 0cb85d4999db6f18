"""The sum of a cohort's rows as a tree: within a lane row after row, lanes two by two.

A round's chunks lie in a few lanes. Lanes, not processes, fix the order of addition, so that one process and several,
which share the lanes among them, come to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedloom import rows as row_sums
from fedloom.ranks import Ranks

Sums = dict[str, Tensor]
"""Per name `(Q, n)`: Q sums over the same rows with different coefficients."""

Node = tuple[int, int]
"""(first lane, number of lanes): a power of two, starting at a multiple of itself."""

_WAITING = 64
"""Bytes that rows take per column while they wait, on a CPU, to be added up together: no more than a few sums do."""


@dataclass(frozen=True)
class _Rows:
    """A sum, and rows that are still to be added to it."""

    done: Sums = field(default_factory=dict)
    waiting: list[tuple[Mapping[str, Tensor], Tensor]] = field(default_factory=list)


@dataclass(frozen=True)
class _Pair:
    """Two sums that are to be added."""

    left: _Sum
    right: _Sum


_Sum = _Rows | _Pair


class Lanes:
    """Running sums; lanes arrive in ascending order.

    A sum of float64 is a large thing to read and write for every row. So rows wait for others, of other lanes too, and
    are added up some columns at a time, lane by lane and pair by pair, while those are in the cache.
    """

    def __init__(self) -> None:
        self.lane: int | None = None
        self.open = _Rows()
        self.nodes: dict[Node, _Sum] = {}
        self.waiting = 0

    def add(self, lane: int, rows: Mapping[str, Tensor], coefficients: Tensor) -> None:
        """Add rows `(K, n)` per name to the lane, times each of the `(Q, K)` coefficients; they stay as they are."""
        if lane != self.lane:
            self._close()
            self.lane = lane
        self.open.waiting.append((rows, coefficients))
        self.waiting += max(len(part) * part.element_size() for part in rows.values())
        if self.waiting >= _WAITING or not coefficients.is_cpu:
            self.open = _Rows(_added_up(self.open))
            self.nodes = {node: _Rows(_added_up(part)) for node, part in self.nodes.items()}
            self.waiting = 0

    def _close(self) -> None:
        """The open lane is complete: it joins its left neighbour, and the pair theirs, as far as that one is there."""
        if self.lane is None:
            return
        start, size = self.lane, 1
        joined: _Sum = self.open
        while start % (2 * size) == size and (start - size, size) in self.nodes:
            joined = _Pair(self.nodes.pop((start - size, size)), joined)
            start, size = start - size, 2 * size
        self.nodes[start, size] = joined if self.waiting else _Rows(_added_up(joined))
        self.lane, self.open = None, _Rows()

    def total(self, ranks: Ranks) -> Sums:
        """The sum over all lanes of all ranks; empty where there were no rows."""
        self._close()
        nodes = self.nodes
        if ranks.world > 1:
            exchanged = _exchange({node: _added_up(part) for node, part in nodes.items()}, ranks)
            nodes = {node: _Rows(part) for node, part in exchanged.items()}
        last = max((start + size for start, size in nodes), default=1)
        whole = _value(nodes, 0, 1 << (last - 1).bit_length())
        return {} if whole is None else _added_up(whole)


def _value(nodes: Mapping[Node, _Sum], start: int, size: int) -> _Sum | None:
    """The sum over the lanes of a node; a lane without rows adds nothing."""
    if (start, size) in nodes:
        return nodes[start, size]
    if size == 1:
        return None
    left, right = (_value(nodes, start + part, size // 2) for part in (0, size // 2))
    return _Pair(left, right) if left is not None and right is not None else left if right is None else right


def _added_up(part: _Sum) -> Sums:
    """Into the leftmost of the sums that are there already, which nobody reads again."""
    if isinstance(part, _Rows) and not part.waiting:
        return part.done
    first = _leftmost(part)
    return {
        name: _all_columns(part, name, like, first.done.get(name))
        for name, like in (first.done or first.waiting[0][0]).items()
    }


def _leftmost(part: _Sum) -> _Rows:
    return _leftmost(part.left) if isinstance(part, _Pair) else part


def _all_columns(part: _Sum, name: str, like: Tensor, into: Tensor | None) -> Tensor:
    width, wide = like.shape[1], row_sums.WIDE
    if width <= wide or not like.is_cpu:
        return _columns(part, name, slice(width))
    for start in range(0, width, wide):
        columns = _columns(part, name, slice(start, start + wide))
        if into is None:
            into = columns.new_empty(len(columns), width)
        into[:, start : start + wide] = columns
    assert into is not None
    return into


def _columns(part: _Sum, name: str, columns: slice) -> Tensor:
    """Some columns of the sum."""
    if isinstance(part, _Pair):
        return _columns(part.left, name, columns).add_(_columns(part.right, name, columns))
    total = part.done[name][:, columns] if part.done else None
    for rows, coefficients in part.waiting:
        total = row_sums.add(total, rows[name][:, columns], coefficients)
    assert total is not None
    return total


def _exchange(nodes: dict[Node, Sums], ranks: Ranks) -> dict[Node, Sums]:
    """Every rank's nodes, on every rank."""
    described = [
        [start, size, {name: list(part.shape) for name, part in s.items()}] for (start, size), s in nodes.items()
    ]
    flat = [part.flatten() for sums in nodes.values() for part in sums.values()]
    lists = ranks.gather_json(described)
    vectors = ranks.gather(torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64, device=ranks.device))
    found: dict[Node, Sums] = {}
    for described, vector in zip(lists, vectors, strict=True):
        for start, size, shapes in described:
            found[start, size] = {}
            for name, (sets, length) in shapes.items():
                part, vector = vector[: sets * length], vector[sets * length :]
                found[start, size][name] = part.reshape(sets, length).clone()  # to be added to
    return found
