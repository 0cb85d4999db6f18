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


def local_response_norm(
    kernel: bool, input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor | None:
    """`F.local_response_norm`; None where there is nothing to normalise, or no channels.

    Images have kernels where there are any, or where `kernel` asks for them.
    """
    if input.dim() < 3 or input.numel() == 0:
        return None
    if input.dim() == 4 and (kernel or on_device(input)):
        y: Tensor = call(ResponseNorm, channels_last(input), size, alpha, beta, k)[0]
        return y
    return input / _scale(input, size, alpha, k) ** beta


def _around(x: Tensor, before: int, after: int, axis: int) -> Tensor:
    """The sum of every channel and those so many before and after it."""
    count, trailing = x.shape[axis], (0, 0) * (x.dim() - 1 - axis % x.dim())
    padded = F.pad(x, (*trailing, before, after))
    return reduce(torch.add, [padded.narrow(axis, start, count) for start in range(before + after + 1)])


def _scale(x: Tensor, size: int, alpha: float, k: float, axis: int = 1) -> Tensor:
    return _around(x * x, size // 2, (size - 1) // 2, axis) / size * alpha + k


class ResponseNorm(torch.autograd.Function):
    """`fedloom::response_norm`: x over a power of its scale, and the scale."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, size: int, alpha: float, beta: float, k: float) -> tuple[Tensor, Tensor]:
        y, scale = torch.ops.fedloom.response_norm(x, size, alpha, beta, k)
        return y, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, *ctx.settings = inputs
        ctx.save_for_backward(x, *output)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
        return call(ResponseGradient, channels_last(g), *ctx.saved_tensors, *ctx.settings[:3]), *[None] * 4


class ResponseGradient(torch.autograd.Function):
    """`fedloom::response_norm_gradient` of (gradient of y, x, y, scale)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, x: Tensor, y: Tensor, scale: Tensor, size: int, alpha: float, beta: float) -> Tensor:
        dx: Tensor = torch.ops.fedloom.response_norm_gradient(g, x, y, scale, size, alpha, beta)
        return dx

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError("local response norm of a stack of images has first derivatives alone")


def _empty(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    y = empty_last(x, *x.shape)
    return y, torch.empty_like(y, dtype=torch.promote_types(x.dtype, torch.float32))


@operator(
    "fedloom::response_norm",
    "(Tensor x, int size, float alpha, float beta, float k) -> (Tensor, Tensor)",
    batched=1,
    fake=_empty,
)
def _response_norm(x: Tensor, size: int, alpha: float, beta: float, k: float) -> tuple[Tensor, Tensor]:
    """In the dtype of x, float32 at least."""
    if on_device(x):
        lead, (x,) = flat(4, x)
        found = response_kernels.response_norm(x, size, alpha, beta, k)
        y, scale = (each.reshape(*lead, *each.shape[1:]) for each in found)
        return y, scale
    wide = _wide(x)
    scale = _scale(wide, size, alpha, k, -3)
    return last((wide / scale**beta).to(x.dtype)), last(scale)


def _empty_gradient(g: Tensor, x: Tensor, *_: Any) -> Tensor:
    return empty_last(x, *x.shape)


@operator(
    "fedloom::response_norm_gradient",
    "(Tensor g, Tensor x, Tensor y, Tensor scale, int size, float alpha, float beta) -> Tensor",
    batched=4,
    fake=_empty_gradient,
)
def _response_norm_gradient(
    g: Tensor, x: Tensor, y: Tensor, scale: Tensor, size: int, alpha: float, beta: float
) -> Tensor:
    """A channel counts in the scales of its neighbours, each of which moves its own number."""
    if on_device(x):
        lead, (g, x, y, scale) = flat(4, g, x, y, scale)
        dx = response_kernels.response_norm_gradient(g, x, y, scale, size, alpha, beta)
        return dx.reshape(*lead, *dx.shape[1:])
    wide_g, wide_x, wide_y = _wide(g), _wide(x), _wide(y)
    moved = _around(wide_g * wide_y / scale, (size - 1) // 2, size // 2, -3)
    return last((wide_g / scale**beta - 2 * alpha * beta / size * wide_x * moved).to(x.dtype))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
