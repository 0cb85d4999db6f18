"""Penalties: the factor, the leaves they take, and those of the papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom import models
from fedloom.errors import FedloomError
from fedloom.models import penalty

PARAMS = {"a.weight": torch.tensor([[1.0, 2.0]]), "a.bias": torch.tensor([3.0]), "b.weight": torch.tensor([[-4.0]])}


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, 0.1 * 21),
        ({"half": True}, 0.05 * 21),
        ({"kernels": ["a.bias"]}, 0.1 * 9),
        ({"kernels": (name for name in ["a.weight", "a.bias"])}, 0.1 * 14),
        ({"kernels": lambda name: name.startswith("b")}, 0.1 * 16),
        ({"kernels": lambda name: True, "half": True}, 0.05 * 30),
    ],
)
def test_sums_of_squares(options: dict[str, Any], value: float) -> None:
    measure = penalty.l2(0.1, **options)
    for _ in range(2):  # names that came from a generator are still there
        assert float(measure(PARAMS)) == pytest.approx(value)


def test_gradient_is_weight_decay_by_half() -> None:
    params = {name: leaf.clone().requires_grad_() for name, leaf in PARAMS.items()}
    penalty.l2(0.1, half=True)(params).backward()
    torch.testing.assert_close(params["a.weight"].grad, 0.1 * PARAMS["a.weight"])
    assert params["a.bias"].grad is None


def test_under_vmap_each_client_has_its_own() -> None:
    stacked = {"w": torch.arange(6.0).reshape(3, 1, 2), "b": torch.ones(3, 2)}
    found: Tensor = torch.func.vmap(penalty.l2(1.0))(stacked)
    assert found.tolist() == [1, 13, 41]


def test_mistakes() -> None:
    with pytest.raises(FedloomError, match="l2 strength: expected a number of at least 0, got -1"):
        penalty.l2(-1)
    with pytest.raises(FedloomError, match="l2 strength"):
        penalty.l2(float("nan"))
    with pytest.raises(FedloomError, match=r"expected a list of names or a function, got 'a': write \['a'\]"):
        penalty.l2(1, kernels="a")
    with pytest.raises(FedloomError, match=r"l2 kernels: expected one of .*; got 'a.weigth': did you mean 'a.weight'"):
        penalty.l2(1, kernels=["a.weigth"])(PARAMS)
    with pytest.raises(FedloomError, match=r"expected at least one of a\.weight, a\.bias, b\.weight; got none"):
        penalty.l2(1, kernels=[])(PARAMS)


def test_the_tutorials_decay_is_on_its_two_hidden_kernels() -> None:
    params = {name: leaf.detach() for name, leaf in models.Cifar10CNN(8).named_parameters()}
    expected = 0.002 * (params["hidden1.weight"].square().sum() + params["hidden2.weight"].square().sum())
    torch.testing.assert_close(penalty.cifar10_cnn()(params), expected)


def test_the_resnets_decay_leaves_its_norms_out() -> None:
    with torch.device("meta"):
        shapes = {name: leaf.shape for name, leaf in models.ResNet18GN().named_parameters()}
    params = {name: torch.ones(shape) for name, shape in shapes.items()}
    # Scales and shifts: the stem's, four stages', three shortcuts', the last norm's.
    norms = 2 * (64 + 3 * 64 + (64 + 3 * 128) + (128 + 3 * 256) + (256 + 3 * 512) + (128 + 256 + 512) + 512)
    assert float(penalty.resnet18_gn()(params)) == pytest.approx(1e-4 * (11_227_812 - norms), rel=1e-6)
