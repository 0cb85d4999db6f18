"""A stack whose clients finish one after the other goes on with those that are left.

Clients differ in length, and a stack takes as many steps as its longest: of ten roles of Shakespeare the longest has
four times as many as the mean. Once half of a stack has finished, the other half is a stack of its own: few sizes, so
that few programs are made for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedloom import tree
from fedloom.batches import Plan
from fedloom.executors.job import PADDING, Job, Runner, Stack
from fedloom.local import Carry
from fedloom.readings import to_device

_LEAST = 4
"""Clients that a stack is narrowed to at least: below, a step of fewer takes hardly less time."""


def narrowing(run: Runner) -> Runner:
    """Takes a stack through its steps by `run`, half of it at a time where the others would only wait."""

    def through(job: Job, stack: Stack, step: Callable[..., Carry]) -> Carry:
        at = _halfway(stack.plan.steps, stack.begin) if job.rows_independent else None
        if at is None:
            return run(job, stack, step)
        carry = stack.carry
        if at > stack.begin:
            carry = run(job, replace(stack, plan=_until(stack.plan, at)), step)
        longest = stack.plan.steps.argsort(descending=True, stable=True)[: _half(len(stack.plan.steps))].sort().values
        left = of_members(replace(stack, carry=carry, begin=at), longest)
        return put_back(carry, through(job, left, step), longest)

    return through


def _half(count: int) -> int:
    return -(-count // 2)


def _halfway(steps: Tensor, begin: int) -> int | None:
    """The step from which on half of the clients suffice, if going on with all costs over PADDING more.

    >>> import torch
    >>> _halfway(torch.tensor([9, 1, 1, 2, 1, 1, 9, 1]), 0), _halfway(torch.tensor([9, 9, 9, 9, 9, 8, 8, 8]), 0)
    (1, None)
    """
    count, half = len(steps), _half(len(steps))
    if half < _LEAST:
        return None
    descending = steps.sort(descending=True).values
    longest, at = int(descending[0]), max(begin, int(descending[half]))
    taken = count * (at - begin) + half * (longest - at)
    return at if (count - half) * (longest - at) > PADDING * taken else None


def _until(plan: Plan, step: int) -> Plan:
    return replace(plan, index=plan.index[:, :step], sizes=plan.sizes[:, :step], keys=plan.keys[:, :step])


def of_members(stack: Stack, members: Tensor) -> Stack:
    """Some of a stack's clients, as a stack."""
    rows = to_device(members, stack.carry["loss"].device)
    own = {name: _rows(part, rows) if stack.axes[name] == 0 else part for name, part in stack.own.items()}
    return replace(stack, plan=stack.plan.of(members), carry=_rows(stack.carry, rows), own=own)


def put_back(carry: Carry, part: Carry, members: Tensor) -> Carry:
    """The carry of a stack with its `members` replaced."""
    rows = to_device(members, carry["loss"].device)
    placed: Carry = tree.map_state(lambda leaf, new: leaf.index_copy(0, rows, new), carry, part)
    return placed


def _rows(leaves: Any, rows: Tensor) -> Any:
    return tree.map_state(lambda leaf: leaf[rows], leaves)
