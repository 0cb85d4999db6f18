"""One client after the other, by ordinary autograd: the reference that every other executor is compared with.

On a CPU several at a time: a thread for each of `job.workers`, in which operations have one thread. That is faster than
all threads on the operations of one client, most of which are too small to share; and a client's numbers do not depend
on how many others train beside it.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from fedloom import local, random, tree
from fedloom.batches import plan
from fedloom.data.federated import take
from fedloom.executors.crew import keep_freed_memory
from fedloom.executors.job import Job, Part, Stack, Trained, info, no_room, one_value, train
from fedloom.executors.layout import Layout, layout
from fedloom.functional import plain_gradient
from fedloom.local import Carry

_PIECE = 2**22
"""Bytes of parameters that a part of the cohort comes back in: less is planned anew, more leaves the caches."""

_SHARES = 8
"""Pieces for each worker, at least: enough to share a part evenly."""


def loop(job: Job, stacks: Iterable[Sequence[Part]]) -> Iterator[Trained]:
    """Train the clients of each part one by one, `job.workers` of them at a time; they come back in pieces."""
    keep_freed_memory()
    runner = _OneByOne(layout(job))
    pieces = (piece for stack in stacks for part in stack for piece in _pieces(job, part))
    try:
        # torch has one generator for all threads, and autocasting for each
        if job.workers == 1 or job.draws or torch.is_autocast_enabled("cpu"):
            for piece in pieces:
                yield from train(job, [piece], runner.run, job.algorithm.client.forgets)
        else:
            yield from _side_by_side(job, pieces, runner)
    except torch.OutOfMemoryError as error:
        raise no_room(error) from error


def _pieces(job: Job, part: Part) -> Iterator[Part]:
    """Ascending in client: a part is summed up in that order, whatever its pieces."""
    size = sum(leaf.numel() * leaf.element_size() for leaf in job.functional.params.values())
    most = min(_PIECE // size, len(part.clients) // (_SHARES * job.workers) if job.workers > 1 else _PIECE)
    run, clients = part.assignment, part.clients.sort().values
    trains = job.algorithm.work.name != "full_gradient"
    planned = plan(run.data, clients, job.batching, run.seed, run.round) if trains else None  # takes as long for one
    most = max(1, most)
    for start in range(0, len(clients), most):
        own = slice(start, start + most)
        yield replace(part, clients=clients[own], plan=None if planned is None else planned.of(own))


@dataclass(frozen=True)
class _OneByOne:
    """What those who train have in common."""

    layout: Layout
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, job: Job, stack: Stack, step: Callable[..., Carry]) -> Carry:
        """All clients of the stack through the steps of its plan."""
        shared = self.layout.lay({name: part for name, part in stack.own.items() if stack.axes[name] is None})
        with self.layout.mode():
            trained = [self._client(job, stack, k, shared, step) for k in range(len(stack.plan.clients))]
        stacked: Carry = tree.map_state(_stack, *trained)
        return stacked

    def _client(self, job: Job, stack: Stack, k: int, shared: dict[str, Any], step: Callable[..., Carry]) -> Carry:
        """Client k of the stack through all its steps."""
        plan = stack.plan
        own = {name: part for name, part in stack.own.items() if name not in shared}
        carry: Carry
        carry, own = self.layout.lay(tree.map_state(lambda leaf: leaf[k], (stack.carry, own)))
        own |= shared | {"rate": own["rate"].item()}
        if step is local.step and job.algorithm.client.forgets:
            carry["params"] = tree.map(torch.clone, carry["params"])  # its own, to be written into
            step = partial(step, in_place=True)
        device = carry["loss"].device
        index, keys = plan.index[k].to(device), plan.keys[k].to(device)
        for s, size in enumerate(plan.sizes[k, : int(plan.steps[k])].tolist()):
            if self.stop.is_set():
                raise _Stopped
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


def _stack(*leaves: Tensor) -> Tensor:
    return torch.stack(leaves) if len(leaves) > 1 else leaves[0].unsqueeze(0).contiguous()


class _Stopped(Exception):
    """Nobody waits for this client any more."""


def _side_by_side(job: Job, pieces: Iterable[Part], runner: _OneByOne) -> Iterator[Trained]:
    """Pieces in order, each trained by one of the threads; a few are begun before they are asked for."""
    threads = torch.get_num_threads()
    replicas: SimpleQueue[Job] = SimpleQueue()
    for _ in range(job.workers):
        replicas.put(_replica(job))
    own = threading.local()

    def begin() -> None:
        torch.set_num_threads(1)  # of this thread
        own.job = replicas.get()

    def work(piece: Part) -> Trained:
        (trained,) = train(own.job, [piece], runner.run, job.algorithm.client.forgets)
        return trained

    pool = ThreadPoolExecutor(job.workers, "fedloom", begin)
    waiting: deque[Future[Trained]] = deque()
    try:
        torch.set_num_threads(1)  # here too until the end: teams of threads that have to share cores wait and wait
        for piece in pieces:
            waiting.append(pool.submit(work, piece))
            if len(waiting) > job.workers + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        runner.stop.set()
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def _replica(job: Job) -> Job:
    """With a module of its own, since a call puts a client's leaves into it; its tensors are the same."""
    module = job.functional.module
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return replace(job, functional=replace(job.functional, module=copy.deepcopy(module, tensors)))
