"""Dense models: sizes of the papers, inputs of any shape, names without torch."""

from __future__ import annotations

import pytest
import torch

from fedloom import models
from fedloom.errors import FedloomError


def parameters(model: torch.nn.Module) -> int:
    return sum(leaf.numel() for leaf in model.parameters())


def test_sizes_of_the_papers() -> None:
    assert parameters(models.Logistic(784, 10)) == 7_850
    assert parameters(models.MLP(784, 10)) == 199_210
    assert parameters(models.MLP(64, 10, hidden=[])) == 650
    assert parameters(models.MLP(8, 3, hidden=(5,))) == 8 * 5 + 5 + 5 * 3 + 3


def test_logistic_begins_at_zero() -> None:
    torch.testing.assert_close(models.Logistic(6, 4)(torch.randn(3, 6)), torch.zeros(3, 4))


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 8, 8)])
def test_inputs_are_flattened_from_axis_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 64)
    for model in (models.MLP(64, 10, hidden=(7,)), models.Logistic(64, 10)):
        torch.testing.assert_close(model(x.reshape(5, *shape)), model(x), rtol=0, atol=0)


def test_relu_stands_between_layers_and_not_at_the_end() -> None:
    model = models.MLP(2, 2, hidden=(2,))
    with torch.no_grad():
        for leaf in model.parameters():
            leaf.copy_(torch.eye(2) if leaf.dim() == 2 else torch.zeros(2))
        model.layers[2].weight.neg_()
    torch.testing.assert_close(model(torch.tensor([[1.0, -3.0]])), torch.tensor([[-1.0, 0.0]]))


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: models.Logistic(0, 10), "Logistic inputs: expected a whole number of at least 1, got 0"),
        (lambda: models.MLP(4, True), "MLP classes: expected a whole number of at least 1, got True"),
        (lambda: models.TagPredictor(0), "TagPredictor words: expected a whole number of at least 1, got 0"),
        (lambda: models.Autoencoder("relu"), "Autoencoder bottleneck: expected one of linear, sigmoid; got 'relu'"),
        (lambda: models.MLP(4, 2, hidden=(3, -1)), r"MLP hidden\[1\]: expected a whole number of at least 1, got -1"),
    ],
)
def test_sizes_that_are_none(build, line: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FedloomError, match=line):
        build()


@pytest.mark.parametrize("shape", [(784,), (28, 28), (1, 28, 28)])
def test_a_reconstruction_has_the_shape_of_its_input(shape: tuple[int, ...]) -> None:
    x = torch.rand(2, *shape)
    for bottleneck in ("linear", "sigmoid"):
        made = models.Autoencoder(bottleneck)(x)
        assert made.shape == x.shape and made.gt(0).all() and made.lt(1).all()


def test_the_bottleneck_is_linear_unless_told() -> None:
    codes = {name: models.Autoencoder(name).layers[:8](torch.rand(50, 784)) for name in ("linear", "sigmoid")}
    assert codes["linear"].lt(0).any() and codes["linear"].gt(0).any()
    assert codes["sigmoid"].gt(0).all() and codes["sigmoid"].lt(1).all()


def test_tags_are_scored_by_logits() -> None:
    model = models.TagPredictor(words=6, tags=3)
    x = torch.rand(2, 6)
    torch.testing.assert_close(model(x), x @ model.linear.weight.T)
    assert int(model.linear.bias.count_nonzero()) == 0
