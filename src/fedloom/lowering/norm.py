"""Batch norm over the real rows of a padded batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedloom.lowering import norm_kernels
from fedloom.lowering.convolution import channels_last, on_device
from fedloom.lowering.convolution_kernels import empty_last, last
from fedloom.lowering.operators import call, flat, leading, operator


def batch_norm(
    mask: Tensor | None,
    kernel: bool,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Normed | Tensor | None:
    """`F.batch_norm` in training on the rows under `mask`; None without one, on a CPU and in one precision.

    On an accelerator, where torch hands images to a library whose operator `vmap` may refuse, and of numbers that are
    shorter than the parameters, which `vmap` refuses, all rows are then real.
    Padded rows are normalised with the real rows' statistics and change nothing for them. A client with a single value
    per channel, which torch refuses, cannot be refused among others: it gets the bias, and a running variance of zero
    is averaged in. Images have kernels where there are any, or where `kernel` asks for them. Outside of training
    numbers that are shorter than the statistics are normalised in the statistics' dtype, which `vmap` does not refuse.
    """
    mixed = any(leaf is not None and leaf.dtype != input.dtype for leaf in (weight, running_mean))
    if not training:
        if not mixed or running_mean is None:
            return None
        given = input.to(running_mean.dtype)
        return F.batch_norm(given, running_mean, running_var, weight, bias, False, momentum, eps).to(input.dtype)
    if mask is not None and len(mask) != len(input):
        raise ValueError(
            f"batch norm of {len(input)} rows made of a batch of {len(mask)}: which are padding is not known"
        )
    alone = input.numel() <= input.shape[1]  # one value: torch refuses it
    if mask is None and (kernel or mixed or input.device.type != "cpu") and not alone:
        mask = input.new_ones(len(input), dtype=torch.bool)
    if mask is None:
        return None
    if input.dim() == 4 and (kernel or on_device(input)):
        normed = Normed.of(input, mask, weight, bias, eps)
        mean, variance, count = normed.mean, normed.variance, normed.count
        unbiased = variance * (count / (count - 1).clamp(min=1))
        _follow(running_mean, mean, momentum)
        _follow(running_var, unbiased, momentum)
        return normed
    over = [axis for axis in range(input.dim()) if axis != 1]
    shape = [1, -1, *[1] * (input.dim() - 2)]
    rows = mask.reshape(-1, *[1] * (input.dim() - 1))
    x = input if input.dtype == torch.float64 else input.float()
    count = mask.sum().clamp(min=1).to(x.dtype) * (input[0, 0].numel())
    mean = torch.where(rows, x, 0.0).sum(over) / count
    centred = x - mean.reshape(shape)
    squares = torch.where(rows, centred, 0.0).square().sum(over)
    out = centred * torch.rsqrt(squares / count + eps).reshape(shape)
    if weight is not None:
        out = out * weight.reshape(shape)
    if bias is not None:
        out = out + bias.reshape(shape)
    _follow(running_mean, mean, momentum)
    _follow(running_var, squares / (count - 1).clamp(min=1), momentum)
    return out.to(input.dtype)


@dataclass(frozen=True)
class Normed:
    """What a batch norm of images is computed from: alone, or with a sum and a ReLU that follow it."""

    x: Tensor
    mask: Tensor
    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor
    count: Tensor
    eps: float

    @staticmethod
    def of(x: Tensor, mask: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Normed:
        x = channels_last(x)
        mean, variance, count = torch.ops.fedloom.moments(x.detach(), mask)
        weight = x.new_ones(x.shape[1]) if weight is None else weight
        bias = x.new_zeros(x.shape[1]) if bias is None else bias
        return Normed(x, mask, weight, bias, mean, variance, count, eps)

    def result(self, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """weight (x - mean) / sqrt(variance + eps) + bias, with the residual, and with `relu` zero where below."""
        other = self.x.detach() if residual is None else channels_last(residual)
        leaves = self.weight, self.bias, self.mean, self.variance, self.count, self.mask
        y: Tensor = call(Normalise, self.x, other, *leaves, self.eps, residual is not None, relu)
        return y


class Normalise(torch.autograd.Function):
    """`fedloom::normalise`: the moments are constants to it, and what x does to them is in its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        mask: Tensor,
        eps: float,
        add: bool,
        relu: bool,
    ) -> Tensor:
        y: Tensor = torch.ops.fedloom.normalise(x, residual, weight, bias, mean, variance, eps, add, relu)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, weight, _, mean, variance, count, mask, ctx.eps, ctx.add, ctx.relu = inputs
        # what is not cut off is not read again: an in-place ReLU may change it
        ctx.save_for_backward(x, weight, mean, variance, count, mask, output if ctx.relu else x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        g, both = channels_last(g), ctx.add and ctx.relu
        dx, cut, weight, bias = call(Gradients, g, *ctx.saved_tensors, ctx.eps, both, ctx.relu)
        residual = (cut if both else g) if ctx.add else None
        return dx, residual, weight, bias, *[None] * 7


class Gradients(torch.autograd.Function):
    """Those of `Normalise` by x, weight and bias, and with `cut` g where y is above zero, which is the residual's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        mask: Tensor,
        y: Tensor,
        eps: float,
        cut: bool,
        relu: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        total, product = torch.ops.fedloom.normalise_sums(g, y, x, mean, variance, eps, relu)
        found = g, y, x, mask, mean, variance, weight, total, product, count
        dx, rest = torch.ops.fedloom.normalise_gradient(*found, eps, cut, relu)
        return dx, rest, product.to(weight.dtype), total.to(weight.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError("batch norm of a stack of images has first derivatives alone")


def _follow(running: Tensor | None, value: Tensor, momentum: float) -> None:
    """The running average, in place, as torch has it."""
    if running is not None:
        with torch.no_grad():
            running.mul_(1 - momentum).add_(value.detach().to(running.dtype), alpha=momentum)


# The operators. Their plain forms are in the dtype of x, float32 at least, and see any number of client axes.


def _by_channel(leaf: Tensor) -> Tensor:
    return leaf[..., None, :, None, None]


def _wide(*leaves: Tensor) -> list[Tensor]:
    return [leaf if leaf.dtype == torch.float64 else leaf.float() for leaf in leaves]


def _empty_moments(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(x.dtype, torch.float32)
    lead = leading(x)
    mean = x.new_empty((*lead, x.shape[-3]), dtype=dtype)
    return mean, torch.empty_like(mean), x.new_empty(lead, dtype=dtype)


@operator("fedloom::moments", "(Tensor x, Tensor mask) -> (Tensor, Tensor, Tensor)", batched=2, fake=_empty_moments)
def _moments(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each channel over the images under the mask, and how many numbers that are."""
    if on_device(x):
        lead, (x, mask) = flat((4, 1), x, mask)
        found = norm_kernels.moments(x, mask)
        return found[0].reshape(*lead, -1), found[1].reshape(*lead, -1), found[2].reshape(lead)
    [x] = _wide(x)
    rows = mask[..., None, None, None]
    count = mask.sum(-1).to(x.dtype) * (x.shape[-1] * x.shape[-2])
    least = count.clamp(min=1)[..., None]
    mean = torch.where(rows, x, 0.0).sum((-4, -2, -1)) / least
    squares = torch.where(rows, x - _by_channel(mean), 0.0).square().sum((-4, -2, -1))
    return mean, squares / least, count


def _empty_like_x(x: Tensor, *_: Any) -> Tensor:
    return empty_last(x, *x.shape)


@operator(
    "fedloom::normalise",
    "(Tensor x, Tensor residual, Tensor weight, Tensor bias, Tensor mean, Tensor variance, float eps, bool add,"
    " bool relu) -> Tensor",
    batched=6,
    fake=_empty_like_x,
)
def _normalise(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    add: bool,
    relu: bool,
) -> Tensor:
    if on_device(x):
        lead, leaves = flat((4, 4, 1, 1, 1, 1), x, residual, weight, bias, mean, variance)
        y = norm_kernels.normalise(*leaves, eps=eps, add=add, relu=relu)
        return y.reshape(*lead, *y.shape[1:])
    wide, residual, weight, bias = _wide(x, residual, weight, bias)
    scale = torch.rsqrt(variance + eps) * weight
    y = (wide - _by_channel(mean)) * _by_channel(scale) + _by_channel(bias)
    y = y + residual if add else y
    return last((y.relu() if relu else y).to(x.dtype))


def _empty_sums(g: Tensor, y: Tensor, x: Tensor, mean: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(mean), torch.empty_like(mean)


@operator(
    "fedloom::normalise_sums",
    "(Tensor g, Tensor y, Tensor x, Tensor mean, Tensor variance, float eps, bool relu) -> (Tensor, Tensor)",
    batched=5,
    fake=_empty_sums,
)
def _normalise_sums(
    g: Tensor, y: Tensor, x: Tensor, mean: Tensor, variance: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    """Of each channel: the gradients by its bias and by its weight."""
    if on_device(x):
        lead, leaves = flat((4, 4, 4, 1, 1), g, y, x, mean, variance)
        total, product = norm_kernels.sums(*leaves, eps=eps, relu=relu)
        return total.reshape(*lead, -1), product.reshape(*lead, -1)
    g, x = _wide(torch.where(y <= 0, 0.0, g) if relu else g, x)
    normed = (x - _by_channel(mean)) * _by_channel(torch.rsqrt(variance + eps))
    return g.sum((-4, -2, -1)), (g * normed).sum((-4, -2, -1))


def _empty_gradient(g: Tensor, y: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    _, cut, _ = rest[-3:]
    return empty_last(x, *x.shape), empty_last(x, *x.shape) if cut else x.new_empty((*leading(x), 0))


@operator(
    "fedloom::normalise_gradient",
    "(Tensor g, Tensor y, Tensor x, Tensor mask, Tensor mean, Tensor variance, Tensor weight, Tensor total,"
    " Tensor product, Tensor count, float eps, bool cut, bool relu) -> (Tensor, Tensor)",
    batched=10,
    fake=_empty_gradient,
)
def _normalise_gradient(
    g: Tensor,
    y: Tensor,
    x: Tensor,
    mask: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor,
    total: Tensor,
    product: Tensor,
    count: Tensor,
    eps: float,
    cut: bool,
    relu: bool,
) -> tuple[Tensor, Tensor]:
    """By x, on real rows through the moments too; and with `cut` g where y is above zero."""
    lead = leading(x)
    if on_device(x):
        sizes = 4, 4, 4, 1, 1, 1, 1, 1, 1, 0
        _, leaves = flat(sizes, g, y, x, mask, mean, variance, weight, total, product, count)
        dx, rest = norm_kernels.gradient(*leaves, eps=eps, cut=cut, relu=relu)
        return dx.reshape(*lead, *dx.shape[1:]), rest.reshape(*lead, *rest.shape[1:])
    wide, weight, back = _wide(x, weight, torch.where(y <= 0, 0.0, g) if relu else g)
    scale, least = torch.rsqrt(variance + eps), count.clamp(min=1)[..., None]
    normed = (wide - _by_channel(mean)) * _by_channel(scale)
    moved = _by_channel(total / least) + normed * _by_channel(product / least)
    dx = (back - torch.where(mask[..., None, None, None], moved, 0.0)) * _by_channel(scale * weight)
    rest = last(back.to(x.dtype)) if cut else x.new_empty((*lead, 0))
    return last(dx.to(x.dtype)), rest
