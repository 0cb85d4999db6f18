"""What clients keep between rounds (SCAFFOLD's c_k, FedDyn's q_k), what the server keeps for them, and the store.

Rows belong to the clients and never enter the server's state: 3,400 clients of 1.2 M parameters would be copied every
round. They are made from raw updates, before any clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedloom import tree
from fedloom.errors import choose
from fedloom.types import Params

Extra = dict[str, Params]


@dataclass(frozen=True)
class Trace:
    """What one client's local training leaves behind, for its memory to read."""

    anchor: Params  # x^t
    final: Params  # y_k
    rates: Tensor  # the sum of its learning rates: tau_k eta_c
    gradient: Params | None = None  # the gradient the memory asked for


@dataclass(frozen=True)
class Memory:
    """`remember` makes a client's next row and what it sends; `settle` adds the sum of it to the shared part."""

    name: str
    remember: Callable[[Params, Params, Trace], tuple[Params, Extra]]
    settle: Callable[[Params, Mapping[str, Params], int], Params] | None = None  # (shared, sums, population)
    sends: tuple[str, ...] = ()
    gradient: Literal["none", "full", "mean"] = "none"  # of the whole local loss at x^t; of the loss along the path
    sums_updates: bool = False  # the server adds up the raw updates of the admitted, for a part that reads `info.sums`

    def __repr__(self) -> str:
        return self.name


SCAFFOLD_OPTIONS = ("I", "II", "gradmean")


def controls(option: str = "II") -> Memory:
    """SCAFFOLD's control variates (Karimireddy et al. 2020): c = c + (1 / N) sum_S (c_k+ - c_k).

    I         c_k+ = the gradient of the client's whole loss at x^t
    II        c_k+ = c_k - c + (x^t - y_k) / (tau_k eta_c)
    gradmean  c_k+ = the mean of the raw loss gradients along the path (for clients that do not run plain SGD)
    """
    if option not in SCAFFOLD_OPTIONS:
        raise choose("scaffold option", option, SCAFFOLD_OPTIONS)

    def remember(shared: Params, row: Params, trace: Trace) -> tuple[Params, Extra]:
        if trace.gradient is not None:
            new = trace.gradient
        else:
            moved = trace.rates > 0  # a client whose rates were all zero has no path to learn from
            new = tree.map(
                lambda ck, c, x, y: torch.where(moved, ck - c + (x - y) / trace.rates.to(x.dtype), ck),
                *(row, shared, trace.anchor, trace.final),
            )
        return new, {"control": tree.map(torch.sub, new, row)}

    def settle(shared: Params, sums: Mapping[str, Params], population: int) -> Params:
        return tree.map(lambda c, change: c + change / population, shared, sums["control"])

    needs: dict[str, Literal["none", "full", "mean"]] = {"I": "full", "II": "none", "gradmean": "mean"}
    return Memory(f"controls({option!r})", remember, settle, ("control",), needs[option])


def duals(alpha: float) -> Memory:
    """FedDyn's q_k (Acar et al. 2021): q_k = q_k - alpha (y_k - x^t). Nothing is sent: the server sees y_k."""

    def remember(shared: Params, row: Params, trace: Trace) -> tuple[Params, Extra]:
        return tree.map(lambda q, x, y: q + alpha * (x - y), row, trace.anchor, trace.final), {}

    return Memory(f"duals({alpha:g})", remember, sums_updates=True)


@dataclass
class RowStore:
    """Rows of the clients seen so far; everyone else's row is zero."""

    rows: dict[int, Params] = field(default_factory=dict)

    def gather(self, clients: list[int], like: Params) -> Params:
        """The rows of `clients`, stacked."""
        zero = tree.zeros_like(like)
        found = [self.rows.get(client, zero) for client in clients]
        return {name: torch.stack([row[name] for row in found]) for name in like}

    def put(self, clients: list[int], rows: Params) -> dict[int, Params | None]:
        """Replace the rows of `clients`; what stood there before is returned, for `restore`."""
        before = {client: self.rows.get(client) for client in clients}
        # all of them or, where the memory does not suffice, none
        after = [{name: leaf[index].clone() for name, leaf in rows.items()} for index in range(len(clients))]
        self.rows.update(zip(clients, after, strict=True))
        return before

    def restore(self, before: Mapping[int, Params | None]) -> None:
        for client, row in before.items():
            if row is None:
                del self.rows[client]
            else:
                self.rows[client] = row
