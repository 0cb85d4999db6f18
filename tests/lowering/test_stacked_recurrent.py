"""LSTM and GRU layers of a stack against the ordinary ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stacks import assert_same, assert_same_on_gpu, draw, gradient, leaves
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from fedloom.dropout import SeededDropout
from fedloom.lowering import stacked

SETTINGS: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"bidirectional": True},
    {"num_layers": 2, "batch_first": True},
    {"num_layers": 3, "bidirectional": True, "bias": False, "batch_first": True},
    {"num_layers": 2, "bidirectional": True},
]
KINDS: list[type[nn.RNNBase]] = [nn.LSTM, nn.GRU]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_ordinary_layers(kind: type[nn.RNNBase], settings: dict[str, Any]) -> None:
    assert_same(kind(3, 5, **settings), draw(3, 4, 2, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_traced(kind: type[nn.RNNBase]) -> None:
    module = kind(3, 4, num_layers=2, batch_first=True, bidirectional=True)
    assert_same(module, draw(3, 2, 5, 3), traced=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_of_one_and_a_batch_of_one(kind: type[nn.RNNBase]) -> None:
    assert_same(kind(3, 4, bidirectional=True), draw(3, 1, 1, 3))


class Started(nn.Module):
    """A layer whose first states are made from the input."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(3, 3)

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(x[:1] + x[-1:])
        return self.layer(x, (h, h.cos()) if isinstance(self.layer, nn.LSTM) else h)


@pytest.mark.parametrize("kind", KINDS)
def test_given_first_states(kind: type[nn.RNNBase]) -> None:
    assert_same(Started(kind), draw(3, 4, 2, 3), traced=True)


class Packed(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]))
        result: Tensor = self.layer(packed)[0].data
        return result


def test_what_is_left_alone() -> None:
    x = draw(4, 2, 3)
    for module in (Packed(nn.LSTM), Packed(nn.GRU), nn.LSTM(3, 4, proj_size=2)):
        module = module.double()
        plain = module(x)
        with stacked():
            same = module(x)
        torch.testing.assert_close(same, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_is_seeded(kind: type[nn.RNNBase]) -> None:
    module = kind(3, 4, num_layers=2, batch_first=True, dropout=0.5).double()
    params, x, keys = leaves(module), draw(3, 2, 5, 3), torch.tensor([5, 6, 5])

    def output(params: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
        with SeededDropout(key), stacked():
            y: Tensor = functional_call(module, params, (x,))[0]
            return y

    with torch.random.fork_rng():
        y = torch.func.vmap(output)(params, x, keys)
        torch.manual_seed(1)
        assert torch.equal(torch.func.vmap(output)(params, x, keys), y)
    alone = output({name: leaf[1] for name, leaf in params.items()}, x[1], keys[1])
    torch.testing.assert_close(y[1], alone)
    shorter = output({name: leaf[1] for name, leaf in params.items()}, x[1, :1], keys[1])
    torch.testing.assert_close(shorter[0], alone[0])  # more rows change nothing
    undropped = torch.func.vmap(lambda p, x: output(p, x, keys[0]))(params, x) if module.eval() else y
    assert not torch.allclose(undropped, y)


def test_a_trace_does_not_grow_with_time() -> None:
    module = nn.LSTM(3, 4).double()
    params = leaves(module)
    nodes = [
        len(make_fx(gradient(module), tracing_mode="fake")(params, draw(3, times, 2, 3)).graph.nodes)
        for times in (3, 30)
    ]
    assert nodes[0] == nodes[1]


def test_second_derivatives_are_refused() -> None:
    module = nn.LSTM(3, 4).double()
    x = draw(4, 2, 3).requires_grad_()
    with stacked():
        (first,) = torch.autograd.grad(module(x)[0].sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives"):
        first.sum().backward()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("hidden", "batch"), [(5, 2), (64, 20), (70, 70)])
def test_on_a_gpu(kind: type[nn.RNNBase], settings: dict[str, Any], hidden: int, batch: int) -> None:
    shape = (batch, 6) if settings.get("batch_first") else (6, batch)
    module = kind(3, hidden, **settings)
    scaled = draw(3, *shape, 3)
    assert_same_on_gpu(module, scaled, tolerance=1e-3)
