"""Convolutions with each client's own kernels, in every form, against the ordinary ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stacks import assert_close, assert_same, assert_same_on_gpu, draw, leaves
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedloom.lowering import stacked, weight_gradient_kernels
from fedloom.lowering.convolution import Convolution, Form, conv2d, form
from fedloom.lowering.operators import call

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")  # the ordinary convolution's, of its own copy

SETTINGS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": 3, "bias": False, "padding": 1},
    {"kernel_size": 5, "padding": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0)},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
    {"kernel_size": (2, 3), "dilation": (1, 2), "stride": (2, 1)},
    {"kernel_size": 3, "dilation": 2, "stride": 2},
    {"kernel_size": 3, "padding": "same"},
    {"kernel_size": (4, 3), "padding": "same", "dilation": (1, 2)},
    {"kernel_size": 4, "padding": "valid"},
    {"kernel_size": 1},
    {"kernel_size": 1, "stride": 2, "bias": False},
    {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    {"kernel_size": 3, "groups": 2},
]
FORMS: list[Form] = ["plain", "matrix", "kernel", "hybrid"]


def conv(settings: dict[str, Any], channels: int = 2, outputs: int = 4) -> nn.Module:
    return nn.Conv2d(channels, outputs, **settings)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_form_is_the_ordinary_convolution(settings: dict[str, Any], form: Form) -> None:
    assert_same(conv(settings), draw(3, 2, 2, 9, 8), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("settings", SETTINGS[:4], ids=str)
def test_convolutions_are_traced(settings: dict[str, Any], form: Form) -> None:
    assert_same(conv(settings, 1), draw(3, 2, 1, 7, 9), form, traced=True)


@pytest.mark.parametrize("first", [True, False])
def test_a_stack_is_one_call_of_each_kernel(first: bool) -> None:
    module = conv({"kernel_size": 3}).double()

    def objective(params: dict[str, Tensor], x: Tensor) -> Tensor:
        with stacked(form="kernel"):
            return torch.func.functional_call(module, params, (x,)).square().sum()

    stack = torch.func.vmap(torch.func.grad(objective, argnums=0 if first else (0, 1)))
    graph = make_fx(stack, tracing_mode="fake")(leaves(module), draw(3, 2, 2, 7, 9)).graph
    called = [str(node.target) for node in graph.nodes if "fedloom" in str(node.target)]
    # nobody asks for the gradient of a first layer's input
    others = [] if first else ["fedloom.conv2d_input_gradient.default"]
    assert called == ["fedloom.conv2d.default", *others, "fedloom.conv2d_weight_gradient.default"]


@pytest.mark.parametrize("form", FORMS)
def test_layers_follow_each_other(form: Form) -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 5, 3, padding=1), nn.MaxPool2d(2), nn.Flatten())
    assert_same(module, draw(3, 2, 1, 8, 8), form, traced=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "settings",
    [{"kernel_size": 3}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 4, "padding": "same"}],
    ids=str,
)
def test_one_dimension(settings: dict[str, Any], form: Form) -> None:
    assert_same(nn.Conv1d(2, 3, **settings), draw(3, 2, 2, 9), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shared", ["x", "weight"])
def test_what_is_shared_by_all_clients(form: Form, shared: str) -> None:
    x, weight = draw(3, 2, 2, 6, 6), draw(3, 4, 2, 3, 3, seed=1)
    dims = (None if shared == "x" else 0, None if shared == "weight" else 0)
    x, weight = (leaf[0] if dim is None else leaf for leaf, dim in zip((x, weight), dims, strict=True))

    def objective(x: Tensor, weight: Tensor) -> Tensor:
        with stacked(form=form):
            return F.conv2d(x, weight, padding=1).pow(3).sum()

    got = torch.func.vmap(torch.func.grad(objective, argnums=(0, 1)), dims)(x, weight)
    for k in range(3):
        own = [leaf if dim is None else leaf[k] for leaf, dim in zip((x, weight), dims, strict=True)]
        own = [leaf.detach().requires_grad_() for leaf in own]
        expected = torch.autograd.grad(F.conv2d(*own, padding=1).pow(3).sum(), own)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a[k], b, rtol=1e-12, atol=1e-12)


def test_stacks_of_stacks() -> None:
    x, weight = draw(2, 3, 2, 2, 5, 5), draw(2, 3, 4, 2, 3, 3, seed=1)

    def kernel(x: Tensor, weight: Tensor) -> Tensor:
        result = conv2d(x, weight, forced="kernel")
        assert result is not None
        return result

    got = torch.func.vmap(torch.func.vmap(kernel))(x, weight)
    expected = torch.stack([F.conv2d(x[i, j], weight[i, j]) for i in range(2) for j in range(3)])
    torch.testing.assert_close(got.flatten(0, 1), expected)


@pytest.mark.parametrize("product", [False, True])
def test_second_derivatives(product: bool) -> None:
    x, weight = draw(2, 2, 6, 6).requires_grad_(), draw(3, 2, 3, 2, seed=1).requires_grad_()
    settings = (2, 1), (1, 0), (1, 2)
    assert torch.autograd.gradgradcheck(lambda x, weight: call(Convolution, x, weight, *settings, product), (x, weight))


def test_the_rule() -> None:
    x, weight = torch.zeros(2, 3, 8, 8), torch.zeros(4, 3, 3, 3)
    assert form(x, weight, (1, 1), (1, 1), 1) == "plain"
    meta = x.to("meta"), weight.to("meta")
    assert form(*meta, (1, 1), (1, 1), 1) == "matrix"
    assert form(*meta, (1, 1), (1, 1), 3) == "plain"
    assert conv2d(x[0], weight) is None  # without a batch axis


def test_same_padding_needs_stride_one() -> None:
    with pytest.raises(RuntimeError, match="stride"):
        conv2d(draw(1, 2, 5, 5), draw(2, 2, 3, 3), stride=2, padding="same", forced="matrix")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("channels", "outputs"), [(2, 4), (32, 64), (20, 36)])
def test_on_a_gpu(settings: dict[str, Any], form: Form, channels: int, outputs: int) -> None:
    if form in ("kernel", "hybrid") and settings.get("stride", 1) != 1 and settings.get("dilation", 1) != 1:
        pytest.skip("the kernels take a stride or a dilation")
    assert_same_on_gpu(conv(settings, channels, outputs), draw(3, 2, channels, 9, 8), form)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("channels", "outputs", "batch"), [(1, 32, 4), (3, 64, 40), (20, 36, 4), (64, 130, 40)])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2)])
def test_weights_gradient_in_reduced_precision(
    channels: int, outputs: int, batch: int, stride: int, padding: int, dilation: int
) -> None:
    settings = (stride, stride), (padding, padding), (dilation, dilation)
    x, weight = draw(3, batch, channels, 9, 8), draw(3, outputs, channels, 3, 3, seed=1)
    g = torch.stack([F.conv2d(*pair, None, *settings) for pair in zip(x, weight, strict=True)]).cos()
    expected = torch.stack(
        [
            torch.ops.aten.convolution_backward(
                g[k], x[k], weight[k], None, *settings, False, [0, 0], 1, [False, True, False]
            )[1]
            for k in range(3)
        ]
    )
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        given = g.float().cuda(), None, x.float().cuda(), (3, 3), *settings
        (got, _), (again, _) = (weight_gradient_kernels.conv2d_gradients(*given) for _ in range(2))
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(got, again)
    assert_close([got], [expected], 1e-4)


def test_runs_are_cut_with_little_waste() -> None:
    assert [weight_gradient_kernels._piece(run, 128) for run in (3, 15, 96, 160, 192, 1536)] == [4, 16, 32, 32, 64, 128]
    assert weight_gradient_kernels._piece(96, 16) == 16
