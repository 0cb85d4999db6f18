"""A convolution and the pooling of its result at once: what lies between them is never written.

Max-pooling two by two keeps a quarter of a convolution's results. Here that quarter is written, and beside it one byte
for each window that says which of its cells won; from these the gradient is put back where it belongs. The pooling of
other sizes, and of what is no convolution's result, is `lowering.pooling`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedloom.lowering import convolution, convolution_kernels
from fedloom.lowering.convolution import InputGradient, Pair, WeightGradient, on_device
from fedloom.lowering.operators import call, flat, leading, operator
from fedloom.lowering.pooling import Unpool, Windows


class PooledConvolution(torch.autograd.Function):
    """`fedloom::conv2d_pool`: the largest of each window of a convolution with its bias, and which one it was."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, stride: Pair, padding: Pair, dilation: Pair
    ) -> tuple[Tensor, Tensor]:
        y, winners = torch.ops.fedloom.conv2d_pool(x, weight, bias, stride, padding, dilation)
        return y, winners

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, *ctx.settings = inputs
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
        x, weight, winners = ctx.saved_tensors
        image, taps = tuple(x.shape[-2:]), tuple(weight.shape[-2:])
        g = convolution.channels_last(g)
        windows = Windows((2, 2), (2, 2), (0, 0), (g.shape[-2], g.shape[-1]))
        cells = call(Unpool, g, winners, convolution.output_size(image, taps, *ctx.settings), windows)
        dx = call(InputGradient, cells, weight, image, *ctx.settings) if ctx.needs_input_grad[0] else None
        dw = call(WeightGradient, cells, x, taps, *ctx.settings) if ctx.needs_input_grad[1] else None
        return dx, dw, g.sum((0, 2, 3)), None, None, None


def conv2d_pool(*args: Any, **kwargs: Any) -> Tensor | None:
    """`F.max_pool2d(F.conv2d(...), 2)`; None where the convolution has another form than the kernels'."""
    given = convolution.with_bias(*args, **kwargs)
    if given is None:
        return None
    y: Tensor = call(PooledConvolution, *given)[0]
    return y


def _empty(x: Tensor, weight: Tensor, bias: Tensor, stride: Any, padding: Any, dilation: Any) -> tuple[Tensor, Tensor]:
    rows, columns = convolution.output_size(x.shape[-2:], weight.shape[-2:], stride, padding, dilation)
    y = convolution_kernels.empty_last(x, *leading(x), x.shape[-4], weight.shape[-4], rows // 2, columns // 2)
    return y, torch.empty_like(y, dtype=torch.uint8)


@operator(
    "fedloom::conv2d_pool",
    "(Tensor x, Tensor weight, Tensor bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation) -> (Tensor, Tensor)",
    batched=3,
    fake=_empty,
)
def _conv2d_pool(
    x: Tensor, weight: Tensor, bias: Tensor, stride: Any, padding: Any, dilation: Any
) -> tuple[Tensor, Tensor]:
    lead, (x, weight, bias) = flat((4, 4, 1), x, weight, bias)
    settings = tuple(stride), tuple(padding), tuple(dilation)
    if on_device(x):
        rows, columns = convolution.output_size(x.shape[-2:], weight.shape[-2:], *settings)
        y, winners = convolution_kernels.conv2d_pool(x, weight, bias, (rows // 2, columns // 2), *settings)
    else:
        made = [torch.conv2d(*each, *settings) for each in zip(x, weight, bias, strict=True)]
        found = [F.max_pool2d(each, 2, return_indices=True) for each in made]
        width = made[0].shape[-1]
        y = convolution_kernels.last(torch.stack([each for each, _ in found]))
        places = torch.stack([place for _, place in found])
        cells = places // width % 2 * 2 + places % width % 2
        winners = convolution_kernels.last(cells.to(torch.uint8))
    return y.reshape(*lead, *y.shape[1:]), winners.reshape(*lead, *winners.shape[1:])
