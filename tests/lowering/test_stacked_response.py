"""Local response norm of a stack: by slices or by kernels, torch's numbers."""

from __future__ import annotations

import pytest
import torch
from stacks import assert_same, assert_same_on_gpu, draw, operators, program
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

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


@pytest.mark.parametrize("form", ["plain", "kernel"])
def test_what_follows_may_change_it_in_place(form: Form) -> None:
    module = nn.Sequential(nn.Conv2d(2, 6, 3), nn.LocalResponseNorm(5), nn.ReLU(inplace=True))
    assert_same(module, draw(3, 2, 2, 6, 5), form, traced=form == "kernel")


class Learnt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.local_response_norm(x, 3, alpha=self.alpha.abs(), k=2.0)  # type: ignore[arg-type]


def test_settings_that_are_learnt_are_left_to_slices() -> None:
    assert operators(program(Learnt(), draw(3, 2, 6, 3, 3))) == []
    assert_same(Learnt(), draw(3, 2, 6, 3, 3), "kernel", traced=True)


def test_very_many_neighbours_are_left_to_slices() -> None:
    module, x = nn.LocalResponseNorm(201, alpha=0.3), draw(2, 2, 40, 2, 2)
    assert operators(program(module, x)) == []
    assert_same(module, x, "kernel", traced=True)


def test_derivatives_of_derivatives() -> None:
    x = draw(2, 5, 3, 2).requires_grad_()

    def normed(x: torch.Tensor) -> torch.Tensor:
        with stacked(form="kernel"):
            return F.local_response_norm(x, 3, 0.3, 0.6, 1.5)

    assert torch.autograd.gradgradcheck(normed, (x,))

    def steepness(form: Form) -> torch.Tensor:
        def squares(x: torch.Tensor) -> torch.Tensor:
            with stacked(form=form):
                return F.local_response_norm(x, 3, 0.3, 0.6, 1.5).square().sum()

        return torch.func.vmap(torch.func.grad(lambda x: torch.func.grad(squares)(x).square().sum()))(
            draw(3, 2, 5, 3, 2)
        )

    torch.testing.assert_close(steepness("kernel"), steepness("plain"))


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
