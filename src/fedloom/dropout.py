"""Dropout whose masks are a function of (seed, round, client, step): the same in the loop and in the stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from fedloom.errors import FedloomError
from fedloom.lowering.masks import keep_mask
from fedloom.random import host_keep_mask


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
        site, self.site = self.site, self.site + 1
        factor = 1 / (1 - p) if p < 1 else 0.0
        if self.word is not None and input.dtype in _HOST and input.device.type == "cpu":
            kept = host_keep_mask(self.word, site, input.numel(), p)
            scale = torch.from_numpy(np.multiply(kept, factor, dtype=_HOST[input.dtype])).view(input.shape)
            return input.mul_(scale) if inplace else input * scale
        mask = keep_mask(self.key, site, input.shape, p)
        return input.mul_(mask).mul_(factor) if inplace else input * mask * factor

    @cached_property
    def word(self) -> int | None:
        """The key, where it is a number on the host: not in a stack, and not while a program is traced."""
        traced = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
        plain = type(self.key) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(self.key)
        return int(self.key) if plain and not traced and self.key.device.type == "cpu" else None


_HOST = {torch.float32: np.float32, torch.float64: np.float64}
