"""Small federations, models and comparisons that the tests of the client side share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.sampling import Drawn, Sampler, as_sampler
from fedloom.simulation import History
from fedloom.types import Params

EXECUTORS = ("loop", "vectorized")


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def split(sizes: Sequence[int]) -> list[Tensor]:
    """The partition that gives the first rows to client 0, the next to client 1, and so on."""
    return list(torch.arange(sum(sizes)).split(list(sizes)))


def classification(
    sizes: Sequence[int], features: int = 6, classes: int = 4, dtype: torch.dtype = torch.float64, **options: Any
) -> fl.FederatedData:
    """Random rows and labels; the test rows are the training rows."""
    x = noise(sum(sizes), features, dtype=dtype)
    y = torch.randint(0, classes, (sum(sizes),), generator=torch.Generator().manual_seed(1))
    return fl.federate(x, y, split(sizes), test=(x, y), **options)


def linear(features: int = 6, classes: int = 4) -> fl.Task:
    return fl.Task(model=lambda: nn.Linear(features, classes))


class Point(nn.Module):
    """A model that is one point of the plane, whatever its input."""

    def __init__(self) -> None:
        super().__init__()
        self.y = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.y.expand(x.shape[0], 2)


def half_square(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * ((output - target) ** 2).sum(1)


POINT = fl.Task(model=Point, loss=half_square, metrics={})
"""f_k(y) = 0.5 ||y - c_k||^2 where every row of client k is c_k."""


def quadratics(centres: Sequence[Sequence[float]], sizes: Sequence[int]) -> fl.FederatedData:
    rows = torch.tensor(centres, dtype=torch.float64).repeat_interleave(torch.tensor(sizes), dim=0)
    return fl.federate(torch.zeros(len(rows), 1, dtype=torch.float64), rows, split(sizes))


def flat(history: History) -> Tensor:
    """All parameters and floating buffers as one float64 vector."""
    buffers = [leaf for leaf in history.buffers.values() if leaf.is_floating_point()]
    return torch.cat([leaf.flatten().double() for leaf in [*history.params.values(), *buffers]])


def distance(one: History, other: History) -> float:
    """How far two models lie apart, relative to the norm of the first."""
    return float((flat(one) - flat(other)).norm() / flat(one).norm())


def digest(leaves: Params) -> str:
    """SHA-256 of the bits of all leaves."""
    result = hashlib.sha256()
    for name, leaf in sorted(leaves.items()):
        result.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        result.update(leaf.contiguous().numpy().tobytes())
    return result.hexdigest()


def watched(sampler: str | Sampler = "uniform") -> tuple[Sampler, list[list[int]]]:
    """The sampler, and the cohorts it draws as they are drawn, a client as often as it was drawn."""
    inner, seen = as_sampler(sampler), []

    def draw(*arguments: Any) -> Drawn:
        drawn = inner.draw(*arguments)
        counts = torch.ones_like(drawn.clients) if drawn.multiplicity is None else drawn.multiplicity
        seen.append(drawn.clients.repeat_interleave(counts).tolist())
        return drawn

    return replace(inner, draw=draw), seen


def always(*cohorts: Sequence[int]) -> Sampler:
    """These clients, whatever the cohort asked for: the first ones in the first call, the last ones ever after."""
    left = list(cohorts)

    def draw(*arguments: Any) -> Drawn:
        return Drawn(torch.tensor(left.pop(0) if len(left) > 1 else left[0], dtype=torch.int64))

    return Sampler("always", draw)


def half_frozen(scale: float) -> fl.Task:
    """A model whose first layer does not train; its weights are those of the seed times `scale`."""

    def model() -> torch.nn.Module:
        first = torch.nn.Linear(6, 5).requires_grad_(False)
        first.weight.mul_(scale)
        return torch.nn.Sequential(first, torch.nn.Tanh(), torch.nn.Linear(5, 4))

    return fl.Task(model)
