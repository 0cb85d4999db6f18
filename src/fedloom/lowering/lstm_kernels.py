"""Triton kernels for one time step of the LSTMs of a stack of clients, forwards and backwards."""

# Triton's decorators and its language are untyped, and a kernel is not Python that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.lowering.triton_parts import Tiles, jit, power, precision, tl, triton


@jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@jit
def _lstm_step(
    xg,
    w,
    h_before,
    c_before,
    h,
    c,
    gates,
    B,
    xg_k,
    xg_b,
    w_k,
    h_before_k,
    c_before_k,
    h_k,
    gates_k,
    H: tl.constexpr,
    PRECISION: tl.constexpr,
    BB: tl.constexpr,
    BH: tl.constexpr,
    BK: tl.constexpr,
):
    """One client's block of hidden units at one time: the four gates' products with the state, then the cell."""
    client = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * BH + tl.arange(0, BH)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    within = (b < B)[:, None] & (unit < H)[None, :]
    xg += client * xg_k
    w += client * w_k
    at = xg + (b * xg_b)[:, None] + unit[None, :]
    i = tl.load(at, mask=within, other=0).to(tl.float32)
    f = tl.load(at + H, mask=within, other=0).to(tl.float32)
    g = tl.load(at + 2 * H, mask=within, other=0).to(tl.float32)
    o = tl.load(at + 3 * H, mask=within, other=0).to(tl.float32)
    for k0 in range(0, H, BK):
        k = k0 + tl.arange(0, BK)
        state = tl.load(
            h_before + client * h_before_k + (b * H)[:, None] + k[None, :],
            mask=(b < B)[:, None] & (k < H)[None, :],
            other=0,
        )
        rows = w + (unit * H)[None, :] + k[:, None]
        known = (k < H)[:, None] & (unit < H)[None, :]
        i = tl.dot(state, tl.load(rows, mask=known, other=0), i, input_precision=PRECISION)
        f = tl.dot(state, tl.load(rows + H * H, mask=known, other=0), f, input_precision=PRECISION)
        g = tl.dot(state, tl.load(rows + 2 * H * H, mask=known, other=0), g, input_precision=PRECISION)
        o = tl.dot(state, tl.load(rows + 3 * H * H, mask=known, other=0), o, input_precision=PRECISION)
    i = tl.sigmoid(i)
    f = tl.sigmoid(f)
    g = _tanh(g)
    o = tl.sigmoid(o)
    place = (b * H)[:, None] + unit[None, :]
    before = tl.load(c_before + client * c_before_k + place, mask=within, other=0).to(tl.float32)
    now = f * before + i * g
    kind = h.dtype.element_ty
    tl.store(c + client * h_k + place, now.to(kind), mask=within)
    tl.store(h + client * h_k + place, (o * _tanh(now)).to(kind), mask=within)
    four = gates + client * gates_k + (b * 4 * H)[:, None] + unit[None, :]
    tl.store(four, i.to(kind), mask=within)
    tl.store(four + H, f.to(kind), mask=within)
    tl.store(four + 2 * H, g.to(kind), mask=within)
    tl.store(four + 3 * H, o.to(kind), mask=within)


@jit
def _lstm_step_back(
    dy,
    w,
    gates,
    c,
    c_before,
    dh,
    dc,
    dgates_after,
    dgates,
    B,
    dy_k,
    dy_b,
    w_k,
    gates_k,
    c_k,
    c_before_k,
    dh_k,
    dc_k,
    H: tl.constexpr,
    PRODUCT: tl.constexpr,
    PRECISION: tl.constexpr,
    BB: tl.constexpr,
    BH: tl.constexpr,
    BK: tl.constexpr,
):
    """One client's block of hidden units at one time, backwards: the state's gradient, then the cell.

    What reaches the state from the time after it is `dh`, or with PRODUCT computed here from that time's gates.
    """
    client = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * BH + tl.arange(0, BH)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    within = (b < B)[:, None] & (unit < H)[None, :]
    place = (b * H)[:, None] + unit[None, :]
    if PRODUCT:
        dht = tl.zeros((BB, BH), dtype=tl.float32)
        w += client * w_k
        dgates_after += client * gates_k
        for k0 in range(0, 4 * H, BK):
            k = k0 + tl.arange(0, BK)
            after = tl.load(
                dgates_after + (b * 4 * H)[:, None] + k[None, :], mask=(b < B)[:, None] & (k < 4 * H)[None, :], other=0
            )
            rows = tl.load(
                w + (k * H)[:, None] + unit[None, :], mask=(k < 4 * H)[:, None] & (unit < H)[None, :], other=0
            )
            dht = tl.dot(after, rows, dht, input_precision=PRECISION)
    else:
        dht = tl.load(dh + client * dh_k + place, mask=within, other=0).to(tl.float32)
    dht += tl.load(dy + client * dy_k + (b * dy_b)[:, None] + unit[None, :], mask=within, other=0).to(tl.float32)
    four = (b * 4 * H)[:, None] + unit[None, :]
    at = gates + client * gates_k + four
    i = tl.load(at, mask=within, other=0).to(tl.float32)
    f = tl.load(at + H, mask=within, other=0).to(tl.float32)
    g = tl.load(at + 2 * H, mask=within, other=0).to(tl.float32)
    o = tl.load(at + 3 * H, mask=within, other=0).to(tl.float32)
    tanh_c = _tanh(tl.load(c + client * c_k + place, mask=within, other=0).to(tl.float32))
    before = tl.load(c_before + client * c_before_k + place, mask=within, other=0).to(tl.float32)
    dct = tl.load(dc + client * dc_k + place, mask=within, other=0) + dht * o * (1 - tanh_c * tanh_c)
    kind = dgates.dtype.element_ty
    out = dgates + client * gates_k + four
    tl.store(out, (dct * g * i * (1 - i)).to(kind), mask=within)
    tl.store(out + H, (dct * before * f * (1 - f)).to(kind), mask=within)
    tl.store(out + 2 * H, (dct * i * (1 - g * g)).to(kind), mask=within)
    tl.store(out + 3 * H, (dht * tanh_c * o * (1 - o)).to(kind), mask=within)
    tl.store(dc + client * dc_k + place, dct * f, mask=within)


def _step_tiles(batch: int, hidden: int, depth: int) -> Tiles:
    return Tiles(power(batch, 16, 32), power(hidden, 16, 32), power(hidden, 16, depth))


def lstm(
    xg: Tensor, w: Tensor, h0: Tensor, c0: Tensor, reverse: bool, tiles: Tiles | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """States (K, T, B, H), activated gates and cells of one direction from the input's gates (K, T, B, 4 H)."""
    clients, times, batch, four = xg.shape
    hidden = four // 4
    xg = xg if xg.stride(-1) == 1 else xg.contiguous()
    w, h0, c0 = w.contiguous(), h0.contiguous(), c0.contiguous()
    h, c = (xg.new_empty(clients, times, batch, hidden) for _ in range(2))
    gates = xg.new_empty(clients, times, batch, four)
    chosen = tiles or _step_tiles(batch, hidden, 64)
    grid = (triton.cdiv(hidden, chosen.columns), clients, triton.cdiv(batch, chosen.rows))
    h_before, c_before = h0, c0
    for t in reversed(range(times)) if reverse else range(times):
        _lstm_step[grid](
            xg[:, t],
            w,
            h_before,
            c_before,
            h[:, t],
            c[:, t],
            gates[:, t],
            batch,
            xg.stride(0),
            xg.stride(2),
            w.stride(0),
            h_before.stride(0),
            c_before.stride(0),
            h.stride(0),
            gates.stride(0),
            H=hidden,
            PRECISION=precision(xg.dtype),
            BB=chosen.rows,
            BH=chosen.columns,
            BK=chosen.depth,
            num_warps=chosen.warps,
            num_stages=chosen.stages,
        )
        h_before, c_before = h[:, t], c[:, t]
    return h, gates, c


def lstm_gradient(
    dy: Tensor,
    dc_last: Tensor,
    w: Tensor,
    gates: Tensor,
    c: Tensor,
    c0: Tensor,
    reverse: bool,
    tiles: Tiles | None = None,
    fused: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the gates (K, T, B, 4 H), of h0 and of c0, from those of the states and of the last cell.

    Each step is one kernel, or with `fused` off a product of torch's and a kernel for the cell.
    """
    clients, times, batch, hidden = c.shape
    dy = dy if dy.stride(-1) == 1 else dy.contiguous()
    w, gates, c, c0 = (each.contiguous() for each in (w, gates, c, c0))
    dgates = torch.empty_like(gates)
    dh = torch.zeros_like(c0)
    dc = dc_last.to(torch.float32, copy=True).contiguous()
    chosen = tiles or _step_tiles(batch, hidden, 128)
    grid = (triton.cdiv(hidden, chosen.columns), clients, triton.cdiv(batch, chosen.rows))
    order = list(range(times)) if reverse else list(reversed(range(times)))
    after = order[0]
    for t, next_t in zip(order, [*order[1:], None], strict=True):
        c_before = c0 if next_t is None else c[:, next_t]
        if t != after and not fused:
            dh = torch.bmm(dgates[:, after], w)
        _lstm_step_back[grid](
            dy[:, t],
            w,
            gates[:, t],
            c[:, t],
            c_before,
            dh,
            dc,
            dgates[:, after],
            dgates[:, t],
            batch,
            dy.stride(0),
            dy.stride(2),
            w.stride(0),
            gates.stride(0),
            c.stride(0),
            c_before.stride(0),
            dh.stride(0),
            dc.stride(0),
            H=hidden,
            PRODUCT=fused and t != after,
            PRECISION=precision(c.dtype),
            BB=chosen.rows,
            BH=chosen.columns,
            BK=chosen.depth,
            num_warps=chosen.warps,
            num_stages=chosen.stages,
        )
        after = t
    return dgates, torch.bmm(dgates[:, after], w), dc.to(c.dtype)
