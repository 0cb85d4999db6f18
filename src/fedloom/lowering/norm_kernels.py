"""Triton kernels for a stack of batch norms of images: moments, what is normalised by them, and its gradients.

They see a client's images as rows of channels, a row a position. What follows a norm in residual networks, the sum with
a shortcut and ReLU, is done where the numbers are: such networks take most of their time in passes over memory.
"""

# Triton's decorators and its language are untyped, and a kernel is not Python that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.lowering.triton_parts import jit, power, processors, tl, triton

_TILE = 4096  # numbers that a program looks at at a time


@jit
def _place(rows, p0, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """A tile's rows from p0, its channels, and which of its numbers there are."""
    p = p0 + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    return p, c, (p < rows)[:, None] & (c < C)[None, :]


@jit
def _moments(
    x,
    mask,
    counts,
    means,
    squares,
    rows,
    image,
    share,
    C: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """Of a share of a client's real rows: their number, each channel's mean, and the squares of what is beside it.

    Each place of a tile has a running mean of its own (Welford), and they are put together at the end.
    """
    client = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    x += client * rows * C
    mask += client * (rows // image)
    n = tl.zeros((BR,), dtype=tl.float32)
    mean = tl.zeros((BR, BC), dtype=tl.float32)
    square = tl.zeros((BR, BC), dtype=tl.float32)
    for p0 in range(split * share, tl.minimum(rows, (split + 1) * share), BR):
        p, c, there = _place(rows, p0, C, BR, BC)
        live = tl.load(mask + p // image, mask=p < rows, other=0) != 0
        n += live.to(tl.float32)
        v = tl.load(x + (p * C)[:, None] + c[None, :], mask=there & live[:, None], other=0).to(tl.float32)
        beside = tl.where(live[:, None], v - mean, 0.0)
        mean += beside / tl.maximum(n, 1.0)[:, None]
        square += beside * tl.where(live[:, None], v - mean, 0.0)
    count = tl.sum(n, 0)
    whole = tl.sum(mean * n[:, None], 0) / tl.maximum(count, 1.0)
    apart = mean - whole[None, :]
    total = tl.sum(square + apart * apart * n[:, None], 0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    out = (split * tl.num_programs(0) + client) * C + c
    tl.store(means + out, whole, mask=c < C)
    tl.store(squares + out, total, mask=c < C)
    if tl.program_id(1) == 0:
        tl.store(counts + split * tl.num_programs(0) + client, count)


@jit
def _merge_moments(
    counts, means, squares, count_out, mean_out, variance_out, clients, splits, C: tl.constexpr, BC: tl.constexpr
):
    """Of all shares together: the number of rows, each channel's mean and variance."""
    client = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = 0.0
    mean = tl.zeros((BC,), dtype=tl.float32)
    square = tl.zeros((BC,), dtype=tl.float32)
    for split in range(splits):
        own = (split * clients + client).to(tl.int64)
        more = tl.load(counts + own)
        at = own * C + c
        apart = tl.load(means + at, mask=c < C, other=0) - mean
        share = more / tl.maximum(n + more, 1.0)
        mean += apart * share
        square += tl.load(squares + at, mask=c < C, other=0) + apart * apart * (n * share)
        n += more
    tl.store(mean_out + client * C + c, mean, mask=c < C)
    tl.store(variance_out + client * C + c, square / tl.maximum(n, 1.0), mask=c < C)
    if tl.program_id(1) == 0:
        tl.store(count_out + client, n)


@jit
def _normalise(
    x,
    residual,
    weight,
    bias,
    mean,
    variance,
    y,
    eps,
    rows,
    C: tl.constexpr,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """(x - mean) / sqrt(variance + eps) weight + bias, and with it the residual, cut off below zero."""
    client = tl.program_id(2).to(tl.int64)
    p, c, there = _place(rows, tl.program_id(0) * BR, C, BR, BC)
    at = client * rows * C + (p * C)[:, None] + c[None, :]
    own = client * C + c
    m = tl.load(mean + own, mask=c < C, other=0)
    scale = tl.rsqrt(tl.load(variance + own, mask=c < C, other=1) + eps)
    scale = scale * tl.load(weight + own, mask=c < C, other=0).to(tl.float32)
    b = tl.load(bias + own, mask=c < C, other=0).to(tl.float32)
    v = tl.load(x + at, mask=there, other=0).to(tl.float32)
    v = (v - m[None, :]) * scale[None, :] + b[None, :]
    if ADD:
        v += tl.load(residual + at, mask=there, other=0).to(tl.float32)
    if RELU:
        v = tl.where(v < 0, 0.0, v)  # a NaN stays one
    tl.store(y + at, v.to(y.dtype.element_ty), mask=there)


@jit
def _sums(
    g,
    y,
    x,
    mean,
    variance,
    sums,
    products,
    eps,
    rows,
    share,
    C: tl.constexpr,
    RELU: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """Over a share of a client's rows: the sum of g, and that of its products with what was normalised."""
    client = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    m = tl.load(mean + client * C + c, mask=c < C, other=0)
    scale = tl.rsqrt(tl.load(variance + client * C + c, mask=c < C, other=1) + eps)
    total = tl.zeros((BR, BC), dtype=tl.float32)
    product = tl.zeros((BR, BC), dtype=tl.float32)
    for p0 in range(split * share, tl.minimum(rows, (split + 1) * share), BR):
        p, c, there = _place(rows, p0, C, BR, BC)
        at = client * rows * C + (p * C)[:, None] + c[None, :]
        v = tl.load(g + at, mask=there, other=0).to(tl.float32)
        if RELU:
            v = tl.where(tl.load(y + at, mask=there, other=0) <= 0, 0.0, v)
        total += v
        product += tl.where(there, v * (tl.load(x + at, mask=there, other=0).to(tl.float32) - m[None, :]), 0.0)
    out = (split * tl.num_programs(0) + client) * C + c
    tl.store(sums + out, tl.sum(total, 0), mask=c < C)
    tl.store(products + out, tl.sum(product, 0) * scale, mask=c < C)


@jit
def _gradient(
    g,
    y,
    x,
    mask,
    mean,
    variance,
    weight,
    sums,
    products,
    count,
    dx,
    rest,
    eps,
    rows,
    image,
    C: tl.constexpr,
    CUT: tl.constexpr,
    RELU: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """By x: through what is normalised, and on real rows through the moments too; with CUT also g as it counts."""
    client = tl.program_id(2).to(tl.int64)
    p, c, there = _place(rows, tl.program_id(0) * BR, C, BR, BC)
    at = client * rows * C + (p * C)[:, None] + c[None, :]
    own = client * C + c
    live = tl.load(mask + client * (rows // image) + p // image, mask=p < rows, other=0) != 0
    inside = c < C
    m = tl.load(mean + own, mask=inside, other=0)
    scale = tl.rsqrt(tl.load(variance + own, mask=inside, other=1) + eps)
    n = tl.maximum(tl.load(count + client), 1.0)
    shift = tl.load(sums + own, mask=inside, other=0) / n
    tilt = tl.load(products + own, mask=inside, other=0) / n * scale
    v = tl.load(g + at, mask=there, other=0).to(tl.float32)
    if RELU:
        v = tl.where(tl.load(y + at, mask=there, other=0) <= 0, 0.0, v)
    if CUT:
        tl.store(rest + at, v.to(rest.dtype.element_ty), mask=there)
    centred = tl.load(x + at, mask=there, other=0).to(tl.float32) - m[None, :]
    v -= tl.where(live[:, None], shift[None, :] + centred * tilt[None, :], 0.0)
    v = v * (scale * tl.load(weight + own, mask=inside, other=0).to(tl.float32))[None, :]
    tl.store(dx + at, v.to(dx.dtype.element_ty), mask=there)


def _rows(x: Tensor) -> Tensor:
    """(K, N, C, H, W) as (K, positions, C), without a copy where channels are adjacent."""
    return x.permute(0, 1, 3, 4, 2).contiguous().flatten(1, 3)


def _images(rows: Tensor, x: Tensor) -> Tensor:
    """The way back, in the shape of x."""
    k, n, c, h, w = x.shape
    return rows.reshape(k, n, h, w, c).permute(0, 1, 4, 2, 3)


def _tile(channels: int) -> dict[str, int]:
    columns = power(channels, 16, 64)
    return {"BR": _TILE // columns, "BC": columns, "num_warps": 4}


def _cut(x: Tensor, rows: int, programs: int, tile: dict[str, int]) -> tuple[int, int]:
    """Into how many shares of rows a sum is cut, so that it fills the device, and how many rows a share has."""
    splits = max(1, min(triton.cdiv(rows, 4 * tile["BR"]), triton.cdiv(8 * processors(x), programs)))
    share = triton.cdiv(triton.cdiv(rows, splits), tile["BR"]) * tile["BR"]
    return triton.cdiv(rows, share), share


def moments(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of x (K, N, C, H, W) over the images under `mask` (K, N): mean and variance (K, C), and numbers a channel (K)."""
    clients, _, c, h, w = x.shape
    given, tile = _rows(x), _tile(c)
    rows, columns = given.shape[1], triton.cdiv(c, tile["BC"])
    splits, share = _cut(x, rows, clients * columns, tile)
    counts = torch.empty((splits, clients), dtype=torch.float32, device=x.device)
    means = torch.empty((splits, clients, c), dtype=torch.float32, device=x.device)
    squares = torch.empty_like(means)
    marked = mask.contiguous().view(torch.uint8)
    _moments[clients, columns, splits](given, marked, counts, means, squares, rows, h * w, share, C=c, **tile)
    count, mean, variance = torch.empty_like(counts[0]), torch.empty_like(means[0]), torch.empty_like(means[0])
    parts = counts, means, squares
    _merge_moments[clients, columns](*parts, count, mean, variance, clients, splits, C=c, BC=tile["BC"])
    return mean, variance, count


def normalise(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    eps: float,
    add: bool,
    relu: bool,
) -> Tensor:
    clients, _, c = x.shape[:3]
    given, tile = _rows(x), _tile(c)
    y = torch.empty_like(given)
    grid = (triton.cdiv(given.shape[1], tile["BR"]), triton.cdiv(c, tile["BC"]), clients)
    leaves = (each.contiguous() for each in (weight, bias, mean, variance))
    other = _rows(residual) if add else given
    _normalise[grid](given, other, *leaves, y, eps, given.shape[1], C=c, ADD=add, RELU=relu, **tile)
    return _images(y, x)


def sums(
    g: Tensor, y: Tensor, x: Tensor, mean: Tensor, variance: Tensor, *, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    """By channel (K, C): the sum of g, where y is above zero with `relu`, and that of g times the normalised x."""
    clients, _, c = x.shape[:3]
    given, tile = [_rows(each) for each in (g, y, x)], _tile(c)
    rows, columns = given[0].shape[1], triton.cdiv(c, tile["BC"])
    splits, share = _cut(x, rows, clients * columns, tile)
    total = torch.empty((splits, clients, c), dtype=torch.float32, device=x.device)
    product = torch.empty_like(total)
    leaves = (each.contiguous() for each in (mean, variance))
    _sums[clients, columns, splits](*given, *leaves, total, product, eps, rows, share, C=c, RELU=relu, **tile)
    return (total[0], product[0]) if splits == 1 else (total.sum(0), product.sum(0))


def gradient(
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
    *,
    eps: float,
    cut: bool,
    relu: bool,
) -> tuple[Tensor, Tensor]:
    """The gradient of `normalise` by x, and with `cut` g where y is above zero, which is that by the residual."""
    clients, _, c, h, w = x.shape
    given, tile = [_rows(each) for each in (g, y, x)], _tile(c)
    dx = torch.empty_like(given[2])
    rest = torch.empty_like(given[2]) if cut else dx
    grid = (triton.cdiv(dx.shape[1], tile["BR"]), triton.cdiv(c, tile["BC"]), clients)
    leaves = (each.contiguous() for each in (mask.view(torch.uint8), mean, variance, weight, total, product, count))
    _gradient[grid](*given, *leaves, dx, rest, eps, dx.shape[1], h * w, C=c, CUT=cut, RELU=relu, **tile)
    return _images(dx, x), _images(rest, x) if cut else x.new_empty((clients, 0))
