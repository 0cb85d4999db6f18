"""Batch norm over the real rows of a padded batch, and local response norm as a sum of slices."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F


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
    """`F.batch_norm` in training on the rows under `mask`; None without one, on a CPU.

    On an accelerator, where torch hands images to a library whose operator `vmap` may refuse, all rows are then real.
    Padded rows are normalised with the real rows' statistics and change nothing for them. A client with a single value
    per channel, which torch refuses, cannot be refused among others: it gets the bias, and a running variance of zero
    is averaged in.
    """
    if mask is None and input.device.type != "cpu" and input.numel() > input.shape[1]:  # one value: torch refuses it
        mask = input.new_ones(len(input), dtype=torch.bool)
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


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor | None:
    """`F.local_response_norm` with the neighbours' squares added slice by slice, which a compiler fuses.

    torch pools over the channels, in passes of their own, and in backward adds in no fixed order on a GPU. None where
    there is nothing to normalise, or no channels.
    """
    if input.dim() < 3 or input.numel() == 0:
        return None
    channels = input.shape[1]
    padded = F.pad(input * input, (0, 0) * (input.dim() - 2) + (size // 2, (size - 1) // 2))
    mean = reduce(torch.add, [padded.narrow(1, start, channels) for start in range(size)]) / size
    return input / (mean * alpha + k) ** beta
