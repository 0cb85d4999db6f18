"""A transform is two pure functions; `chain` composes them; `from_torch` brings in any torch optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from fedloom import tree
from fedloom.errors import FedloomError
from fedloom.schedule import Schedule
from fedloom.types import Info, Params, PartState
from fedloom.upload import Upload

Init = Callable[[Params], PartState]
Update = Callable[[Params, PartState, Params, Info], tuple[Params, PartState, Info]]


def _no_state(params: Params) -> PartState:
    return ()


@dataclass(frozen=True)
class Transform:
    """`update(g, state, params, info) -> (g, state, info)`; the last g of a chain is subtracted from the parameters."""

    name: str
    update: Update
    init: Init = _no_state
    resolve: Callable[[float], Transform] | None = None  # what becomes of it once an 'estimate' is known
    rates: Schedule | None = None  # the learning rate in it
    reads_clients: bool = False  # whether it reads of the clients more than their mean
    corrects: bool = False  # whether it steers a client by x^t or a memory, which is more than to train as it likes
    forgets: bool = False  # whether it keeps nothing that it is given, and hands on nothing of it but g

    def then(self, *others: Transform) -> Transform:
        if not others:
            return self
        parts = (self, *others)

        def init(params: Params) -> PartState:
            return tuple(part.init(params) for part in parts)

        def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
            states = []
            for part, part_state in zip(parts, state, strict=True):
                g, new, info = part.update(g, part_state, params, info)
                states.append(new)
            return g, tuple(states), info

        def resolve(estimate: float) -> Transform:
            first, *rest = (part.resolve(estimate) if part.resolve else part for part in parts)
            return first.then(*rest)

        pending = resolve if any(part.resolve for part in parts) else None
        rates = next((part.rates for part in reversed(parts) if part.rates is not None), None)
        name = f"chain({', '.join(part.name for part in parts)})"
        reads_clients, corrects = any(part.reads_clients for part in parts), any(part.corrects for part in parts)
        forgets = all(part.forgets for part in parts)
        return Transform(name, update, init, pending, rates, reads_clients, corrects, forgets)

    def __repr__(self) -> str:
        return self.name


@overload
def chain(first: Transform, *rest: Transform) -> Transform: ...
@overload
def chain(first: Upload, *rest: Upload) -> Upload: ...
def chain(first: Any, *rest: Any) -> Any:
    """Compose transforms, or uploads, in the order they act.

    >>> from fedloom.transforms.optimizers import momentum, scale
    >>> chain(momentum(0.9), scale(0.1))
    chain(momentum(0.9), scale(0.1))
    """
    for part in (first, *rest):
        if not isinstance(part, Transform | Upload) or type(part) is not type(first):
            raise FedloomError(f"chain: expected parts of one kind, got {part!r} in a chain that starts with {first!r}")
    return first.then(*rest)


def changed(g: Params, state: PartState, info: Info) -> tuple[Params, PartState, Info]:
    """What an ordinary transform returns: later parts take its output for the raw gradient too."""
    return g, state, replace(info, raw=g)


def stateless(
    name: str, function: Callable[[Params, Params, Info], Params], *, corrects: bool = False, forgets: bool = False
) -> Transform:
    """A transform without state, from a pure `function(g, params, info) -> g`; the raw gradient goes through it too."""

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        new = function(g, params, info)
        raw = new if info.raw is g else function(info.raw, params, info)
        return new, state, replace(info, raw=raw)

    return Transform(name, update, corrects=corrects, forgets=forgets)


def from_torch(optimizer: type[torch.optim.Optimizer], **options: Any) -> Transform:
    """Any torch optimizer as a server: it takes one step on the pseudo-gradient each round.

    Its learning rate is part of it, so it stands last in a chain. It cannot keep FedGLAD's scaled and unscaled
    gradients apart: all its moments see the scaled one, which is said once.

    >>> from_torch(torch.optim.SGD, lr=0.5)
    from_torch(SGD, lr=0.5)
    """
    if not isinstance(optimizer, type):
        raise FedloomError(f"from_torch: expected a class such as torch.optim.SGD, got {optimizer!r}")
    shown = "".join(f", {name}={value!r}" for name, value in options.items())
    name = f"from_torch({optimizer.__name__}{shown})"

    def build(params: Params) -> tuple[Params, torch.optim.Optimizer]:
        leaves = {key: leaf.detach().clone().requires_grad_() for key, leaf in params.items()}
        try:
            return leaves, optimizer(list(leaves.values()), **options)
        except (TypeError, ValueError) as error:
            raise FedloomError(f"{name}: torch refused these options: {error}") from error

    def init(params: Params) -> PartState:
        build(params)  # a wrong option is an error now, not in the first round
        return {}

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        if info.raw is not g:
            warnings.warn(
                f"{name} cannot separate FedGLAD's scaled gradient from the unscaled one: "
                "all its moments see the scaled one",
                stacklevel=2,
            )
        leaves, built = build(params)
        if state:
            # load_state_dict casts floating state to the parameter's dtype, so a counter's tensor is set by hand
            for leaf, kept in zip(leaves.values(), state.values(), strict=True):
                built.state[leaf] = tree.map_state(torch.clone, kept)
        for key, leaf in leaves.items():
            leaf.grad = g[key].to(leaf.dtype).clone()
        try:
            built.step()
        except (TypeError, RuntimeError) as error:
            raise FedloomError(f"{name}: its step needs more than a gradient ({error}); choose another") from error
        step = {key: (params[key] - leaf).detach() for key, leaf in leaves.items()}
        kept = {key: tree.map_state(Tensor.detach, dict(built.state[leaf])) for key, leaf in leaves.items()}
        return changed(step, kept, info)

    return Transform(name, update, init)
