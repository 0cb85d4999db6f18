"""SAME padding, response normalisation and the residual networks' details, against hand computation."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedloom import models
from fedloom.models.layers import max_pool_same, same, same_amounts


@pytest.fixture(scope="module")
def resnet() -> models.ResNet18GN:
    return models.ResNet18GN()


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "amounts"),
    [
        (24, 7, 2, (2, 3)),  # ResNet-18's stem
        (12, 3, 2, (0, 1)),  # its pooling, and that of the CIFAR-10 CNN
        (5, 3, 2, (1, 1)),
        (6, 1, 2, (0, 0)),
        (28, 5, 1, (2, 2)),
        (1, 3, 2, (1, 1)),
    ],
)
def test_amounts_of_same_padding(size: int, kernel: int, stride: int, amounts: tuple[int, int]) -> None:
    assert same_amounts(size, kernel, stride) == amounts
    x = torch.zeros(1, 1, size, size)
    assert F.conv2d(same(x, kernel, stride), torch.zeros(1, 1, kernel, kernel), stride=stride).shape[2:] == (
        *(-(-size // stride),) * 2,
    )


def test_same_pooling_looks_to_the_right_and_below() -> None:
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert max_pool_same(x, 3, 2).flatten().tolist() == [10, 11, 14, 15]
    assert F.max_pool2d(x, 3, 2, padding=1).flatten().tolist() == [5, 7, 13, 15]  # PyTorch's symmetric padding
    assert max_pool_same(x - 100, 3, 2).flatten().tolist() == [-90, -89, -86, -85]  # padding is never the largest


def test_same_pads_rows_and_columns_apart() -> None:
    padded = same(torch.ones(1, 1, 4, 5), 3, 2)
    assert padded.shape == (1, 1, 5, 7)
    assert padded[0, 0].sum(0).tolist() == [0, 4, 4, 4, 4, 4, 0]
    assert padded[0, 0].sum(1).tolist() == [5, 5, 5, 5, 0]


def test_a_strided_convolution_by_hand(resnet: models.ResNet18GN) -> None:
    """ResNet-18's stem: position (i, j) sees rows and columns 2 i - 2 to 2 i + 4, and zeros beyond the image."""
    x = torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made = resnet.stem(same(x, 7, 2))
        kernel = resnet.stem.weight
        assert made.shape == (1, 64, 12, 12)
        for i, j in ((0, 0), (4, 7), (11, 11), (0, 11)):
            rows = [row for row in range(2 * i - 2, 2 * i + 5) if 0 <= row < 24]
            columns = [column for column in range(2 * j - 2, 2 * j + 5) if 0 <= column < 24]
            expected = sum(
                kernel[:, :, row - 2 * i + 2, column - 2 * j + 2] @ x[0, :, row, column]
                for row in rows
                for column in columns
            )
            torch.testing.assert_close(made[0, :, i, j], expected, rtol=1e-4, atol=1e-4)


def test_response_normalisation_is_tensorflows() -> None:
    x = torch.randn(1, 64, 2, 2, dtype=torch.float64) * 50
    made = models.Cifar10CNN().norm1(x)
    for channel in (0, 3, 30, 63):
        near = x[:, max(0, channel - 4) : channel + 5].square().sum(1)
        torch.testing.assert_close(made[:, channel], x[:, channel] / (1 + 0.001 / 9 * near) ** 0.75)


def test_relu_after_pooling_has_the_gradients_of_relu_before_it() -> None:
    """To the bit, also where a window holds nothing positive or the same value twice."""
    model = models.MnistCNN(init="torch")
    x = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    x[..., :9] = 0.0
    leaves = list(model.parameters())
    y = F.max_pool2d(F.relu(model.conv1(x)), 2)
    y = F.max_pool2d(F.relu(model.conv2(y)), 2)
    papers = model.out(F.relu(model.hidden(y.flatten(1))))
    assert torch.equal(model(x), papers)
    expected = torch.autograd.grad(papers.square().sum(), leaves)
    got = torch.autograd.grad(model(x).square().sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_where_the_cifar_models_normalise_and_how_they_pool() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 12, 12)
    plain, batch = models.Cifar10CNN(12), models.Cifar10CNN(12, norm="batch").eval()
    with torch.no_grad():
        y = plain.norm1(max_pool_same(F.relu(plain.conv1(x)), 3, 2))
        y = max_pool_same(plain.norm2(F.relu(plain.conv2(y))), 3, 2)
        torch.testing.assert_close(plain(x), _head(plain, y))
        y = batch.norm1(F.max_pool2d(F.relu(batch.conv1(x)), 3, 2))
        y = F.max_pool2d(batch.norm2(F.relu(batch.conv2(y))), 3, 2)
        torch.testing.assert_close(batch(x), _head(batch, y))
    assert isinstance(batch.norm1, nn.BatchNorm2d) and (batch.norm1.eps, batch.norm1.momentum) == (1e-3, 0.01)


def _head(model: models.Cifar10CNN, y: torch.Tensor) -> torch.Tensor:
    return F.linear(F.relu(model.hidden2(F.relu(model.hidden1(y.reshape(2, -1))))), model.out.weight, model.out.bias)


@pytest.mark.parametrize("groups", [2, 32])
def test_groups_and_epsilon(groups: int) -> None:
    with torch.device("meta"):
        model = models.ResNet18GN(groups=groups)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.GroupNorm)]
    # The stem's, two in each of eight blocks but the first's first, three shortcuts', the last one.
    assert len(norms) == 1 + 15 + 3 + 1
    assert {(layer.num_groups, layer.eps) for layer in norms} == {(groups, 1e-3)}


@pytest.mark.parametrize(("variant", "sides"), [("tff", [6, 6, 6, 6]), ("standard", [6, 3, 2, 1])])
def test_sides_of_the_maps(variant: str, sides: list[int]) -> None:
    seen = []
    with torch.device("meta"):
        x = torch.zeros(1, 64, 6, 6)
        for block in models.ResNet18GN(variant=variant).blocks:
            x = block(x)
            seen.append(x.shape[-1])
    assert seen[1::2] == sides


def test_the_first_block_starts_with_a_convolution(resnet: models.ResNet18GN) -> None:
    first, third = resnet.blocks[0], resnet.blocks[2]
    x = torch.randn(1, 64, 4, 4)
    with torch.no_grad():
        y = first.conv2(F.relu(first.norm2(first.conv1(x))))
        torch.testing.assert_close(first(x), x + y)
        y = third.conv2(F.relu(third.norm2(third.conv1(F.relu(third.norm1(x))))))
        torch.testing.assert_close(third(x), third.shortcut_norm(third.shortcut(x)) + y)


def test_shortcuts_of_the_original_resnet_have_no_parameters() -> None:
    model = models.ResNet56(variant="he").eval()
    block = model.blocks[9]
    nn.init.zeros_(block.norm2.weight)
    x = torch.rand(1, 16, 4, 4)
    with torch.no_grad():
        made = block(x)
    torch.testing.assert_close(made[:, :16], x[:, :, ::2, ::2])
    assert made.shape == (1, 32, 2, 2) and not made[:, 16:].any()


def test_resnet56_depth() -> None:
    for variant, convolutions, shortcuts in (("fedml", 1 + 18 * 3, 3), ("he", 1 + 27 * 2, 0)):
        with torch.device("meta"):
            model = models.ResNet56(variant=variant)
        found = sum(isinstance(layer, nn.Conv2d) for layer in model.modules())
        assert found == convolutions + shortcuts
