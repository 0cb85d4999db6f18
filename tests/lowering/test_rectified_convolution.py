"""A convolution and the ReLU of its result at once, in a program: torch's numbers, and nothing of the sum before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stacks import assert_same, assert_same_on_gpu, draw, gradient, leaves, loss, operators, program
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedloom.lowering.operators import call
from fedloom.lowering.rectified import Gradients, RectifiedConvolution

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")  # the ordinary convolution's, of its own copy

SETTINGS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": (3, 2), "stride": 2, "bias": False},
    {"kernel_size": 2, "padding": "same"},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
]


class Fixed(nn.Module):
    """Its input is not learnt from, as that of a first layer."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.module(x.detach())
        return y + 0 * x.sum()


def network(settings: dict[str, Any], channels: int = 2, outputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, outputs, **settings), nn.ReLU(), nn.Flatten())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_ordinary_layers(settings: dict[str, Any]) -> None:
    module, x = network(settings), draw(3, 2, 2, 9, 8)
    assert_same(module, x, "kernel", traced=True)
    assert operators(program(module, x)) == ["conv2d_relu", "conv2d_input_gradient", "conv2d_weight_gradient"]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_first_layer_needs_no_gradient_of_the_sum(settings: dict[str, Any]) -> None:
    module, x = Fixed(network(settings)), draw(3, 2, 2, 9, 8)
    assert_same(module, x, "kernel", traced=True)
    assert operators(program(module, x)) == ["conv2d_relu", "conv2d_relu_gradients"]


@pytest.mark.parametrize(
    "relu",
    [F.relu, torch.relu, Tensor.relu, nn.ReLU(inplace=True)],
    ids=["functional", "torch", "method", "in place"],
)
def test_however_it_is_called_and_not_where_it_lies(relu: Any) -> None:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = relu(self.conv(x))
            return y

    module, x = Called(), draw(3, 2, 2, 9, 8)
    assert_same(module, x, "kernel", traced=True)
    assert ("conv2d_relu" in operators(program(module, x))) != isinstance(relu, nn.ReLU)


def test_what_stands_between_them_or_reads_the_convolution_too_is_respected() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return y.relu() + y + (y - 1).relu()

    assert_same(Twice(), draw(3, 2, 2, 9, 8), "kernel", traced=True)


@pytest.mark.parametrize("learnt", ["weight", "bias"])
def test_one_alone_may_learn(learnt: str) -> None:
    module = Fixed(network({"kernel_size": 3})).double()
    name, x = f"module.0.{learnt}", draw(3, 2, 2, 9, 8)
    params = {name: leaves(module)[name]}
    (found, _), _ = make_fx(gradient(module, "kernel"), tracing_mode="real")(params, x)(params, x)
    for k in range(3):
        leaf = params[name][k].clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(module, {name: leaf}, x[k]), leaf)
        torch.testing.assert_close(found[name][k], expected)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_torchs(special: float) -> None:
    x, weight, bias = draw(2, 3, 1, 7, 8), torch.ones(2, 1, 1, 1, 1, dtype=torch.float64), draw(2, 1)
    x = torch.where(draw(2, 3, 1, 7, 8, seed=1) > 0.5, special, x)
    y = call(RectifiedConvolution, x, weight, bias, (1, 1), (0, 0), (1, 1))
    torch.testing.assert_close(y, (x + bias[:, None, :, None, None]).relu(), equal_nan=True)


def test_derivatives_of_derivatives() -> None:
    x, weight, bias = (draw(*shape).requires_grad_() for shape in ((2, 2, 5, 4), (3, 2, 3, 3), (3,)))
    settings = (1, 1), (0, 0), (1, 1)

    def rectified(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = call(RectifiedConvolution, x, weight, bias, *settings)
        return y

    assert torch.autograd.gradgradcheck(rectified, (x, weight, bias))
    y = rectified(x, weight, bias).detach()
    g = draw(*y.shape, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda g, x: call(Gradients, g, y, x, (3, 3), *settings), (g, x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("channels", "outputs"), [(1, 4), (32, 64), (20, 36)])
def test_on_a_gpu(settings: dict[str, Any], channels: int, outputs: int) -> None:
    module, x = network(settings, channels, outputs), draw(3, 2, channels, 9, 8)
    for each in (module, Fixed(module)):
        assert_same_on_gpu(each, x, "kernel", traced=True)
