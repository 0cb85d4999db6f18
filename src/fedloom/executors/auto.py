"""Which executor runs a cohort: a fixed rule on model, device and cohort. A rule on the clock could not be repeated."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fedloom import random, tree
from fedloom.data.federated import take
from fedloom.errors import FedloomError, choose
from fedloom.executors import tried
from fedloom.executors.crew import members, worth
from fedloom.executors.job import LANES, Executor, Job, Part, Trained
from fedloom.executors.loop import loop
from fedloom.executors.program import Program, Programs
from fedloom.executors.vectorized import Vectorized, eager
from fedloom.ranks import ALONE, Ranks

EXECUTORS = ("loop", "vectorized")
CHOICES = ("auto", *EXECUTORS)

_STACK_BYTES = 2**28
"""Parameters of a stack on a CPU: beyond this the caches are lost and the loop is as fast."""

_LARGE = 2**22
"""Parameters of one client, in bytes, from which on a dense model's stack leaves a CPU's caches: 784-1600-10 with 10
clients took 517 ms stacked and 304 by the loop, 784-800-10 148 and 175."""

_PAYS, _TRACED = 5_000, 100
"""Local steps of a run from which on compiling a GPU's program is worth its time; and on a CPU, tracing one. On a GPU
a step of a stack that takes n GiB counts n times."""


@dataclass(frozen=True)
class Threads:
    """Of operations on a CPU: as many as what they work on is worth, since all wait for each other after each of them.

    Where it is not said they have as many as torch.
    """

    crew: int | None = None  # which its members divide
    training: int | None = None
    aside: int | None = None  # in the server's part, and where the model is tested


@dataclass
class Choice:
    """What was resolved, and why, in one sentence; what happens to it in the run is added to `notes`."""

    executor: str
    chunk: int
    why: str
    program: str = "none"  # "captured", "compiled": a stack's step as one program
    workers: int = 1
    threads: Threads = Threads()
    memory: int = 0  # bytes that training is expected to take, beside the data
    notes: dict[str, Any] = field(default_factory=dict)
    forgets: list[Callable[[], None]] = field(default_factory=list)  # what else gives memory back where it is short
    _made: Executor | None = None

    def run(self, job: Job, stacks: Iterable[Sequence[Part]]) -> Iterator[Trained]:
        self._made = self._made or self._make()
        return self._made(job, stacks)

    def halve(self) -> bool:
        """Half as many clients at a time from here on, and what is kept for more is dropped; False where it is one."""
        if not isinstance(self._made, Vectorized) or self._made.largest < 2:
            return False
        self._made.halve(self._made.largest)
        return True

    def _make(self) -> Executor:
        if self.executor == "loop":
            return loop
        if self.program == "none":
            return Vectorized(eager, self._halved, self.threads.training)
        programs = self._programs()
        self.forgets.append(programs.forget)
        return Vectorized(programs, self._halved, self.threads.training)

    def _programs(self) -> Programs:
        def made(program: Program) -> None:
            self.notes["program_seconds"] = self.notes.get("program_seconds", 0.0) + program.seconds
            self.notes["programs"] = self.notes.get("programs", 0) + 1

        def failed(reason: str) -> None:
            self.notes["program"] = f"none: {reason}"
            warnings.warn(f"a step could not become a program ({reason}); it runs operation by operation", stacklevel=2)

        return Programs(self.program == "compiled", made, failed, self.workers, self.threads.crew)

    def _halved(self, most: int) -> None:
        for forget in self.forgets:
            forget()
        if "chunk" not in self.notes:
            warnings.warn(
                f"out of memory: from here on {most} clients train at a time; this run cannot be repeated to the bit",
                stacklevel=2,
            )
        self.notes |= {"chunk": most, "repeatable": False}


def resolve(
    job: Job,
    executor: str,
    chunk: int | None,
    cohort: int,
    rounds: int = 1,
    compiled: bool | None = None,
    ranks: Ranks = ALONE,
) -> tuple[Job, Choice]:
    """The executor for this job; what cannot be stacked falls to the loop, and `why` says so."""
    if executor not in CHOICES:
        raise choose("executor", executor, CHOICES)
    if chunk is not None and chunk < 1:
        raise FedloomError(f"chunk: expected at least 1 client, got {chunk}")
    asked = tried.form(job, lowered=executor != "loop")
    draws, job = tried.draws(job), dataclasses.replace(job, chunk=chunk or _chunk(asked, cohort, ranks))
    job = dataclasses.replace(job, draws=draws, workers=_workers(job, cohort, draws, ranks))

    def looped(why: str) -> tuple[Job, Choice]:
        return job, Choice("loop", job.chunk, why, workers=job.workers, memory=client_bytes(job) * job.workers)

    if executor == "loop":
        return looped("asked for")
    suits, reason = (True, "asked for") if executor == "vectorized" else _rule(job, cohort)
    if not suits:  # before a stack is tried, which takes a second or two
        return looped(reason)
    stacked = tried.form(job, lowered=True)
    functional = stacked.functional
    if not draws:
        stacked = dataclasses.replace(
            stacked, rows_independent=tried.rows_independent(stacked), two_rows=tried.two_rows(job)
        )
    uncounted = ""
    obstacle = "its forward draws random numbers other than dropout's" if draws else tried.obstacle(stacked)
    if obstacle is not None and not draws and functional.metrics:
        plain = dataclasses.replace(stacked, functional=dataclasses.replace(functional, metrics={}))
        if tried.obstacle(plain) is None:  # only a metric is in the way: the stack trains without counting it
            stacked, obstacle, uncounted = plain, None, f"; metrics are not counted in training: {obstacle}"
    if obstacle is not None:
        why = f"{type(functional.module).__name__} cannot be stacked: {obstacle}"
        if executor == "vectorized":
            warnings.warn(f"executor='vectorized': {why}; running the loop", stacklevel=3)
        return looped(why)
    memory = client_bytes(stacked) * min(job.chunk, cohort)
    program = _program(stacked, memory, rounds, compiled)
    workers = _crew(job, cohort, ranks) if program == "captured" else 1  # a compiled step has threads of its own
    threads = _threads(job, cohort, workers) if program != "compiled" and not ranks.launched else Threads()
    return stacked, Choice("vectorized", job.chunk, reason + uncounted, program, workers, threads, memory)


def _program(job: Job, memory: int, rounds: int, compiled: bool | None) -> str:
    """Whether a stack's step becomes a program: on a GPU always, compiled where the run is long enough."""
    if not job.rows_independent:
        return "none"  # batches of different sizes are stacks of different shapes
    if compiled is not None:
        return "compiled" if compiled else "captured"
    _, steps = job.batching.counts(job.data.sizes)
    length = rounds * float(steps.double().mean())
    if not _on_gpu(job):
        return "captured" if length >= _TRACED else "none"
    return "compiled" if length * max(1.0, memory / 2**30) >= _PAYS else "captured"


def _param_bytes(job: Job) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in job.functional.params.values())


def _on_gpu(job: Job) -> bool:
    return next(iter(job.functional.params.values())).is_cuda


def _heavy(job: Job) -> str | None:
    """What of the model, if anything, takes longer to compute than to dispatch."""
    kinds = (nn.modules.conv._ConvNd, nn.RNNBase)
    layer = next((module for module in job.functional.module.modules() if isinstance(module, kinds)), None)
    if layer is not None:
        return type(layer).__name__
    size = _param_bytes(job)
    return f"a model of {size / 2**20:.0f} MiB" if size > _LARGE else None


def _workers(job: Job, cohort: int, draws: bool, ranks: Ranks) -> int:
    """Clients that the loop trains at a time: on a CPU one for each thread, unless Python takes most of the time."""
    if _on_gpu(job) or draws or ranks.launched or _heavy(job) is None:
        return 1
    return min(torch.get_num_threads(), cohort)


def _crew(job: Job, cohort: int, ranks: Ranks) -> int:
    """Threads that share a stack on a CPU, each with clients of its own."""
    if _on_gpu(job) or ranks.launched:
        return 1
    return members(min(job.chunk, cohort), _param_bytes(job), torch.get_num_threads())


def _threads(job: Job, cohort: int, workers: int) -> Threads:
    """Where a crew trains, what is done beside it has as many as a member: more would wait for its cores."""
    if _on_gpu(job):
        return Threads()
    most, size = torch.get_num_threads(), _param_bytes(job)
    stack = worth(min(job.chunk, cohort) * size, most)
    return Threads(most, max(1, most // workers) if workers > 1 else stack, worth(size, most))


def _rule(job: Job, cohort: int) -> tuple[bool, str]:
    if cohort == 1:
        return False, "a cohort of one has nothing to stack"
    if next(iter(job.functional.params.values())).device.type != "cpu":
        return True, "on an accelerator a stack of clients fills the device"
    if (found := _heavy(job)) is not None:
        return False, f"on a CPU {found} is at the limit of arithmetic or memory already"
    return True, "on a CPU a dense model's time is dispatch, which a stack shares"


def _chunk(job: Job, cohort: int, ranks: Ranks) -> int:
    """As many clients as keep the stack within bounds: a CPU's caches, half of a GPU's memory.

    Under `torchrun` so few that every lane has some: the same for any number of ranks up to that of the lanes.
    """
    if ranks.launched:
        cohort = -(-cohort // max(LANES, ranks.world))
    size = _param_bytes(job)
    if not _on_gpu(job):
        return max(1, min(cohort, 128, _STACK_BYTES // (4 * size)))
    device = next(iter(job.functional.params.values())).device
    whole, each = torch.cuda.get_device_properties(device).total_memory, client_bytes(job)
    if each > whole:
        gib = 2**30
        raise FedloomError(
            f"a client takes about {each / gib:.1f} GiB in training, expected at most the {whole / gib:.1f} GiB of "
            f"{device}: pass a smaller batch_size or a smaller model"
        )
    return max(1, min(cohort, 1024, whole // 2 // each))


def client_bytes(job: Job) -> int:
    """About how much memory a client takes in a stack: parameters, gradients, optimizer, and what backward keeps.

    What two rows keep is counted, and taken for as many times more as there are rows in a batch.
    """
    params = job.functional.params
    rows = job.batching.batch_size or int(job.data.sizes.max())
    index = tried.sample(job, 2)
    kept = _kept(tried.form(job, lowered=False), index)
    if job.functional.lowered:  # a stacked batch norm keeps more than torch's, a stacked LSTM less
        kept = max(kept, _kept(job, index))
    state = tree.map_state(lambda leaf: leaf, job.algorithm.client.init(params))
    extra = sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor))
    batch = kept * rows // max(1, len(index))
    return max(1, 5 * _param_bytes(job) + extra + 2 * batch)  # what a batch keeps, and its gradient


def _kept(job: Job, index: Tensor) -> int:
    """Bytes that the forward of these rows keeps for the backward, beside the parameters."""
    kept = 0
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in job.functional.params.items()}
    own = {leaf.data_ptr() for leaf in leaves.values()}

    def count(leaf: Tensor) -> Tensor:
        nonlocal kept
        kept += 0 if leaf.data_ptr() in own else leaf.numel() * leaf.element_size()
        return leaf

    model = dataclasses.replace(job, functional=dataclasses.replace(job.functional, params=leaves))
    try:
        with random.generator_kept(), torch.autograd.graph.saved_tensors_hooks(count, lambda leaf: leaf):
            tried.losses(model, take(job.data.x, index), index, mask=torch.ones_like(index, dtype=torch.bool))
    except (RuntimeError, ValueError, IndexError, TypeError):
        pass  # whatever is wrong is reported where the model is tried in earnest
    return kept
