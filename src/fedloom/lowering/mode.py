"""The mode in which a module's forward uses the stacked forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import _VF, Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from fedloom.lowering import convolution, losses, norm, pooled, pooling, rectified, recurrent
from fedloom.lowering.convolution import Form


class _Convolved:
    """The last convolution's result, and how to compute it pooled, or rectified, at once."""

    def __init__(
        self, result: Tensor, pooled: Callable[[], Tensor | None], rectified: Callable[[], Tensor | None]
    ) -> None:
        self.result, self.pooled, self.rectified = result, pooled, rectified
        self.version, self.learns = result._version, torch.is_grad_enabled()

    def still(self, input: Tensor) -> bool:
        """Whether this is that result, changed by nobody, and learnt from as the convolution was."""
        same = self.result is input and self.version == input._version
        return same and self.learns == torch.is_grad_enabled()


class Stacked(TorchFunctionMode):
    """Within it, a forward under `vmap(grad(...))` uses forms that a stack of clients is fast in.

    A replacement has the arguments of what it replaces, and gives None for what it leaves alone.
    """

    def __init__(self, mask: Tensor | None, form: Form | None) -> None:
        super().__init__()
        self.conv2d = partial(convolution.conv2d, forced=form)
        self.conv2d_pool = partial(pooled.conv2d_pool, forced=form)
        self.conv2d_relu = partial(rectified.conv2d_relu, forced=form)
        self.convolved: _Convolved | None = None
        self.replacements: dict[Any, Callable[..., Any]] = {
            torch.conv2d: self._conv2d,
            torch.conv1d: partial(convolution.conv1d, forced=form),
            F.max_pool2d: self._max_pool2d,
            torch.max_pool2d: self._max_pool2d,
            F.relu: self._relu,
            torch.relu: self._relu,
            Tensor.relu: self._relu,
            _VF.lstm: recurrent.lstm,
            _VF.gru: recurrent.gru,
            F.batch_norm: partial(norm.batch_norm, mask),
            F.local_response_norm: norm.local_response_norm,
            F.cross_entropy: losses.cross_entropy,
            Tensor.data_ptr: _nowhere,
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        replacement = self.replacements.get(func)
        result = None if replacement is None else replacement(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is None else result

    def _conv2d(self, *args: Any, **kwargs: Any) -> Tensor | None:
        y = self.conv2d(*args, **kwargs)
        if y is not None and is_in_torch_dispatch_mode():
            both = (partial(at_once, *args, **kwargs) for at_once in (self.conv2d_pool, self.conv2d_relu))
            self.convolved = _Convolved(y, *both)
        return y

    def _max_pool2d(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        """In a program, the pooling of what was just convolved is both at once: the other result, unread, falls out."""
        if self.convolved is not None and self.convolved.still(input) and pooling.two_by_two(*args, **kwargs):
            y = self.convolved.pooled()
            if y is not None:
                return y
        return pooling.max_pool2d(input, *args, **kwargs)

    def _relu(self, input: Tensor, inplace: bool = False) -> Tensor | None:
        """In a program, that of what was just convolved is both at once, unless it is to be changed where it lies."""
        if inplace or self.convolved is None or not self.convolved.still(input):
            return None
        return self.convolved.rectified()


def _nowhere(leaf: Tensor) -> int:
    """A stacked leaf lies nowhere of its own. `nn.LSTM` asks, to pack its weights, and then leaves them as they are."""
    return 0


def stacked(mask: Tensor | None = None, form: Form | None = None) -> Stacked:
    """The mode for one client's forward under `vmap`; `mask` tells the real rows of a padded batch.

    `form` makes all convolutions take one form. A `SeededDropout` has to be entered before it, so that dropout between
    recurrent layers is seen.

    >>> layer = torch.nn.MaxPool2d(2)
    >>> with stacked():
    ...     layer(torch.arange(4.0).reshape(1, 1, 2, 2)).item()
    3.0
    """
    return Stacked(mask, form)
