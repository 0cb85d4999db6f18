"""Random changes of pictures, a batch at a time: a function of (pixels, key), the same in the loop and in the stack.

Pictures are (B, C, H, W) in [0, 1]. Every draw is a hash of the key and of the row's place in the batch, rows first:
what becomes of a row does not depend on the rows that follow it. Nothing here branches on data, so that
`torch.func.vmap` maps it over a stack of batches with a key each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedloom.random import bits

_DRAWS = 7  # 64-bit words a row: top, left, flip, brightness, contrast, hole's row and column
_BRIGHTNESS = 63 / 255
_CONTRAST = (0.2, 1.8)


@dataclass(frozen=True)
class Augmentation:
    """What is done to a training picture in every batch, in this order; `plain` does the same without chance.

    `pad` zeros around, a random `crop` (None: none), a random `flip`, `jitter` of brightness and contrast, `normalise`
    by a mean and a standard deviation per channel, `whiten` (each picture by its own), a `cutout` square of zeros.

    >>> crop = Augmentation(crop=24, flip=True, whiten=True)
    >>> crop(torch.rand(2, 3, 32, 32), torch.tensor(7)).shape, crop.plain(torch.rand(2, 3, 32, 32)).shape
    (torch.Size([2, 3, 24, 24]), torch.Size([2, 3, 24, 24]))
    """

    pad: int = 0
    crop: int | None = None
    flip: bool = False
    jitter: bool = False
    normalise: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    whiten: bool = False
    cutout: int = 0

    @property
    def random(self) -> bool:
        """Whether chance has any part in it."""
        return self.crop is not None or self.flip or self.jitter or self.cutout > 0

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """The batch that a step trains on; `key` is one int64 number."""
        # key + place is hashed, not bits(key, count), whose positions a compiler multiplies out until they overflow
        place = torch.arange(len(x) * _DRAWS, device=key.device)
        draws = bits(key + place, 1).reshape(len(x), _DRAWS)
        if self.crop is not None or self.flip:
            x = crop_and_flip(x, draws[:, :3], self.crop, self.pad, self.flip)
        if self.jitter:
            x = jitter(x, draws[:, 3:5])
        x = self._scale(x)
        return cutout(x, draws[:, 5:7], self.cutout) if self.cutout else x

    def plain(self, x: Tensor) -> Tensor:
        """The pictures as a test sees them: the central crop, normalised."""
        if self.crop is not None and not self.pad:
            top, left = (x.shape[-2] - self.crop) // 2, (x.shape[-1] - self.crop) // 2
            x = x[..., top : top + self.crop, left : left + self.crop]
        return self._scale(x)

    def _scale(self, x: Tensor) -> Tensor:
        if self.normalise is not None:
            x = normalise(x, *self.normalise)
        return whiten(x) if self.whiten else x


def crop_and_flip(x: Tensor, draws: Tensor, size: int | None, pad: int, flip: bool) -> Tensor:
    """A window of `size` x `size` at a random place of the padded picture, mirrored every other time."""
    x = F.pad(x, (pad, pad, pad, pad)) if pad else x
    batch, channels, height, width = x.shape
    tall, wide = (height, width) if size is None else (size, size)
    top, left = _below(draws[:, 0], height - tall + 1), _below(draws[:, 1], width - wide + 1)
    rows, columns = torch.arange(tall, device=x.device), torch.arange(wide, device=x.device)
    row = top[:, None] + rows
    column = left[:, None] + (torch.where(draws[:, 2:3] < 0, wide - 1 - columns, columns) if flip else columns)
    if size is not None:
        x = x.gather(2, row[:, None, :, None].expand(batch, channels, tall, width))
    return x.gather(3, column[:, None, None, :].expand(batch, channels, tall, wide))


def jitter(x: Tensor, draws: Tensor) -> Tensor:
    """Adds up to 63/255 of brightness, then scales the contrast of every channel by 0.2 to 1.8 (the TF tutorial's)."""
    share = _share(draws, x.dtype)[:, :, None, None, None]
    x = x + (2 * share[:, 0] - 1) * _BRIGHTNESS
    mean = x.mean((-2, -1), keepdim=True)
    low, high = _CONTRAST
    return (x - mean) * (low + (high - low) * share[:, 1]) + mean


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x - mean) / std, channel by channel.

    >>> normalise(torch.ones(1, 1, 1, 1), (0.5,), (0.25,)).item()
    2.0
    """
    shift, scale = (torch.tensor(value, dtype=x.dtype, device=x.device)[:, None, None] for value in (mean, std))
    return (x - shift) / scale


def whiten(x: Tensor) -> Tensor:
    """Each picture less its mean, over max(its standard deviation, 1 / sqrt(n)) as TensorFlow has it for 0..255."""
    size = x[0].numel()
    x = x - x.mean((1, 2, 3), keepdim=True)
    variance = x.square().mean((1, 2, 3), keepdim=True)
    # a library's root of float32 is the nearest number on some processors only, and test pictures have a fingerprint
    std = variance.double().sqrt().to(x.dtype) if x.device.type == "cpu" else variance.sqrt()
    return x / std.clamp_min(1 / (255 * size**0.5))


def cutout(x: Tensor, draws: Tensor, size: int) -> Tensor:
    """Zeros in a square whose centre is anywhere in the picture, cut off at the edge (DeVries and Taylor 2017)."""
    keep = []
    for axis, extent in enumerate(x.shape[-2:]):
        start = _below(draws[:, axis], extent)[:, None] - size // 2
        place = torch.arange(extent, device=x.device)
        keep.append((place < start) | (place >= start + size))
    outside = keep[0][:, None, :, None] | keep[1][:, None, None, :]
    return x * outside


def _below(draw: Tensor, count: int) -> Tensor:
    """Whole numbers from 0 to `count - 1`; of 2^63 draws, at most `count` too many fall on any."""
    return (draw & 0x7FFFFFFFFFFFFFFF) % count


def _share(draw: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in [0, 1), of 24 bits."""
    return ((draw >> 40) & 0xFFFFFF).to(dtype) * 2.0**-24
