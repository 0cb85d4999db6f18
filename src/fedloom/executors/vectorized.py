"""A stack of clients as one model: `vmap` over a leading client axis, shorter clients padded and masked.

A client that has finished goes through the arithmetic and keeps its parameters, buffers and optimizer. Models whose
rows see each other (batch norm) are never padded in rows: at each step, clients with batches of one size form a stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedloom import tree
from fedloom.batches import Plan
from fedloom.data.federated import Features, take
from fedloom.executors.job import Assignment, Job, Trained, chunks, one_value, train
from fedloom.functional import stackable_gradient
from fedloom.local import Carry
from fedloom.types import Params

Batch = tuple[Features, Features]


def vectorized(job: Job, assignment: Assignment) -> Iterator[Trained]:
    """Train the cohort in stacks of at most `job.chunk` clients."""
    for clients in chunks(job, assignment, job.chunk):
        yield train(job, assignment, clients, _steps)


def _steps(
    job: Job, assignment: Assignment, plan: Plan, carry: Carry, rows: Params, step: Callable[..., Carry]
) -> Carry:
    every = torch.arange(len(plan.clients))
    for s in range(plan.sizes.shape[1]):
        sizes = plan.sizes[:, s]
        if job.rows_independent:
            carry = _step(job, assignment, plan, s, every, carry, rows, step)
            continue
        for size in sizes[sizes > 0].unique().tolist():
            members = every[sizes == size]
            part = _step(job, assignment, plan, s, members, _select(carry, members), _select(rows, members), step)
            carry = _put(carry, part, members)
    return carry


def _step(
    job: Job,
    assignment: Assignment,
    plan: Plan,
    s: int,
    members: Tensor,
    carry: Carry,
    rows: Params,
    step: Callable[..., Carry],
) -> Carry:
    """Step s of the stack's `members`."""
    device = plan.index.device
    sizes = plan.sizes[members, s]
    widest, narrowest = int(sizes.max()), int(sizes.min())
    index = plan.index[members.to(device), s, :widest]
    batch = take(job.data.x, index), take(job.data.y, index)
    steps, keys = plan.steps[members].to(device), plan.keys[members.to(device), s]
    sizes = sizes.to(device)
    mask = None if narrowest == widest else torch.arange(widest, device=device) < sizes[:, None]

    def one(
        carry: Carry, batch: Batch, mask: Tensor | None, size: Tensor, key: Tensor, steps: Tensor, row: Params
    ) -> Carry:
        info = assignment.info(s, steps, row)
        return step(job.functional, job.algorithm, stackable_gradient, carry, batch, mask, size, key, info)

    in_dims = (0, 0, None if mask is None else 0, 0, 0, 0, 0)
    try:
        after: Carry = torch.func.vmap(one, in_dims)(carry, batch, mask, sizes, keys, steps, rows)
    except ValueError as error:
        raise one_value(error, int(plan.clients[members[0]]), assignment.round) from error
    return after if narrowest > 0 else _where(sizes > 0, after, carry)


def _where(active: Tensor, after: Carry, before: Carry) -> Carry:
    """The new values of the clients still at work, the old ones of those that have finished."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(active.reshape(-1, *[1] * (new.dim() - 1)), new, old)

    chosen: Carry = tree.map_state(choose, after, before)
    return chosen


def _select(carry: Carry, members: Tensor) -> Carry:
    chosen: Carry = tree.map_state(lambda leaf: leaf[members.to(leaf.device)], carry)
    return chosen


def _put(carry: Carry, part: Carry, members: Tensor) -> Carry:
    """The stack with its `members` replaced."""
    placed: Carry = tree.map_state(lambda leaf, new: leaf.index_copy(0, members.to(leaf.device), new), carry, part)
    return placed
