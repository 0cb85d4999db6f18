"""A convolution and its pooling at once, in a program: torch's numbers and winners, and nothing of the whole image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stacks import assert_same, assert_same_on_gpu, draw, gradient, leaves, operators, program
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedloom.lowering import pooled  # noqa: F401  registers the operators
from fedloom.lowering.convolution import Form
from fedloom.lowering.operators import call
from fedloom.lowering.pooled import PooledConvolution
from fedloom.lowering.pooling import MaxPool, Unpool, Windows, windows

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")  # the ordinary convolution's, of its own copy

SETTINGS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (3, 2), "stride": 2, "bias": False},
    {"kernel_size": 2, "padding": "same"},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
]


def network(settings: dict[str, Any], channels: int = 2, outputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, outputs, **settings), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_ordinary_layers(settings: dict[str, Any]) -> None:
    """9 x 8: with some of the settings a last row or column that no window has."""
    module, x = network(settings), draw(3, 2, 2, 9, 8)
    assert_same(module, x, "kernel", traced=True)
    assert operators(program(module, x)) == [
        "conv2d_pool",
        "unpool",
        "conv2d_input_gradient",
        "conv2d_weight_gradient",
    ]


OTHER_WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 2, "stride": 1},
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 2, "padding": 1},
    {"kernel_size": 2, "ceil_mode": True},
]
SLICES: list[dict[str, Any]] = [{"kernel_size": 3}, {"kernel_size": (2, 1)}, {"kernel_size": 2, "stride": 3}]


@pytest.mark.parametrize("pooling", [*OTHER_WINDOWS, *SLICES], ids=str)
def test_other_windows_are_pooled_after_the_convolution(pooling: dict[str, Any]) -> None:
    """And add its bias, where kernels pool them."""
    module, x = nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(**pooling)), draw(3, 2, 2, 9, 9)
    found = ["conv2d", "max_pool", "unpool", "conv2d_input_gradient", "conv2d_weight_gradient"]
    expected = [name for name in found if pooling in OTHER_WINDOWS or "pool" not in name]
    assert operators(program(module, x)) == expected
    assert_same(module, x, "kernel", traced=True)


def test_what_is_pooled_twice_or_read_too_is_convolved_once() -> None:
    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            parts = F.max_pool2d(y, 3, 2), F.max_pool2d(y, 5, 1, 2), y.sigmoid()
            return sum((part.sum((2, 3)) for part in parts), start=y.new_zeros(()))

    names = operators(program(Pyramid(), draw(3, 2, 2, 9, 9)))
    assert [names.count(name) for name in ("conv2d", "conv2d_input_gradient", "conv2d_weight_gradient")] == [1, 1, 1]
    assert_same(Pyramid(), draw(3, 2, 2, 9, 9), "kernel", traced=True)


class Padded(nn.Module):
    """As TensorFlow's SAME pads."""

    def __init__(self, around: tuple[int, ...] = (0, 1, 0, 1), between: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.around, self.between = nn.Conv2d(2, 4, 2), around, between or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.pad(self.between(self.conv(x)), self.around, value=float("-inf")), 3, 2)


@pytest.mark.parametrize("around", [(0, 1, 0, 1), (1, 0, 2, 1)])
def test_what_is_padded_to_be_pooled_is_pooled_where_it_lies(around: tuple[int, ...]) -> None:
    module, x = Padded(around), draw(3, 2, 2, 9, 9)
    assert operators(program(module, x))[:2] == ["conv2d", "max_pool"]
    assert "constant_pad" not in str(program(module, x).graph)
    assert_same(module, x, "kernel", traced=True)


def test_windows_beside_the_image_are_pooled_with_what_is_padded() -> None:
    class Bounded(Padded):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).clamp(min=-5)

    module, x = Bounded((5, 5, 5, 5)), draw(3, 2, 2, 9, 9)
    assert "max_pool" in operators(program(module, x))  # of the padded image
    assert_same(module, x, "kernel", traced=True)


def test_what_is_padded_otherwise_is_pooled_with_it() -> None:
    class Twice(Padded):
        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            low = F.pad(y, self.around, value=float("-inf"))
            zeros = F.max_pool2d(F.pad(y, self.around), 3, 2)
            cut, rows = F.pad(y, (-1, 1, 0, 1), value=float("-inf")), F.pad(y, (0, 1), value=float("-inf"))
            return zeros + F.max_pool2d(low.tanh(), 3, 2) + sum(F.max_pool2d(each, 4).sum() for each in (cut, rows))

    assert_same(Twice(), draw(3, 2, 2, 9, 9), "kernel", traced=True)


@pytest.mark.parametrize("form", ["plain", "kernel"])
def test_what_is_changed_in_place_and_padded_is_pooled_as_it_is_then(form: Form) -> None:
    module = Padded(between=nn.Hardtanh(inplace=True))
    assert_same(module, draw(3, 2, 2, 9, 9), form, traced=form == "kernel")


def test_what_stands_between_them_or_reads_the_convolution_too_is_respected() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return F.max_pool2d(y, 2).sum((-1, -2)) + y.mean((-1, -2)) + F.max_pool2d(y.tanh(), 2).sum((-1, -2))

    assert_same(Twice(), draw(3, 2, 2, 9, 8), "kernel", traced=True)


@pytest.mark.parametrize("between", [nn.ReLU(inplace=True), nn.Hardtanh(inplace=True)], ids=str)
def test_what_is_changed_in_place_before_it_is_pooled_is_pooled_as_it_is_then(between: nn.Module) -> None:
    module, x = nn.Sequential(nn.Conv2d(2, 4, 3), between, nn.MaxPool2d(2)), draw(3, 2, 2, 9, 8)
    assert "conv2d_pool" not in operators(program(module, x))
    assert_same(module, x, "kernel", traced=True)


def test_a_convolution_that_does_not_learn_does_not_learn_by_being_pooled() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(2, 4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                y = self.conv(x)
            return self.last(F.max_pool2d(y, 2).sum((-1, -2)))

    module = Frozen().double()
    given = leaves(module), draw(3, 2, 2, 9, 8)
    (found, _), _ = make_fx(gradient(module, "kernel"), tracing_mode="fake")(*given)(*given)
    assert not found["conv.weight"].any() and found["last.weight"].any()


def test_an_image_of_one_row_is_refused_as_ever() -> None:
    with pytest.raises(RuntimeError, match="too small"):
        program(network({"kernel_size": 3}), draw(3, 2, 2, 3, 8))


@pytest.mark.parametrize("settings", [{"kernel_size": 2}, *OTHER_WINDOWS], ids=str)
@pytest.mark.parametrize("special", [None, float("nan"), float("inf"), float("-inf")])
def test_the_winner_is_torchs(special: float | None, settings: dict[str, Any]) -> None:
    """Ties of rounded numbers; of what is not finite each window's value and its gradient too."""
    x, weight, bias = draw(2, 3, 1, 7, 8).round(), torch.ones(2, 1, 1, 1, 1, dtype=torch.float64), torch.zeros(2, 1)
    if special is not None:
        x = torch.where(draw(2, 3, 1, 7, 8, seed=1) > 0.5, special, x)
    chosen = windows((7, 8), **settings)
    assert chosen is not None
    if chosen.two_by_two((7, 8)):
        y, winners = call(PooledConvolution, x, weight, bias.double(), (1, 1), (0, 0), (1, 1))
    else:
        y, winners = torch.func.vmap(lambda x, bias: call(MaxPool, x, bias, chosen))(x, bias.double())
    image = x.clone().requires_grad_()
    expected = torch.stack([F.max_pool2d(each, **settings) for each in image])
    torch.testing.assert_close(y, expected.detach(), equal_nan=True)
    g = draw(*y.shape, seed=2)
    (found,) = torch.autograd.grad((expected * g).sum(), image)
    torch.testing.assert_close(call(Unpool, g, winners, (7, 8), chosen), found)


def test_derivatives_of_derivatives() -> None:
    """A window's derivative is that of its winner, whichever order it is taken in."""
    x, weight, bias = (draw(*shape).requires_grad_() for shape in ((2, 2, 7, 6), (3, 2, 3, 3), (3,)))

    def pooled_of(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = call(PooledConvolution, x, weight, bias, (1, 1), (0, 0), (1, 1))[0]
        return y

    assert torch.autograd.gradgradcheck(pooled_of, (x, weight, bias))
    overlapping = Windows((3, 3), (2, 2), (1, 0), (3, 2))
    assert torch.autograd.gradgradcheck(lambda x: call(MaxPool, x, x.new_zeros(2), overlapping)[0].square(), (x,))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("channels", "outputs"), [(1, 4), (32, 64), (20, 36)])
def test_on_a_gpu(settings: dict[str, Any], channels: int, outputs: int) -> None:
    assert_same_on_gpu(network(settings, channels, outputs), draw(3, 2, channels, 9, 8), "kernel", traced=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("module", [Padded(), *(nn.MaxPool2d(**each) for each in OTHER_WINDOWS)], ids=str)
def test_other_windows_on_a_gpu(module: nn.Module) -> None:
    both = module if isinstance(module, Padded) else nn.Sequential(nn.Conv2d(2, 24, 3), module)
    assert_same_on_gpu(both, draw(3, 2, 2, 9, 9), "kernel", traced=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_winners_on_a_gpu() -> None:
    x = draw(2, 3, 4, 10, 9).round()
    x = torch.where(draw(2, 3, 4, 10, 9, seed=1) > 1.5, torch.nan, x).float()
    weight = torch.eye(4)[None, :, :, None, None].expand(2, 4, 4, 1, 1)
    given = x, weight, torch.zeros(2, 4)
    found = [
        torch.ops.fedloom.conv2d_pool(*(each.to(device) for each in given), [1, 1], [0, 0], [1, 1])
        for device in ("cpu", "cuda")
    ]
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there.cpu(), here, equal_nan=True)
