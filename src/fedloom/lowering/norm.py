"""Batch norm over the real rows of a padded batch."""

from __future__ import annotations

import torch
from torch import Tensor


def batch_norm(
    mask: Tensor | None,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """`F.batch_norm` in training on the rows under `mask`; None without one.

    Padded rows are normalised with the real rows' statistics and change nothing for them. A client with a single value
    per channel, which torch refuses, cannot be refused among others: it gets the bias, and a running variance of zero
    is averaged in.
    """
    if mask is None or not training:
        return None
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


def _follow(running: Tensor | None, value: Tensor, momentum: float) -> None:
    """The running average, in place, as torch has it."""
    if running is not None:
        with torch.no_grad():
            running.mul_(1 - momentum).add_(value.detach().to(running.dtype), alpha=momentum)
