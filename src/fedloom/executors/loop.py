"""One client after the other, by ordinary autograd: the reference that every other executor is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from fedloom import random, tree
from fedloom.batches import Plan
from fedloom.data.federated import take
from fedloom.executors.job import Assignment, Job, Trained, chunks, one_value, train
from fedloom.functional import plain_gradient
from fedloom.local import Carry
from fedloom.types import Params


def loop(job: Job, assignment: Assignment) -> Iterator[Trained]:
    """Train the cohort's clients in turn."""
    for clients in chunks(job, assignment, 1):
        yield train(job, assignment, clients, _steps)


def _steps(
    job: Job, assignment: Assignment, plan: Plan, carry: Carry, rows: Params, step: Callable[..., Carry]
) -> Carry:
    carry, row = tree.map_state(lambda leaf: leaf[0], carry), tree.map(lambda leaf: leaf[0], rows)
    for s in range(int(plan.steps[0])):
        size = plan.sizes[0, s]
        index = plan.index[0, s, : int(size)]
        batch = take(job.data.x, index), take(job.data.y, index)
        key = plan.keys[0, s]
        info = assignment.info(s, plan.steps[0], row)
        try:
            with random.generator_kept(job.draws):
                if job.draws:  # a forward with randomness of its own draws it from this step's key
                    torch.manual_seed(int(key))
                carry = step(job.functional, job.algorithm, plain_gradient, carry, batch, None, size, key, info)
        except ValueError as error:
            raise one_value(error, int(plan.clients[0]), assignment.round) from error
    stacked: Carry = tree.map_state(lambda leaf: leaf.unsqueeze(0), carry)
    return stacked
