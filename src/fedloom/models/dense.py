"""Dense models. An input of any shape is flattened from axis 1 on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fedloom.errors import FedloomError


class Logistic(nn.Module):
    """Multinomial logistic regression, starting from zero, where its loss is log(classes).

    >>> sum(leaf.numel() for leaf in Logistic(784, 10).parameters())
    7850
    """

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        _check("Logistic", inputs=inputs, classes=classes)
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
        _check("MLP", inputs=inputs, classes=classes, **{f"hidden[{i}]": width for i, width in enumerate(hidden)})
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise([inputs, *hidden]):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear([inputs, *hidden][-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x.flatten(1))
        return logits


def _check(model: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise FedloomError(f"{model} {name}: expected a whole number of at least 1, got {size!r}")
