"""What holds for every model: its size, its output, gradients for all that trains, its names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from fedloom import models
from fedloom.errors import FedloomError
from fedloom.experiments import model_sections
from fedloom.functional import Functional, plain_gradient
from fedloom.task import Task, accuracy, cross_entropy, squared_error


def _words(vocabulary: int, time: int, padding: int = 0) -> Tensor:
    words = torch.randint(1, vocabulary, (2, time), generator=torch.Generator().manual_seed(0))
    return nn.functional.pad(words, (0, padding))


def _noise(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Case:
    """A model, the number of its trainable parameters (spec section 11), an input, the shape of its output."""

    build: Callable[[], nn.Module]
    size: int
    x: Tensor
    output: tuple[int, ...]


CASES = {
    "logistic": Case(lambda: models.Logistic(784, 10), 7_850, _noise(2, 784), (2, 10)),
    "mlp": Case(lambda: models.MLP(784, 10), 199_210, _noise(2, 784), (2, 10)),
    "emnist": Case(models.EmnistCNN, 1_206_590, _noise(2, 1, 28, 28), (2, 62)),
    "emnist-10": Case(lambda: models.EmnistCNN(10, init="torch"), 1_199_882, _noise(2, 28, 28), (2, 10)),
    "mnist": Case(models.MnistCNN, 1_663_370, _noise(2, 784), (2, 10)),
    "mnist-valid": Case(lambda: models.MnistCNN(padding="valid"), 582_026, _noise(2, 784), (2, 10)),
    "cifar10-24": Case(models.Cifar10CNN, 1_068_298, _noise(2, 3, 24, 24), (2, 10)),
    "cifar10-32": Case(lambda: models.Cifar10CNN(32), 1_756_426, _noise(2, 3, 32, 32), (2, 10)),
    "cifar10-batch-32": Case(lambda: models.Cifar10CNN(32, norm="batch"), 1_388_042, _noise(2, 3, 32, 32), (2, 10)),
    "cifar10-batch-24": Case(lambda: models.Cifar10CNN(24, norm="batch"), 798_218, _noise(2, 3, 24, 24), (2, 10)),
    "resnet18-tff": Case(models.ResNet18GN, 11_227_812, _noise(2, 3, 24, 24), (2, 100)),
    "resnet18": Case(lambda: models.ResNet18GN(variant="standard"), 11_227_812, _noise(2, 3, 24, 24), (2, 100)),
    "resnet56-fedml": Case(models.ResNet56, 591_322, _noise(2, 3, 32, 32), (2, 10)),
    "resnet56-he": Case(lambda: models.ResNet56(variant="he"), 853_018, _noise(2, 3, 32, 32), (2, 10)),
    "autoencoder": Case(models.Autoencoder, 2_837_314, _noise(2, 784), (2, 784)),
    "autoencoder-sigmoid": Case(lambda: models.Autoencoder("sigmoid"), 2_837_314, _noise(2, 784), (2, 784)),
    "shakespeare": Case(models.ShakespeareLSTM, 820_522, _words(90, 80), (2, 90, 80)),
    "stackoverflow": Case(models.StackOverflowLSTM, 4_050_748, _words(10_004, 20), (2, 10_004, 20)),
    "tags": Case(models.TagPredictor, 5_000_500, _noise(2, 10_000), (2, 500)),
    "bilstm-20": Case(lambda: models.BiLSTM(50, 20), 1_444_800 + 12_020, _words(50, 9, padding=3), (2, 20)),
    "bilstm-4": Case(lambda: models.BiLSTM(_noise(50, 300), 4), 1_444_800 + 2_404, _words(50, 9, padding=3), (2, 4)),
}


@cache
def functional(name: str) -> Functional:
    return Functional.of(Task(CASES[name].build), 0, torch.device("cpu"))


@pytest.mark.parametrize("name", CASES)
def test_size_is_the_papers(name: str) -> None:
    params = functional(name).params
    assert sum(leaf.numel() for leaf in params.values()) == CASES[name].size
    assert all(leaf.dtype == torch.float32 and leaf.isfinite().all() for leaf in params.values())


@pytest.mark.parametrize("name", CASES)
def test_output_has_its_shape_and_every_trainable_leaf_a_gradient(name: str) -> None:
    case, made = CASES[name], functional(name)
    made.module.eval()
    with torch.no_grad():
        output = made.output(made.params, made.buffers, case.x)
    assert output.shape == case.output and output.isfinite().all()
    if name.startswith(("autoencoder", "tags")):
        loss, target = squared_error, torch.zeros(case.output)
    else:
        loss, target = cross_entropy, torch.zeros((2, *case.output[2:]), dtype=torch.int64)
        assert accuracy(output, target).shape == (2,)
    # No batch norm statistics of two rows, no dropout: what is left is the model's own.
    key = torch.zeros((), dtype=torch.int64)
    scored = replace(made, loss=loss)
    gradient, value, *_ = plain_gradient(scored, made.params, made.buffers, case.x, target, None, key)
    assert value.isfinite()
    for leaf, g in gradient.items():
        assert g.isfinite().all() and g.any(), leaf


def test_what_is_frozen_does_not_travel() -> None:
    assert set(functional("shakespeare").constants) == {"lstm.bias_hh_l0", "lstm.bias_hh_l1"}
    assert set(functional("stackoverflow").constants) == {"lstm.bias_hh_l0"}
    assert set(functional("bilstm-20").constants) == set(functional("bilstm-4").constants) == {"embedding.weight"}
    assert not any(functional(name).constants for name in ("emnist", "resnet18-tff", "resnet56-fedml"))


def test_only_batch_norm_has_buffers() -> None:
    with_buffers = {name for name in CASES if functional(name).buffers}
    assert with_buffers == {"cifar10-batch-32", "cifar10-batch-24", "resnet56-fedml", "resnet56-he"}


@pytest.mark.parametrize("name", ["emnist", "bilstm-20"])
def test_dropout_draws_in_training_only(name: str) -> None:
    made, x = functional(name), CASES[name].x
    outputs = {}
    for training in (True, False):
        made.module.train(training)
        with torch.no_grad():
            outputs[training] = [made.output(made.params, {}, x) for _ in range(2)]
    assert not torch.equal(*outputs[True]) and torch.equal(*outputs[False])


@pytest.mark.parametrize("name", ["cifar10-batch-24", "resnet56-fedml", "resnet56-he"])
def test_batch_norm_moves_in_training_only(name: str) -> None:
    made, x = functional(name), CASES[name].x
    for training in (True, False):
        made.module.train(training)
        buffers = {leaf: value.clone() for leaf, value in made.buffers.items()}
        with torch.no_grad():
            made.output(made.params, buffers, x)
        moved = {leaf for leaf, value in buffers.items() if not torch.equal(value, made.buffers[leaf])}
        assert moved == (set(buffers) if training else set())
    with torch.no_grad():  # one example alone, by the running statistics
        assert made.output(made.params, made.buffers, x[:1]).shape == (1, 10)


@pytest.mark.parametrize("name", ["emnist", "mnist", "cifar10-24", "resnet18-tff", "resnet18", "resnet56-he"])
def test_clients_can_be_stacked(name: str) -> None:
    """`vmap(grad)` of two clients is each one's gradient, without torch falling back to one client at a time."""
    made = functional(name)
    made.module.eval()
    x = torch.stack([CASES[name].x[:1], CASES[name].x[1:]])
    params = {leaf: torch.stack([value, value * 0.9]) for leaf, value in made.params.items()}

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        score: Tensor = made.output(params, made.buffers, x).square().mean()
        return score

    functorch = torch._C._functorch  # type: ignore[attr-defined]
    functorch._set_vmap_fallback_enabled(False)
    try:
        stacked = torch.func.vmap(torch.func.grad(loss))(params, x)
    finally:
        functorch._set_vmap_fallback_enabled(True)
    for client in range(2):
        alone = torch.func.grad(loss)({leaf: value[client] for leaf, value in params.items()}, x[client])
        for leaf, g in alone.items():
            error = float((stacked[leaf][client] - g).norm() / g.norm())
            assert error < 1e-4, (leaf, error)


# Names ----------------------------------------------------------------------------------------------------------------


def test_names_are_known_before_torch_is() -> None:
    code = "import sys, fedloom.models as m; print('mlp' in m.MODELS, 'ResNet56' in dir(m), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]


def test_every_public_name_is_there() -> None:
    assert all(getattr(models, name) is not None for name in models.__all__)
    assert {entry.builder for entry in models.MODELS.values()} <= set(models.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Perceptron'"):
        models.Perceptron  # noqa: B018


@pytest.mark.parametrize("name", sorted(set(models.MODELS) - {"bert"}))
def test_what_a_file_may_say_can_be_built(name: str) -> None:
    entry = models.MODELS[name]
    required = {key: 7 for key, default in entry.options if default is models.REQUIRED}
    section = model_sections.MODELS[name].model_validate({"name": name, **required})
    assert isinstance(section, model_sections.ModelSection)
    sizes = {"inputs": 784, "classes": 10}
    with torch.device("meta"):
        assert isinstance(entry.load()(**{size: sizes[size] for size in entry.sizes}, **section.options()), nn.Module)


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: models.EmnistCNN(0), "EmnistCNN classes: expected a whole number of at least 1, got 0"),
        (lambda: models.EmnistCNN(init="zeros"), "EmnistCNN init: expected one of keras, torch; got 'zeros'"),
        (lambda: models.Cifar10CNN(norm="group"), "Cifar10CNN norm: expected one of batch, lrn; got 'group'"),
        (lambda: models.Cifar10CNN(6, norm="batch"), "Cifar10CNN size: expected at least 7 with norm='batch', got 6"),
        (lambda: models.ResNet18GN(variant="TFF"), "ResNet18GN variant: .* got 'TFF': did you mean 'tff'"),
        (lambda: models.ResNet18GN(groups=3), "ResNet18GN groups: expected a divisor of 64, got 3"),
        (lambda: models.ResNet56(variant="fed"), "ResNet56 variant: expected one of fedml, he; got 'fed'"),
        (lambda: models.BiLSTM(torch.zeros(3), 4), r"BiLSTM embedding: .* got shape \(3,\) of type float32"),
        (lambda: models.BiLSTM(0, 4), "BiLSTM embedding: expected a whole number of at least 1, got 0"),
        (
            lambda: models.EmnistCNN()(torch.zeros(2, 64)),
            r"EmnistCNN: expected images of shape \(batch, 1, 28, 28\), got \(2, 64\) of type float32",
        ),
        (
            lambda: models.ResNet56()(torch.zeros(2, 32, 32, 3)),
            r"ResNet56: expected images of shape \(batch, 3, height, width\), got \(2, 32, 32, 3\)",
        ),
        (
            lambda: models.Cifar10CNN()(torch.zeros(2, 3, 32, 32)),
            r"Cifar10CNN: expected images of shape \(batch, 3, 24, 24\), got \(2, 3, 32, 32\)",
        ),
        (
            lambda: models.ShakespeareLSTM()(torch.zeros(2, 80)),
            r"ShakespeareLSTM: expected tokens of shape \(batch, time\) and type int64, got \(2, 80\) of type float32",
        ),
    ],
)
def test_mistakes(build: Callable[[], object], line: str) -> None:
    with pytest.raises(FedloomError, match=line):
        build()
