"""Triton kernels for max-pooling with windows of any kind, and for putting a window's gradient back where it belongs.

Channels are adjacent in memory. Beside a window's largest number one byte says which of its cells that was.
"""

# Triton's decorators and its language are untyped, and a kernel is not Python that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.lowering.convolution_kernels import channel_rows, empty_last
from fedloom.lowering.triton_parts import jit, power, tl, triton

Pair = tuple[int, int]


@jit
def _max_pool(
    x,
    bias,
    y,
    winners,
    images,
    H,
    W,
    QH,
    QW,
    C: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    STEP_H: tl.constexpr,
    STEP_W: tl.constexpr,
    BEFORE_H: tl.constexpr,
    BEFORE_W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y[n, qh, qw, c]: the largest of a window's cells with their bias; a program has some of one row of windows.

    torch's choice: the first of equals in row-major order, the last NaN; never a cell outside of the image.
    """
    n = tl.program_id(0).to(tl.int64) // QH
    qh = tl.program_id(0) % QH
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    qw = place // C
    c = place % C
    there = qw < QW
    added = tl.load(bias + n // images * C + c).to(tl.float32)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    cell = tl.maximum(BEFORE_H - qh * STEP_H, 0) * TW + tl.maximum(BEFORE_W - qw * STEP_W, 0)
    for i in tl.static_range(TH):
        h = qh * STEP_H + i - BEFORE_H
        for j in tl.static_range(TW):
            w = qw * STEP_W + j - BEFORE_W
            inside = there & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            value = tl.load(x + (n * H + h) * W * C + w * C + c, mask=inside, other=float("-inf")).to(tl.float32)
            value = (value + added).to(y.dtype.element_ty).to(tl.float32)
            taken = inside & ((value > best) | (value != value))
            best = tl.where(taken, value, best)
            cell = tl.where(taken, i * TW + j, cell)
    to = (n * QH + qh) * QW * C + place
    tl.store(y + to, best.to(y.dtype.element_ty), mask=there)
    tl.store(winners + to, cell.to(tl.uint8), mask=there)


@jit
def _unpool(
    g,
    winners,
    out,
    H,
    W,
    QH,
    QW,
    C: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    STEP_H: tl.constexpr,
    STEP_W: tl.constexpr,
    BEFORE_H: tl.constexpr,
    BEFORE_W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[n, h, w, c]: the sum of g over the windows that the cell has won; a program has some of one row."""
    n = tl.program_id(0).to(tl.int64) // H
    h = tl.program_id(0) % H + BEFORE_H
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    w = place // C + BEFORE_W
    c = place % C
    there = w < W + BEFORE_W
    total = tl.zeros((BLOCK,), tl.float32)
    for a in tl.static_range((TH + STEP_H - 1) // STEP_H):  # windows that reach it, the last first
        qh = h // STEP_H - a
        i = h - qh * STEP_H
        for b in tl.static_range((TW + STEP_W - 1) // STEP_W):
            qw = w // STEP_W - b
            j = w - qw * STEP_W
            inside = there & (i < TH) & (j < TW) & (qh >= 0) & (qh < QH) & (qw >= 0) & (qw < QW)
            at = (n * QH + qh) * QW * C + qw * C + c
            won = tl.load(winners + at, mask=inside, other=255) == i * TW + j
            value = tl.load(g + at, mask=inside, other=0).to(tl.float32)
            total += tl.where(inside & won, value, 0.0)
    to = (n * H + h - BEFORE_H) * W * C + place
    tl.store(out + to, total.to(out.dtype.element_ty), mask=there)


def max_pool(x: Tensor, bias: Tensor, window: Pair, stride: Pair, before: Pair, size: Pair) -> tuple[Tensor, Tensor]:
    """x (K, N, C, H, W) with its bias (K, C) pooled to (K, N, C, *size), and which cell of each window it was.

    The first window begins `before` rows and columns outside of the image.
    """
    clients, n, c, height, width = x.shape
    y = empty_last(x, clients, n, c, *size)
    winners = torch.empty_like(y, dtype=torch.uint8)
    if y.numel():
        block = power(size[1] * c, 128, 1024)
        grid = (clients * n * size[0], triton.cdiv(size[1] * c, block))
        given = channel_rows(x), bias.contiguous(), y, winners, n, height, width, *size, c
        _max_pool[grid](*given, *window, *stride, *before, BLOCK=block)
    return y, winners


def unpool(g: Tensor, winners: Tensor, image: Pair, window: Pair, stride: Pair, before: Pair) -> Tensor:
    """The gradient of what was pooled (K, N, C, *image) from that of the windows, g: all of it goes to the winners."""
    clients, n, c, *size = g.shape
    out = empty_last(g, clients, n, c, *image)
    if out.numel():
        block = power(image[1] * c, 128, 2048)
        grid = (clients * n * image[0], triton.cdiv(image[1] * c, block))
        _unpool[grid](
            channel_rows(g), channel_rows(winners), out, *image, *size, c, *window, *stride, *before, BLOCK=block
        )
    return out
