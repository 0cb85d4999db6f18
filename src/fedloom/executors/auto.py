"""Which executor runs a cohort: a fixed rule on model, device and cohort. A rule on the clock could not be repeated."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from fedloom import random, tree
from fedloom.data.federated import Features, named_leaves, take
from fedloom.dropout import SeededDropout
from fedloom.errors import FedloomError, choose
from fedloom.executors.job import Assignment, Executor, Job, Part, Trained
from fedloom.executors.loop import loop
from fedloom.executors.vectorized import vectorized
from fedloom.memory import RowStore

EXECUTORS: dict[str, Executor] = {"loop": loop, "vectorized": vectorized}
CHOICES = ("auto", *EXECUTORS)

_STACK_BYTES = 2**28
"""Parameters of a stack on a CPU: beyond this the caches are lost and the loop is as fast."""


@dataclass(frozen=True)
class Choice:
    """What was resolved, and why, in one sentence."""

    executor: str
    chunk: int
    why: str

    def run(self, job: Job, stacks: Iterable[Sequence[Part]]) -> Iterator[Trained]:
        return EXECUTORS[self.executor](job, stacks)


def resolve(job: Job, executor: str, chunk: int | None, cohort: int) -> tuple[Job, Choice]:
    """The executor for this job; what cannot be stacked falls to the loop, and `why` says so."""
    if executor not in CHOICES:
        raise choose("executor", executor, CHOICES)
    if chunk is not None and chunk < 1:
        raise FedloomError(f"chunk: expected at least 1 client, got {chunk}")
    draws, job = _draws(job), dataclasses.replace(job, chunk=chunk or _chunk(job, cohort))
    job = dataclasses.replace(job, draws=draws, rows_independent=not draws and _rows_independent(job))
    if executor == "loop":
        return job, Choice("loop", job.chunk, "asked for")
    uncounted = ""
    obstacle = "its forward draws random numbers other than dropout's" if draws else _obstacle(job)
    if obstacle is not None and not draws and job.functional.metrics:
        plain = dataclasses.replace(job, functional=dataclasses.replace(job.functional, metrics={}))
        if _obstacle(plain) is None:  # only a metric is in the way: the stack trains without counting it
            job, obstacle, uncounted = plain, None, f"; metrics are not counted in training: {obstacle}"
    if obstacle is not None:
        why = f"{type(job.functional.module).__name__} cannot be stacked: {obstacle}"
        if executor == "vectorized":
            warnings.warn(f"executor='vectorized': {why}; running the loop", stacklevel=3)
        return job, Choice("loop", job.chunk, why)
    if executor == "vectorized":
        return job, Choice("vectorized", job.chunk, f"asked for{uncounted}")
    stacked, why = _rule(job, cohort)
    return job, Choice("vectorized", job.chunk, f"{why}{uncounted}") if stacked else Choice("loop", job.chunk, why)


def _rule(job: Job, cohort: int) -> tuple[bool, str]:
    if cohort == 1:
        return False, "a cohort of one has nothing to stack"
    if next(iter(job.functional.params.values())).device.type != "cpu":
        return True, "on an accelerator a stack of clients fills the device"
    heavy = (nn.modules.conv._ConvNd, nn.RNNBase)
    found = next(
        (type(module).__name__ for module in job.functional.module.modules() if isinstance(module, heavy)), None
    )
    if found is not None:
        return False, f"on a CPU {found} is at the arithmetic's limit already"
    return True, "on a CPU a dense model's time is dispatch, which a stack shares"


def _chunk(job: Job, cohort: int) -> int:
    """As many clients as keep the stack's parameters, gradients and optimizer within bounds."""
    size = sum(leaf.numel() * leaf.element_size() for leaf in job.functional.params.values())
    return max(1, min(cohort, 128, _STACK_BYTES // (4 * size)))


def _sample(job: Job, rows: int) -> Tensor:
    """A few rows from all over the data set to try the model on (fewer where there are fewer)."""
    spread = torch.linspace(0, job.data.indices.numel() - 1, rows).long().unique()
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
    """Whether a row's loss stays the same when more rows follow: false for batch norm, for one.

    Tried on rows and parameters that are all different and with dropout at one half, whatever the model begins with: a
    layer that starts at zero, rows that are alike or a rare mask would hide what mixes them.
    """
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in job.functional.module.modules()):
        return False  # known, and beyond doubt where rows without noise (words) are alike
    index = _sample(job, 3)
    batch = _shaken(take(job.data.x, torch.cat([index, index[:1]])))
    params = {name: _noisy(leaf) for name, leaf in job.functional.params.items()}
    job = dataclasses.replace(job, functional=dataclasses.replace(job.functional, params=params))
    with torch.no_grad():
        try:
            alone = _losses(job, take(batch, torch.arange(len(index))), index, drop=0.5)
            beside = _losses(job, batch, torch.cat([index, index[:1]]), drop=0.5)
        except ValueError:
            return False
    if alone.shape != index.shape or beside.shape[0] != len(index) + 1:
        return False  # not one value per example: the training will say so
    return torch.allclose(alone, beside[: len(alone)], rtol=1e-4, atol=1e-6)  # not where a row is not finite


def _shaken(x: Features) -> Features:
    """The same features with noise on what is floating."""
    if isinstance(x, Tensor):
        return _noisy(x)
    if isinstance(x, dict):
        return {name: _noisy(leaf) for name, leaf in x.items()}
    return tuple(_noisy(leaf) for leaf in x)


def _noisy(leaf: Tensor) -> Tensor:
    if not leaf.is_floating_point():
        return leaf
    noise = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(leaf.numel()))
    return leaf + 0.1 * noise.to(leaf)


def _losses(job: Job, x: Features, index: Tensor, drop: float | None = None) -> Tensor:
    """The training loss of each row of x, whose targets are those of the rows `index`."""
    functional = job.functional
    key = torch.zeros((), dtype=torch.int64, device=index.device)
    functional.module.train()
    with SeededDropout(key, drop):
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
