"""The mode in which a module's forward uses the stacked forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import _VF, Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from fedloom.lowering import convolution, losses, norm, pooled, pooling, rectified, recurrent
from fedloom.lowering.convolution import Form


@dataclass
class _Result:
    """The last convolution's or norm's result, and how to compute it and what follows at once."""

    value: Tensor
    pooled: Callable[[], Tensor | None] | None = None
    rectified: Callable[[], Tensor | None] | None = None
    normed: norm.Normed | None = None
    with_: Tensor | None = None  # what it is the sum of, beside a norm's result

    def __post_init__(self) -> None:
        self.learns = torch.is_grad_enabled()
        self.versions = [(leaf, leaf._version) for leaf in (self.value, self.with_) if leaf is not None]

    def still(self, input: Tensor) -> bool:
        """Whether this is that result, changed by nobody, and learnt from as it was."""
        same = self.value is input and all(leaf._version == version for leaf, version in self.versions)
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
        self.batch_norm = partial(norm.batch_norm, mask, form == "kernel")
        self.last: _Result | None = None
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
            F.batch_norm: self._batch_norm,
            torch.add: self._add,
            Tensor.add: self._add,
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
            pooled, rectified = (partial(each, *args, **kwargs) for each in (self.conv2d_pool, self.conv2d_relu))
            self.last = _Result(y, pooled, rectified)
        return y

    def _max_pool2d(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        """In a program, the pooling of what was just convolved is both at once: the other result, unread, falls out."""
        last = self.last
        if last is not None and last.pooled is not None and last.still(input) and pooling.two_by_two(*args, **kwargs):
            y = last.pooled()
            if y is not None:
                return y
        return pooling.max_pool2d(input, *args, **kwargs)

    def _batch_norm(self, *args: Any, **kwargs: Any) -> Tensor | None:
        normed = self.batch_norm(*args, **kwargs)
        if not isinstance(normed, norm.Normed):
            return normed
        y = normed.result()
        if is_in_torch_dispatch_mode():
            self.last = _Result(y, rectified=partial(normed.result, relu=True), normed=normed)
        return y

    def _add(self, input: Any, other: Any, *args: Any, **kwargs: Any) -> Tensor | None:
        """In a program, the sum of what was just normalised and another of its shape is both at once, and ReLU too."""
        if self.last is None or self.last.normed is None or args or kwargs:
            return None
        for one, residual in ((input, other), (other, input)):
            if self.last.still(one) and isinstance(residual, Tensor) and _alike(one, residual):
                normed, self.last = self.last.normed, None
                y = normed.result(residual)
                self.last = _Result(y, rectified=partial(normed.result, residual, relu=True), with_=residual)
                return y
        return None

    def _relu(self, input: Tensor, inplace: bool = False) -> Tensor | None:
        """In a program, that of the last result is both at once, unless it is to be changed where it lies."""
        if inplace or self.last is None or self.last.rectified is None or not self.last.still(input):
            return None
        return self.last.rectified()


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


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
