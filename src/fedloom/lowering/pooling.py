"""Max-pooling as comparisons of slices, which a compiler fuses with what stands around them.

The winner of a window is torch's, ties included: the first largest value in row-major order, to which the whole
gradient goes (after ReLU many windows are ties of zeros), and the last NaN where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

Size = int | Sequence[int]


def max_pool2d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """`F.max_pool2d` by comparisons; None where it has padding, dilation or indices, which are left to `vmap`."""
    window, steps = _window(kernel_size, stride)
    if not _plain(padding, dilation, ceil_mode, return_indices) or input.dim() not in (3, 4) or min(window + steps) < 1:
        return None
    rows, columns = ((size - k) // s + 1 for size, k, s in zip(input.shape[-2:], window, steps, strict=True))
    if rows < 1 or columns < 1:
        return None
    cells = _blocks(input, window, rows, columns) if steps == window else _slices(input, window, steps, rows, columns)
    return reduce(_larger, cells)


def two_by_two(
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """Whether these arguments of `F.max_pool2d` mean windows of two by two, side by side, and nothing else."""
    plain = _plain(padding, dilation, ceil_mode, return_indices)
    return plain and _window(kernel_size, stride) == ((2, 2), (2, 2))


def _plain(padding: Size, dilation: Size, ceil_mode: bool, return_indices: bool) -> bool:
    return _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not ceil_mode and not return_indices


def _window(kernel_size: Size, stride: Size | None) -> tuple[tuple[int, int], tuple[int, int]]:
    window = _pair(kernel_size)
    return window, window if stride is None or stride == [] else _pair(stride)


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


def _larger(best: Tensor, other: Tensor) -> Tensor:
    return torch.where((other > best) | other.isnan(), other, best)


def _blocks(x: Tensor, window: tuple[int, int], rows: int, columns: int) -> list[Tensor]:
    """The cells of windows side by side, in row-major order: a reshape, whose gradient is one stack."""
    kh, kw = window
    whole = x[..., : rows * kh, : columns * kw].unflatten(-1, (columns, kw)).unflatten(-3, (rows, kh))
    return [cell for row in whole.unbind(-3) for cell in row.unbind(-1)]


def _slices(x: Tensor, window: tuple[int, int], steps: tuple[int, int], rows: int, columns: int) -> list[Tensor]:
    """The cells of windows that overlap or leave gaps, in row-major order."""
    (kh, kw), (sh, sw) = window, steps
    return [
        x[..., i : i + (rows - 1) * sh + 1 : sh, j : j + (columns - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]
