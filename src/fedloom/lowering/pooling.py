"""Max-pooling of a stack: by kernels where there are any, else as comparisons of slices, which a compiler fuses.

The winner of a window is torch's, ties included: the first largest value in row-major order, to which the whole
gradient goes (after ReLU many windows are ties of zeros), and the last NaN where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedloom.lowering import convolution_kernels, pooling_kernels
from fedloom.lowering.convolution import channels_last, on_device
from fedloom.lowering.operators import call, flat, leading, operator

Size = int | Sequence[int]
Pair = tuple[int, int]

_MOST_CELLS = 64
"""Of a window: a kernel goes through them one by one, and one byte tells them apart."""


class Windows(NamedTuple):
    """`size` windows of `cells`, every `stride`; the first begins so many rows and columns `before` the image."""

    cells: Pair
    stride: Pair
    before: Pair
    size: Pair

    def inside(self, image: Sequence[int]) -> bool:
        """Whether all their cells are the image's."""
        reach = [(count - 1) * s + k for count, s, k in zip(self.size, self.stride, self.cells, strict=True)]
        return self.before == (0, 0) and all(end <= extent for end, extent in zip(reach, image, strict=True))

    def touch(self, image: Sequence[int]) -> bool:
        """Whether each of them has a cell that is the image's."""
        first = all(p < k for p, k in zip(self.before, self.cells, strict=True))
        axes = zip(self.size, self.stride, self.before, image, strict=True)
        return first and all((count - 1) * s - p < extent for count, s, p, extent in axes)

    def two_by_two(self, image: Sequence[int]) -> bool:
        """Whether they are of two by two, side by side, and as many as there are."""
        return self[:3] == ((2, 2), (2, 2), (0, 0)) and self.size == (image[0] // 2, image[1] // 2)

    def around(self, rows: int, columns: int) -> Windows:
        """The same windows for the image alone, where it was given with so many rows and columns before it."""
        return self._replace(before=(self.before[0] + rows, self.before[1] + columns))


def windows(
    image: Sequence[int],
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Windows | None:
    """What `F.max_pool2d`'s arguments mean; None where torch refuses them, or they ask for more than windows.

    >>> windows((9, 7), 3, stride=2, padding=1)
    Windows(cells=(3, 3), stride=(2, 2), before=(1, 1), size=(5, 4))
    """
    cells, before = _pair(kernel_size), _pair(padding)
    steps = cells if stride is None or stride == [] or stride == () else _pair(stride)
    if cells is None or steps is None or before is None or _pair(dilation) != (1, 1) or return_indices:
        return None
    if min(cells + steps) < 1 or not all(0 <= p <= k // 2 for p, k in zip(before, cells, strict=True)):
        return None
    rows, columns = (_count(*axis, ceil_mode) for axis in zip(image, cells, steps, before, strict=True))
    return Windows(cells, steps, before, (rows, columns)) if min(rows, columns) > 0 else None


def _count(extent: int, cells: int, step: int, before: int, ceil_mode: bool) -> int:
    count = (extent + 2 * before - cells + (step - 1 if ceil_mode else 0)) // step + 1
    return count - 1 if ceil_mode and (count - 1) * step >= extent + before else count


def max_pool2d(input: Tensor, chosen: Windows, kernel: bool = False) -> Tensor | None:
    """These windows of `input`; None where only `vmap` has a form for them."""
    if input.dim() not in (3, 4):
        return None
    if (y := by_kernel(input, None, chosen, kernel)) is not None:
        return y
    if not chosen.inside(input.shape[-2:]):
        return None
    side_by_side = chosen.stride == chosen.cells
    return reduce(_larger, _blocks(input, chosen) if side_by_side else _slices(input, chosen))


def by_kernel(input: Tensor, bias: Tensor | None, chosen: Windows, kernel: bool = False) -> Tensor | None:
    """These windows of images with their bias, by kernels where there are any or `kernel` asks for them.

    None for windows whose cells are each read once, and are the image's: they are slices, and a compiler does with them
    what comes before and after. And where the kernels do not have them: of too many cells, or beside the image.
    """
    image = input.shape[-2:]
    apart = all(s >= k for s, k in zip(chosen.stride, chosen.cells, strict=True))
    if input.dim() != 4 or not (kernel or on_device(input)) or (apart and chosen.inside(image)):
        return None
    if chosen.cells[0] * chosen.cells[1] > _MOST_CELLS or not chosen.touch(image):
        return None
    added = input.new_zeros(input.shape[1]) if bias is None else bias
    y: Tensor = call(MaxPool, channels_last(input), added, chosen)[0]
    return y


def _pair(size: Any) -> Pair | None:
    """Rows and columns; None for what torch may take, or refuse, in its own way."""
    if isinstance(size, int):
        return size, size
    whole = isinstance(size, Sequence) and len(size) in (1, 2) and all(isinstance(each, int) for each in size)
    return (size[0], size[-1]) if whole else None


def _larger(best: Tensor, other: Tensor) -> Tensor:
    return torch.where((other > best) | other.isnan(), other, best)


def _blocks(x: Tensor, chosen: Windows) -> list[Tensor]:
    """The cells of windows side by side, in row-major order: a reshape, whose gradient is one stack."""
    (kh, kw), (rows, columns) = chosen.cells, chosen.size
    whole = x[..., : rows * kh, : columns * kw].unflatten(-1, (columns, kw)).unflatten(-3, (rows, kh))
    return [cell for row in whole.unbind(-3) for cell in row.unbind(-1)]


def _slices(x: Tensor, chosen: Windows) -> list[Tensor]:
    """The cells of windows that overlap or leave gaps, in row-major order."""
    (kh, kw), (sh, sw), _, (rows, columns) = chosen
    return [
        x[..., i : i + (rows - 1) * sh + 1 : sh, j : j + (columns - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]


class MaxPool(torch.autograd.Function):
    """`fedloom::max_pool`: the largest of each window's cells with their bias, and which one it was."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bias: Tensor, chosen: Windows) -> tuple[Tensor, Tensor]:
        y, winners = torch.ops.fedloom.max_pool(x, bias, *chosen)
        return y, winners

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, _, ctx.chosen = inputs
        ctx.image = tuple(x.shape[-2:])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
        g = channels_last(g)
        dx = call(Unpool, g, *ctx.saved_tensors, ctx.image, ctx.chosen)
        return dx, g.sum((0, 2, 3)) if ctx.needs_input_grad[1] else None, None


class Unpool(torch.autograd.Function):
    """`fedloom::unpool`: each window's number goes to the cell that won it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, winners: Tensor, image: Pair, chosen: Windows) -> Tensor:
        cells: Tensor = torch.ops.fedloom.unpool(g, winners, image, *chosen[:3])
        return cells

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, winners, ctx.image, ctx.chosen = inputs
        ctx.save_for_backward(winners)

    @staticmethod
    def backward(ctx: Any, cells: Tensor) -> tuple[Any, ...]:
        (winners,) = ctx.saved_tensors
        places = _places(winners, ctx.image, *ctx.chosen[:3])
        return torch.gather(cells.flatten(-2), -1, places.flatten(-2)).reshape(places.shape), None, None, None


def _places(winners: Tensor, image: Sequence[int], cells: Sequence[int], stride: Any, before: Any) -> Tensor:
    """Where in the image, counted row by row, each window's winner is."""
    rows, columns = (torch.arange(count, device=winners.device) for count in winners.shape[-2:])
    won = winners.long()
    row = rows[:, None] * stride[0] - before[0] + won // cells[1]
    column = columns * stride[1] - before[1] + won % cells[1]
    places: Tensor = row * image[1] + column
    return places


def _empty(x: Tensor, bias: Tensor, cells: Any, stride: Any, before: Any, size: Any) -> tuple[Tensor, Tensor]:
    y = convolution_kernels.empty_last(x, *leading(x), x.shape[-4], x.shape[-3], *size)
    return y, torch.empty_like(y, dtype=torch.uint8)


@operator(
    "fedloom::max_pool",
    "(Tensor x, Tensor bias, SymInt[] cells, SymInt[] stride, SymInt[] before, SymInt[] size) -> (Tensor, Tensor)",
    batched=2,
    fake=_empty,
)
def _max_pool(x: Tensor, bias: Tensor, cells: Any, stride: Any, before: Any, size: Any) -> tuple[Tensor, Tensor]:
    lead, (x, bias) = flat((4, 1), x, bias)
    if on_device(x):
        y, winners = pooling_kernels.max_pool(x, bias, *(tuple(each) for each in (cells, stride, before, size)))
    else:
        x = x + bias[:, None, :, None, None]
        axes = zip(x.shape[-2:], cells, stride, before, size, strict=True)
        (above, below), (left, right) = [(p, (q - 1) * s + k - extent - p) for extent, k, s, p, q in axes]
        image = F.pad(x.flatten(0, 1), (left, right, above, below), value=float("-inf"))
        found, place = F.max_pool2d(image, tuple(cells), tuple(stride), return_indices=True)
        rows, columns = (torch.arange(count, device=x.device) for count in size)
        row = place // image.shape[-1] - rows[:, None] * stride[0]
        column = place % image.shape[-1] - columns * stride[1]
        first = (above - rows * stride[0]).clamp(min=0)[:, None], (left - columns * stride[1]).clamp(min=0)
        nothing = found == float("-inf")  # what is beyond the image never wins
        won = torch.where(nothing, first[0] * cells[1] + first[1], row * cells[1] + column)
        shape = x.shape[:2]
        y, winners = (convolution_kernels.last(each.unflatten(0, shape)) for each in (found, won.to(torch.uint8)))
    return y.reshape(*lead, *y.shape[1:]), winners.reshape(*lead, *winners.shape[1:])


def _empty_image(g: Tensor, winners: Tensor, image: Any, *_: Any) -> Tensor:
    return convolution_kernels.empty_last(g, *leading(g), g.shape[-4], g.shape[-3], *image)


@operator(
    "fedloom::unpool",
    "(Tensor g, Tensor winners, SymInt[] image, SymInt[] cells, SymInt[] stride, SymInt[] before) -> Tensor",
    batched=2,
    fake=_empty_image,
)
def _unpool(g: Tensor, winners: Tensor, image: Any, cells: Any, stride: Any, before: Any) -> Tensor:
    lead, (g, winners) = flat(4, g, winners)
    if on_device(g):
        out = pooling_kernels.unpool(g, winners, *(tuple(each) for each in (image, cells, stride, before)))
    else:
        places = _places(winners, image, cells, stride, before)
        empty = g.new_zeros((*g.shape[:3], image[0] * image[1]))
        added = empty.scatter_add(-1, places.flatten(-2), g.flatten(-2))
        out = convolution_kernels.last(added.unflatten(-1, tuple(image)))
    return out.reshape(*lead, *out.shape[1:])
