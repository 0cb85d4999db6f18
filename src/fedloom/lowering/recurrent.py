"""LSTM and GRU layers with each client's own weights.

The input's part of all gates at all times is one matrix product. What has to go step by step is one operator per layer
and direction, opaque to a compiler, whose time a thousand unrolled steps would cost; its gradient is another (back-
propagation through time, Werbos 1990), with the weights' gradient again one product over all times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedloom.lowering import lstm_kernels, triton_parts
from fedloom.lowering.operators import call, flat, operator

States = tuple[Tensor, ...]


def lstm(*arguments: Any) -> tuple[Tensor, Tensor, Tensor] | None:
    """`torch.lstm` as `nn.LSTM` calls it; None for packed sequences and projections."""
    if isinstance(arguments[1], Tensor):
        return None
    input, (h0, c0), weights, bias, layers, dropout, training, bidirectional, batch_first = arguments
    if h0.shape[-1] != c0.shape[-1] or input.dim() != 3:
        return None

    def direction(xg: Tensor, w: Tensor, b: Tensor | None, starts: States, reverse: bool) -> tuple[Tensor, States]:
        gates = xg if b is None else xg + b
        h, c_last, *_ = call(LSTM, gates, w, *starts, reverse)
        return h, (h[0 if reverse else -1], c_last)

    y, (h, c) = _layers(
        direction, input, (h0, c0), weights, bias, layers, dropout, training, bidirectional, batch_first
    )
    return y, h, c


def gru(*arguments: Any) -> tuple[Tensor, Tensor] | None:
    """`torch.gru` as `nn.GRU` calls it; None for packed sequences."""
    if not isinstance(arguments[2], (list, tuple)):
        return None
    input, h0, weights, bias, layers, dropout, training, bidirectional, batch_first = arguments
    if input.dim() != 3:
        return None

    def direction(xg: Tensor, w: Tensor, b: Tensor | None, starts: States, reverse: bool) -> tuple[Tensor, States]:
        inner = w.new_zeros(w.shape[0]) if b is None else b
        h, *_ = call(GRU, xg, w, inner, *starts, reverse)
        return h, (h[0 if reverse else -1],)

    y, (h,) = _layers(direction, input, (h0,), weights, bias, layers, dropout, training, bidirectional, batch_first)
    return y, h


def _layers(
    direction: Callable[..., tuple[Tensor, States]],
    input: Tensor,
    starts: States,
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, States]:
    """All layers and directions: the last layer's states at all times, and every direction's last states."""
    x = input.transpose(0, 1) if batch_first else input
    ways = 2 if bidirectional else 1
    each = 4 if bias else 2
    ends = []
    for layer in range(layers):
        if layer and dropout:
            # torch drops in (time, batch) too, but a seeded mask counts positions row first
            x = F.dropout(x.transpose(0, 1), dropout, training).transpose(0, 1)
        outputs = []
        for way in range(ways):
            place = layer * ways + way
            w_ih, w_hh, *biases = weights[place * each : (place + 1) * each]
            xg = F.linear(x, w_ih, biases[0] if biases else None)
            h, end = direction(xg, w_hh, biases[1] if biases else None, tuple(s[place] for s in starts), way == 1)
            outputs.append(h)
            ends.append(end)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    last = tuple(torch.stack(states) for states in zip(*ends, strict=True))
    return x.transpose(0, 1) if batch_first else x, last


def _before(h: Tensor, h0: Tensor, reverse: bool) -> Tensor:
    """Each time's previous state."""
    return torch.cat([h[1:], h0[None]] if reverse else [h0[None], h[:-1]])


def _weights_gradient(dgates: Tensor, before: Tensor) -> Tensor:
    return dgates.flatten(0, 1).t() @ before.flatten(0, 1)


def _times(count: int, reverse: bool) -> list[int]:
    return list(range(count))[:: -1 if reverse else 1]


class LSTM(torch.autograd.Function):
    """States at all times (T, B, H) and the last cell (B, H), from the gates (T, B, 4 H) without the state's part."""

    generate_vmap_rule = True

    @staticmethod
    def forward(xg: Tensor, w: Tensor, h0: Tensor, c0: Tensor, reverse: bool) -> States:
        h, c_last, gates, c = torch.ops.fedloom.lstm(xg, w, h0, c0, reverse)
        return h, c_last, gates, c

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: States) -> None:
        _, w, h0, c0, ctx.reverse = inputs
        h, _, gates, c = output
        ctx.mark_non_differentiable(gates, c)
        ctx.save_for_backward(w, h0, c0, h, gates, c)

    @staticmethod
    def backward(ctx: Any, dh: Tensor, dc_last: Tensor, *_: Any) -> tuple[Any, ...]:
        w, h0, c0, h, gates, c = ctx.saved_tensors
        dgates, dh0, dc0 = call(LSTMGradient, dh, dc_last, w, gates, c, c0, ctx.reverse)
        dw = _weights_gradient(dgates, _before(h, h0, ctx.reverse)) if ctx.needs_input_grad[1] else None
        return dgates, dw, dh0, dc0, None


class LSTMGradient(torch.autograd.Function):
    """Gradients of the gates and of the first state and cell."""

    generate_vmap_rule = True

    @staticmethod
    def forward(dh: Tensor, dc_last: Tensor, w: Tensor, gates: Tensor, c: Tensor, c0: Tensor, reverse: bool) -> States:
        dgates, dh0, dc0 = torch.ops.fedloom.lstm_gradient(dh, dc_last, w, gates, c, c0, reverse)
        return dgates, dh0, dc0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: States) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("a stacked LSTM has first derivatives only")


def _empty_lstm(xg: Tensor, w: Tensor, h0: Tensor, c0: Tensor, reverse: bool) -> States:
    states = xg.new_empty((*xg.shape[:-1], w.shape[-1]))
    return states, h0.new_empty(h0.shape), xg.new_empty(xg.shape), torch.empty_like(states)


@operator(
    "fedloom::lstm",
    "(Tensor xg, Tensor w, Tensor h0, Tensor c0, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)",
    batched=4,
    fake=_empty_lstm,
)
def _lstm(xg: Tensor, w: Tensor, h0: Tensor, c0: Tensor, reverse: bool) -> States:
    lead, (xg, w, h0, c0) = flat((3, 2, 2, 2), xg, w, h0, c0)
    run = lstm_kernels.lstm if _on_device(xg) else _lstm_steps
    h, gates, c = run(xg, w, h0, c0, reverse)
    results = h, c[:, 0 if reverse else -1].clone(), gates, c
    return tuple(result.reshape(*lead, *result.shape[1:]) for result in results)


def _empty_lstm_gradient(
    dh: Tensor, dc_last: Tensor, w: Tensor, gates: Tensor, c: Tensor, c0: Tensor, reverse: bool
) -> States:
    return gates.new_empty(gates.shape), c0.new_empty(c0.shape), c0.new_empty(c0.shape)


@operator(
    "fedloom::lstm_gradient",
    "(Tensor dh, Tensor dc_last, Tensor w, Tensor gates, Tensor c, Tensor c0, bool reverse)"
    " -> (Tensor, Tensor, Tensor)",
    batched=6,
    fake=_empty_lstm_gradient,
)
def _lstm_gradient(
    dh: Tensor, dc_last: Tensor, w: Tensor, gates: Tensor, c: Tensor, c0: Tensor, reverse: bool
) -> States:
    lead, (dh, dc_last, w, gates, c, c0) = flat((3, 2, 2, 3, 3, 2), dh, dc_last, w, gates, c, c0)
    run = lstm_kernels.lstm_gradient if _on_device(c) else _lstm_steps_back
    results = run(dh, dc_last, w, gates, c, c0, reverse)
    return tuple(result.reshape(*lead, *result.shape[1:]) for result in results)


def _on_device(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and triton_parts.available()


def _lstm_steps(xg: Tensor, w: Tensor, h0: Tensor, c0: Tensor, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """States, activated gates (in, forget, cell, out) and cells at all times of a stack, by torch's operations."""
    clients, times, batch, _ = xg.shape
    h_all, c_all = (xg.new_empty(clients, times, batch, w.shape[-1]) for _ in range(2))
    gates_all = xg.new_empty(xg.shape)
    h, c, turned = h0, c0, w.mT
    for t in _times(times, reverse):
        i, f, g, o = torch.baddbmm(xg[:, t], h, turned).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        h_all[:, t], c_all[:, t], gates_all[:, t] = h, c, torch.cat([i, f, g, o], -1)
    return h_all, gates_all, c_all


def _lstm_steps_back(
    dh_all: Tensor, dc_last: Tensor, w: Tensor, gates: Tensor, c_all: Tensor, c0: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the gates at all times and of the first state and cell of a stack, by torch's operations."""
    dgates = gates.new_empty(gates.shape)
    dh, dc = torch.zeros_like(c0), dc_last
    order = _times(c_all.shape[1], not reverse)
    for t, before in zip(order, [*order[1:], None], strict=True):
        i, f, g, o = gates[:, t].chunk(4, -1)
        tanh_c = c_all[:, t].tanh()
        dht = dh_all[:, t] + dh
        dct = dc + dht * o * (1 - tanh_c.square())
        c_before = c0 if before is None else c_all[:, before]
        di, df = dct * g * i * (1 - i), dct * c_before * f * (1 - f)
        dg, do = dct * i * (1 - g.square()), dht * tanh_c * o * (1 - o)
        dgates[:, t] = torch.cat([di, df, dg, do], -1)
        dh, dc = torch.bmm(dgates[:, t], w), dct * f
    return dgates, dh.clone(), dc.clone()


class GRU(torch.autograd.Function):
    """States at all times (T, B, H) from the input's part of the gates (T, B, 3 H)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(xg: Tensor, w: Tensor, b: Tensor, h0: Tensor, reverse: bool) -> States:
        h, gates = torch.ops.fedloom.gru(xg, w, b, h0, reverse)
        return h, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: States) -> None:
        _, w, _, h0, ctx.reverse = inputs
        h, gates = output
        ctx.mark_non_differentiable(gates)
        ctx.save_for_backward(w, h0, h, gates)

    @staticmethod
    def backward(ctx: Any, dh: Tensor, *_: Any) -> tuple[Any, ...]:
        w, h0, h, gates = ctx.saved_tensors
        before = _before(h, h0, ctx.reverse)
        dxg, dhg, dh0 = call(GRUGradient, dh, w, gates, before, ctx.reverse)
        return dxg, _weights_gradient(dhg, before), dhg.sum((0, 1)), dh0, None


class GRUGradient(torch.autograd.Function):
    """Gradients of the input's and of the state's part of the gates, and of the first state."""

    generate_vmap_rule = True

    @staticmethod
    def forward(dh: Tensor, w: Tensor, gates: Tensor, before: Tensor, reverse: bool) -> States:
        dxg, dhg, dh0 = torch.ops.fedloom.gru_gradient(dh, w, gates, before, reverse)
        return dxg, dhg, dh0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: States) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("a stacked GRU has first derivatives only")


def _empty_gru(xg: Tensor, w: Tensor, b: Tensor, h0: Tensor, reverse: bool) -> States:
    lead, hidden = xg.shape[:-1], w.shape[-1]
    return xg.new_empty((*lead, hidden)), xg.new_empty((*lead, 4 * hidden))


@operator(
    "fedloom::gru",
    "(Tensor xg, Tensor w, Tensor b, Tensor h0, bool reverse) -> (Tensor, Tensor)",
    batched=4,
    fake=_empty_gru,
)
def _gru(xg: Tensor, w: Tensor, b: Tensor, h0: Tensor, reverse: bool) -> States:
    lead, (xg, w, b, h0) = flat((3, 2, 1, 2), xg, w, b, h0)
    clients, times, batch, _ = xg.shape
    hidden = w.shape[-1]
    h_all = xg.new_empty(clients, times, batch, hidden)
    gates = xg.new_empty(clients, times, batch, 4 * hidden)
    h, turned, bias = h0, w.mT, b.unsqueeze(1)
    for t in _times(times, reverse):
        hg = torch.baddbmm(bias, h, turned)
        r, z = (xg[:, t, :, : 2 * hidden] + hg[..., : 2 * hidden]).sigmoid().chunk(2, -1)
        inner = hg[..., 2 * hidden :]
        n = (xg[:, t, :, 2 * hidden :] + r * inner).tanh()
        h = n + z * (h - n)
        h_all[:, t], gates[:, t] = h, torch.cat([r, z, n, inner], -1)
    return h_all.reshape(*lead, *h_all.shape[1:]), gates.reshape(*lead, *gates.shape[1:])


def _empty_gru_gradient(dh: Tensor, w: Tensor, gates: Tensor, before: Tensor, reverse: bool) -> States:
    wide = gates.new_empty((*gates.shape[:-1], w.shape[-2]))
    return wide, torch.empty_like(wide), gates.new_empty((*before.shape[:-3], *before.shape[-2:]))


@operator(
    "fedloom::gru_gradient",
    "(Tensor dh, Tensor w, Tensor gates, Tensor before, bool reverse) -> (Tensor, Tensor, Tensor)",
    batched=4,
    fake=_empty_gru_gradient,
)
def _gru_gradient(dh: Tensor, w: Tensor, gates: Tensor, before: Tensor, reverse: bool) -> States:
    lead, (dh, w, gates, before) = flat((3, 2, 3, 3), dh, w, gates, before)
    dxg, dhg = (gates.new_empty((*gates.shape[:-1], w.shape[-2])) for _ in range(2))
    d = torch.zeros_like(before[:, 0])
    for t in _times(gates.shape[1], not reverse):
        r, z, n, inner = gates[:, t].chunk(4, -1)
        d = d + dh[:, t]
        dn = d * (1 - z) * (1 - n.square())
        dz = d * (before[:, t] - n) * z * (1 - z)
        dr = dn * inner * r * (1 - r)
        dxg[:, t], dhg[:, t] = torch.cat([dr, dz, dn], -1), torch.cat([dr, dz, dn * r], -1)
        d = d * z + torch.bmm(dhg[:, t], w)
    return tuple(result.reshape(*lead, *result.shape[1:]) for result in (dxg, dhg, d))
