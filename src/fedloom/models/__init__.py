"""Models, each an ordinary `nn.Module`; `MODELS` names them without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedloom.models import penalty as penalty
    from fedloom.models.bert import bert_classifier as bert_classifier
    from fedloom.models.cnn import Cifar10CNN as Cifar10CNN
    from fedloom.models.cnn import EmnistCNN as EmnistCNN
    from fedloom.models.cnn import MnistCNN as MnistCNN
    from fedloom.models.dense import MLP as MLP
    from fedloom.models.dense import Autoencoder as Autoencoder
    from fedloom.models.dense import Logistic as Logistic
    from fedloom.models.dense import TagPredictor as TagPredictor
    from fedloom.models.recurrent import BiLSTM as BiLSTM
    from fedloom.models.recurrent import ShakespeareLSTM as ShakespeareLSTM
    from fedloom.models.recurrent import StackOverflowLSTM as StackOverflowLSTM
    from fedloom.models.resnet import ResNet18GN as ResNet18GN
    from fedloom.models.resnet import ResNet56 as ResNet56

REQUIRED = Parameter.empty
"""The default of an option that must be given."""


@dataclass(frozen=True)
class Entry:
    """Where a model is, the sizes it takes from the data, and its other keywords with their defaults."""

    home: str
    builder: str
    sizes: tuple[str, ...] = ("inputs", "classes")
    options: tuple[tuple[str, Any], ...] = ()
    about: str = ""

    def load(self) -> Any:
        """The class itself; torch is imported now."""
        return getattr(import_module(f"fedloom.models.{self.home}"), self.builder)


MODELS = {
    "logistic": Entry("dense", "Logistic", about="multinomial logistic regression, zero-initialised"),
    "mlp": Entry(
        "dense", "MLP", options=(("hidden", (200, 200)),), about="dense layers with ReLU; McMahan et al.'s 2NN"
    ),
    "autoencoder": Entry(
        "dense",
        "Autoencoder",
        sizes=("inputs",),
        options=(("bottleneck", "linear"),),
        about="784-1000-500-250-30-250-500-1000-784; EMNIST, Reddi et al.",
    ),
    "tag_predictor": Entry(
        "dense",
        "TagPredictor",
        sizes=(),
        options=(("words", 10_000), ("tags", 500)),
        about="a logistic regression per tag; Stack Overflow, Reddi et al.",
    ),
    "emnist_cnn": Entry(
        "cnn",
        "EmnistCNN",
        sizes=("classes",),
        options=(("init", "keras"),),
        about="CNN with dropout, 1.2 M parameters; Reddi et al., FedGLAD's MNIST",
    ),
    "mnist_cnn": Entry(
        "cnn",
        "MnistCNN",
        sizes=("classes",),
        options=(("init", "keras"), ("padding", "same")),
        about="McMahan et al.'s CNN, 1.7 M parameters; FedAdp",
    ),
    "cifar10_cnn": Entry(
        "cnn",
        "Cifar10CNN",
        sizes=("classes",),
        options=(("size", 24), ("norm", "lrn")),
        about="the CNN of TensorFlow's tutorial, 1.1 M parameters; Hsu et al.",
    ),
    "resnet18_gn": Entry(
        "resnet",
        "ResNet18GN",
        sizes=("classes",),
        options=(("variant", "tff"), ("groups", 2)),
        about="ResNet-18 with group norm; CIFAR-100, Reddi et al.",
    ),
    "resnet56": Entry(
        "resnet",
        "ResNet56",
        sizes=("classes",),
        options=(("variant", "fedml"),),
        about="ResNet-56 with batch norm; CIFAR-10, FedGLAD",
    ),
    "shakespeare_lstm": Entry(
        "recurrent",
        "ShakespeareLSTM",
        sizes=(),
        options=(("vocabulary", 90),),
        about="the next character, two LSTM layers; Reddi et al.",
    ),
    "stackoverflow_lstm": Entry(
        "recurrent",
        "StackOverflowLSTM",
        sizes=(),
        options=(("vocabulary", 10_004),),
        about="the next word, one LSTM layer; Reddi et al.",
    ),
    "bilstm": Entry(
        "recurrent",
        "BiLSTM",
        sizes=("classes",),
        options=(("embedding", REQUIRED),),
        about="a text's class, LSTM both ways over frozen word vectors; FedGLAD",
    ),
    "bert": Entry(
        "bert",
        "bert_classifier",
        sizes=("classes",),
        options=(("source", REQUIRED),),
        about="a text's class, BERT or DistilBERT; FedGLAD; needs fedloom[bert]",
    ),
}
_HOME = {entry.builder: entry for entry in MODELS.values()}
__all__ = [
    "MLP",
    "MODELS",
    "REQUIRED",
    "Autoencoder",
    "BiLSTM",
    "Cifar10CNN",
    "EmnistCNN",
    "Entry",
    "Logistic",
    "MnistCNN",
    "ResNet18GN",
    "ResNet56",
    "ShakespeareLSTM",
    "StackOverflowLSTM",
    "TagPredictor",
    "bert_classifier",
    "penalty",
]


def __getattr__(name: str) -> Any:
    if name == "penalty":
        return import_module("fedloom.models.penalty")
    if name not in _HOME:
        raise AttributeError(f"module 'fedloom.models' has no attribute {name!r}")
    globals()[name] = value = _HOME[name].load()
    return value


def __dir__() -> list[str]:
    return __all__
