"""Images in channels-last order, (rows, height, width, channels) in memory, which torch's CPU kernels are fast in.

Convolutions whose weights lie so hand it on: to the weights' gradients, to pooling (twenty times as fast as in the
usual order), to normalisation. Shapes are the same and numbers agree within rounding.
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
        """For a forward with such leaves, and what follows it."""
        return ChannelsLast() if self.names else nullcontext()


class ChannelsLast(TorchFunctionMode):
    """Keeps the order where an operation would lose it, and gives it up where an operation cannot read it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and args and not args[0].requires_grad:
            args = (_channels_last(args[0]), *args[1:])
        try:
            result = func(*args, **kwargs)
        except RuntimeError:  # a view as rows, say
            args, kwargs = tree.map_state(Tensor.contiguous, (tuple(args), kwargs))
            result = func(*args, **kwargs)
        if func in _POOLING and isinstance(result, Tensor) and result.requires_grad:
            result.register_hook(_channels_last)  # a gradient in the other order would take eight times as long
        return result


_POOLING = (F.max_pool2d, torch.max_pool2d)


def _channels_last(leaf: Tensor) -> Tensor:
    if leaf.dim() != 4:
        return leaf
    if leaf.shape[1] == 1 and leaf.is_contiguous():  # is in both orders: the strides tell which is meant
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
    params = job.functional.params
    convolutions = (name for name, part in job.functional.module.named_modules() if isinstance(part, nn.Conv2d))
    weights = (f"{name}.weight" if name else "weight" for name in convolutions)
    kernels = torch.backends.mkldnn.is_available() and not job.draws  # what is drawn lies in the order of its image
    names = (name for name in weights if kernels and name in params and params[name].device.type == "cpu")
    found = Layout(frozenset(name for name in names if params[name].dtype == torch.float32))
    if not found.names:
        return found
    try:
        return found if _agree(_gradient(job, Layout()), _gradient(job, found)) else Layout()
    except Exception:  # where the model itself is wrong, training will say so
        return Layout()


def _gradient(job: Job, layout: Layout) -> Gradient:
    """Of a few rows, whoever's they are."""
    functional = job.functional
    index = job.data.indices[:3]
    key = torch.zeros((), dtype=torch.int64)
    with layout.mode():
        x, y = take(job.data.x, index), take(job.data.y, index)
        return plain_gradient(functional, layout.lay(functional.params), functional.buffers, x, y, None, key)


def _agree(usual: Gradient, other: Gradient) -> bool:
    leaves = [({"loss": each[1]} | each[0]) for each in (usual, other)]
    return all(
        bool((leaf - leaves[1][name]).abs().max() <= 1e-3 * leaf.abs().max()) for name, leaf in leaves[0].items()
    )
