"""What an executor is asked to do in a round, what it hands back, and the procedure all of them follow.

Executors differ only in how they take a stack of clients through its local steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fedloom import local, tree
from fedloom.algorithm import Algorithm
from fedloom.batches import NO_PLAN, Batching, Plan, joined, plan
from fedloom.data.federated import FederatedData
from fedloom.errors import FedloomError, OutOfMemory
from fedloom.functional import Functional
from fedloom.local import Carry
from fedloom.memory import Extra, Memory, RowStore, Trace
from fedloom.ranks import ALONE, Ranks
from fedloom.readings import to_device
from fedloom.schedule import Schedule
from fedloom.types import Cohort, Info, Params

LANES = 8
"""Into how many lanes a cohort's chunks are dealt: up to that many processes share a round evenly."""

PADDING = 0.2
"""The share of steps that may be padding before chunks are made smaller."""


@dataclass(frozen=True)
class Job:
    """What stays the same in every round of a run, and for all runs that are stacked with it."""

    functional: Functional
    algorithm: Algorithm
    data: FederatedData
    batching: Batching
    chunk: int = 16
    workers: int = 1  # clients trained at a time by the loop
    rows_independent: bool = True  # may a batch be padded with rows that count for nothing?
    draws: bool = False  # does the forward draw random numbers of its own?
    two_rows: bool = False  # does the model refuse a batch of one?


@dataclass(frozen=True)
class Assignment:
    """One run's share of a round: whose data, from which model."""

    seed: int
    round: int  # of the run: batches and dropout are drawn from it
    server_round: int  # completed by the server: rates follow it
    data: FederatedData
    params: Params
    buffers: Params
    shared: Params  # the server's part of the memory
    rows: RowStore
    rates: Schedule  # of the clients


@dataclass(frozen=True)
class Part:
    """Clients of one run that train together, in one lane of its sums."""

    assignment: Assignment
    clients: Tensor
    lane: int = 0
    plan: Plan | None = None  # its batches, where they are known already


@dataclass(frozen=True)
class Trained:
    """A part's updates, and its clients' next memory rows, to be stored once the clients are admitted."""

    part: Part
    cohort: Cohort
    rows: Params
    counted: Params  # per metric and client: numerator and denominator over the batches it trained on


Executor = Callable[[Job, Iterable[Sequence[Part]]], Iterator[Trained]]
"""Trains stacks, each of one part or, where runs are stacked, of several; a part may come back in pieces, in order."""


@dataclass(frozen=True)
class Stack:
    """Clients that train together: all leaves have a leading client axis, but for those that a single run shares."""

    plan: Plan
    carry: Carry
    own: dict[str, Any]  # beside the batches, what a step reads of a client: steps, rate, row, anchor, shared
    axes: dict[str, int | None]  # of `own`, in its order, for `vmap`: None where all clients share it
    round: int  # of the server
    t: int = 0  # of the run, for messages
    begin: int = 0  # the step of the plan that it goes on with

    @property
    def anchor(self) -> Params:
        params: Params = self.own["anchor"]
        return params


def info(job: Job, round: int, step: int | Tensor, own: dict[str, Any]) -> Info:
    """What a client's transform is told at a step; `own` is its part of the stack's."""
    return Info(round, {}, step=step, schedule=job.algorithm.client.rates, **own)


Runner = Callable[[Job, Stack, Callable[..., Carry]], Carry]
"""Takes a stack through the steps of its plan: `(job, stack, local.step) -> carry`."""


def _chunks(steps: Tensor, most: int, least: int) -> int:
    """Into how many chunks clients go: `least`, or more where a chunk would have more than `most` clients.

    Where the longest client of a chunk keeps the others waiting for too long, there are more, though a stack of few
    clients is slow as well. `steps` ascend.
    """
    count = len(steps)
    chunks = max(least, -(-count // most))
    while True:
        taken = sum(int(part[-1]) * len(part) for part in steps.tensor_split(chunks))
        if count <= 32 * chunks or taken <= (1 + PADDING) * int(steps.sum()):
            return chunks
        chunks += -(-chunks // 4)


def cut(job: Job, assignment: Assignment, clients: Tensor, ranks: Ranks = ALONE) -> list[Part]:
    """The cohort in chunks of clients with similar numbers of steps, so that little is padding, lane after lane.

    Chunks go to the lanes in turn, so that every lane has long ones and short ones. Each rank takes some of the lanes,
    neighbours; so lanes far apart come first, and of few chunks every rank has its share.
    """
    lanes = max(LANES, ranks.world)
    clients = clients.cpu().sort().values
    if not len(clients):
        return []
    _, steps = job.batching.counts(assignment.data.sizes[clients])
    steps, order = steps.sort(stable=True)
    least = min(lanes, len(clients)) if ranks.launched else 1  # something for every rank
    chunks = clients[order].tensor_split(_chunks(steps, job.chunk, least))  # even: a short one costs as much as a full
    own = range(ranks.rank * lanes // ranks.world, (ranks.rank + 1) * lanes // ranks.world)
    turn = {lane: place for place, lane in enumerate(_far_apart(lanes))}
    return [Part(assignment, chunk.sort().values, lane) for lane in own for chunk in chunks[turn[lane] :: lanes]]


def _far_apart(count: int) -> list[int]:
    """The numbers below `count`, by their binary digits read backwards.

    >>> _far_apart(8), _far_apart(3)
    ([0, 4, 2, 6, 1, 5, 3, 7], [0, 2, 1])
    """
    digits = (count - 1).bit_length()
    return sorted(range(count), key=lambda number: f"{number:0{digits}b}"[::-1])


def train(job: Job, parts: Sequence[Part], run: Runner, owned: bool = False) -> Iterator[Trained]:
    """A stack of clients through one round of local work; `owned`: nobody else has the parameters `run` ends with."""
    algorithm = job.algorithm
    memory = algorithm.memory
    stack = _stacked(job, parts)
    gradient: Params = {}
    if algorithm.work.name == "full_gradient":
        stack = _planned(job, parts, stack, whole=True)
        carry = _whole_gradient(run(job, stack, local.gradient_step), stack.plan)
        update, steps, seen = carry["gradients"], (stack.plan.examples > 0).long(), stack.plan.examples
    else:
        if memory is not None and memory.gradient == "full":
            sums = stack.carry | {"gradients": tree.zeros_like(stack.carry["params"])}
            once = _planned(job, parts, replace(stack, carry=sums), whole=True)
            gradient = _whole_gradient(run(job, once, local.gradient_step), once.plan)["gradients"]
        stack = _planned(job, parts, stack, whole=False)
        steps, seen = stack.plan.steps, stack.plan.sizes.sum(1)
        carry = run(job, stack, local.step)
        if memory is not None and memory.gradient == "mean":
            gradient = _divide_rows(carry["gradients"], steps)
        owned = owned and memory is None  # a memory reads them
        update = tree.map(_difference_in_place if owned else _difference, stack.anchor, carry["params"])
    losses = carry["loss"] / to_device(seen.to(carry["loss"].dtype), carry["loss"].device)
    start = 0
    for part in parts:
        own = slice(start, start + len(part.clients))
        start = own.stop
        next_rows: Params = {}
        extra: Extra = {}
        if algorithm.work.pooled:
            next_rows = _rows_of(local.optimizer_row(carry["optimizer"]), own)
        elif memory is not None and algorithm.work.name != "full_gradient":
            rates = part.assignment.rates.total(part.assignment.server_round, steps[own])
            mine = (_rows_of(leaves, own) for leaves in (stack.own["row"], carry["params"], gradient))
            next_rows, extra = _remember(memory, part.assignment, rates, *mine)
        examples = stack.plan.examples[own]
        cohort = Cohort(
            clients=part.clients,
            examples=examples,
            weights=part.assignment.data.weighed(examples, part.clients),
            updates=tree.map(torch.detach, _rows_of(update, own)),
            steps=steps[own],
            losses=losses[own],
            buffers=_rows_of(carry["buffers"], own) or None,
            extra=extra or None,
        )
        yield Trained(part, cohort, next_rows, _rows_of(carry["counted"], own))


def _difference(x: Tensor, y: Tensor) -> Tensor:
    """x - y as updates lie, whatever the order of y."""
    return torch.sub(x, y, out=y.new_empty(y.shape))


def _difference_in_place(x: Tensor, y: Tensor) -> Tensor:
    """x - y in the place of y, unless y lies in another order than the updates."""
    return torch.sub(x, y, out=y) if y.is_contiguous() else x - y


def _rows_of(leaves: Params, own: slice) -> Params:
    return {name: leaf[own] for name, leaf in leaves.items()}


def _stacked(job: Job, parts: Sequence[Part]) -> Stack:
    """The stack before its first step, without a plan."""
    sized = [(part.assignment, len(part.clients)) for part in parts]
    first = parts[0].assignment
    carry: Carry = _joined([_repeat(_started(job, run), size) for run, size in sized])
    row: Params = {}
    if job.algorithm.memory is not None:
        row = _joined([part.assignment.rows.gather(part.clients.tolist(), first.params) for part in parts])
    several = len(parts) > 1
    anchor = carry["params"] if several else first.params
    shared = _joined([_repeat(run.shared, size) for run, size in sized]) if several else first.shared
    rates = [run.rates.rate(run.server_round) for run, size in sized for _ in range(size)]
    rate = to_device(torch.tensor(rates, dtype=torch.float64), carry["loss"].device)
    return Stack(
        NO_PLAN,
        carry,
        {"rate": rate, "row": row, "anchor": anchor, "shared": shared},
        {"rate": 0, "row": 0, "anchor": 0 if several else None, "shared": 0 if several else None, "steps": 0},
        first.server_round,
        first.round,
    )


def _started(job: Job, run: Assignment) -> Carry:
    """A client of the run before its first step; the one that has everybody's rows goes on with its optimizer."""
    carry = local.start(job.functional, job.algorithm, run.params, run.buffers)
    if job.algorithm.work.pooled and run.rows.rows:
        [row] = run.rows.rows.values()
        carry["optimizer"] = local.optimizer_of(row, carry["optimizer"])
    return carry


def _planned(job: Job, parts: Sequence[Part], stack: Stack, whole: bool) -> Stack:
    """With the batches of the round's work, or of one pass over all rows for the `whole` gradient."""
    batching, purpose = job.batching, "batches"
    if whole:
        batching, purpose = Batching(batch_size=batching.batch_size, drop_last=batching.drop_last), "gradient"
    plans = [] if whole else [part.plan for part in parts if part.plan is not None]
    if not plans:
        for _, group in groupby(parts, key=lambda part: id(part.assignment.data)):
            alike = list(group)
            first = alike[0].assignment
            seeds = [part.assignment.seed for part in alike for _ in range(len(part.clients))]
            clients = torch.cat([part.clients for part in alike])
            plans.append(plan(first.data, clients, batching, seeds, first.round, purpose))
    made = joined(plans)
    if job.two_rows and bool((alone := (made.sizes == 1).any(1)).any()):
        raise _needs_two_rows(int(made.clients[alone][0]), stack.t)
    steps = to_device(made.steps, stack.carry["loss"].device)
    return replace(stack, plan=made, own={**stack.own, "steps": steps})


def _whole_gradient(carry: Carry, done: Plan) -> Carry:
    """The mean gradient over all rows of each client, at x^t."""
    return carry | {"gradients": _divide_rows(carry["gradients"], done.examples)}


def _remember(
    memory: Memory, assignment: Assignment, rates: Tensor, rows: Params, final: Params, gradient: Params
) -> tuple[Params, Extra]:
    def one(row: Params, final: Params, rates: Tensor, gradient: Params) -> tuple[Params, Extra]:
        return memory.remember(assignment.shared, row, Trace(assignment.params, final, rates, gradient or None))

    rates = to_device(rates, next(iter(final.values())).device)
    passed_on = {leaf.untyped_storage().data_ptr() for leaf in final.values()}

    def own(leaf: Tensor) -> Tensor:
        """What is kept is not where the next clients train."""
        return leaf.clone() if leaf.untyped_storage().data_ptr() in passed_on else leaf

    remembered: tuple[Params, Extra] = tree.map_state(own, torch.func.vmap(one)(rows, final, rates, gradient))
    return remembered


def _repeat(leaves: Any, size: int) -> Any:
    return tree.map_state(lambda leaf: leaf.expand(size, *leaf.shape), leaves)


def _joined(parts: list[Any]) -> Any:
    """One after the other along the client axis."""
    if len(parts) == 1:
        return parts[0]
    return tree.map_state(lambda *leaves: torch.cat(leaves), *parts)


def _divide_rows(sums: Params, counts: Tensor) -> Params:
    """Row k divided by count k; a client that did nothing keeps its zeros."""

    def divide(rows: Tensor) -> Tensor:
        divisor = to_device(counts.clamp(min=1).to(rows.dtype), rows.device)
        return rows / divisor.reshape(-1, *[1] * (rows.dim() - 1))

    return tree.map(divide, sums)


ONE_VALUE = "more than 1 value per channel"
"""What torch says of batch norm over a single value."""


def no_room(error: torch.OutOfMemoryError) -> OutOfMemory:
    """Clients that train one at a time cannot be fewer."""
    return OutOfMemory(
        f"a single client does not fit the device's memory: {error}; pass a smaller batch_size or a smaller model"
    )


def one_value(error: ValueError, client: int, round: int) -> FedloomError:
    """Batch norm refuses a batch of one value; any other error is the model's own and passes."""
    if ONE_VALUE not in str(error):
        raise error
    return _needs_two_rows(client, round)


def _needs_two_rows(client: int, round: int) -> FedloomError:
    return FedloomError(
        f"client {client}, round {round}: batch norm needs more than one value per channel, got a batch of one: "
        "pass drop_last=True, another batch_size, or a model with group norm"
    )
