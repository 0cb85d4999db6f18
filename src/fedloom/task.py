"""What is learnt: a model factory, a loss with one value per example, metrics of the same form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.errors import FedloomError
from fedloom.types import Params

PerExample = Callable[[Any, Any], Tensor]
"""`f(output, target)`: one value per example, so that any weighting of examples stays exact."""

Metric = Callable[[Any, Any], "Tensor | tuple[Tensor, Tensor]"]
"""One value per example, or two: the metric is then the sum of the first over the sum of the second (tokens, tags)."""


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


def token_cross_entropy(ignore: int = 0) -> PerExample:
    """Cross-entropy per sequence, the mean over its tokens that are not `ignore` (padding).

    >>> import torch
    >>> token_cross_entropy()(torch.zeros(1, 4, 3), torch.tensor([[2, 1, 0]]))
    tensor([1.3863])
    """

    def loss(output: Tensor, target: Tensor) -> Tensor:
        real = target != ignore
        losses = F.cross_entropy(output, target, reduction="none")
        return torch.where(real, losses, 0.0).flatten(1).sum(1) / real.flatten(1).sum(1).clamp(min=1)

    return loss


def token_accuracy(ignore: Sequence[int] = (0,)) -> Metric:
    """The share of tokens predicted right, over all sequences, not counting those in `ignore` (padding, unknown, end).

    >>> import torch
    >>> token_accuracy()(torch.eye(3)[None], torch.tensor([[0, 1, 1]]))
    (tensor([1.]), tensor([2.]))
    """

    def metric(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        real = torch.ones_like(target, dtype=torch.bool)
        for token in ignore:
            real = real & (target != token)
        right = (output.argmax(1) == target) & real
        return right.flatten(1).sum(1).to(output.dtype), real.flatten(1).sum(1).to(output.dtype)

    return metric


def tag_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy with logits, summed over an example's tags."""
    return F.binary_cross_entropy_with_logits(output, target.to(output.dtype), reduction="none").flatten(1).sum(1)


def recall_at(k: int = 5) -> Metric:
    """True tags among the k highest scores, over all true tags.

    >>> import torch
    >>> recall_at(1)(torch.tensor([[0.9, 0.1, 0.3]]), torch.tensor([[1, 0, 1]]))
    (tensor([1.]), tensor([2.]))
    """

    def metric(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        found = target.gather(1, output.topk(k, dim=1).indices)
        return found.sum(1).to(output.dtype), target.sum(1).to(output.dtype)

    return metric


def parts(name: str, value: Tensor | tuple[Tensor, Tensor], rows: int) -> tuple[Tensor, Tensor]:
    """A metric's values as numerator and denominator of each of `rows` examples."""
    above, below = value if isinstance(value, tuple) else (value, torch.ones_like(value))
    if above.shape != (rows,) or below.shape != (rows,):
        got = tuple(above.shape)
        raise FedloomError(
            f"metric {name!r}: expected one value per example, shape ({rows},), got {got}: do not average"
        )
    return above, below


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
    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"accuracy": accuracy})
    penalty: Callable[[Params], Tensor] | None = None
