"""A stack of clients as one model: `vmap` over a leading client axis, shorter clients padded and masked.

A client that has finished goes through the arithmetic and keeps its parameters, buffers and optimizer. Models whose
rows see each other (batch norm) are never padded in rows: at each step, clients with batches of one size form a stack.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedloom import tree
from fedloom.data.federated import Features, take
from fedloom.executors.crew import keep_freed_memory, operations_on
from fedloom.executors.job import Job, Part, Runner, Stack, Trained, info, no_room, one_value, train
from fedloom.executors.narrowing import narrowing, of_members, put_back
from fedloom.functional import stackable_gradient
from fedloom.local import Carry
from fedloom.readings import to_device

Batch = tuple[Features, Features]
Step = Callable[..., Carry]


class Vectorized:
    """Trains each stack at once; `run` takes it through its steps.

    What does not fit the memory is halved: `halved` is told, and drops what was kept for larger stacks.
    """

    def __init__(self, run: Runner, halved: Callable[[int], None], threads: int | None = None) -> None:
        self.run, self.halved, self.threads = narrowing(run), halved, threads
        self.most: float = math.inf  # clients at a time, once the memory has been exceeded
        self.largest = 0  # stack so far, of no more than that

    def __call__(self, job: Job, stacks: Iterable[Sequence[Part]]) -> Iterator[Trained]:
        keep_freed_memory()
        with operations_on(self.threads):
            for parts in stacks:
                yield from self._train(job, list(parts))

    def _train(self, job: Job, parts: list[Part]) -> Iterator[Trained]:
        count = sum(len(part.clients) for part in parts)
        if count <= self.most:
            try:
                trained = list(train(job, parts, self.run))
            except torch.OutOfMemoryError as error:
                if count == 1:
                    raise no_room(error) from error
            else:
                self.largest = max(self.largest, count)
                yield from trained
                return
            self.halve(count)
        for half in _halves(parts, count // 2):
            yield from self._train(job, half)

    def halve(self, count: int) -> None:
        """`count` clients at a time were too many."""
        self.most = half = -(-count // 2)
        self.largest = min(self.largest, half)
        self.halved(half)
        gc.collect()  # what a half-made program held may be part of a cycle
        torch.cuda.empty_cache()


def _halves(parts: list[Part], first: int) -> tuple[list[Part], list[Part]]:
    """The first so many clients, and the others."""
    left: list[Part] = []
    right: list[Part] = []
    for part in parts:
        here = max(0, min(len(part.clients), first - sum(len(each.clients) for each in left)))
        if here:
            left.append(replace(part, clients=part.clients[:here]))
        if here < len(part.clients):
            right.append(replace(part, clients=part.clients[here:]))
    return left, right


def vectorized(job: Job, stacks: Iterable[Sequence[Part]]) -> Iterator[Trained]:
    """Train each stack at once, operation by operation."""
    return Vectorized(eager, lambda most: None)(job, stacks)


def eager(job: Job, stack: Stack, step: Step) -> Carry:
    for s in range(stack.begin, stack.plan.sizes.shape[1]):
        if job.rows_independent:
            stack = replace(stack, carry=_step(job, stack, s, step))
            continue
        sizes = stack.plan.sizes[:, s]
        for size in sizes[sizes > 0].unique().tolist():
            members = torch.nonzero(sizes == size).flatten()
            part = _step(job, of_members(stack, members), s, step)
            stack = replace(stack, carry=put_back(stack.carry, part, members))
    return stack.carry


def _step(job: Job, stack: Stack, s: int, step: Step) -> Carry:
    """Step s of the stack."""
    plan, carry, device = stack.plan, stack.carry, stack.carry["loss"].device
    sizes = plan.sizes[:, s]
    widest, narrowest = int(sizes.max()), int(sizes.min())
    index = to_device(plan.index[:, s, :widest], device)
    batch = take(job.data.x, index), take(job.data.y, index)
    keys = to_device(plan.keys[:, s], device)
    sizes = to_device(sizes, device)
    mask = None if narrowest == widest else torch.arange(widest, device=device) < sizes[:, None]
    one = client_step(job, stack.round, s, step)
    try:
        after: Carry = torch.func.vmap(one, client_axes(stack.axes, mask))(carry, batch, mask, sizes, keys, stack.own)
    except ValueError as error:
        raise one_value(error, int(plan.clients[0]), stack.t) from error
    return after if narrowest > 0 else where_at_work(sizes > 0, after, carry)


def client_step(job: Job, round: int, s: int | Tensor, step: Step) -> Step:
    """One client's step, to be stacked."""

    def one(carry: Carry, batch: Batch, mask: Tensor | None, size: Tensor, key: Tensor, own: dict[str, Any]) -> Carry:
        told = info(job, round, s, own)
        return step(job.functional, job.algorithm, stackable_gradient, carry, batch, mask, size, key, told)

    return one


def client_axes(axes: dict[str, int | None], mask: Tensor | None) -> tuple[Any, ...]:
    """`vmap`'s in_dims for `client_step`."""
    return 0, 0, None if mask is None else 0, 0, 0, axes


def where_at_work(active: Tensor, after: Carry, before: Carry) -> Carry:
    """The new values of the clients still at work, the old ones of those that have finished."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(active.reshape(-1, *[1] * (new.dim() - 1)), new, old)

    chosen: Carry = tree.map_state(choose, after, before)
    return chosen
