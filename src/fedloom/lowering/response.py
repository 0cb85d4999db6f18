"""Local response norm: each number over a power of the squares of its neighbours among the channels.

torch pools over the channels, in passes of their own, and in backward adds in no fixed order on a GPU. Here the
neighbours' squares are added where they lie, by kernels for images on a GPU, else slice by slice.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedloom.lowering import response_kernels
from fedloom.lowering.convolution import channels_last, on_device
from fedloom.lowering.convolution_kernels import empty_last, last
from fedloom.lowering.operators import call, flat, operator

_MOST_NEIGHBOURS = 64
"""A kernel goes through them one by one."""


def local_response_norm(
    kernel: bool, input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor | None:
    """`F.local_response_norm`; None where there is nothing to normalise, or no channels.

    Images have kernels where there are any, or where `kernel` asks for them, unless a setting is learnt or neighbours
    are very many.
    """
    if input.dim() < 3 or input.numel() == 0 or size < 1:
        return None
    numbers = not any(isinstance(each, Tensor) for each in (alpha, beta, k))
    few = sum(_reach(size, input.shape[1])) < _MOST_NEIGHBOURS
    if input.dim() == 4 and numbers and few and (kernel or on_device(input)):
        y: Tensor = call(ResponseNorm, channels_last(input), size, alpha, beta, k)[0]
        return y
    return _plain(input, size, alpha, beta, k)


def _plain(x: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    squares = _around(x * x, *_reach(size, x.shape[1]), axis=1)
    return x / (squares / size * alpha + k) ** beta


def _reach(size: int, channels: int) -> tuple[int, int]:
    """How many channels before it and after it a channel has for neighbours."""
    return min(size // 2, channels - 1), min((size - 1) // 2, channels - 1)


def _around(x: Tensor, before: int, after: int, axis: int) -> Tensor:
    """The sum of every channel and those so many before and after it."""
    count, trailing = x.shape[axis], (0, 0) * (x.dim() - 1 - axis % x.dim())
    padded = F.pad(x, (*trailing, before, after))
    return reduce(torch.add, [padded.narrow(axis, start, count) for start in range(before + after + 1)])


class ResponseNorm(torch.autograd.Function):
    """`fedloom::response_norm`: x over a power of its scale, and the scale.

    The result is not kept: what follows may change it in place.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, size: int, alpha: float, beta: float, k: float) -> tuple[Tensor, Tensor]:
        y, scale = torch.ops.fedloom.response_norm(x, *_reach(size, x.shape[1]), alpha / size, beta, k)
        return y, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, *ctx.settings = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
        return call(ResponseGradient, channels_last(g), *ctx.saved_tensors, *ctx.settings), *[None] * 4


class ResponseGradient(torch.autograd.Function):
    """`fedloom::response_norm_gradient` of (gradient of y, x), with x's scale. Its own gradient is the plain form's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, x: Tensor, scale: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
        before, after = _reach(size, x.shape[1])
        dx: Tensor = torch.ops.fedloom.response_norm_gradient(g, x, scale, before, after, alpha / size, beta)
        return dx

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, x, _, *ctx.settings = inputs
        ctx.save_for_backward(g, x)

    @staticmethod
    def backward(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
        def gradient(g: Tensor, x: Tensor) -> Tensor:
            pull: Any = torch.func.vjp(lambda x: _plain(x, *ctx.settings), x)[1]
            dx: Tensor = pull(g)[0]
            return dx

        pull: Any = torch.func.vjp(gradient, *ctx.saved_tensors)[1]
        return *pull(ddx), *[None] * 5


def _empty(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    y = empty_last(x, *x.shape)
    return y, torch.empty_like(y, dtype=torch.promote_types(x.dtype, torch.float32))


@operator(
    "fedloom::response_norm",
    "(Tensor x, int before, int after, float factor, float beta, float k) -> (Tensor, Tensor)",
    batched=1,
    fake=_empty,
)
def _response_norm(x: Tensor, before: int, after: int, factor: float, beta: float, k: float) -> tuple[Tensor, Tensor]:
    """In the dtype of x, float32 at least."""
    if on_device(x):
        lead, (x,) = flat(4, x)
        found = response_kernels.response_norm(x, before, after, factor, beta, k)
        y, scale = (each.reshape(*lead, *each.shape[1:]) for each in found)
        return y, scale
    wide = _wide(x)
    scale = _around(wide * wide, before, after, -3) * factor + k
    return last((wide / scale**beta).to(x.dtype)), last(scale)


def _empty_gradient(g: Tensor, x: Tensor, *_: Any) -> Tensor:
    return empty_last(x, *x.shape)


@operator(
    "fedloom::response_norm_gradient",
    "(Tensor g, Tensor x, Tensor scale, int before, int after, float factor, float beta) -> Tensor",
    batched=3,
    fake=_empty_gradient,
)
def _response_norm_gradient(
    g: Tensor, x: Tensor, scale: Tensor, before: int, after: int, factor: float, beta: float
) -> Tensor:
    """A channel counts in the scales of its neighbours, each of which moves its own number."""
    if on_device(x):
        lead, (g, x, scale) = flat(4, g, x, scale)
        dx = response_kernels.response_norm_gradient(g, x, scale, before, after, factor, beta)
        return dx.reshape(*lead, *dx.shape[1:])
    wide_g, wide_x = _wide(g), _wide(x)
    moved = _around(wide_g * wide_x / scale ** (beta + 1), after, before, -3)
    return last((wide_g / scale**beta - 2 * factor * beta * wide_x * moved).to(x.dtype))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
