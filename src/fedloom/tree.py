"""Arithmetic on `dict[str, Tensor]`, and the flat matrix that a stack of them becomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.types import Params


def map(function: Callable[..., Tensor], first: Params, *rest: Params) -> Params:
    """Apply `function` leaf by leaf.

    >>> map(torch.add, {"w": torch.ones(2)}, {"w": torch.ones(2)})
    {'w': tensor([2., 2.])}
    """
    return {name: function(leaf, *(tree[name] for tree in rest)) for name, leaf in first.items()}


def map_state(function: Callable[..., Tensor], first: Any, *rest: Any) -> Any:
    """Apply `function` to the tensors of nested dicts and tuples; whatever is no tensor stays as in `first`."""
    if isinstance(first, Tensor):
        return function(first, *rest)
    if isinstance(first, dict):
        return {name: map_state(function, value, *(tree[name] for tree in rest)) for name, value in first.items()}
    if isinstance(first, tuple):
        return tuple(map_state(function, *values) for values in zip(first, *rest, strict=True))
    return first


def matrix(rows: Tensor) -> Tensor:
    """`(K, *shape)` -> `(K, size)`, also where K is zero or the shape empty."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def zeros_like(tree: Params) -> Params:
    return map(torch.zeros_like, tree)


_BLOCK = 2**14
"""Entries that torch adds up at once: fewer than it would split among threads."""


def total(x: Tensor, lead: int = 0) -> Tensor:
    """Sum over all but the first `lead` axes.

    A row's sum has the same bits whatever rows stand beside it and however many threads there are, which torch promises
    of neither a long row nor several: rows are added up block by block. (On a GPU one kernel does it all, and the bits
    are its own.)

    >>> total(torch.arange(10.0).reshape(2, 5), lead=1)
    tensor([10., 35.])
    """
    x = x.reshape(*x.shape[:lead], math.prod(x.shape[lead:])).contiguous()
    while x.device.type == "cpu" and x.shape[-1] > _BLOCK:
        whole = x.shape[-1] // _BLOCK * _BLOCK
        parts = [x[..., :whole].unflatten(-1, (-1, _BLOCK)).sum(-1), x[..., whole:].sum(-1, keepdim=True)]
        x = torch.cat(parts, -1)
    return x.sum(-1)


def dot(a: Params, b: Params) -> Tensor:
    return sum_leaves(total(a[name] * b[name]) for name in a)


def norm(tree: Params) -> Tensor:
    """The Euclidean norm of all leaves together.

    >>> norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    tensor(5.)
    """
    return dot(tree, tree).sqrt()


def sum_leaves(terms: Iterable[Tensor]) -> Tensor:
    """Add scalars in the order of the leaves (an empty tree sums to zero)."""
    result = torch.zeros(())
    for index, term in enumerate(terms):
        result = term if index == 0 else result + term
    return result


def first_nonfinite(tree: Params) -> str | None:
    """The name of the first leaf holding a NaN or an infinity."""
    return next((name for name, leaf in tree.items() if not bool(leaf.isfinite().all())), None)


@dataclass(frozen=True)
class Layout:
    """Where each leaf lies in the flat vector of all leaves."""

    shapes: dict[str, torch.Size]

    @staticmethod
    def of(tree: Params) -> Layout:
        return Layout({name: leaf.shape for name, leaf in tree.items()})

    @property
    def size(self) -> int:
        return sum(shape.numel() for shape in self.shapes.values())

    def flatten(self, rows: Params) -> Tensor:
        """`(K, *shape)` per leaf -> one float64 matrix `(K, D)`."""
        columns = [rows[name].detach().to(torch.float64) for name in self.shapes]
        return torch.cat([matrix(column) for column in columns], dim=1)

    def split(self, flat: Tensor) -> Params:
        """`(..., D)` -> views of shape `(..., size)` per leaf."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        return dict(zip(self.shapes, flat.split(sizes, dim=-1), strict=True))

    def unflatten(self, flat: Tensor) -> Params:
        """`(..., D)` -> `(..., *shape)` per leaf."""
        lead = flat.shape[:-1]
        return {name: part.reshape((*lead, *self.shapes[name])) for name, part in self.split(flat).items()}

    def squares(self, flat: Tensor) -> Tensor:
        """`(K, D)` -> squared norms per client and leaf, `(K, P)`."""
        return torch.stack([total(part * part, lead=1) for part in self.split(flat).values()], dim=1)


def into_digest(digest: Any, name: str, leaf: Tensor) -> None:
    """Its name, shape and numbers: the same on every device."""
    digest.update(f"{name}: {leaf.dtype} {tuple(leaf.shape)}\n".encode())
    dense = leaf if leaf.layout == torch.strided else leaf.to_dense()
    digest.update(dense.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
