"""Images in channels-last order, (rows, height, width, channels) in memory, which torch's CPU kernels are fast in.

Convolutions whose weights lie so hand it on: to their gradients, to normalisation, to pooling, which is ten times as
fast as in the usual order. Shapes are the same, and numbers agree within rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedloom import tree
from fedloom.data.federated import take
from fedloom.executors.job import Job
from fedloom.functional import Gradient, plain_gradient


@dataclass(frozen=True)
class Layout:
    """Which leaves lie in channels-last order."""

    names: frozenset[str] = frozenset()

    def lay(self, state: Any) -> Any:
        """Nested dicts and tuples of leaves, in this layout."""
        if isinstance(state, dict):
            return {
                name: _channels_last(value) if name in self.names and isinstance(value, Tensor) else self.lay(value)
                for name, value in state.items()
            }
        return tuple(self.lay(value) for value in state) if isinstance(state, tuple) else state

    def mode(self) -> AbstractContextManager[Any]:
        """For whatever is done with such leaves."""
        return ChannelsLast() if self.names else nullcontext()


class ChannelsLast(TorchFunctionMode):
    """Keeps the order where it would be lost, and gives it up where an operation cannot read it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and args and not args[0].requires_grad:
            args = (_channels_last(args[0]), *args[1:])
        try:
            result = func(*args, **kwargs)
        except RuntimeError:  # a view as rows, say
            if func.__name__.endswith("_"):
                raise  # what it writes into a copy would be lost
            result = func(*tree.map_state(Tensor.contiguous, tuple(args)), **tree.map_state(Tensor.contiguous, kwargs))
        if func in _POOLING and isinstance(result, Tensor) and result.requires_grad and not result.is_contiguous():
            result.register_hook(_channels_last)  # a gradient in the usual order takes eight times as long
        return result


_POOLING = (F.max_pool2d, torch.max_pool2d)


def _channels_last(leaf: Tensor) -> Tensor:
    if leaf.dim() != 4:
        return leaf
    if leaf.shape[1] == 1 and leaf.is_contiguous():  # in both orders: the strides tell which is meant
        _, _, height, width = leaf.shape
        return leaf.as_strided(leaf.shape, (height * width, 1, width, 1))
    return leaf.contiguous(memory_format=torch.channels_last)


_known: WeakKeyDictionary[nn.Module, Layout] = WeakKeyDictionary()


def layout(job: Job) -> Layout:
    """Channels-last for the convolutions of a model on a CPU, once it is seen to give the same numbers in it."""
    module = job.functional.module
    if module not in _known:
        _known[module] = _tried(job)
    return _known[module]


def _tried(job: Job) -> Layout:
    if job.draws or not torch.backends.mkldnn.is_available():  # what is drawn would lie in an image's order
        return Layout()
    parts = job.functional.module.named_modules()
    weights = [f"{name}.weight".removeprefix(".") for name, part in parts if isinstance(part, nn.Conv2d)]
    leaves = {name: leaf for name, leaf in job.functional.params.items() if name in weights}
    found = Layout(
        frozenset(name for name, leaf in leaves.items() if leaf.dtype == torch.float32 and leaf.device.type == "cpu")
    )
    if not found.names:
        return found
    try:
        return found if _agree(_gradient(job, Layout()), _gradient(job, found)) else Layout()
    except Exception:  # where the model itself is wrong, training will say so
        return Layout()


def _gradient(job: Job, layout: Layout) -> Gradient:
    """Of a few rows, whoever's they are."""
    functional, index = job.functional, job.data.indices[:4]
    key = torch.zeros((), dtype=torch.int64)
    x, y = take(job.data.x, index), take(job.data.y, index)
    with layout.mode():
        return plain_gradient(functional, layout.lay(functional.params), functional.buffers, x, y, None, key)


def _agree(usual: Gradient, other: Gradient) -> bool:
    """Within rounding, which a deep model blows up in its gradient."""
    apart = tree.norm(tree.map(torch.sub, usual[0], other[0]))
    return bool(apart <= 0.1 * tree.norm(usual[0])) and torch.allclose(usual[1], other[1], rtol=1e-3)
