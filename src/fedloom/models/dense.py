"""Dense models. An input of any shape is flattened from axis 1 on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from fedloom.models import initial
from fedloom.models.layers import check_choice, check_sizes


class Logistic(nn.Module):
    """Multinomial logistic regression, starting from zero, where its loss is log(classes).

    >>> sum(leaf.numel() for leaf in Logistic(784, 10).parameters())
    7850
    """

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        check_sizes("Logistic", inputs=inputs, classes=classes)
        self.linear = nn.Linear(inputs, classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(1))
        return logits


class MLP(nn.Module):
    """Dense layers with ReLU between them; with 784 inputs and the default layers McMahan et al.'s 2NN (2017).

    >>> sum(leaf.numel() for leaf in MLP(784, 10).parameters())
    199210
    """

    def __init__(self, inputs: int, classes: int, hidden: Sequence[int] = (200, 200)) -> None:
        super().__init__()
        check_sizes("MLP", inputs=inputs, classes=classes, **{f"hidden[{i}]": width for i, width in enumerate(hidden)})
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise([inputs, *hidden]):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear([inputs, *hidden][-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x.flatten(1))
        return logits


class Autoencoder(nn.Module):
    """The EMNIST autoencoder of Reddi et al. (2020): returns the reconstruction, in the shape of its input.

    784-1000-500-250-30-250-500-1000-784 dense layers; 2,837,314 parameters. Glorot normal kernels, zero biases.
    The paper has a sigmoid after every layer, `bottleneck="sigmoid"`; its code leaves the 30 units linear, which is the
    default here. In the code's pipeline an image is 1 - pixels, so that the background is 0.

    >>> sum(leaf.numel() for leaf in Autoencoder().parameters())
    2837314
    """

    def __init__(self, bottleneck: Literal["linear", "sigmoid"] = "linear", inputs: int = 784) -> None:
        super().__init__()
        check_choice("Autoencoder bottleneck", bottleneck, ("linear", "sigmoid"))
        check_sizes("Autoencoder", inputs=inputs)
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise([inputs, 1000, 500, 250, 30, 250, 500, 1000, inputs]):
            layers.append(nn.Linear(width_in, width_out))
            layers.append(nn.Identity() if width_out == 30 and bottleneck == "linear" else nn.Sigmoid())
        self.layers = nn.Sequential(*layers)
        initial.kernels_(self, initial.glorot_normal_)

    def forward(self, x: Tensor) -> Tensor:
        pixels: Tensor = self.layers(x.flatten(1))
        return pixels.reshape(x.shape)


class TagPredictor(nn.Module):
    """One logistic regression per tag over a bag of words: Stack Overflow tags, Reddi et al. (2020).

    Takes (batch, words), the mean of the words' one-hot rows, and returns logits (batch, tags); 5,000,500 parameters.
    Glorot normal kernel, zero bias. The paper's code applies the sigmoid inside the model: here the loss does.

    >>> sum(leaf.numel() for leaf in TagPredictor().parameters())
    5000500
    """

    def __init__(self, words: int = 10_000, tags: int = 500) -> None:
        super().__init__()
        check_sizes("TagPredictor", words=words, tags=tags)
        self.linear = nn.Linear(words, tags)
        initial.kernels_(self, initial.glorot_normal_)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(1))
        return logits
