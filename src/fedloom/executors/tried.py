"""What a model turns out to be: tried on a few of its rows, not guessed from its layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedloom import random, tree
from fedloom.data.federated import Features, named_leaves, take
from fedloom.dropout import SeededDropout
from fedloom.errors import FedloomError
from fedloom.executors.job import ONE_VALUE, Assignment, Job, Part
from fedloom.executors.vectorized import vectorized
from fedloom.functional import cast
from fedloom.lowering import stacked as stacked_forms
from fedloom.memory import RowStore
from fedloom.precision import tensor_float


def form(job: Job, lowered: bool) -> Job:
    """With the modules' stacked forms, or their own."""
    return dataclasses.replace(job, functional=dataclasses.replace(job.functional, lowered=lowered))


def sample(job: Job, rows: int) -> Tensor:
    """A few rows from all over the data set to try the model on (fewer where there are fewer)."""
    spread = torch.linspace(0, job.data.indices.numel() - 1, rows, dtype=torch.float64).long().unique()
    return job.data.indices[spread.to(job.data.indices.device)]


def draws(job: Job) -> bool:
    """Whether a forward draws random numbers beside dropout's: the generator's state tells.

    One that goes on changing what no client has for its own is a mistake: the next client would begin with it.
    """
    index = sample(job, 2)
    with random.generator_kept(), torch.no_grad():
        before = torch.random.get_rng_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        versions = {name: _version(leaf) for name, leaf in _still(job).items()}
        try:
            losses(job, take(job.data.x, index), index)
        except FedloomError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            if ONE_VALUE in str(error):
                return False  # the training itself will say which client
            if job.functional.compute is not None:  # a mistake in any precision is told as one
                draws(dataclasses.replace(job, functional=dataclasses.replace(job.functional, compute=None)))
            raise FedloomError(_mismatch(job, error)) from error
        after = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        changed = any(not torch.equal(a, b) for a, b in zip(cuda, after, strict=True))
        drawn = changed or not torch.equal(before, torch.random.get_rng_state())
        written = {name: leaf for name, leaf in _still(job).items() if _version(leaf) != versions[name]}
        if written:  # once, as what is computed when it is first needed, or at every forward?
            torch.random.set_rng_state(before)
            _check_settled(job, index, written)
        return drawn


def _still(job: Job) -> dict[tuple[str, str], Tensor]:
    """What all clients share and no step changes, as it is and as a forward in another precision computes with it."""
    groups = {"": job.functional.constants, "in bfloat16": job.functional.computed}
    return {(group, name): leaf for group, leaves in groups.items() for name, leaf in leaves.items()}


def _version(leaf: Tensor) -> int:
    """How often it was changed in place; of what was made in inference mode nobody counts."""
    return 0 if leaf.is_inference() else leaf._version


def _check_settled(job: Job, index: Tensor, written: dict[tuple[str, str], Tensor]) -> None:
    """An error if a forward over the same rows changes any of it again."""
    first = {place: leaf.clone() for place, leaf in written.items()}
    losses(job, take(job.data.x, index), index)
    trained = dict(job.functional.module.named_parameters())
    for (group, name), leaf in written.items():
        before = first[group, name]
        if leaf.shape != before.shape or not torch.allclose(leaf, before, rtol=0, atol=0, equal_nan=True):
            advice = "" if name in trained else ": register it with persistent=True, and each client has its own"
            raise FedloomError(
                f"Task.model, {name}: expected what does not train to stay as it is, got a forward that changes it in "
                f"place every time{advice}"
            )


def _mismatch(job: Job, error: Exception) -> str:
    """The first forward failed: what the model and the loss were given, and what torch said."""
    given = [leaf for part in (job.data.x, job.data.y) for _, leaf in named_leaves(part)]
    shown = ", ".join(f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape[1:])}" for leaf in given)
    said = shorten(str(error).strip().splitlines()[0], 160, placeholder=" ...")
    name = type(job.functional.module).__name__
    inside = f"{name} and its loss failed"
    if job.functional.compute is not None:
        return f"Task: {inside} in bfloat16 on examples of {job.data.name} ({shown}): {said}: pass precision='high'"
    return f"Task: {inside} on examples of {job.data.name} ({shown}): {said}"


def rows_independent(job: Job) -> bool:
    """Whether a row's loss stays the same when padding follows: not where a loss is taken over the whole batch, say.

    Tried on rows and parameters that are all different and with dropout at one half, whatever the model begins with: a
    layer that starts at zero, rows that are alike or a rare mask would hide what mixes them. In float64, for batch norm
    after batch norm amplifies rounding until it looks like mixing; as it is where a model keeps to its own precision;
    and where it fails on padding in both, its rows are not taken for independent.
    """
    index = sample(job, 3)
    batch: Features = pytree.tree_map(_noisy, take(job.data.x, torch.cat([index, index[:1]])))
    params = {name: _noisy(leaf) for name, leaf in job.functional.params.items()}
    job = dataclasses.replace(job, functional=dataclasses.replace(job.functional, params=params))
    for tried, given in ((_in_float64(job), cast(batch, torch.float64)), (job, batch)):
        with suppress(RuntimeError, TypeError):
            return _padding_counts_for_nothing(tried, given, index)
    return False


def _padding_counts_for_nothing(job: Job, batch: Features, index: Tensor) -> bool:
    """Whether the losses of all rows but the last are the same without it, and with it under a mask."""
    with torch.no_grad(), tensor_float(False):
        try:
            alone = losses(job, take(batch, torch.arange(len(index))), index, drop=0.5)
            real = torch.arange(len(index) + 1, device=index.device) < len(index)
            beside = losses(job, batch, torch.cat([index, index[:1]]), drop=0.5, mask=real)
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


def two_rows(job: Job) -> bool:
    """Whether the model refuses a batch of one row, as batch norm does where a row is one value per channel."""
    index = sample(job, 1)
    with torch.no_grad():
        try:
            losses(job, take(job.data.x, index), index)
        except ValueError as error:
            return ONE_VALUE in str(error)
    return False


def losses(job: Job, x: Features, index: Tensor, drop: float | None = None, mask: Tensor | None = None) -> Tensor:
    """The training loss of each row of x, whose targets are those of the rows `index`."""
    functional = job.functional
    key = torch.zeros((), dtype=torch.int64, device=index.device)
    functional.module.train()
    with SeededDropout(key, drop), stacked_forms(mask) if functional.lowered else nullcontext():
        buffers = tree.map(torch.clone, functional.buffers)
        augmented = x if functional.augment is None else functional.augment(x, key)
        output = functional.trained_output(functional.params, buffers, augmented)
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


def obstacle(job: Job) -> str | None:
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
