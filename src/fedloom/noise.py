"""Gaussian noise that nobody can foresee, added on a grid: what differential privacy puts on a sum.

Uniform numbers come from the operating system's secure source. A sum and its noise are both whole numbers of a step, so
that the last bits of the result, which floating-point arithmetic would fill in a way that betrays the sum (Mironov
2012), are not there.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable

import torch
from torch import Tensor

from fedloom import random
from fedloom.ranks import Ranks

Uniforms = Callable[[int], Tensor]
"""`uniforms(count)`: so many float64 numbers in [0, 1), 53 bits each, other ones at every call."""

STEPS = 36
"""A step is the standard deviation over 2^36: fine enough to cost nothing, coarse enough for sums to be exact."""

_BLOCK = 2**20


def secure(count: int) -> Tensor:
    """Uniform numbers from the operating system's secure source."""
    if not count:
        return torch.zeros(0, dtype=torch.float64)
    words = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
    return (words & (2**53 - 1)).double() * 2.0**-53


def seeded(seed: int, round: int) -> Uniforms:
    """Uniform numbers that anybody who knows the seed can repeat: for tests alone."""
    calls = itertools.count()
    return lambda count: random.uniform(random.key(seed, round, next(calls), "privacy noise"), count)


def gaussian(count: int, uniforms: Uniforms) -> Tensor:
    """Standard normal numbers (Box and Muller 1958); none is beyond 8.6, which cuts off a share of 1e-17."""
    parts = []
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        pairs = (size + 1) // 2
        length = (-2 * torch.log1p(-uniforms(pairs))).sqrt()
        angle = 2 * math.pi * uniforms(pairs)
        parts.append(torch.cat([length * angle.cos(), length * angle.sin()])[:size])
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def step_of(deviation: float) -> float:
    """The grid's step for noise of this standard deviation: a power of two, so that scaling by it is exact.

    >>> step_of(1.5) == 2.0**-36
    True
    """
    return 2.0 ** (math.floor(math.log2(deviation)) - STEPS)


def noised(total: Tensor, deviation: float, step: float, uniforms: Uniforms, ranks: Ranks) -> Tensor:
    """`total`, rounded to whole steps, plus noise rounded to whole steps; drawn by one rank and the same on all.

    Noise that is rounded by itself and noise that is rounded with the total differ by nothing, the total being on the
    grid already: the result is the Gaussian mechanism's, rounded.
    """
    noise = torch.zeros(total.numel(), dtype=torch.int64)
    if ranks.first:
        noise = (gaussian(total.numel(), uniforms) * (deviation / step)).round().long()
    noise = ranks.broadcast(noise.to(total.device)).reshape(total.shape)
    return ((total / step).round().long() + noise).double() * step
