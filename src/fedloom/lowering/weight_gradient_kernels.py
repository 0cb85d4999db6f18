"""The Triton kernel for the gradient of a stack of convolutions' weights: a sum over positions, cut where it is long.

Patches are read where they lie, as in `convolution_kernels`.
"""

# Triton's decorators and its language are untyped, and a kernel is not Python that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.lowering.convolution_kernels import channel_rows, empty_last, last
from fedloom.lowering.triton_parts import Tiles, jit, power, precision, processors, tl, triton


@jit
def _halves(v):
    """v = high + low up to 2^-17 of v, both in bfloat16.

    In assembly, two at a time, and said to have effects: else the compiler moves the change of layout for the product
    from its results to the load of v, which then is one of single numbers against the order of memory.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 even, odd;
        cvt.rn.bf16x2.f32 $0, $3, $2;
        shl.b32 even, $0, 16;
        and.b32 odd, $0, 0xffff0000;
        sub.f32 even, $2, even;
        sub.f32 odd, $3, odd;
        cvt.rn.bf16x2.f32 $1, odd, even;
        }""",
        "=r,=r,r,r",
        [v],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=False,
        pack=2,
    )


@jit
def _weight_gradient(
    g,
    y,
    x,
    dw,
    db,
    rows,
    RUN,
    OUT,
    H,
    W,
    share,
    g_k,
    g_p,
    x_k,
    x_n,
    x_h,
    x_w,
    dw_s,
    dw_k,
    dw_o,
    db_s,
    db_k,
    step_h,
    step_w,
    tap_h,
    tap_w,
    origin_h,
    origin_w,
    IMAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PIECE: tl.constexpr,
    EVEN: tl.constexpr,
    FULL: tl.constexpr,
    INSIDE: tl.constexpr,
    RELU: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """dw[split, o, run, s] = sum over a share of the rows p of g[p, o] x[p's patch, run, s], for one client's tile.

    A run is what lies adjacent in memory of a patch: the channels of a row of taps, or those of one tap. It is cut into
    pieces, of which a tile has several. The sum goes over rows, along which neither factor is adjacent: TF32's fast
    instructions want that, bfloat16's do not. So a float32 product is three of bfloat16 (high high + high low + low
    high), whose error is well below TF32's.

    With RELU g counts where y, which lies as it does, is above zero; and db[split, o] is the sum of it alone.
    """
    client = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    pieces = tl.cdiv(RUN, PIECE)
    column_tiles = tl.cdiv(ROWS * COLUMNS * pieces, BN // PIECE)
    o = (tl.program_id(0) // column_tiles) * BM + tl.arange(0, BM)
    r = tl.arange(0, BN)
    piece = (tl.program_id(0) % column_tiles) * (BN // PIECE) + r // PIECE
    run = piece // pieces
    s = (piece % pieces) * PIECE + r % PIECE
    i = run // COLUMNS
    j = run % COLUMNS
    there = run < ROWS * COLUMNS
    if not EVEN:
        there = there & (s < RUN)
    across = j * tap_w * x_w + s
    g += client * g_k
    y += client * g_k
    x += client * x_k
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    sums = tl.zeros((BM,), dtype=tl.float32)
    for p0 in range(split * share, tl.minimum(rows, (split + 1) * share), BK):
        p = p0 + tl.arange(0, BK)
        live = p < rows
        q = p % IMAGE
        ih0 = q // WIDTH * step_h + origin_h
        iw0 = q % WIDTH * step_w + origin_w
        seen = live[:, None] & there[None, :]
        if not INSIDE:
            ih = ih0[:, None] + (i * tap_h)[None, :]
            along = (iw0 * x_w)[:, None] + across[None, :]
            seen = seen & (ih >= 0) & (ih < H) & (along >= 0) & (along < W * x_w)
        at = (p * g_p)[:, None] + o[None, :]
        known = live[:, None] if FULL else live[:, None] & (o < OUT)[None, :]
        a = tl.load(g + at, mask=known, other=0)
        if RELU:
            a = tl.where(tl.load(y + at, mask=known, other=0) <= 0, 0.0, a)
            sums += tl.sum(a.to(tl.float32), 0)
        patch = p // IMAGE * x_n + ih0 * x_h + iw0 * x_w
        b = tl.load(x + patch[:, None] + (i * tap_h * x_h + across)[None, :], mask=seen, other=0)
        if SPLIT:
            a_high, a_low = _halves(a)
            b_high, b_low = _halves(b)
            acc = tl.dot(tl.trans(a_low), b_high, acc)
            acc = tl.dot(tl.trans(a_high), b_low, acc)
            acc = tl.dot(tl.trans(a_high), b_high, acc)
        else:
            acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    out = dw + split.to(tl.int64) * dw_s + client * dw_k + (o * dw_o)[:, None] + (run * RUN + s)[None, :]
    tl.store(out, acc.to(dw.dtype.element_ty), mask=(o < OUT)[:, None] & there[None, :])
    if RELU:  # noqa: SIM102  a constant
        if tl.program_id(0) % column_tiles == 0:  # of those with the same outputs
            tl.store(db + split * db_s + client * db_k + o, sums.to(db.dtype.element_ty), mask=o < OUT)


def _weight_tiles(rectified: bool, outputs: int, columns: int) -> Tiles:
    tall = power(outputs, 16, 128)
    wide = power(columns, 16, 128)
    stages = 2 if rectified and tall == 128 else 3  # y's tiles too have to fit the 99 KiB of smaller cards
    return Tiles(tall, wide, 32, 8 if tall * wide > 64 * 128 else 4, stages)


def _piece(run: int, columns: int) -> int:
    """The power of two to cut runs into, within a tile's columns, that wastes the least; of equals the greatest."""
    least = min(16, power(run, 1, columns))
    sizes = [least << k for k in range((columns // least).bit_length())]
    return min(reversed(sizes), key=lambda size: -(-run // size) * size)


def conv2d_gradients(
    g: Tensor,
    y: Tensor | None,
    x: Tensor,
    taps: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradient with respect to w (K, O, C, *taps) from that of the convolution's result, g (K, N, O, QH, QW).

    Where y is the result of `conv2d_relu`, g is the gradient of that, and the bias's (K, O) comes with it.
    """
    clients, n, o, qh, qw = g.shape
    c, height, width = x.shape[2:]
    th, tw = taps
    rows = n * qh * qw
    if not (rows and clients):
        return empty_last(x, clients, o, c, th, tw).zero_(), x.new_zeros(clients, o)
    rectified = y is not None
    g, y = (channel_rows(each) for each in (g, g if y is None else y))
    x = last(x)
    step = x.stride(4) if width > 1 else c  # of an axis of one torch leaves the stride as it happens to be
    across = dilation[1] == 1 and step == c  # a row of taps is adjacent in memory
    run, columns = (tw * c, 1) if across else (c, tw)
    chosen = tiles or _weight_tiles(rectified, o, th * columns * -(-run // _piece(run, 128)) * _piece(run, 128))
    piece = _piece(run, chosen.columns)
    column_tiles = triton.cdiv(th * columns * triton.cdiv(run, piece), chosen.columns // piece)
    programs = clients * triton.cdiv(o, chosen.rows) * column_tiles
    splits = chosen.splits or max(1, min(32, 8 * processors(x) // programs, rows // (8 * chosen.depth)))
    share = triton.cdiv(triton.cdiv(rows, splits), chosen.depth) * chosen.depth
    splits = triton.cdiv(rows, share)
    kind = x.dtype if splits == 1 else torch.float32
    dw = torch.empty((splits, clients, o, th, tw, c), device=x.device, dtype=kind)
    db = torch.empty((splits, clients, o if rectified else 0), device=x.device, dtype=kind)
    how = precision(x.dtype)
    _weight_gradient[(programs // clients, clients, splits)](
        g,
        y,
        x,
        dw,
        db,
        rows,
        run,
        o,
        height,
        width,
        share,
        rows * o,
        o,
        x.stride(0),
        x.stride(1),
        x.stride(3),
        step,
        dw.stride(0),
        dw.stride(1),
        dw.stride(2),
        db.stride(0),
        db.stride(1),
        *stride,
        *dilation,
        -padding[0],
        -padding[1],
        IMAGE=qh * qw,
        WIDTH=qw,
        ROWS=th,
        COLUMNS=columns,
        PIECE=piece,
        EVEN=run % piece == 0,
        FULL=o % chosen.rows == 0,
        INSIDE=padding == (0, 0),
        RELU=rectified,
        SPLIT=x.dtype == torch.float32 and how == "tf32",
        PRECISION=how,
        BM=chosen.rows,
        BN=chosen.columns,
        BK=chosen.depth,
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )
    kernels, biases = (each[0] if splits == 1 else each.sum(0).to(x.dtype) for each in (dw, db))
    return kernels.movedim(-1, 2), biases
