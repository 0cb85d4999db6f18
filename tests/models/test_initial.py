"""Initial values have the moments and the limits of Keras's and TensorFlow's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedloom import models
from fedloom.functional import Functional
from fedloom.models import initial
from fedloom.task import Task


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def assert_moments(leaf: Tensor, std: float, limit: float | None = None) -> None:
    """Mean zero and this deviation, five standard errors allowed; nothing beyond `limit`."""
    leaf = leaf.detach().double()
    count = leaf.numel()
    assert abs(float(leaf.mean())) < 5 * std / math.sqrt(count)
    assert abs(float(leaf.std()) / std - 1) < 5 / math.sqrt(2 * count)
    assert limit is None or float(leaf.abs().max()) <= limit * (1 + 1e-6)


def test_the_deviation_of_a_truncated_normal() -> None:
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    variance = 1 - 4 * density / math.erf(math.sqrt(2))
    assert math.sqrt(variance) == pytest.approx(initial.TRUNCATED_STD, rel=1e-14)


def test_truncated_normals_are_cut_at_two_deviations_and_widened_by_keras_only() -> None:
    leaf = initial.truncated_normal_(torch.empty(400, 500), 0.05)
    assert_moments(leaf, 0.05 * 0.8796256610, limit=0.1)
    assert float(leaf.abs().max()) > 0.0999
    leaf = initial.glorot_normal_(torch.empty(400, 500))
    assert_moments(leaf, math.sqrt(2 / 900), limit=2 * math.sqrt(2 / 900) / 0.8796256610)
    leaf = initial.he_normal_(torch.empty(64, 128, 3, 3))
    assert_moments(leaf, math.sqrt(2 / 1152), limit=2 * math.sqrt(2 / 1152) / 0.8796256610)
    leaf = initial.glorot_normal_(torch.empty(64, 128, 3, 3))
    assert_moments(leaf, math.sqrt(2 / (1152 + 576)))


def test_an_lstm_as_keras_starts_it() -> None:
    lstm = nn.LSTM(8, 64, num_layers=2)
    initial.keras_lstm_(lstm, initial.he_normal_)
    for layer, width in enumerate((8, 64)):
        assert_moments(getattr(lstm, f"weight_ih_l{layer}"), math.sqrt(2 / width))
        recurrent = getattr(lstm, f"weight_hh_l{layer}").detach()
        torch.testing.assert_close(recurrent.T @ recurrent, torch.eye(64), atol=1e-5, rtol=0)
        bias = getattr(lstm, f"bias_ih_l{layer}")
        assert bias.requires_grad and bias.tolist() == [0.0] * 64 + [1.0] * 64 + [0.0] * 128
        second = getattr(lstm, f"bias_hh_l{layer}")
        assert not second.requires_grad and int(second.count_nonzero()) == 0


def test_dense_and_convolutional_models_start_from_glorot_normal_kernels_and_zero_biases() -> None:
    for model in (models.EmnistCNN(), models.MnistCNN(), models.Autoencoder(), models.TagPredictor(500, 100)):
        for name, leaf in model.named_parameters():
            if leaf.dim() == 1:
                assert int(leaf.count_nonzero()) == 0, name
            else:
                receptive = math.prod(leaf.shape[2:])
                assert_moments(leaf, math.sqrt(2 / (receptive * (leaf.shape[0] + leaf.shape[1]))))


def test_pytorchs_own_initial_values_on_request() -> None:
    for build in (models.EmnistCNN, models.MnistCNN):
        hidden = build(init="torch").hidden
        bound = 1 / math.sqrt(hidden.in_features)
        assert_moments(hidden.weight, bound / math.sqrt(3), limit=bound)
        assert int(hidden.bias.count_nonzero()) == hidden.out_features


def test_the_tutorials_cifar_model() -> None:
    model = models.Cifar10CNN()
    expected = {"conv1": (0.05, 0), "conv2": (0.05, 0.1), "hidden1": (0.04, 0.1), "hidden2": (0.04, 0.1)}
    for name, (std, bias) in (expected | {"out": (1 / 192, 0)}).items():
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None
        assert_moments(layer.weight, std * 0.8796256610, limit=2 * std)
        torch.testing.assert_close(layer.bias.detach(), torch.full_like(layer.bias, bias))


def test_flowers_cifar_model() -> None:
    model = models.Cifar10CNN(32, norm="batch")
    for layer in (model.conv2, model.hidden1):
        receptive = layer.weight[0, 0].numel()
        limit = math.sqrt(6 / (receptive * (layer.weight.shape[0] + layer.weight.shape[1])))
        assert_moments(layer.weight, limit / math.sqrt(3), limit=limit)
        assert layer.bias is not None and int(layer.bias.count_nonzero()) == 0


def test_resnets() -> None:
    model = models.ResNet18GN()
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.bias is None
            assert_moments(layer.weight, math.sqrt(2 / layer.weight[0].numel()))
        if isinstance(layer, nn.GroupNorm):
            assert layer.weight.eq(1).all() and layer.bias.eq(0).all(), name
    first = model.blocks[0]
    assert not torch.equal(first.conv1.weight, first.conv2.weight)
    assert_moments(model.linear.weight, 0.01)
    assert model.linear.bias.eq(0).all()
    for variant in ("fedml", "he"):
        for layer in models.ResNet56(variant=variant).modules():
            if isinstance(layer, nn.Conv2d):
                assert_moments(layer.weight, math.sqrt(2 / layer.weight[:, 0].numel()))


def test_recurrent_models() -> None:
    for model in (models.ShakespeareLSTM(), models.StackOverflowLSTM()):
        assert_moments(model.embedding.weight, 0.05 / math.sqrt(3), limit=0.05)
        assert_moments(model.lstm.weight_ih_l0, math.sqrt(2 / model.embedding.embedding_dim))
        assert_moments(model.out.weight, math.sqrt(2 / sum(model.out.weight.shape)))
        assert model.out.bias.eq(0).all()


def test_initial_values_follow_the_seed() -> None:
    task = Task(models.EmnistCNN)
    one, again, other = (Functional.of(task, seed, torch.device("cpu")).params for seed in (0, 0, 1))
    assert all(torch.equal(leaf, again[name]) for name, leaf in one.items())
    assert not torch.equal(one["conv1.weight"], other["conv1.weight"])
