"""Triton kernels for a stack of convolutions and for the gradients of their inputs, by implicit matrix products.

They see one client's positions as the rows of a matrix and read patches where they lie:
`input row = row * step + tap * dilation + origin`, zero outside of the image. Channels are best adjacent in memory.
A convolution that is pooled two by two computes a window's four cells side by side, and writes the largest alone.
"""

# Triton's decorators and its language are untyped, and a kernel is not Python that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.lowering.triton_parts import Tiles, jit, power, precision, tl, triton


@jit
def _better(value, cell, other, place):
    """Of two cells of a window torch's choice: the larger, the first of equals, the last NaN."""
    nan = value != value
    other_nan = other != other
    later = place > cell
    larger = (other > value) | ((other == value) & (later == 0))
    taken = tl.where(nan | other_nan, other_nan & (later | (nan == 0)), larger)
    return tl.where(taken, other, value), tl.where(taken, place, cell)


@jit
def _correlate(
    x,
    w,
    y,
    bias,
    winners,
    rows,
    image,
    width,
    C,
    OUT,
    H,
    W,
    x_k,
    x_n,
    x_h,
    x_w,
    x_c,
    w_k,
    w_o,
    w_h,
    w_w,
    w_c,
    b_k,
    y_k,
    y_n,
    y_h,
    y_w,
    y_o,
    step_h,
    step_w,
    tap_h,
    tap_w,
    origin_h,
    origin_w,
    TH: tl.constexpr,
    TW: tl.constexpr,
    FLAT: tl.constexpr,
    EVEN: tl.constexpr,
    FULL: tl.constexpr,
    INSIDE: tl.constexpr,
    POOL: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """y[row, o] = sum over taps and channels of x[row's patch] w[tap, o, channel], for one client's tile.

    With POOL four rows are the cells of one window of two by two, `image` and `width` count windows, and of each window
    the largest sum with its bias is written, and which of the four it was. With RELU the sum with its bias is written
    where it is above zero.
    """
    client = tl.program_id(1).to(tl.int64)
    column_tiles = tl.cdiv(OUT, BN)
    m = (tl.program_id(0) // column_tiles) * BM + tl.arange(0, BM)
    o = (tl.program_id(0) % column_tiles) * BN + tl.arange(0, BN)
    if POOL:
        window = m // 4
        n = window // image
        q = window % image
        qh = q // width * 2 + m % 4 // 2
        qw = q % width * 2 + m % 2
    else:
        n = m // image
        q = m % image
        qh = q // width
        qw = q % width
    ih0 = qh * step_h + origin_h
    iw0 = qw * step_w + origin_w
    live = m < rows
    x += client * x_k
    w += client * w_k
    y += client * y_k
    patch = n * x_n + ih0 * x_h + iw0 * x_w
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    if FLAT:  # few channels: taps and channels are one index
        for r0 in range(0, TH * TW * C, BK):
            r = r0 + tl.arange(0, BK)
            c = r % C
            i = r // C // TW
            j = r // C % TW
            there = r < TH * TW * C
            seen = live[:, None] & there[None, :]
            if not INSIDE:
                ih = ih0[:, None] + (i * tap_h)[None, :]
                iw = iw0[:, None] + (j * tap_w)[None, :]
                seen = seen & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
            a = tl.load(x + patch[:, None] + (i * tap_h * x_h + j * tap_w * x_w + c * x_c)[None, :], mask=seen, other=0)
            b = tl.load(
                w + (i * w_h + j * w_w + c * w_c)[:, None] + (o * w_o)[None, :],
                mask=there[:, None] & (o < OUT)[None, :],
                other=0,
            )
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
    else:
        blocks = tl.cdiv(C, BK)
        for s in range(TH * TW * blocks):
            tap = s // blocks
            i = tap // TW
            j = tap % TW
            c = (s % blocks) * BK + tl.arange(0, BK)
            seen = live
            if not INSIDE:
                ih = ih0 + i * tap_h
                iw = iw0 + j * tap_w
                seen = seen & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
            at = x + (patch + i * tap_h * x_h + j * tap_w * x_w)[:, None] + (c * x_c)[None, :]
            bt = w + i * w_h + j * w_w + (c * w_c)[:, None] + (o * w_o)[None, :]
            if EVEN:
                a = tl.load(at, mask=seen[:, None], other=0)
                b = tl.load(bt, mask=(o < OUT)[None, :], other=0)
            else:
                a = tl.load(at, mask=seen[:, None] & (c < C)[None, :], other=0)
                b = tl.load(bt, mask=(c < C)[:, None] & (o < OUT)[None, :], other=0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if POOL or RELU:
        acc += tl.load(bias + client * b_k + o, mask=o < OUT, other=0).to(tl.float32)[None, :]
    if RELU:
        acc = tl.where(acc < 0, 0.0, acc)  # a NaN stays one
    if POOL:
        cells = tl.reshape(acc.to(y.dtype.element_ty).to(tl.float32), (BM // 4, 4, BN))
        places = tl.broadcast_to(tl.arange(0, 4)[None, :, None], (BM // 4, 4, BN))
        best, cell = tl.reduce((cells, places), 1, _better)
        window = (tl.program_id(0) // column_tiles) * (BM // 4) + tl.arange(0, BM // 4)
        q = window % image
        to = window // image * y_n + q // width * y_h + q % width * y_w
        at = to[:, None] + (o * y_o)[None, :]
        there = (window * 4 < rows)[:, None] & (o < OUT)[None, :]
        tl.store(y + at, best.to(y.dtype.element_ty), mask=there)
        tl.store(winners + client * y_k + at, cell.to(tl.uint8), mask=there)
    else:
        out = y + (n * y_n + qh * y_h + qw * y_w)[:, None] + (o * y_o)[None, :]
        if FULL:
            tl.store(out, acc.to(y.dtype.element_ty), mask=live[:, None])
        else:
            tl.store(out, acc.to(y.dtype.element_ty), mask=live[:, None] & (o < OUT)[None, :])


# Tiles were chosen by measuring on an H200 the layers of the usual CNNs for MNIST and CIFAR and of ResNet-18.


def _correlation_tiles(columns: int, channels: int) -> Tiles:
    if channels < 16:
        return Tiles(128, power(columns, 16, 64), 16, 4, 2)
    wide = power(columns, 16, 256)
    return Tiles(128, wide, 32 if channels >= 32 else 16, 8 if wide >= 128 else 4)


def _run_correlation(
    x: Tensor,
    w: Tensor,
    y: Tensor,
    steps: tuple[int, int],
    taps: tuple[int, int],
    origin: tuple[int, int],
    tiles: Tiles | None,
    bias: Tensor | None = None,
    winners: Tensor | None = None,
) -> None:
    """Fill y (K, N, O, QH, QW) from x (K, N, C, H, W) and w (K, O, C, TH, TW), whatever their strides.

    With a `bias` (K, O) y is cut off below zero, unless there are `winners`, which lie as y does: then it is pooled two
    by two.
    """
    clients, n, c, height, width = x.shape
    pooled = winners is not None
    _, _, o, windows_h, windows_w = y.shape
    qh, qw = (2 * windows_h, 2 * windows_w) if pooled else (windows_h, windows_w)
    th, tw = w.shape[-2:]
    rows = n * qh * qw
    if not (rows and clients):
        return
    if not (th and tw):  # a class of cells that no tap reaches
        y.zero_()
        return
    chosen = tiles or _correlation_tiles(o, c)
    reach_h = range(origin[0], origin[0] + (qh - 1) * steps[0] + 1), (th - 1) * taps[0]
    reach_w = range(origin[1], origin[1] + (qw - 1) * steps[1] + 1), (tw - 1) * taps[1]
    inside = all(
        reach.start + min(span, 0) >= 0 and reach.stop - 1 + max(span, 0) < size
        for (reach, span), size in ((reach_h, height), (reach_w, width))
    )
    flat = c < 16
    grid = (triton.cdiv(rows, chosen.rows) * triton.cdiv(o, chosen.columns), clients)
    _correlate[grid](
        x,
        w,
        y,
        y if bias is None else bias,
        winners if pooled else y,
        rows,
        windows_h * windows_w,
        windows_w,
        c,
        o,
        height,
        width,
        x.stride(0),
        x.stride(1),
        x.stride(3),
        x.stride(4),
        x.stride(2),
        w.stride(0),
        w.stride(1),
        w.stride(3),
        w.stride(4),
        w.stride(2),
        0 if bias is None else bias.stride(0),
        y.stride(0),
        y.stride(1),
        y.stride(3),
        y.stride(4),
        y.stride(2),
        *steps,
        *taps,
        *origin,
        TH=th,
        TW=tw,
        FLAT=flat,
        EVEN=c % chosen.depth == 0,
        FULL=o % chosen.columns == 0,
        INSIDE=inside,
        POOL=pooled,
        RELU=bias is not None and not pooled,
        PRECISION=precision(x.dtype),
        BM=chosen.rows,
        BN=chosen.columns,
        BK=chosen.depth,
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )


def last(x: Tensor) -> Tensor:
    """The same numbers with channels (axis -3) adjacent in memory; a copy only where they are not."""
    return x if x.stride(-3) == 1 else x.movedim(-3, -1).contiguous().movedim(-1, -3)


def channel_rows(x: Tensor) -> Tensor:
    """(K, N, C, H, W) as rows of channels, one per position, and nothing between the numbers."""
    return x.movedim(2, -1).contiguous()


def empty_last(x: Tensor, *shape: int) -> Tensor:
    """A new tensor of this shape whose channels (axis -3) are adjacent in memory."""
    *lead, c, h, w = shape
    return x.new_empty((*lead, h, w, c)).movedim(-1, -3)


def conv2d(
    x: Tensor,
    w: Tensor,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    tiles: Tiles | None = None,
) -> Tensor:
    """x (K, N, C, H, W) with w (K, O, C, TH, TW) -> (K, N, O, *size)."""
    y = empty_last(x, x.shape[0], x.shape[1], w.shape[1], *size)
    _run_correlation(last(x), last(w), y, stride, dilation, (-padding[0], -padding[1]), tiles)
    return y


def conv2d_relu(
    x: Tensor,
    w: Tensor,
    bias: Tensor,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    tiles: Tiles | None = None,
) -> Tensor:
    """`conv2d` with its bias (K, O), zero where that is below."""
    y = empty_last(x, x.shape[0], x.shape[1], w.shape[1], *size)
    origin = -padding[0], -padding[1]
    _run_correlation(last(x), last(w), y, stride, dilation, origin, tiles, bias.contiguous())
    return y


def conv2d_pool(
    x: Tensor,
    w: Tensor,
    bias: Tensor,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """`conv2d` with its bias (K, O), pooled two by two to (K, N, O, *size); and which of each window's cells it was."""
    y = empty_last(x, x.shape[0], x.shape[1], w.shape[1], *size)
    winners = torch.empty_like(y, dtype=torch.uint8)
    origin = -padding[0], -padding[1]
    _run_correlation(last(x), last(w), y, stride, dilation, origin, tiles, bias.contiguous(), winners)
    return y, winners


def conv2d_input_gradient(
    g: Tensor,
    w: Tensor,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    tiles: Tiles | None = None,
) -> Tensor:
    """The gradient with respect to x (K, N, C, *size) from that of y, g.

    Input cells whose padded row has the same remainder by the stride see the same taps: each class is a convolution
    with stride one. With a dilation that would not do, and one of the two has to be one.
    """
    dx = empty_last(g, g.shape[0], g.shape[1], w.shape[2], *size)
    g = last(g)
    turned = w.permute(0, 3, 4, 2, 1).contiguous().permute(0, 3, 4, 1, 2)  # (K, C, O, TH, TW), outputs adjacent
    for row in range(stride[0]):
        for column in range(stride[1]):
            first = [-(-(p - r) // s) for p, r, s in zip(padding, (row, column), stride, strict=True)]
            begin = [s * q + r - p for s, q, r, p in zip(stride, first, (row, column), padding, strict=True)]
            _run_correlation(
                g,
                turned[..., row :: stride[0], column :: stride[1]],
                dx[..., begin[0] :: stride[0], begin[1] :: stride[1]],
                (1, 1),
                (-dilation[0], -dilation[1]),
                (first[0], first[1]),
                tiles,
            )
    return dx
