"""Sums over a stack of rows, in float64, in an order that is part of the promise.

Rows are added one after the other and squares are folded by halving, so a result has the same bits whatever other rows
stand beside it and however many threads there are. On a CPU the work goes block by block, to stay in the cache; on a
CUDA device a kernel adds all rows in one pass over the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import pairwise

import torch
from torch import Tensor

from fedloom import tree

_BLOCK = 2**14
"""Entries at a time: 128 KiB of float64, and fewer than torch splits among threads."""

WIDE = 2**17
"""Entries at a time where each has a sum of its own, so that threads may share them: fewer blocks, fewer dispatches."""

_GROUP = 16
"""Blocks whose entries are computed at once, each with a sum of its own."""

_SMALL = 2**17
"""Entries of a stack for which dispatching row after row would take longer than adding them up."""


def squares(rows: Tensor) -> Tensor:
    """`(K, n)` -> the K sums of squares.

    >>> squares(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    tensor([25.,  1.], dtype=torch.float64)
    """
    if _on_gpu(rows):
        from fedloom.kernels import row_squares

        return row_squares(rows)
    if rows.shape[1] <= _BLOCK:
        exact = rows.double()
        return tree.total(exact * exact, lead=1)
    return _by_blocks(rows, lambda row, part: row[part].double().square())


def dots(rows: Tensor, other: Tensor) -> Tensor:
    """`(K, n)` -> the K inner products with `other`, a float64 vector.

    >>> dots(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0], dtype=torch.float64))
    tensor([11.], dtype=torch.float64)
    """
    if rows.shape[1] <= _BLOCK or rows.device.type != "cpu":
        return tree.total(rows * other, lead=1)
    return _by_blocks(rows, lambda row, part: row[part] * other[part])


def distances(rows: Tensor, other: Tensor) -> Tensor:
    """`(K, n)` -> the K squared distances to `other`, taken directly: no cancellation.

    >>> distances(torch.tensor([[3.0, 4.0]]), torch.tensor([0.0, 4.0], dtype=torch.float64))
    tensor([9.], dtype=torch.float64)
    """
    if rows.shape[1] <= _BLOCK or rows.device.type != "cpu":
        return tree.total((rows - other) ** 2, lead=1)
    return _by_blocks(rows, lambda row, part: (row[part] - other[part]) ** 2)


def add(total: Tensor | None, rows: Tensor, coefficients: Tensor) -> Tensor:
    """total + sum_k coefficient_k row_k, for Q sets of coefficients `(Q, K)` at once: `(Q, n)`.

    Row after row, each product rounded before it is added: a fused multiply-add may differ where threads meet.

    >>> add(None, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.5]], dtype=torch.float64))
    tensor([[2.5000, 4.0000]], dtype=torch.float64)
    """
    if total is None:
        total = torch.zeros(len(coefficients), rows.shape[1], dtype=torch.float64, device=rows.device)
    if _on_gpu(rows):
        from fedloom.kernels import add_rows

        return add_rows(total, rows, coefficients)
    if rows.numel() <= _SMALL and len(rows) > 2:  # the last of the running sums, in a few operations
        products = rows.double().unsqueeze(0) * coefficients.unsqueeze(2)
        return torch.cat([total.unsqueeze(1), products], 1).cumsum(1)[:, -1]
    columns = coefficients.T.unsqueeze(2)  # (K, Q, 1)
    for part, block in zip(total.split(WIDE, 1), rows.split(WIDE, 1), strict=True):
        for row, column in zip(block, columns, strict=True):
            part += row.double() * column
    return total


def _by_blocks(rows: Tensor, entries: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Each row's blocks summed alone, their sums folded."""
    length = rows.shape[1]
    whole = length // _BLOCK * _BLOCK
    cuts = [*range(0, whole, _GROUP * _BLOCK), whole]

    def sums(row: Tensor) -> Tensor:
        parts = [entries(row, slice(a, b)).unflatten(0, (-1, _BLOCK)).sum(1) for a, b in pairwise(cuts)]
        if whole < length:
            parts.append(entries(row, slice(whole, length)).sum().unsqueeze(0))
        return torch.cat(parts)

    return tree.total(torch.stack([sums(row) for row in rows]), lead=1)


def _on_gpu(rows: Tensor) -> bool:
    return rows.is_cuda and has_triton()


@cache
def has_triton() -> bool:
    """Whether kernels of our own can be compiled here; without, torch's are used."""
    return find_spec("triton") is not None
