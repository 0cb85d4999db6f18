"""Local response norm of a stack: by slices or by kernels, torch's numbers."""

from __future__ import annotations

import pytest
import torch
from stacks import assert_same, assert_same_on_gpu, draw, operators, program
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from fedloom.lowering import stacked
from fedloom.lowering.convolution import Form

RESPONSES = [(9, (2, 12, 3, 2)), (4, (2, 6, 5)), (1, (2, 3, 4)), (5, (2, 3, 2, 2, 2))]


@pytest.mark.parametrize(("size", "shape"), RESPONSES, ids=str)
@pytest.mark.parametrize("form", ["plain", "kernel"])
def test_local_response_norm(size: int, shape: tuple[int, ...], form: Form) -> None:
    module, x = nn.LocalResponseNorm(size, alpha=0.3, beta=0.6, k=1.5), draw(3, *shape)
    with stacked(form=form):
        assert "avg_pool" not in make_fx(module)(x[0]).code  # which is torch's way
    assert_same(module, x, form, traced=True)


@pytest.mark.parametrize(("size", "shape"), RESPONSES, ids=str)
def test_images_have_kernels(size: int, shape: tuple[int, ...]) -> None:
    found = ["response_norm", "response_norm_gradient"] if len(shape) == 4 else []
    assert operators(program(nn.LocalResponseNorm(size), draw(3, *shape))) == found


def test_there_is_no_second_derivative_of_a_stack_of_images() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        with stacked(form="kernel"):
            return torch.func.grad(lambda x: nn.LocalResponseNorm(3)(x).square().sum())(x).sum()

    with pytest.raises(NotImplementedError, match="first derivatives alone"):
        torch.func.grad(twice)(draw(2, 4, 3, 3))


def test_local_response_norm_of_nothing() -> None:
    module = nn.LocalResponseNorm(3)
    with stacked():
        assert module(draw(0, 2, 3, 3)).shape == (0, 2, 3, 3)
        with pytest.raises(ValueError, match="3D or higher"):
            module(draw(2, 3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_local_response_norm_on_a_gpu() -> None:
    for size, shape in RESPONSES:
        assert_same_on_gpu(nn.LocalResponseNorm(size, alpha=0.3, beta=0.6, k=1.5), draw(3, *shape), traced=True)
