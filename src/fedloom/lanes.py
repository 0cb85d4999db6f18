"""The sum of a cohort's rows as a tree: within a lane row after row, lanes two by two.

A round's chunks lie in a few lanes. Lanes, not processes, fix the order of addition, so that one process and several,
which share the lanes among them, come to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom import rows as row_sums
from fedloom.ranks import Ranks

Sums = dict[str, Tensor]
"""Per name `(Q, n)`: Q sums over the same rows with different coefficients."""

Node = tuple[int, int]
"""(first lane, number of lanes): a power of two, starting at a multiple of itself."""


class Lanes:
    """Running sums; lanes arrive in ascending order."""

    def __init__(self) -> None:
        self.lane: int | None = None
        self.open: Sums = {}
        self.nodes: dict[Node, Sums] = {}

    def add(self, lane: int, rows: Mapping[str, Tensor], coefficients: Tensor) -> None:
        """Add rows `(K, n)` per name to the lane, times each of the `(Q, K)` coefficients."""
        if lane != self.lane:
            self._close()
            self.lane = lane
        for name, part in rows.items():
            self.open[name] = row_sums.add(self.open.get(name), part, coefficients)

    def _close(self) -> None:
        """The open lane is complete: it joins its left neighbour, and the pair theirs, as far as that one is there."""
        if self.lane is None:
            return
        start, size, sums = self.lane, 1, self.open
        while start % (2 * size) == size and (start - size, size) in self.nodes:
            left = self.nodes.pop((start - size, size))  # nobody else has it: added to in place
            sums = {name: part.add_(sums[name]) for name, part in left.items()}
            start, size = start - size, 2 * size
        self.nodes[start, size] = sums
        self.lane, self.open = None, {}

    def total(self, ranks: Ranks) -> Sums:
        """The sum over all lanes of all ranks; empty where there were no rows."""
        self._close()
        nodes = _exchange(self.nodes, ranks)
        last = max((start + size for start, size in nodes), default=1)
        return _value(nodes, 0, 1 << (last - 1).bit_length()) or {}


def _join(left: Sums, right: Sums) -> Sums:
    return {name: part + right[name] for name, part in left.items()}


def _value(nodes: Mapping[Node, Sums], start: int, size: int) -> Sums | None:
    """The sum over the lanes of a node; a lane without rows adds nothing."""
    if (start, size) in nodes:
        return nodes[start, size]
    if size == 1:
        return None
    left, right = (_value(nodes, start + part, size // 2) for part in (0, size // 2))
    return _join(left, right) if left is not None and right is not None else left if right is None else right


def _exchange(nodes: dict[Node, Sums], ranks: Ranks) -> dict[Node, Sums]:
    """Every rank's nodes, on every rank."""
    if ranks.world == 1:
        return nodes
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
                found[start, size][name] = part.reshape(sets, length)
    return found
