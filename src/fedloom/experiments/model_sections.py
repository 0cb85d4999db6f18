"""The [model] table: one small pydantic model per model.

Nothing here imports torch: a typing mistake is answered before anything heavy is loaded. Names, types and defaults
follow `fedloom.models`; tests hold them together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    Field,
)

from fedloom.experiments.section import (
    Count,
    Described,
    Expected,
    Section,
    by_name,
)


class ModelSection(Section):
    """A model; the sizes of its input and output are the data's."""

    name: str

    def options(self) -> dict[str, Any]:
        """The keywords of its constructor."""
        return self.model_dump(exclude={"name"}, exclude_none=True)


class Logistic(ModelSection):
    name: Literal["logistic"]


class MLP(ModelSection):
    name: Literal["mlp"]
    hidden: Annotated[list[Count], Expected("a list of whole numbers, one per hidden layer, such as [200, 200]")] = (
        Field(default=[200, 200])
    )


class Autoencoder(ModelSection):
    name: Literal["autoencoder"]
    bottleneck: Literal["linear", "sigmoid"] = "linear"


class TagPredictor(ModelSection):
    name: Literal["tag_predictor"]
    words: Count = 10_000
    tags: Count = 500


class EmnistCNN(ModelSection):
    name: Literal["emnist_cnn"]
    init: Literal["keras", "torch"] = "keras"


class MnistCNN(ModelSection):
    name: Literal["mnist_cnn"]
    init: Literal["keras", "torch"] = "keras"
    padding: Literal["same", "valid"] = "same"


class Cifar10CNN(ModelSection):
    name: Literal["cifar10_cnn"]
    size: Count = 24
    norm: Literal["lrn", "batch"] = "lrn"


class ResNet18GN(ModelSection):
    name: Literal["resnet18_gn"]
    variant: Literal["tff", "standard"] = "tff"
    groups: Annotated[Literal[1, 2, 4, 8, 16, 32, 64], Expected("a divisor of 64")] = 2


class ResNet56(ModelSection):
    name: Literal["resnet56"]
    variant: Literal["fedml", "he"] = "fedml"


class ShakespeareLSTM(ModelSection):
    name: Literal["shakespeare_lstm"]
    vocabulary: Count = 90


class StackOverflowLSTM(ModelSection):
    name: Literal["stackoverflow_lstm"]
    vocabulary: Count = 10_004


class BiLSTM(ModelSection):
    name: Literal["bilstm"]
    embedding: Annotated[
        Count | Annotated[str, Field(min_length=1)],
        Expected("a number of words, or a file of their vectors such as 'glove.6B.300d.txt'"),
    ]


class Bert(ModelSection):
    name: Literal["bert"]
    source: Annotated[
        Annotated[str, Field(min_length=1)] | dict[str, Any],
        Expected("a folder, or a configuration such as { model_type = 'distilbert', n_layers = 2 }"),
    ]


AnyModel: TypeAlias = Annotated[
    Logistic
    | MLP
    | Autoencoder
    | TagPredictor
    | EmnistCNN
    | MnistCNN
    | Cifar10CNN
    | ResNet18GN
    | ResNet56
    | ShakespeareLSTM
    | StackOverflowLSTM
    | BiLSTM
    | Bert,
    Field(discriminator="name"),
    Described("a [model] table with name"),
]

MODELS = by_name(AnyModel, "name")
