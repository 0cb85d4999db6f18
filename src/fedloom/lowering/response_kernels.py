"""Triton kernels for a stack of local response norms of images, and for their gradient.

They see images as rows of channels, a row a position. Neighbours are read anew for each channel: they are in the cache.
"""

# Triton's decorators and its language are untyped, and a kernel is not Python that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.lowering.convolution_kernels import channel_rows, empty_last
from fedloom.lowering.triton_parts import jit, power, tl, triton

_TILE = 1024  # numbers that a program looks at


@jit
def _place(rows, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """A program's channels, where its numbers are, and which of its rows there are."""
    p = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    return c, (p * C)[:, None] + c[None, :], p < rows


@jit
def _response_norm(
    x,
    y,
    scale,
    rows,
    factor,
    beta,
    k,
    C: tl.constexpr,
    BEFORE: tl.constexpr,
    AFTER: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """scale = k + factor * the squares of the channels from BEFORE to AFTER; y = x / scale^beta."""
    c, at, live = _place(rows, C, BR, BC)
    squares = tl.zeros((BR, BC), dtype=tl.float32)
    for shift in tl.static_range(-BEFORE, AFTER + 1):
        there = live[:, None] & ((c + shift >= 0) & (c + shift < C))[None, :]
        v = tl.load(x + at + shift, mask=there, other=0).to(tl.float32)
        squares += v * v
    d = k + factor * squares
    there = live[:, None] & (c < C)[None, :]
    v = tl.load(x + at, mask=there, other=0).to(tl.float32)
    tl.store(y + at, (v * tl.exp2(-beta * tl.log2(d))).to(y.dtype.element_ty), mask=there)
    tl.store(scale + at, d, mask=there)


@jit
def _response_norm_gradient(
    g,
    x,
    scale,
    dx,
    rows,
    factor,
    beta,
    C: tl.constexpr,
    BEFORE: tl.constexpr,
    AFTER: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """dx = g / scale^beta - 2 factor beta x * the sum of g x / scale^(beta + 1) over those in whose scale it counts."""
    c, at, live = _place(rows, C, BR, BC)
    moved = tl.zeros((BR, BC), dtype=tl.float32)
    for shift in tl.static_range(-AFTER, BEFORE + 1):
        there = live[:, None] & ((c + shift >= 0) & (c + shift < C))[None, :]
        product = tl.load(g + at + shift, mask=there, other=0).to(tl.float32)
        product *= tl.load(x + at + shift, mask=there, other=0).to(tl.float32)
        d = tl.load(scale + at + shift, mask=there, other=1)
        moved += product * tl.exp2(-beta * tl.log2(d)) / d
    there = live[:, None] & (c < C)[None, :]
    own = tl.load(g + at, mask=there, other=0).to(tl.float32)
    d = tl.load(scale + at, mask=there, other=1)
    v = tl.load(x + at, mask=there, other=0).to(tl.float32)
    value = own * tl.exp2(-beta * tl.log2(d)) - 2 * factor * beta * v * moved
    tl.store(dx + at, value.to(dx.dtype.element_ty), mask=there)


def _work(x: Tensor, before: int, after: int) -> tuple[tuple[int, int], dict[str, int]]:
    """How many programs there are, and what each of them is for."""
    channels = x.shape[2]
    columns = power(channels, 16, 128)
    tile = max(_TILE // columns, 1)
    grid = triton.cdiv(x.numel() // channels, tile), triton.cdiv(channels, columns)
    return grid, {"C": channels, "BEFORE": before, "AFTER": after, "BR": tile, "BC": columns}


def response_norm(x: Tensor, before: int, after: int, factor: float, beta: float, k: float) -> tuple[Tensor, Tensor]:
    """Of x (K, N, C, H, W): what is normalised, and the scale it was divided by a power of, in float32."""
    y = empty_last(x, *x.shape)
    scale = torch.empty_like(y, dtype=torch.float32)
    grid, sizes = _work(x, before, after)
    _response_norm[grid](channel_rows(x), y, scale, x.numel() // x.shape[2], factor, beta, k, **sizes)
    return y, scale


def response_norm_gradient(
    g: Tensor, x: Tensor, scale: Tensor, before: int, after: int, factor: float, beta: float
) -> Tensor:
    """The gradient with respect to x from that of y, g."""
    dx = empty_last(x, *x.shape)
    grid, sizes = _work(x, before, after)
    given = (channel_rows(each) for each in (g, x, scale))
    _response_norm_gradient[grid](*given, dx, x.numel() // x.shape[2], factor, beta, **sizes)
    return dx
