"""Operators that `vmap` stacks by a leading client axis, and that a compiler takes as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def operator(
    name: str, schema: str, batched: int, fake: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a pure function as an operator.

    Its first `batched` arguments are tensors that may have any number of leading client axes, all the same; its results
    have them too. Under `vmap` they get one more, an argument without one being repeated. `fake` gives results of the
    right shapes and strides. Derivatives are a matter of the `autograd.Function` around it: those registered with an
    operator do not work under `torch.func.grad`.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        made = torch.library.custom_op(name, function, mutates_args=(), schema=schema)

        def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
            stacked = [
                argument.expand(info.batch_size, *argument.shape) if dim is None else argument.movedim(dim, 0)
                for argument, dim in zip(arguments[:batched], in_dims, strict=False)
            ]
            results = made(*stacked, *arguments[batched:])
            return results, (0,) * len(results) if isinstance(results, tuple) else 0

        made.register_fake(fake)
        made.register_vmap(rule)
        return made

    return register


def call(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Apply a function that has its own derivative."""
    return function.apply(*arguments)


def leading(x: Tensor, own: int = 4) -> tuple[int, ...]:
    """The client axes before a tensor's own axes."""
    return tuple(x.shape[: x.dim() - own])


def flat(own: int | tuple[int, ...], *tensors: Tensor) -> tuple[tuple[int, ...], list[Tensor]]:
    """The client axes, and the tensors with exactly one, whose size is one where there was none.

    >>> lead, (x,) = flat(1, torch.zeros(2, 3, 5))
    >>> lead, tuple(x.shape)
    ((2, 3), (6, 5))
    """
    sizes = (own,) * len(tensors) if isinstance(own, int) else own
    lead = leading(tensors[0], sizes[0])
    return lead, [_one(tensor, size) for tensor, size in zip(tensors, sizes, strict=True)]


def _one(tensor: Tensor, own: int) -> Tensor:
    lead = tensor.dim() - own
    if lead == 0:
        return tensor.unsqueeze(0)
    return tensor if lead == 1 else tensor.flatten(0, lead - 1)
