"""Every Triton kernel on a CPU, interpreted, against torch in float64: prints the largest difference of each as JSON.

    TRITON_INTERPRET=1 python tests/lowering/interpreted.py

What it cannot reach is the weights' gradient in TF32, which is written in the assembly of a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from fedloom import random
from fedloom.lowering import (
    convolution_kernels,
    lstm_kernels,
    norm_kernels,
    pooling,
    pooling_kernels,
    response_kernels,
    weight_gradient_kernels,
)
from fedloom.lowering.triton_parts import Tiles

CONVOLUTIONS = [  # channels, outputs, image, taps, stride, padding, dilation
    (1, 4, (9, 8), (3, 3), (1, 1), (0, 0), (1, 1)),
    (20, 33, (7, 6), (3, 2), (2, 1), (1, 0), (1, 1)),
    (32, 16, (6, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 5, (9, 9), (3, 3), (1, 1), (2, 2), (2, 2)),
    (4, 8, (5, 5), (5, 5), (1, 1), (0, 0), (1, 1)),  # to one pixel
    (4, 8, (1, 1), (3, 3), (1, 1), (1, 1), (1, 1)),  # from one
]

Found = Iterator[tuple[str, float]]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def difference(got: Tensor, expected: Tensor) -> float:
    """Relative to the largest number expected."""
    return float(((got.double() - expected.double()).abs().max() / expected.abs().max()).detach())


def flat(g: Tensor) -> Tensor:
    """As a gradient comes from `nn.Flatten`: of an axis of one pixel the stride is one."""
    return g.flatten(2).contiguous().reshape(g.shape)


def convolutions() -> Found:
    for channels, outputs, image, taps, *settings in CONVOLUTIONS:
        x, w = draw(2, 3, channels, *image), draw(2, outputs, channels, *taps)
        exact = [(x[k].double().requires_grad_(), w[k].double().requires_grad_()) for k in range(2)]
        ys = [F.conv2d(*pair, None, *settings) for pair in exact]
        g = flat(draw(2, *ys[0].shape))
        for k, y in enumerate(ys):
            y.backward(g[k].double())  # type: ignore[no-untyped-call]
        size = (ys[0].shape[-2], ys[0].shape[-1])
        name = f"{channels} channels {taps} {settings}"
        yield f"conv2d {name}", difference(convolution_kernels.conv2d(x, w, size, *settings), torch.stack(ys))
        dx = convolution_kernels.conv2d_input_gradient(g, w, image, *settings)
        yield f"input gradient {name}", difference(dx, torch.stack([each.grad for each, _ in exact]))
        dw, _ = weight_gradient_kernels.conv2d_gradients(g, None, x, taps, *settings)
        yield f"weight gradient {name}", difference(dw, torch.stack([each.grad for _, each in exact]))


def rectified() -> Found:
    """Of kernels in pieces of a tile, and where rows are split among programs."""
    for channels, outputs, image, taps, *settings in CONVOLUTIONS:
        x, w, bias = draw(2, 3, channels, *image), draw(2, outputs, channels, *taps), draw(2, outputs)
        exact = [(w[k].double().requires_grad_(), bias[k].double().requires_grad_()) for k in range(2)]
        ys = [F.conv2d(x[k].double(), *exact[k], *settings).relu() for k in range(2)]
        g = flat(draw(2, *ys[0].shape))
        for k, y in enumerate(ys):
            y.backward(g[k].double())  # type: ignore[no-untyped-call]
        name = f"{channels} channels {taps} {settings}"
        size = (ys[0].shape[-2], ys[0].shape[-1])
        found = convolution_kernels.conv2d_relu(x, w, bias, size, *settings)
        yield f"rectified {name}", difference(found, torch.stack(ys))
        for splits in (1, 3):
            tiles = Tiles(16, 16, 16, splits=splits)
            made = weight_gradient_kernels.conv2d_gradients(g, found, x, taps, *settings, tiles)
            for what, got, expected in zip(("kernels", "bias"), made, zip(*exact, strict=True), strict=True):
                gradients = torch.stack([leaf.grad for leaf in expected])
                yield f"gradient of rectified {what} {name}, {splits} parts", difference(got, gradients)


def not_a_number() -> Found:
    """ReLU leaves it as it is."""
    x = torch.where(draw(2, 3, 4, 6, 5) > 1, torch.nan, draw(2, 3, 4, 6, 5))
    weight, bias = torch.eye(4)[None, :, :, None, None].expand(2, 4, 4, 1, 1), draw(2, 4)
    found = convolution_kernels.conv2d_relu(x, weight, bias, (6, 5), (1, 1), (0, 0), (1, 1))
    expected = torch.stack([F.conv2d(*each).relu() for each in zip(x, weight, bias, strict=True)])
    torch.testing.assert_close(found, expected, equal_nan=True)
    yield "what is no number", 0.0


def pooled() -> Found:
    """Ties, and a last row and column that no window has."""
    for channels, outputs, image, taps, *settings in CONVOLUTIONS[:4]:
        x, w, bias = draw(2, 3, channels, *image).round(), draw(2, outputs, channels, *taps).round(), draw(2, outputs)
        exact = [F.conv2d(x[k].double(), w[k].double(), bias[k].double(), *settings).requires_grad_() for k in range(2)]
        ys = [F.max_pool2d(each, 2) for each in exact]
        g = draw(2, *ys[0].shape)
        for k, y in enumerate(ys):
            y.backward(g[k].double())  # type: ignore[no-untyped-call]
        size = (ys[0].shape[-2], ys[0].shape[-1])
        name = f"{channels} channels {taps} {settings}"
        found, winners = convolution_kernels.conv2d_pool(x, w, bias, size, *settings)
        yield f"pooled {name}", difference(found, torch.stack(ys))
        cells = pooling_kernels.unpool(g, winners, (exact[0].shape[-2], exact[0].shape[-1]), (2, 2), (2, 2), (0, 0))
        yield f"unpooled {name}", difference(cells, torch.stack([each.grad for each in exact]))


def other_windows() -> Found:
    """That overlap, reach beyond the image, or leave gaps; ties, and windows of nothing but the lowest number."""
    for image, arguments in [
        ((9, 8), {"kernel_size": 3, "stride": 2}),
        ((7, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
        ((7, 6), {"kernel_size": (3, 4), "stride": (1, 2), "padding": (0, 2)}),
        ((8, 9), {"kernel_size": 2, "stride": 3, "ceil_mode": True}),
        ((6, 5), {"kernel_size": (2, 1), "stride": 1}),
    ]:
        x, bias = draw(2, 3, 5, *image).round(), draw(2, 5)
        x = torch.where(draw(2, 3, 5, *reversed(image)).mT > 0.9, -torch.inf, x)
        exact = (x + bias[:, None, :, None, None]).requires_grad_()
        ys = torch.stack([F.max_pool2d(each, **arguments) for each in exact])
        g = draw(*ys.shape)
        ys.backward(g)  # type: ignore[no-untyped-call]
        chosen = pooling.windows(image, **arguments)
        assert chosen is not None and exact.grad is not None
        found, winners = pooling_kernels.max_pool(x, bias, *chosen)
        torch.testing.assert_close(found, ys.detach())
        cells = pooling_kernels.unpool(g, winners, image, *chosen[:3])
        yield f"unpooled {arguments}", difference(cells, exact.grad)


def responses() -> Found:
    """Windows that are even, wider than the channels, or of one; channels that fill no tile, or two."""
    for size, channels in [(9, 12), (4, 5), (1, 3), (7, 3), (9, 150)]:
        g, x = draw(2, 3, channels, 5, 4), draw(2, 4, channels, 5, 4)[:, 1:]
        exact = x.double().requires_grad_()
        ys = torch.stack([F.local_response_norm(each, size, 0.3, 0.6, 1.5) for each in exact])
        ys.backward(g.double())  # type: ignore[no-untyped-call]
        reach = min(size // 2, channels - 1), min((size - 1) // 2, channels - 1)
        y, scale = response_kernels.response_norm(x, *reach, 0.3 / size, 0.6, 1.5)
        yield f"response norm of {channels} channels, {size} at a time", difference(y, ys)
        assert exact.grad is not None
        dx = response_kernels.response_norm_gradient(g, x, scale, *reach, 0.3 / size, 0.6)
        yield f"gradient of response norm of {channels} channels, {size} at a time", difference(dx, exact.grad)


def norms() -> Found:
    """Padded images count for nothing; channels that fill no tile, or two; rows that are split among programs."""
    for clients, images, channels, *image in [(2, 3, 5, 7, 6), (3, 4, 70, 5, 5), (1, 40, 16, 20, 20)]:
        g, residual, x = (k + draw(clients, images + k, channels, *image)[:, k:] for k in range(3))
        sizes = torch.tensor([images, images - 1, 1])[:clients]
        mask = torch.arange(images) < sizes[:, None]
        weight, bias = draw(clients, channels), draw(clients, channels, 1)[..., 0]
        mean, variance, count = norm_kernels.moments(x, mask)
        for add, relu in product((False, True), (False, True)):
            found = norm_kernels.normalise(x, residual, weight, bias, mean, variance, eps=1e-3, add=add, relu=relu)
            total, products = norm_kernels.sums(g, found, x, mean, variance, eps=1e-3, relu=relu)
            made = norm_kernels.gradient(
                g, found, x, mask, mean, variance, weight, total, products, count, eps=1e-3, cut=add, relu=relu
            )
            exact = [leaf.double().requires_grad_() for leaf in (x, residual, weight, bias)]
            ys = []
            for k, size in enumerate(sizes.tolist()):
                real = exact[0][k, :size].transpose(0, 1).flatten(1)
                at, spread = real.mean(1)[:, None, None], real.var(1, correction=0)[:, None, None]
                y = (exact[0][k] - at) / (spread + 1e-3).sqrt()
                y = y * exact[2][k][:, None, None] + exact[3][k][:, None, None] + (exact[1][k] if add else 0)
                ys.append(y.relu() if relu else y)
            torch.stack(ys).backward(g.double())  # type: ignore[no-untyped-call]
            name = f"norm of {channels} channels{', with a sum' * add}{', rectified' * relu}"
            yield name, difference(found, torch.stack(ys))
            for what, got, leaf in zip(
                ("x", "residual", "weight", "bias"), (*made, products, total), exact, strict=True
            ):
                if leaf.grad is not None:
                    yield f"gradient by {what} of {name}", difference(got, leaf.grad)


def plain_lstm(xg: Tensor, w: Tensor, h: Tensor, c: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """The states (K, T, B, H) and the last cell, from the input's gates."""
    states: dict[int, Tensor] = {}
    for t in reversed(range(xg.shape[1])) if reverse else range(xg.shape[1]):
        i, f, g, o = (xg[:, t] + h @ w.mT).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        states[t] = h = o.sigmoid() * c.tanh()
    return torch.stack([states[t] for t in range(xg.shape[1])], 1), c


def lstms() -> Found:
    clients, times, batch, hidden = 2, 3, 5, 20
    given = draw(clients, times, batch, 4 * hidden), draw(clients, 4 * hidden, hidden) / 4
    begin = draw(clients, batch, hidden), draw(clients, batch, hidden) / 2
    dy, dc = draw(clients, times, batch, hidden), draw(clients, batch, hidden)
    for reverse, fused in product((False, True), (True, False)):
        xg, _, h0, c0 = exact = [each.double().requires_grad_() for each in (*given, *begin)]
        states, cell = plain_lstm(*exact, reverse)
        torch.autograd.backward([states, cell], [dy.double(), dc.double()])
        h, gates, c = lstm_kernels.lstm(*given, *begin, reverse)
        name = f"{'backwards' if reverse else 'forwards'}, {'fused' if fused else 'apart'}"
        yield f"lstm {name}", difference(h, states)
        found = lstm_kernels.lstm_gradient(dy, dc, given[1], gates, c, begin[1], reverse, fused=fused)
        for what, got, leaf in zip(("gates", "state", "cell"), found, (xg, h0, c0), strict=True):
            assert leaf.grad is not None
            yield f"lstm's gradient of {what} {name}", difference(got, leaf.grad)


def rows_and_masks() -> Found:
    from fedloom import kernels  # cannot be imported without Triton

    given, coefficients = draw(7, 1000), draw(3, 7).double()
    total = kernels.add_rows(torch.zeros(3, 1000, dtype=torch.float64), given, coefficients)
    yield "add rows", difference(total, coefficients @ given.double())
    yield "row squares", difference(kernels.row_squares(given), given.double().square().sum(1))
    keys = random.key(0, 1, torch.arange(3), "dropout")
    kept = kernels.kept(keys, random.offset(2), 5000, random.least_kept(0.3))
    expected = torch.stack([random.keep_mask(key, 2, torch.Size([5000]), 0.3) for key in keys])
    yield "masks", difference(kept, expected.double())


if __name__ == "__main__":
    torch.set_float32_matmul_precision("highest")
    kinds = convolutions, rectified, not_a_number, pooled, other_windows, responses, norms, lstms, rows_and_masks
    print(json.dumps(dict(found for kind in kinds for found in kind())))
