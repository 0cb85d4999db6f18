"""Penalties on parameters, for `Task(penalty=...)`: their value is added to the mean loss of every training batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fedloom.errors import FedloomError, choose
from fedloom.types import Params

Penalty = Callable[[Params], Tensor]


def l2(strength: float, kernels: Iterable[str] | Callable[[str], bool] | None = None, half: bool = False) -> Penalty:
    """`strength` times the sum of squares of the chosen leaves, Keras's `L2(strength)`; with `half`, half of that.

    TensorFlow's `l2_loss`, and weight decay as optimizers mean it, are the half: its gradient is strength * w.
    `kernels` are the leaves' names, or a function that says of a name whether it is one; all leaves with two or more
    axes unless told.

    >>> l2(0.1)({"w": torch.full((2, 2), 3.0), "b": torch.ones(2)})
    tensor(3.6000)
    >>> l2(0.1, kernels=["b"], half=True)({"w": torch.full((2, 2), 3.0), "b": torch.ones(2)})
    tensor(0.1000)
    """
    if not 0 <= strength < float("inf"):
        raise FedloomError(f"l2 strength: expected a number of at least 0, got {strength!r}")
    if isinstance(kernels, str):
        raise FedloomError(f"l2 kernels: expected a list of names or a function, got {kernels!r}: write [{kernels!r}]")
    factor = 0.5 * strength if half else strength
    names = kernels if kernels is None or callable(kernels) else list(kernels)

    def penalty(params: Params) -> Tensor:
        chosen = _chosen(params, names)
        if not chosen:
            raise FedloomError(f"l2 kernels: expected at least one of {', '.join(params)}; got none")
        return factor * torch.stack([leaf.square().sum() for leaf in chosen]).sum()

    return penalty


def _chosen(params: Params, kernels: list[str] | Callable[[str], bool] | None) -> list[Tensor]:
    if kernels is None:
        return [leaf for leaf in params.values() if leaf.dim() > 1]
    if callable(kernels):
        return [leaf for name, leaf in params.items() if kernels(name)]
    for name in kernels:
        if name not in params:
            raise choose("l2 kernels", name, params)
    return [params[name] for name in kernels]


def cifar10_cnn() -> Penalty:
    """TensorFlow's tutorial: half of 0.004 ||W||^2 for the kernels of the two hidden dense layers only."""
    return l2(0.004, kernels=("hidden1.weight", "hidden2.weight"), half=True)


def resnet18_gn() -> Penalty:
    """The code of Reddi et al. and Charles et al.: 1e-4 ||w||^2 for all kernels and the dense bias, not the norms."""
    return l2(1e-4, kernels=lambda name: "norm" not in name)
