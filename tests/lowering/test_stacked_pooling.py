"""Max-pooling by comparisons or by kernels: torch's numbers, and torch's choice among equals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stacks import assert_same, assert_same_on_gpu, draw, operators, program
from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.lowering import stacked
from fedloom.lowering.convolution import Form
from fedloom.lowering.pooling import max_pool2d, windows

SETTINGS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3},
    {"kernel_size": (2, 3)},
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 2, "stride": 1},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": (3, 2), "stride": (2, 1)},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 4), "stride": (1, 2), "padding": (0, 2)},
    {"kernel_size": 2, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "dilation": 2},
]
FORMS = pytest.mark.parametrize("form", ["plain", "kernel"])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("ties", [False, True])
@FORMS
def test_ordinary_pooling(settings: dict[str, Any], ties: bool, form: Form) -> None:
    x = draw(3, 2, 3, 9, 7)
    assert_same(nn.MaxPool2d(**settings), x.round().relu() if ties else x, form, traced=True)


def test_which_windows_have_kernels() -> None:
    """Those that overlap or reach beyond the image; others are a reshape, or slices that a compiler reads once."""
    x = draw(3, 2, 3, 9, 7)
    found = [operators(program(nn.MaxPool2d(**each), x)) == ["max_pool", "unpool"] for each in SETTINGS]
    assert [each for each, kernel in zip(SETTINGS, found, strict=True) if not kernel] == [
        {"kernel_size": 2},
        {"kernel_size": 3},
        {"kernel_size": (2, 3)},
        {"kernel_size": 2, "stride": 3},
        {"kernel_size": 2, "dilation": 2},
    ]
    assert operators(program(nn.MaxPool2d(9, stride=1), draw(3, 2, 3, 10, 10))) == []  # too many cells for a kernel


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("special", [float("nan"), float("-inf"), float("inf")])
@FORMS
def test_values_that_are_not_finite(settings: dict[str, Any], special: float, form: Form) -> None:
    x = draw(2, 3, 9, 7)
    x = torch.where(draw(2, 3, 9, 7, seed=1) > 0.3, special, x)

    def pooled(x: Tensor, mode: bool) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        if mode:
            with stacked(form=form):
                y = F.max_pool2d(x, **settings)
        else:
            y = F.max_pool2d(x, **settings)
        (found,) = torch.autograd.grad((y * torch.arange(1.0, y.numel() + 1).reshape(y.shape)).sum(), x)
        return y.detach(), found

    for a, b in zip(pooled(x, True), pooled(x, False), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9, equal_nan=True)


def test_ways_to_call_it() -> None:
    x = draw(2, 3, 6, 6)
    with stacked():
        assert torch.equal(torch.max_pool2d(x, 2), F.max_pool2d(x, [2, 2], stride=2))
        y, index = F.max_pool2d(x, 2, return_indices=True)
        assert torch.equal(F.max_pool2d(x[0], (2,)), y[0]) and index.dtype == torch.int64
        with pytest.raises(RuntimeError, match="too small"):
            F.max_pool2d(x, 7)
        assert torch.equal(F.max_pool2d(x, 2, ()), F.max_pool2d(x, 2))
        for wrong in ([2, 2, 2], "two"):
            with pytest.raises((RuntimeError, TypeError)):
                F.max_pool2d(x, wrong)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match=r"non-empty|dim"):
            F.max_pool2d(x[0, 0, 0], 2)
    assert windows((6, 6), 2, stride=0) is None
    assert windows((6, 6), 2, padding=2) is None
    assert (found := windows((6, 6), 2, padding=1)) is not None
    assert max_pool2d(x, found) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("ties", [False, True])
def test_on_a_gpu(settings: dict[str, Any], ties: bool) -> None:
    x = draw(3, 2, 3, 9, 7)
    assert_same_on_gpu(nn.MaxPool2d(**settings), x.round().relu() if ties else x)
