"""Which executor runs a cohort: a fixed rule on model, device and cohort. A rule on the clock could not be repeated."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fedloom import random, tree
from fedloom.data.federated import Features, named_leaves, take
from fedloom.dropout import SeededDropout
from fedloom.errors import FedloomError, choose
from fedloom.executors.crew import members
from fedloom.executors.job import LANES, ONE_VALUE, Assignment, Executor, Job, Part, Trained
from fedloom.executors.loop import loop
from fedloom.executors.program import Program, Programs
from fedloom.executors.vectorized import Vectorized, eager, vectorized
from fedloom.functional import cast
from fedloom.lowering import stacked as stacked_forms
from fedloom.memory import RowStore
from fedloom.precision import tensor_float
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


@dataclass
class Choice:
    """What was resolved, and why, in one sentence; what happens to it in the run is added to `notes`."""

    executor: str
    chunk: int
    why: str
    program: str = "none"  # "captured", "compiled": a stack's step as one program
    workers: int = 1
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
            return Vectorized(eager, self._halved)
        programs = self._programs()
        self.forgets.append(programs.forget)
        return Vectorized(programs, self._halved, self.workers)

    def _programs(self) -> Programs:
        def made(program: Program) -> None:
            self.notes["program_seconds"] = self.notes.get("program_seconds", 0.0) + program.seconds
            self.notes["programs"] = self.notes.get("programs", 0) + 1

        def failed(reason: str) -> None:
            self.notes["program"] = f"none: {reason}"
            warnings.warn(f"a step could not become a program ({reason}); it runs operation by operation", stacklevel=2)

        return Programs(self.program == "compiled", made, failed, self.workers)

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
    asked = _form(job, lowered=executor != "loop")
    draws, job = _draws(job), dataclasses.replace(job, chunk=chunk or _chunk(asked, cohort, ranks))
    job = dataclasses.replace(job, draws=draws, workers=_workers(job, cohort, draws, ranks))

    def looped(why: str) -> tuple[Job, Choice]:
        return job, Choice("loop", job.chunk, why, workers=job.workers, memory=client_bytes(job) * job.workers)

    if executor == "loop":
        return looped("asked for")
    suits, reason = (True, "asked for") if executor == "vectorized" else _rule(job, cohort)
    if not suits:  # before a stack is tried, which takes a second or two
        return looped(reason)
    stacked = _form(job, lowered=True)
    functional = stacked.functional
    if not draws:
        stacked = dataclasses.replace(stacked, rows_independent=_rows_independent(stacked), two_rows=_two_rows(job))
    uncounted = ""
    obstacle = "its forward draws random numbers other than dropout's" if draws else _obstacle(stacked)
    if obstacle is not None and not draws and functional.metrics:
        plain = dataclasses.replace(stacked, functional=dataclasses.replace(functional, metrics={}))
        if _obstacle(plain) is None:  # only a metric is in the way: the stack trains without counting it
            stacked, obstacle, uncounted = plain, None, f"; metrics are not counted in training: {obstacle}"
    if obstacle is not None:
        why = f"{type(functional.module).__name__} cannot be stacked: {obstacle}"
        if executor == "vectorized":
            warnings.warn(f"executor='vectorized': {why}; running the loop", stacklevel=3)
        return looped(why)
    memory = client_bytes(stacked) * min(job.chunk, cohort)
    program = _program(stacked, memory, rounds, compiled)
    workers = _crew(job, cohort, ranks) if program == "captured" else 1  # a compiled step has threads of its own
    return stacked, Choice("vectorized", job.chunk, reason + uncounted, program, workers, memory)


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
    index = _sample(job, 2)
    kept = _kept(_form(job, lowered=False), index)
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
            _losses(model, take(job.data.x, index), index, mask=torch.ones_like(index, dtype=torch.bool))
    except (RuntimeError, ValueError, IndexError, TypeError):
        pass  # whatever is wrong is reported where the model is tried in earnest
    return kept


def _form(job: Job, lowered: bool) -> Job:
    """With the modules' stacked forms, or their own."""
    return dataclasses.replace(job, functional=dataclasses.replace(job.functional, lowered=lowered))


def _sample(job: Job, rows: int) -> Tensor:
    """A few rows from all over the data set to try the model on (fewer where there are fewer)."""
    spread = torch.linspace(0, job.data.indices.numel() - 1, rows, dtype=torch.float64).long().unique()
    return job.data.indices[spread.to(job.data.indices.device)]


def _draws(job: Job) -> bool:
    """Whether a forward draws random numbers beside dropout's: the generator's state tells."""
    index = _sample(job, 2)
    with random.generator_kept(), torch.no_grad():
        before = torch.random.get_rng_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        try:
            _losses(job, take(job.data.x, index), index)
        except FedloomError:
            raise
        except ValueError:
            return False  # batch norm on one value: the training itself will say which client
        except (RuntimeError, IndexError, TypeError) as error:
            raise FedloomError(_mismatch(job, error)) from error
        after = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        changed = any(not torch.equal(a, b) for a, b in zip(cuda, after, strict=True))
        return changed or not torch.equal(before, torch.random.get_rng_state())


def _mismatch(job: Job, error: Exception) -> str:
    """The first forward failed: what the model and the loss were given, and what torch said."""
    given = [leaf for part in (job.data.x, job.data.y) for _, leaf in named_leaves(part)]
    shown = ", ".join(f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape[1:])}" for leaf in given)
    said = shorten(str(error).strip().splitlines()[0], 160, placeholder=" ...")
    name = type(job.functional.module).__name__
    return f"Task: {name} and its loss failed on examples of {job.data.name} ({shown}): {said}"


def _rows_independent(job: Job) -> bool:
    """Whether a row's loss stays the same when padding follows: not where a loss is taken over the whole batch, say.

    Tried on rows and parameters that are all different and with dropout at one half, whatever the model begins with: a
    layer that starts at zero, rows that are alike or a rare mask would hide what mixes them. In float64, for batch norm
    after batch norm amplifies rounding until it looks like mixing; as it is where a model keeps to its own precision.
    """
    index = _sample(job, 3)
    batch: Features = pytree.tree_map(_noisy, take(job.data.x, torch.cat([index, index[:1]])))
    params = {name: _noisy(leaf) for name, leaf in job.functional.params.items()}
    job = dataclasses.replace(job, functional=dataclasses.replace(job.functional, params=params))
    try:
        return _padding_counts_for_nothing(_in_float64(job), cast(batch, torch.float64), index)
    except (RuntimeError, TypeError):
        return _padding_counts_for_nothing(job, batch, index)


def _padding_counts_for_nothing(job: Job, batch: Features, index: Tensor) -> bool:
    """Whether the losses of all rows but the last are the same without it, and with it under a mask."""
    with torch.no_grad(), tensor_float(False):
        try:
            alone = _losses(job, take(batch, torch.arange(len(index))), index, drop=0.5)
            real = torch.arange(len(index) + 1, device=index.device) < len(index)
            beside = _losses(job, batch, torch.cat([index, index[:1]]), drop=0.5, mask=real)
        except ValueError:
            return False
    if alone.shape != index.shape or beside.shape[0] != len(index) + 1:
        return False  # not one value per example: the training will say so
    return torch.allclose(alone, beside[: len(alone)], rtol=1e-4, atol=1e-6)  # not where a row is not finite


def _in_float64(job: Job) -> Job:
    own = job.functional
    exact = dataclasses.replace(
        own,
        params=cast(own.params, torch.float64),
        buffers=cast(own.buffers, torch.float64),
        constants=cast(own.constants, torch.float64),
        compute=None,
    )
    return dataclasses.replace(job, functional=exact)


def _noisy(leaf: Tensor) -> Tensor:
    if not leaf.is_floating_point():
        return leaf
    noise = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(leaf.numel()))
    return leaf + 0.1 * noise.to(leaf)


def _two_rows(job: Job) -> bool:
    """Whether the model refuses a batch of one row, as batch norm does where a row is one value per channel."""
    index = _sample(job, 1)
    with torch.no_grad():
        try:
            _losses(job, take(job.data.x, index), index)
        except ValueError as error:
            return ONE_VALUE in str(error)
    return False


def _losses(job: Job, x: Features, index: Tensor, drop: float | None = None, mask: Tensor | None = None) -> Tensor:
    """The training loss of each row of x, whose targets are those of the rows `index`."""
    functional = job.functional
    key = torch.zeros((), dtype=torch.int64, device=index.device)
    functional.module.train()
    with SeededDropout(key, drop), stacked_forms(mask) if functional.lowered else nullcontext():
        buffers = tree.map(torch.clone, functional.buffers)
        augmented = x if functional.augment is None else functional.augment(x, key)
        output = functional.output(functional.params, buffers, augmented)
    return functional.loss(output, take(job.data.y, index))


@contextmanager
def _no_slow_batching() -> Iterator[None]:
    """An operation that `vmap` would run one client at a time (the LSTM's) is an error here, not a slow stack."""
    functorch: Any = torch._C._functorch
    allowed = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(allowed)


def _obstacle(job: Job) -> str | None:
    """Try one stacked step; what torch says when it cannot is the reason."""
    examples = job.data.examples
    clients = torch.nonzero(examples >= examples.clamp(max=2).max()).flatten()[:2].cpu()
    functional = job.functional
    shared = tree.zeros_like(functional.params)
    rates = job.algorithm.client_rates
    assignment = Assignment(0, 0, 0, job.data, functional.params, functional.buffers, shared, RowStore(), rates)
    trial = dataclasses.replace(job.batching, epochs=1, steps=1, batch_size=2, drop_last=False)
    functional.module.train()
    try:
        with _no_slow_batching():
            for _ in vectorized(dataclasses.replace(job, batching=trial), [[Part(assignment, clients)]]):
                pass
    except FedloomError:
        return None  # a mistake that the loop would meet too: let the training report it
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        said = shorten(str(error).strip().splitlines()[0].rstrip("."), 110, placeholder=" ...")
        return f"torch has no stacked form of {said.split()[0]}" if "vmap fallback" in said else said
    return None
