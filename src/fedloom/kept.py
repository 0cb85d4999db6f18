"""Rows that are kept until all evidence is in: their sums, and what a rule may measure of them.

Rows of all ranks count. They stay where they are; what travels is a point of the model's size, numbers per row, or a
few coordinates of every row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedloom import rows as row_sums
from fedloom import tree
from fedloom.lanes import Lanes
from fedloom.ranks import Ranks, gather_columns
from fedloom.tree import Layout
from fedloom.types import Params

_BLOCK = 2**14
"""Coordinates at a time: fewer than torch splits among threads, so that a row's sum has the same bits on any number."""


class Kept:
    """Rows by lane, ascending; flat, `(K, n)` per leaf."""

    def __init__(self, layout: Layout, ranks: Ranks, centre: Params | None = None) -> None:
        self.layout, self.ranks, self.centre = layout, ranks, centre
        self.blocks: list[tuple[int, Params]] = []

    def add(self, lane: int, rows: Params) -> None:
        self.blocks.append((lane, rows))

    def weighted(self, column: Tensor) -> Params:
        """sum_k column_k g_k; `column` has a number for every row of every rank."""
        lanes = Lanes()
        for (lane, rows), part in zip(self.blocks, self._own(column), strict=True):
            lanes.add(lane, rows, part.unsqueeze(0))
        return {name: part[0] for name, part in lanes.total(self.ranks).items()}

    def blend(self, column: Tensor) -> Params:
        """The same, and what the column lacks to one times the centre, where there is one."""
        sums = self.weighted(column)
        if self.centre is None:
            return sums
        rest = 1 - tree.total(column)
        return {name: part + rest * self.centre[name] for name, part in sums.items()}

    def dots(self, point: Params) -> Tensor:
        """<g_k, point> for every row."""
        return self._each(row_sums.dots, point)

    def apart(self, point: Params) -> Tensor:
        """||g_k - point|| for every row, taken directly: no cancellation."""
        return self._each(row_sums.distances, point).sqrt()

    def distances(self, coefficients: Tensor) -> Tensor:
        return self.apart(self.blend(coefficients))

    def pairs(self) -> Tensor:
        found: Tensor | None = None
        for _, block in self._coordinates():
            apart = torch.zeros(len(block), len(block), dtype=torch.float64, device=block.device)
            for k in range(len(block) - 1):
                apart[k, k + 1 :] = row_sums.distances(block[k + 1 :], block[k])
            found = apart if found is None else found + apart
        assert found is not None, "a model has at least one leaf"
        return found + found.T

    def columns(self, rule: Callable[[Tensor], Tensor]) -> Params:
        """`rule`, `(K, n) -> (n,)`, of every coordinate of the rows."""
        found: dict[str, list[Tensor]] = {}
        for name, block in self._coordinates():
            found.setdefault(name, []).append(rule(block))
        return {name: torch.cat(parts) for name, parts in found.items()}

    def moved(self, scale: Tensor) -> Tensor:
        """Squared norms per row and leaf, `(K, P)`, of the rows moved to the centre: v + scale_k (g_k - v)."""
        assert self.centre is not None
        found: list[Tensor] = []
        for (_, rows), part in zip(self.blocks, self._own(scale), strict=True):
            s = part.unsqueeze(1)
            leaves = [row_sums.squares(s * leaf + (1 - s) * self.centre[name]) for name, leaf in rows.items()]
            found.append(torch.stack(leaves, 1))
        return torch.cat(gather_columns(self.ranks, {"": found})[""])

    def _own(self, column: Tensor) -> list[Tensor]:
        """This rank's part of a column that has all ranks' numbers, block by block."""
        sizes = [len(next(iter(rows.values()))) for _, rows in self.blocks]
        before = sum(self.ranks.gather_json(sum(sizes))[: self.ranks.rank])
        return list(column[before : before + sum(sizes)].split(sizes))

    def _each(self, measure: Callable[[Tensor, Tensor], Tensor], point: Params) -> Tensor:
        found = [
            tree.total(torch.stack([measure(part, point[name]) for name, part in rows.items()], 1), lead=1)
            for _, rows in self.blocks
        ]
        return torch.cat(gather_columns(self.ranks, {"": found})[""])

    def _coordinates(self) -> Iterator[tuple[str, Tensor]]:
        """Some coordinates of a leaf at a time, of the rows of all ranks, in float64."""
        for name, shape in self.layout.shapes.items():
            for start in range(0, max(1, shape.numel()), _BLOCK):
                stop = min(shape.numel(), start + _BLOCK)
                parts = [rows[name][:, start:stop].double() for _, rows in self.blocks]
                nothing = torch.zeros(0, stop - start, dtype=torch.float64, device=self.ranks.device)
                yield name, torch.cat(self.ranks.gather(torch.cat(parts) if parts else nothing))
