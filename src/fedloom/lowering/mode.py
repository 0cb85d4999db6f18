"""The mode in which a module's forward uses the stacked forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import _VF, Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils._pytree import tree_leaves

from fedloom.lowering import convolution, losses, norm, pooled, pooling, rectified, recurrent, response
from fedloom.lowering.convolution import Form
from fedloom.lowering.pooling import Windows


@dataclass
class _Result:
    """What a layer came to last, what it is made of, and how to compute it and what follows at once."""

    value: Tensor
    made_of: Sequence[Tensor]
    pooled: Callable[[Windows], Tensor | None] | None = None
    rectified: Callable[[], Tensor | None] | None = None
    normed: norm.Normed | None = None

    def __post_init__(self) -> None:
        self.learns = torch.is_grad_enabled()
        self.versions = [(leaf, leaf._version) for leaf in (self.value, *self.made_of)]

    def still(self, input: Tensor) -> bool:
        """Whether this is that result, it and what it is made of are as they were, and it is learnt from as it was."""
        same = self.value is input and all(leaf._version == version for leaf, version in self.versions)
        return same and self.learns == torch.is_grad_enabled()


class _Copy:
    """What a module has for a view: as good as one until either is changed in place, and then to read that one."""

    def __init__(self, original: Tensor, value: Tensor) -> None:
        self.original, self.value = original, value
        self.versions = original._version, value._version

    def stale(self, read: Collection[int]) -> bool:
        """Whether something is read where a change of the other is missing."""
        pairs = zip((self.original, self.value), (self.value, self.original), self.versions, strict=True)
        return any(changed._version != version and id(_base(other)) in read for changed, other, version in pairs)


class Stacked(TorchFunctionMode):
    """Within it, a forward under `vmap(grad(...))` uses forms that a stack of clients is fast in.

    A replacement has the arguments of what it replaces, and gives None for what it leaves alone.
    """

    def __init__(self, mask: Tensor | None, form: Form | None) -> None:
        super().__init__()
        self.kernel = form == "kernel"
        self.conv2d = partial(convolution.conv2d, forced=form)
        self.conv2d_pool = partial(pooled.conv2d_pool, forced=form)
        self.conv2d_relu = partial(rectified.conv2d_relu, forced=form)
        self.batch_norm = partial(norm.batch_norm, mask, self.kernel)
        self.last: _Result | None = None
        self.copies: list[_Copy] = []  # of what was to be viewed
        self.replacements: dict[Any, Callable[..., Any]] = {
            torch.conv2d: self._conv2d,
            torch.conv1d: partial(convolution.conv1d, forced=form),
            F.pad: self._pad,
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
            F.local_response_norm: partial(response.local_response_norm, self.kernel),
            F.cross_entropy: losses.cross_entropy,
            Tensor.view: self._view,
            Tensor.view_as: lambda input, other: self._view(input, other.shape),
            Tensor.data_ptr: _nowhere,
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if self.copies:
            read = {id(_base(leaf)) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            if any(copy.stale(read) for copy in self.copies):
                raise RuntimeError("a view that is changed in place and read from elsewhere has no stacked form")
        replacement = self.replacements.get(func)
        result = None if replacement is None else replacement(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is None else result

    def _conv2d(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor | None:
        raw = self.conv2d(input, weight, None, *args, **kwargs)
        if raw is None:
            return None
        y = raw if bias is None else raw + bias[:, None, None]
        if is_in_torch_dispatch_mode():
            given = input, weight, bias, *args

            def pooled_of(windows: Windows) -> Tensor | None:
                if windows.two_by_two(raw.shape[-2:]):
                    return self.conv2d_pool(*given, **kwargs)
                return pooling.by_kernel(raw, bias, windows, self.kernel)

            rectified = partial(self.conv2d_relu, *given, **kwargs)
            self.last = _Result(y, _tensors(given, kwargs), pooled_of, rectified)
        return y

    def _pad(
        self, input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
    ) -> Tensor | None:
        """In a program, what is padded so that it never is the largest is pooled where it lies."""
        lowest = mode == "constant" and value == -math.inf and len(pad) == 4 and min(pad) >= 0
        if not lowest or input.dim() != 4 or not is_in_torch_dispatch_mode():
            return None
        y, whole = F.pad(input, list(pad), mode, value), self._whole(input)
        made_of = (input,) if whole is None else (input, *whole.made_of)
        self.last = _Result(y, made_of, lambda windows: self._pool(input, whole, windows.around(pad[2], pad[0])))
        return y

    def _max_pool2d(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        windows = pooling.windows(input.shape[-2:], *args, **kwargs) if input.dim() in (3, 4) else None
        return None if windows is None else self._pool(input, self._whole(input), windows)

    def _whole(self, input: Tensor) -> _Result | None:
        """The last result, if that is the input and can be pooled in one with what came before it."""
        return self.last if self.last is not None and self.last.pooled is not None and self.last.still(input) else None

    def _pool(self, input: Tensor, whole: _Result | None, windows: Windows) -> Tensor | None:
        """In a program, the pooling of what was just convolved is both at once: the other result, unread, falls out."""
        y = whole.pooled(windows) if whole is not None and whole.pooled is not None else None
        return pooling.max_pool2d(input, windows, self.kernel) if y is None else y

    def _batch_norm(self, *args: Any, **kwargs: Any) -> Tensor | None:
        normed = self.batch_norm(*args, **kwargs)
        if not isinstance(normed, norm.Normed):
            return normed
        y = normed.result()
        if is_in_torch_dispatch_mode():
            made_of = _tensors((normed.x, normed.weight, normed.bias), {})
            self.last = _Result(y, made_of, rectified=partial(normed.result, relu=True), normed=normed)
        return y

    def _add(self, input: Any, other: Any, *args: Any, **kwargs: Any) -> Tensor | None:
        """In a program, the sum of what was just normalised and another of its shape is both at once, and ReLU too."""
        if self.last is None or self.last.normed is None or args or kwargs:
            return None
        for one, residual in ((input, other), (other, input)):
            if self.last.still(one) and isinstance(residual, Tensor) and _alike(one, residual):
                normed, made_of = self.last.normed, (*self.last.made_of, residual)
                y = normed.result(residual)
                self.last = _Result(y, made_of, rectified=partial(normed.result, residual, relu=True))
                return y
        return None

    def _view(self, input: Tensor, *shape: Any, size: Sequence[int] = (), dtype: object = None) -> Tensor | None:
        """What lies in another order than its own module would leave it in is copied where it cannot be viewed."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape or size
        if dtype is not None or not all(isinstance(each, int) for each in sizes) or _is_view(input, sizes):
            return None
        self.copies.append(copy := _Copy(input, input.reshape(sizes)))
        return copy.value

    def _relu(self, input: Tensor, inplace: bool = False) -> Tensor | None:
        """In a program, that of the last result is both at once, unless it is to be changed where it lies."""
        if inplace or self.last is None or self.last.rectified is None or not self.last.still(input):
            return None
        return self.last.rectified()


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    return [leaf for leaf in (*args, *kwargs.values()) if isinstance(leaf, Tensor)]


def _base(leaf: Tensor) -> Tensor:
    """Whose memory it lies in: a tensor and its views have one."""
    return leaf if leaf._base is None else leaf._base


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _is_view(x: Tensor, sizes: Sequence[int]) -> bool:
    """Whether it can be viewed in these sizes where it lies: runs of it that are whole in memory are cut, never joined.

    >>> x = torch.zeros(2, 3, 4)
    >>> _is_view(x, [6, -1]), _is_view(x.transpose(1, 2), [2, -1]), _is_view(x.transpose(1, 2), [2, 2, 2, 3])
    (True, False, True)
    """
    if not x.numel() or 0 in sizes:
        return True  # or torch will say why not
    runs: list[int] = []
    following = 0
    for size, step in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if size > 1:
            runs[-1:] = [runs[-1] * size] if runs and step == following else [*runs[-1:], size]
            following = size * step
    free = x.numel() // -math.prod(sizes) if -1 in sizes else 1
    wanted = [free if size == -1 else size for size in reversed(sizes) if size != 1]
    for run in runs:
        while run > 1 and wanted and run % wanted[0] == 0:
            run //= wanted.pop(0)
        if run > 1:
            return False
    return True


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
