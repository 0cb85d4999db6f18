"""Convolutions with each client's own kernels.

`vmap` makes one grouped convolution of them, for which libraries have no fast program. The same sums are a matrix
product of patches and kernels per client, with the patches either written to memory (any device) or read where they lie
(the Triton kernels behind `fedloom::conv2d`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.lowering import convolution_kernels, triton_parts, weight_gradient_kernels
from fedloom.lowering.operators import call, flat, leading, operator

Form = Literal["plain", "matrix", "kernel", "hybrid"]  # hybrid: kernel, but matrix for the weights' gradient
Pair = tuple[int, int]

_KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# From this many outputs on, a library's matrix products are so much faster than the kernels that they pay for writing
# and reading the patches. Measured on an H200, 3x3 kernels on 6x6 images, 100 clients, in ms: forward and input's
# gradient by kernels, against these and the weights' gradient by matrices: 64 outputs 0.20, 0.43; 256 with stride two
# 0.51, 0.44; 512 5.2, 5.3.
_MATRIX_OUTPUTS = 256


def form(x: Tensor, weight: Tensor, stride: Pair, dilation: Pair, groups: int) -> Form:
    """Which form a layer's convolution takes, by a fixed rule on device, dtype and shape.

    On a CPU, and with groups, `vmap`'s own; on an accelerator the kernels, which are for up to 32 bits, and for a
    stride or a dilation but not both; patches and a matrix for the rest, for many outputs, and for 1x1 kernels, where a
    patch is a pixel.
    """
    if groups != 1 or x.device.type == "cpu":
        return "plain"
    wide = weight.shape[-4] >= _MATRIX_OUTPUTS or weight.shape[-2:] == (1, 1)
    fits = all(s == 1 or d == 1 for s, d in zip(stride, dilation, strict=True))
    if not wide and fits and x.dtype in _KERNEL_DTYPES and x.device.type == "cuda" and triton_parts.available():
        return "kernel"
    return "matrix"


def kernels(module: nn.Module) -> set[torch.Size]:
    """The shapes of the kernels that stacked forms read and write with channels adjacent in memory.

    Where they lie so, neither they nor their gradients are turned around at every step.
    """
    layers = [layer for layer in module.modules() if type(layer) is nn.Conv2d]
    return {
        layer.weight.shape
        for layer in layers
        if form(layer.weight, layer.weight, _pair(layer.stride), _pair(layer.dilation), layer.groups) != "plain"
    }


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    forced: Form | None = None,
) -> Tensor | None:
    """`F.conv2d` in the form that suits a stack of clients; None where `vmap`'s own is to be used."""
    chosen = chosen_form(input, weight, stride, dilation, groups, forced)
    if chosen == "plain":
        return None
    x, *settings = arranged(input, weight, stride, padding, dilation)
    if chosen == "matrix":
        y = _product(x, weight, *settings)
    else:
        y = call(Convolution, channels_last(x), weight, *settings, chosen == "hybrid")
    return y if bias is None else y + bias[:, None, None]


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    forced: Form | None = None,
) -> Tensor | None:
    """`F.conv1d` as a convolution of images one pixel high."""
    if input.dim() != 3:
        return None
    sizes = [(fill, _single(size)) for fill, size in ((1, stride), (1, dilation))]
    cells = padding if isinstance(padding, str) else (0, _single(padding))
    y = conv2d(input.unsqueeze(2), weight.unsqueeze(2), bias, sizes[0], cells, sizes[1], groups, forced)
    return None if y is None else y.squeeze(2)


def _single(size: int | Sequence[int]) -> int:
    return size if isinstance(size, int) else size[0]


def _pair(size: int | Sequence[int]) -> Pair:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


def chosen_form(
    x: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
    forced: Form | None,
) -> Form:
    """The form that is asked for, or by the rule; `plain` where there is no other."""
    if groups != 1 or x.dim() != 4:
        return "plain"
    return forced or form(x, weight, _pair(stride), _pair(dilation), groups)


def arranged(
    x: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    padding: str | int | Sequence[int],
    dilation: int | Sequence[int],
) -> tuple[Tensor, Pair, Pair, Pair]:
    """The input, padded where its sides differ, and stride, padding and dilation by axis."""
    steps, taps = _pair(stride), _pair(dilation)
    x, cells = _padded(x, weight, padding, steps, taps)
    return x, steps, cells, taps


def with_bias(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    forced: Form | None = None,
) -> tuple[Tensor, Tensor, Tensor, Pair, Pair, Pair] | None:
    """What an operator that adds the bias itself is given for `F.conv2d`'s arguments; None in another form."""
    if chosen_form(input, weight, stride, dilation, groups, forced) != "kernel":
        return None
    x, steps, cells, spacing = arranged(input, weight, stride, padding, dilation)
    added = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return channels_last(x), weight, added, steps, cells, spacing


def _padded(
    x: Tensor, weight: Tensor, padding: str | int | Sequence[int], stride: Pair, dilation: Pair
) -> tuple[Tensor, Pair]:
    """The padding on each side; where the two sides differ it is put on here."""
    if not isinstance(padding, str):
        return x, _pair(padding)
    if padding == "valid":
        return x, (0, 0)
    if padding != "same" or stride != (1, 1):
        raise RuntimeError(f"conv2d: expected padding 'valid', or 'same' with stride 1, got {padding!r}, {stride}")
    rows, columns = (d * (k - 1) for d, k in zip(dilation, weight.shape[-2:], strict=True))
    if rows % 2 == 0 and columns % 2 == 0:
        return x, (rows // 2, columns // 2)
    return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)), (0, 0)


def output_size(image: Sequence[int], taps: Sequence[int], stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    rows, columns = (
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(image, taps, stride, padding, dilation, strict=True)
    )
    return rows, columns


def _patches(x: Tensor, size: Pair, taps: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """One row per position, its channels adjacent within each tap."""
    qh, qw = size
    image = F.pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x
    image = image.permute(0, 2, 3, 1)
    slices = [
        image[
            :,
            i * dilation[0] : i * dilation[0] + (qh - 1) * stride[0] + 1 : stride[0],
            j * dilation[1] : j * dilation[1] + (qw - 1) * stride[1] + 1 : stride[1],
        ]
        for i in range(taps[0])
        for j in range(taps[1])
    ]
    patches = slices[0] if len(slices) == 1 else torch.cat(slices, -1)
    return patches.reshape(x.shape[0] * qh * qw, taps[0] * taps[1] * x.shape[1])


def _product(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """Patches times matrix, one product per client."""
    o, c, th, tw = weight.shape
    qh, qw = output_size(x.shape[-2:], (th, tw), stride, padding, dilation)
    matrix = weight.permute(0, 2, 3, 1).reshape(o, th * tw * c)
    y = _patches(x, (qh, qw), (th, tw), stride, padding, dilation) @ matrix.t()  # its gradient lies as the matrix does
    return y.reshape(x.shape[0], qh, qw, o).permute(0, 3, 1, 2)


def _weight_product(g: Tensor, x: Tensor, taps: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """The gradient of the matrix in `_product`, as kernels."""
    n, o, qh, qw = g.shape
    rows = g.permute(0, 2, 3, 1).reshape(n * qh * qw, o)
    dw = rows.t() @ _patches(x, (qh, qw), taps, stride, padding, dilation)
    return dw.reshape(o, *taps, x.shape[1]).permute(0, 3, 1, 2)


def channels_last(x: Tensor) -> Tensor:
    """Channels made adjacent in memory outside of the operators, where a compiler has whoever wrote x write it so."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


class Convolution(torch.autograd.Function):
    """`fedloom::conv2d` with its gradients: each of the three is linear in both its arguments, so they close.

    With `product`, the weights' gradient is a matrix product with patches.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair, product: bool) -> Tensor:
        y: Tensor = torch.ops.fedloom.conv2d(x, weight, stride, padding, dilation)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        *ctx.settings, ctx.product = inputs[2:]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        size, taps, g = tuple(x.shape[-2:]), tuple(weight.shape[-2:]), channels_last(g)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = call(InputGradient, g, weight, size, *ctx.settings)
        if ctx.needs_input_grad[1] and ctx.product:
            dw = _weight_product(g, x, taps, *ctx.settings)
        elif ctx.needs_input_grad[1]:
            dw = call(WeightGradient, g, x, taps, *ctx.settings)
        return dx, dw, None, None, None, None


class InputGradient(torch.autograd.Function):
    """`fedloom::conv2d_input_gradient` of (gradient of y, kernels)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, weight: Tensor, size: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
        dx: Tensor = torch.ops.fedloom.conv2d_input_gradient(g, weight, size, stride, padding, dilation)
        return dx

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.settings = inputs[3:]

    @staticmethod
    def backward(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
        g, weight = ctx.saved_tensors
        dg = call(Convolution, ddx, weight, *ctx.settings, False) if ctx.needs_input_grad[0] else None
        dw = call(WeightGradient, g, ddx, tuple(weight.shape[-2:]), *ctx.settings) if ctx.needs_input_grad[1] else None
        return dg, dw, None, None, None, None


class WeightGradient(torch.autograd.Function):
    """`fedloom::conv2d_weight_gradient` of (gradient of y, x)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, x: Tensor, taps: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
        dw: Tensor = torch.ops.fedloom.conv2d_weight_gradient(g, x, taps, stride, padding, dilation)
        return dw

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.settings = inputs[3:]

    @staticmethod
    def backward(ctx: Any, ddw: Tensor) -> tuple[Any, ...]:
        g, x = ctx.saved_tensors
        dg = call(Convolution, x, ddw, *ctx.settings, False) if ctx.needs_input_grad[0] else None
        dx = call(InputGradient, g, ddw, tuple(x.shape[-2:]), *ctx.settings) if ctx.needs_input_grad[1] else None
        return dg, dx, None, None, None, None


_SETTINGS = "SymInt[] stride, SymInt[] padding, SymInt[] dilation) -> Tensor"


def on_device(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in _KERNEL_DTYPES and triton_parts.available()


def _backward(g: Tensor, x: Tensor, weight: Tensor, settings: tuple[Any, ...], which: int) -> Tensor:
    wanted = [which == 0, which == 1, False]
    out = torch.ops.aten.convolution_backward(g, x, weight, None, *settings, False, [0, 0], 1, wanted)
    gradient: Tensor = out[which]
    return gradient


def _empty_output(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
    size = output_size(x.shape[-2:], weight.shape[-2:], stride, padding, dilation)
    return convolution_kernels.empty_last(x, *leading(x), x.shape[-4], weight.shape[-4], *size)


@operator("fedloom::conv2d", f"(Tensor x, Tensor weight, {_SETTINGS}", batched=2, fake=_empty_output)
def _conv2d(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
    lead, (x, weight) = flat(4, x, weight)
    settings = tuple(stride), tuple(padding), tuple(dilation)
    if on_device(x):
        y = convolution_kernels.conv2d(x, weight, output_size(x.shape[-2:], weight.shape[-2:], *settings), *settings)
    else:
        y = convolution_kernels.last(
            torch.stack([torch.conv2d(*pair, None, *settings) for pair in zip(x, weight, strict=True)])
        )
    return y.reshape(*lead, *y.shape[1:])


def _empty_input(g: Tensor, weight: Tensor, size: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    return convolution_kernels.empty_last(g, *leading(g), g.shape[-4], weight.shape[-3], *size)


@operator(
    "fedloom::conv2d_input_gradient",
    f"(Tensor g, Tensor weight, SymInt[] size, {_SETTINGS}",
    batched=2,
    fake=_empty_input,
)
def _conv2d_input_gradient(g: Tensor, weight: Tensor, size: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    lead, (g, weight) = flat(4, g, weight)
    settings = tuple(stride), tuple(padding), tuple(dilation)
    if on_device(g):
        dx = convolution_kernels.conv2d_input_gradient(g, weight, tuple(size), *settings)
    else:
        x = g.new_empty(()).expand(g.shape[1], weight.shape[2], *size)
        dx = convolution_kernels.last(torch.stack([_backward(g[k], x, weight[k], settings, 0) for k in range(len(g))]))
    return dx.reshape(*lead, *dx.shape[1:])


def _empty_weight(g: Tensor, x: Tensor, taps: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    return convolution_kernels.empty_last(g, *leading(g), g.shape[-3], x.shape[-3], *taps)


@operator(
    "fedloom::conv2d_weight_gradient", f"(Tensor g, Tensor x, SymInt[] taps, {_SETTINGS}", batched=2, fake=_empty_weight
)
def _conv2d_weight_gradient(g: Tensor, x: Tensor, taps: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    lead, (g, x) = flat(4, g, x)
    settings = tuple(stride), tuple(padding), tuple(dilation)
    if on_device(g):
        dw, _ = weight_gradient_kernels.conv2d_gradients(g, None, x, tuple(taps), *settings)
    else:
        weight = g.new_empty(()).expand(g.shape[2], x.shape[2], *taps)
        dw = convolution_kernels.last(torch.stack([_backward(g[k], x[k], weight, settings, 1) for k in range(len(g))]))
    return dw.reshape(*lead, *dw.shape[1:])
