"""What is learnt: a model factory, a loss with one value per example, metrics of the same form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.errors import FedloomError
from fedloom.types import Params

PerExample = Callable[[Any, Any], Tensor]
"""`f(output, target)`: one value per example, so that any weighting of examples stays exact."""


def _per_example(values: Tensor) -> Tensor:
    return values if values.dim() == 1 else values.flatten(1).mean(1)


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of each example; over positions within an example (tokens, pixels) the mean.

    >>> import torch
    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """
    return _per_example(F.cross_entropy(output, target, reduction="none"))


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error of each example.

    >>> import torch
    >>> squared_error(torch.zeros(2, 3), torch.ones(2, 3))
    tensor([1., 1.])
    """
    if output.shape != target.shape:  # broadcasting would compare every output with every target
        expected, got = tuple(output.shape), tuple(target.shape)
        raise FedloomError(f"squared_error: expected a target of the output's shape {expected}, got {got}")
    return _per_example(F.mse_loss(output, target, reduction="none"))


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the largest score (along axis 1) is the target's, else 0; over positions within an example the mean.

    >>> import torch
    >>> accuracy(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    tensor([1., 0.])
    """
    scores = output if output.is_floating_point() else output.float()
    return _per_example((scores.argmax(1) == target).to(scores.dtype))


@dataclass(frozen=True)
class Task:
    """A model factory, unchanged PyTorch; a per-example loss; metrics that are means over examples.

    `penalty` is a function of the trainable parameters that is added to every batch's mean loss in training: weight
    decay on some of the kernels, say.

    >>> Task(model=lambda: nn.Linear(4, 2)).loss.__name__
    'cross_entropy'
    """

    model: Callable[[], nn.Module]
    loss: PerExample = cross_entropy
    metrics: Mapping[str, PerExample] = field(default_factory=lambda: {"accuracy": accuracy})
    penalty: Callable[[Params], Tensor] | None = None
