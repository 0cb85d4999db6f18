"""One client after the other, by ordinary autograd: the reference that every other executor is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from fedloom import random, tree
from fedloom.data.federated import take
from fedloom.executors.job import Job, Part, Stack, Trained, info, one_value, train
from fedloom.functional import plain_gradient
from fedloom.local import Carry


def loop(job: Job, stacks: Iterable[Sequence[Part]]) -> Iterator[Trained]:
    """Train each stack's clients in turn."""
    for parts in stacks:
        yield from train(job, parts, _steps)


def _steps(job: Job, stack: Stack, step: Callable[..., Carry]) -> Carry:
    trained = [_client(job, stack, k, step) for k in range(len(stack.plan.clients))]
    stacked: Carry = tree.map_state(lambda *leaves: torch.stack(leaves), *trained)
    return stacked


def _client(job: Job, stack: Stack, k: int, step: Callable[..., Carry]) -> Carry:
    """Client k of the stack through all its steps."""
    plan = stack.plan
    carry: Carry = tree.map_state(lambda leaf: leaf[k], stack.carry)
    own = {
        name: tree.map_state(lambda leaf: leaf[k], part) if stack.axes[name] == 0 else part
        for name, part in stack.own.items()
    }
    device = carry["loss"].device
    index, keys = plan.index[k].to(device), plan.keys[k].to(device)
    for s, size in enumerate(plan.sizes[k, : int(plan.steps[k])].tolist()):
        batch = take(job.data.x, index[s, :size]), take(job.data.y, index[s, :size])
        told = info(job, stack.round, s, own)
        try:
            with random.generator_kept(job.draws):
                if job.draws:  # a forward with randomness of its own draws it from this step's key
                    torch.manual_seed(int(plan.keys[k, s]))
                carry = step(job.functional, job.algorithm, plain_gradient, carry, batch, None, size, keys[s], told)
        except ValueError as error:
            raise one_value(error, int(plan.clients[k]), stack.t) from error
    return carry
