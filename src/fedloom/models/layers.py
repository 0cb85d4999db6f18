"""What several models share: TensorFlow's SAME padding, and checks of sizes, options and inputs."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.nn import functional as F

from fedloom.errors import FedloomError, choose


def same_amounts(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """The cells that SAME adds before and after an axis: an odd one comes after, unlike PyTorch's symmetric padding.

    >>> same_amounts(24, 7, 2), same_amounts(12, 3, 2), same_amounts(28, 5, 1)
    ((2, 3), (0, 1), (2, 2))
    """
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """`x` padded for a convolution without padding, so that its output has size / stride cells, rounded up."""
    rows, columns = (same_amounts(size, kernel, stride) for size in x.shape[-2:])
    return F.pad(x, (*columns, *rows), value=value) if any(rows + columns) else x


def max_pool_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Max-pooling with SAME padding; what is padded is never the largest."""
    return F.max_pool2d(same(x, kernel, stride, float("-inf")), kernel, stride)


def check_sizes(model: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise FedloomError(f"{model} {name}: expected a whole number of at least 1, got {size!r}")


def check_choice(what: str, got: str, allowed: Iterable[str]) -> None:
    if got not in (allowed := list(allowed)):
        raise choose(what, got, allowed)


def gray_images(model: str, x: Tensor, side: int) -> Tensor:
    """Images with one channel; the channel's axis may be missing, and the pixels may stand in one row."""
    if tuple(x.shape[1:]) not in ((1, side, side), (side, side), (side * side,)):
        raise _wrong(model, f"images of shape (batch, 1, {side}, {side})", x)
    return x.reshape(-1, 1, side, side)


def color_images(model: str, x: Tensor, side: int | None = None) -> Tensor:
    """Images with three channels, of this size where one is given."""
    if x.dim() != 4 or x.shape[1] != 3 or (side is not None and tuple(x.shape[2:]) != (side, side)):
        raise _wrong(model, f"images of shape (batch, 3, {side or 'height'}, {side or 'width'})", x)
    return x


def tokens(model: str, x: Tensor) -> Tensor:
    """Whole numbers, one row per example."""
    if x.dim() != 2 or x.is_floating_point():
        raise _wrong(model, "tokens of shape (batch, time) and type int64", x)
    return x


def _wrong(model: str, expected: str, x: Tensor) -> FedloomError:
    return FedloomError(f"{model}: expected {expected}, got {tuple(x.shape)} of type {str(x.dtype).split('.')[-1]}")
