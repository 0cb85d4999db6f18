"""A convolution and the ReLU of its result at once: neither the sum before it nor its gradient is ever written.

The gradient of a sum is that of the result where the result is above zero, and the kernels' gradient is taken so, with
the bias's beside it. Where the gradient by the input is asked for too, it is written once for both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedloom.lowering import convolution, convolution_kernels, weight_gradient_kernels
from fedloom.lowering.convolution import Convolution, InputGradient, Pair, WeightGradient, on_device
from fedloom.lowering.operators import call, flat, leading, operator


class RectifiedConvolution(torch.autograd.Function):
    """`fedloom::conv2d_relu`: a convolution with its bias, zero where that is below."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
        y: Tensor = torch.ops.fedloom.conv2d_relu(x, weight, bias, stride, padding, dilation)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, *ctx.settings = inputs
        ctx.save_for_backward(x, weight, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, weight, y = ctx.saved_tensors
        image, taps = tuple(x.shape[-2:]), tuple(weight.shape[-2:])
        if not ctx.needs_input_grad[0]:
            return None, *call(Gradients, convolution.channels_last(g), y, x, taps, *ctx.settings), None, None, None
        g = convolution.channels_last(_above_zero(g, y))
        dx = call(InputGradient, g, weight, image, *ctx.settings)
        dw = call(WeightGradient, g, x, taps, *ctx.settings) if ctx.needs_input_grad[1] else None
        return dx, dw, g.sum((0, 2, 3)), None, None, None


class Gradients(torch.autograd.Function):
    """`fedloom::conv2d_relu_gradients` of (gradient of y, y, x): those of the kernels and of the bias."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        g: Tensor, y: Tensor, x: Tensor, taps: Pair, stride: Pair, padding: Pair, dilation: Pair
    ) -> tuple[Tensor, Tensor]:
        dw, db = torch.ops.fedloom.conv2d_relu_gradients(g, y, x, taps, stride, padding, dilation)
        return dw, db

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.settings = inputs[4:]

    @staticmethod
    def backward(ctx: Any, ddw: Tensor, ddb: Tensor) -> tuple[Any, ...]:
        g, y, x = ctx.saved_tensors
        dg = _above_zero(call(Convolution, x, ddw, *ctx.settings, False) + ddb[:, None, None], y)
        size = tuple(x.shape[-2:])
        dx = call(InputGradient, _above_zero(g, y), ddw, size, *ctx.settings) if ctx.needs_input_grad[2] else None
        return dg, None, dx, None, None, None, None


def _above_zero(g: Tensor, y: Tensor) -> Tensor:
    return torch.where(y <= 0, 0.0, g)


def conv2d_relu(*args: Any, **kwargs: Any) -> Tensor | None:
    """`F.relu(F.conv2d(...))`; None where the convolution has another form than the kernels'."""
    given = convolution.with_bias(*args, **kwargs)
    return None if given is None else call(RectifiedConvolution, *given)


def _empty(x: Tensor, weight: Tensor, bias: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
    size = convolution.output_size(x.shape[-2:], weight.shape[-2:], stride, padding, dilation)
    return convolution_kernels.empty_last(x, *leading(x), x.shape[-4], weight.shape[-4], *size)


@operator(
    "fedloom::conv2d_relu",
    "(Tensor x, Tensor weight, Tensor bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation) -> Tensor",
    batched=3,
    fake=_empty,
)
def _conv2d_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
    lead, (x, weight, bias) = flat((4, 4, 1), x, weight, bias)
    settings = tuple(stride), tuple(padding), tuple(dilation)
    if on_device(x):
        size = convolution.output_size(x.shape[-2:], weight.shape[-2:], *settings)
        y = convolution_kernels.conv2d_relu(x, weight, bias, size, *settings)
    else:
        made = [torch.conv2d(*each, *settings).relu() for each in zip(x, weight, bias, strict=True)]
        y = convolution_kernels.last(torch.stack(made))
    return y.reshape(*lead, *y.shape[1:])


def _empty_gradients(
    g: Tensor, y: Tensor, x: Tensor, taps: Any, stride: Any, padding: Any, dilation: Any
) -> tuple[Tensor, Tensor]:
    dw = convolution_kernels.empty_last(g, *leading(g), g.shape[-3], x.shape[-3], *taps)
    return dw, g.new_empty((*leading(g), g.shape[-3]))


@operator(
    "fedloom::conv2d_relu_gradients",
    "(Tensor g, Tensor y, Tensor x, SymInt[] taps, SymInt[] stride, SymInt[] padding, SymInt[] dilation)"
    " -> (Tensor, Tensor)",
    batched=3,
    fake=_empty_gradients,
)
def _conv2d_relu_gradients(
    g: Tensor, y: Tensor, x: Tensor, taps: Any, stride: Any, padding: Any, dilation: Any
) -> tuple[Tensor, Tensor]:
    settings = tuple(stride), tuple(padding), tuple(dilation)
    if on_device(g):
        lead, (g, y, x) = flat(4, g, y, x)
        dw, db = weight_gradient_kernels.conv2d_gradients(g, y, x, tuple(taps), *settings)
        return dw.reshape(*lead, *dw.shape[1:]), db.reshape(*lead, *db.shape[1:])
    g = _above_zero(g, y)
    dw = torch.ops.fedloom.conv2d_weight_gradient(g, x, taps, *settings)
    return dw, g.sum((-4, -2, -1))
