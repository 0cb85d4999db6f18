"""Dropout whose masks are a function of (seed, round, client, step): the same in the loop and in the stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedloom.errors import FedloomError
from fedloom.random import keep_mask


class SeededDropout(TorchFunctionMode):
    """Within it, `nn.Dropout` and `F.dropout` draw from `key`; calls are told apart by their order in the forward."""

    def __init__(self, key: Tensor, rate: float | None = None) -> None:
        super().__init__()
        self.key = key
        self.rate = rate  # in place of every call's own, where it drops at all
        self.site = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is F.dropout:
            return self.drop(*args, **(kwargs or {}))
        if func is torch.dropout:
            return self._torch_dropout(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _torch_dropout(self, input: Tensor, p: float, train: bool) -> Tensor:
        return self.drop(input, p, train)

    def drop(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not 0 <= p <= 1:
            raise FedloomError(f"dropout: expected a probability in [0, 1], got {p!r}")
        if not training or p == 0:
            return input
        p = p if self.rate is None else self.rate
        mask = keep_mask(self.key, self.site, input.shape, p)
        self.site += 1
        factor = 1 / (1 - p) if p < 1 else 0.0
        return input.mul_(mask).mul_(factor) if inplace else input * mask * factor
