"""What an executor is asked to do in a round, what it hands back, and the procedure all of them follow.

Executors differ only in how they take a stack of clients through its local steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom import local, tree
from fedloom.algorithm import Algorithm
from fedloom.batches import Batching, Plan, plan
from fedloom.data.federated import FederatedData
from fedloom.errors import FedloomError
from fedloom.functional import Functional
from fedloom.local import Carry
from fedloom.memory import Extra, RowStore, Trace
from fedloom.types import Cohort, Info, Params


@dataclass(frozen=True)
class Job:
    """What stays the same in every round of a run."""

    functional: Functional
    algorithm: Algorithm
    data: FederatedData
    batching: Batching
    seed: int
    chunk: int = 16
    rows_independent: bool = True  # may a batch be padded with rows that count for nothing?
    draws: bool = False  # does the forward draw random numbers of its own?


@dataclass(frozen=True)
class Assignment:
    """What a round adds: who takes part, from which model."""

    round: int  # of the run: batches and dropout are drawn from it
    server_round: int  # completed by the server: rates follow it
    clients: Tensor
    params: Params
    buffers: Params
    shared: Params  # the server's part of the memory
    rows: RowStore

    def info(self, step: int, steps: Tensor, row: Params) -> Info:
        return Info(self.server_round, {}, step=step, steps=steps, anchor=self.params, shared=self.shared, row=row)


@dataclass(frozen=True)
class Trained:
    """A chunk of the cohort, and its clients' next memory rows, to be stored once the clients are admitted."""

    cohort: Cohort
    rows: Params
    counted: Params  # per metric and client: numerator and denominator over the batches it trained on


Runner = Callable[[Job, Assignment, Plan, Carry, Params, Callable[..., Carry]], Carry]
"""Takes a stack through the steps of a plan: `(job, assignment, plan, carry, memory rows, local.step) -> carry`."""


def chunks(job: Job, assignment: Assignment, size: int) -> Iterator[Tensor]:
    """The cohort in chunks of clients with similar numbers of steps, so that little is padding."""
    clients = assignment.clients.cpu().sort().values
    if not len(clients):
        return
    _, steps = job.batching.counts(job.data.examples.cpu()[clients])
    yield from clients[steps.argsort(stable=True)].split(size)


def train(job: Job, assignment: Assignment, clients: Tensor, run: Runner) -> Trained:
    """A stack of clients through one round of local work."""
    algorithm, params, buffers = job.algorithm, assignment.params, assignment.buffers
    memory = algorithm.memory
    rows = assignment.rows.gather(clients.tolist(), params) if memory else {}
    carry = _stack(local.start(job.functional, algorithm, params, buffers), len(clients))
    next_rows: Params = {}
    extra: Extra = {}

    if algorithm.work.name == "full_gradient":
        carry, done = _whole_gradient(job, assignment, clients, carry, rows, run)
        update, steps, seen = carry["gradients"], (done.examples > 0).long(), done.examples
    else:
        done = plan(job.data, clients, job.batching, job.seed, assignment.round)
        steps, seen = done.steps, done.sizes.sum(1)
        gradient: Params = {}
        if memory is not None and memory.gradient == "full":
            sums = carry | {"gradients": _stack(tree.zeros_like(params), len(clients))}
            gradient = _whole_gradient(job, assignment, clients, sums, rows, run)[0]["gradients"]
        carry = run(job, assignment, done, carry, rows, local.step)
        if memory is not None and memory.gradient == "mean":
            gradient = _divide_rows(carry["gradients"], steps)
        update = tree.map(torch.sub, params, carry["params"])
        rates = algorithm.client_rates.total(assignment.server_round, steps)
        next_rows, extra = _remember(job, assignment, rows, carry["params"], rates, gradient)
    cohort = Cohort(
        clients=clients.to(carry["loss"].device),
        examples=done.examples,
        updates=tree.map(torch.detach, update),
        steps=steps,
        losses=carry["loss"] / seen.to(carry["loss"]),
        buffers=carry["buffers"] or None,
        extra=extra or None,
    )
    return Trained(cohort, next_rows, carry["counted"])


def _whole_gradient(
    job: Job, assignment: Assignment, clients: Tensor, carry: Carry, rows: Params, run: Runner
) -> tuple[Carry, Plan]:
    """The gradient of each client's whole loss at x^t: one pass over all its rows."""
    once = Batching(batch_size=job.batching.batch_size, drop_last=job.batching.drop_last)
    done = plan(job.data, clients, once, job.seed, assignment.round, "gradient")
    carry = run(job, assignment, done, carry, rows, local.gradient_step)
    return carry | {"gradients": _divide_rows(carry["gradients"], done.examples)}, done


def _remember(
    job: Job, assignment: Assignment, rows: Params, final: Params, rates: Tensor, gradient: Params
) -> tuple[Params, Extra]:
    memory = job.algorithm.memory
    if memory is None:
        return {}, {}

    def one(row: Params, final: Params, rates: Tensor, gradient: Params) -> tuple[Params, Extra]:
        return memory.remember(assignment.shared, row, Trace(assignment.params, final, rates, gradient or None))

    rates = rates.to(next(iter(final.values())).device)
    remembered: tuple[Params, Extra] = torch.func.vmap(one)(rows, final, rates, gradient)
    return remembered


def _stack(carry: Carry, size: int) -> Carry:
    stacked: Carry = tree.map_state(lambda leaf: leaf.expand(size, *leaf.shape), carry)
    return stacked


def _divide_rows(sums: Params, counts: Tensor) -> Params:
    """Row k divided by count k; a client that did nothing keeps its zeros."""
    return tree.map(
        lambda rows: rows / counts.clamp(min=1).to(rows).reshape(-1, *[1] * (rows.dim() - 1)),
        sums,
    )


def one_value(error: ValueError, client: int, round: int) -> FedloomError:
    """Batch norm refuses a batch of one value; any other error is the model's own and passes."""
    if "more than 1 value per channel" not in str(error):
        raise error
    return FedloomError(
        f"client {client}, round {round}: batch norm needs more than one value per channel, got a batch of one: "
        "pass drop_last=True, another batch_size, or a model with group norm"
    )
