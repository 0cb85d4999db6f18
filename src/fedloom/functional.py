"""An `nn.Module` as pure functions of its trainable leaves.

Only trainable parameters travel between server and clients. Frozen ones stay as constants; tied ones are one leaf; what
the module keeps as persistent buffers (batch norm's statistics, counters) goes beside the parameters, never among them.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import eager_transforms
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedloom import random, tree
from fedloom.data.federated import Features, count
from fedloom.dropout import SeededDropout
from fedloom.errors import FedloomError
from fedloom.lowering import stacked
from fedloom.task import Metric, PerExample, Task, parts
from fedloom.types import Params


@dataclass(frozen=True)
class Functional:
    """The module's leaves by kind, and its loss as a function of them."""

    module: nn.Module
    loss: PerExample
    params: Params
    buffers: Params
    constants: Params  # frozen parameters and non-persistent buffers
    penalty: Callable[[Params], Tensor] | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # counted in training too
    augment: Callable[[Any, Tensor], Any] | None = None  # of a batch's features, in training
    names: Mapping[str, str] = field(default_factory=dict)  # the module's state, by key: which leaf it is
    lowered: bool = False  # use the stacked forms of operations: for a forward under `vmap`
    compute: torch.dtype | None = None  # of the forward in training, where it is not the parameters' own
    computed: Params = field(default_factory=dict)  # the constants as that forward computes with them

    @staticmethod
    def of(task: Task, seed: int, device: torch.device, dtype: torch.dtype | None = None) -> Functional:
        """Build the model, its initial parameters being a function of the seed alone."""
        if isinstance(task.model, nn.Module):
            raise FedloomError("Task.model: expected a function that returns an nn.Module, got one: pass lambda: ...")
        with random.generator_kept():
            torch.manual_seed(int(random.key(seed, 0, 0, "init")))
            module = copy.deepcopy(task.model())  # the caller may keep the one it returned
        if not isinstance(module, nn.Module):
            raise FedloomError(
                f"Task.model: expected a function that returns an nn.Module, got {type(module).__name__}"
            )
        module = module.to(device=device, dtype=dtype)
        named = dict(module.named_parameters())
        persistent = module.state_dict(keep_vars=True).keys()
        buffers = dict(module.named_buffers())
        params = {name: leaf.detach().clone() for name, leaf in named.items() if leaf.requires_grad}
        if not params:
            raise FedloomError("Task.model: expected at least one trainable parameter, got none")
        return Functional(
            module,
            task.loss,
            params,
            {name: leaf.detach().clone() for name, leaf in buffers.items() if name in persistent},
            {name: leaf.detach() for name, leaf in named.items() if not leaf.requires_grad}
            | {name: leaf for name, leaf in buffers.items() if name not in persistent},
            task.penalty,
            names=_leaf_names(module),
        )

    def _counted(self, output: Any, y: Features, mask: Tensor | None) -> Params:
        """Each metric over a batch's rows: numerator and denominator."""
        counted = {}
        with torch.no_grad():
            for name, metric in self.metrics.items():
                sums = torch.stack(parts(name, metric(output, y), count(y)))
                counted[name] = (sums if mask is None else torch.where(mask, sums, 0.0)).sum(1)
        return tree.map(torch.detach, counted)

    @property
    def leaves(self) -> Params:
        return {**self.constants, **self.params, **self.buffers}

    def frozen(self) -> str:
        """SHA-256 of what does not train, which no state holds: a pretrained part, say. Empty where all trains."""
        digest = hashlib.sha256()
        for name, leaf in sorted(self.constants.items()):
            tree.into_digest(digest, name, leaf)
        return digest.hexdigest() if self.constants else ""

    def starting_from(self, params: Params) -> Functional:
        """The same model with other leaves: its trainable ones by name, or a whole `state_dict`."""
        known = self.leaves
        given = {self.names.get(key, key): leaf for key, leaf in params.items()}
        for name, leaf in given.items():
            if name not in known:
                raise FedloomError(f"params[{name!r}]: the model has no such leaf; expected {', '.join(self.params)}")
            if leaf.shape != known[name].shape:
                expected, got = tuple(known[name].shape), tuple(leaf.shape)
                raise FedloomError(f"params[{name!r}]: expected shape {expected}, got {got}")
        if missing := self.params.keys() - given.keys():
            raise FedloomError(f"params: expected every trainable leaf, got none for {', '.join(sorted(missing))}")

        def over(own: Params) -> Params:
            return {
                name: given[name].detach().clone().to(leaf) if name in given else leaf for name, leaf in own.items()
            }

        return replace(self, params=over(self.params), buffers=over(self.buffers), constants=over(self.constants))

    def output(self, params: Params, buffers: Params, x: Features) -> Any:
        """The module's output; `buffers` are updated in place where the module does so."""
        leaves = {**self.constants, **params, **buffers}
        if isinstance(x, Mapping):
            return functional_call(self.module, leaves, (), dict(x))
        return functional_call(self.module, leaves, x if isinstance(x, tuple) else (x,))

    def trained_output(self, params: Params, buffers: Params, x: Features) -> Any:
        """As in training: computed in the precision that was asked for, and of the parameters' own dtype."""
        if self.compute is None:
            return self.output(params, buffers, x)
        leaves = {**self.computed, **self._short(params, self.compute)}
        return cast(self.output(leaves, buffers, cast(x, self.compute)), floating_dtype(params))

    def computing_in(self, dtype: torch.dtype) -> Functional:
        """The same model, whose forward in training is in that dtype; what does not train is cast once."""
        return replace(self, compute=dtype, computed=self._short(self.constants, dtype))

    def _short(self, leaves: Params, dtype: torch.dtype) -> Params:
        return {name: leaf if name in self._whole else cast(leaf, dtype) for name, leaf in leaves.items()}

    @cached_property
    def _whole(self) -> frozenset[str]:
        """The leaves of batch norms, which stay as their statistics are."""
        norms = [name for name, layer in self.module.named_modules() if isinstance(layer, _BatchNorm)]
        keys = [f"{name}.{leaf}".lstrip(".") for name in norms for leaf in ("weight", "bias")]
        return frozenset(self.names.get(key, key) for key in keys)

    def objective(
        self, params: Params, buffers: Params, x: Features, y: Features, mask: Tensor | None, key: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Params, Params]]:
        """The mean loss over a batch's rows (under `mask`) and the penalty.

        Beside it the loss, the new buffers, and each metric's sums over the rows.
        """
        if self.augment is not None:
            x = self.augment(x, key)
        buffers = tree.map(torch.clone, buffers)
        forms = stacked(mask) if self.lowered else nullcontext()
        with SeededDropout(key), forms:
            output = self.trained_output(params, buffers, x)
        with forms:
            losses = self.loss(output, y)
        rows = count(y)
        if losses.shape != (rows,):
            raise FedloomError(
                f"Task.loss: expected one value per example, shape ({rows},), got {tuple(losses.shape)}: "
                "use a loss with reduction='none'"
            )
        if mask is None:
            mean = losses.mean()
        else:
            mean = torch.where(mask, losses, 0.0).sum() / mask.sum().clamp(min=1)
        total = mean if self.penalty is None else mean + self.penalty(params)
        return total, (mean.detach(), tree.map(torch.detach, buffers), self._counted(output, y, mask))


def cast(values: Any, dtype: torch.dtype) -> Any:
    """The same values, floating ones in `dtype`."""
    return tree.map_state(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, values)


def floating_dtype(leaves: Params) -> torch.dtype:
    """The dtype of the first leaf that has a floating one."""
    return next((leaf.dtype for leaf in leaves.values() if leaf.is_floating_point()), torch.get_default_dtype())


def _leaf_names(module: nn.Module) -> dict[str, str]:
    """Keys of the module's `state_dict` -> names of its leaves: tied parameters have one name and several keys."""
    named = {id(leaf): name for name, leaf in [*module.named_parameters(), *module.named_buffers()]}
    return {key: named[id(leaf)] for key, leaf in module.state_dict(keep_vars=True).items() if id(leaf) in named}


Gradient = tuple[Params, Tensor, Params, Params]  # gradient, loss, buffers, sums of the metrics


def plain_gradient(
    functional: Functional,
    params: Params,
    buffers: Params,
    x: Features,
    y: Features,
    mask: Tensor | None,
    key: Tensor,
) -> Gradient:
    """By ordinary autograd, for one client."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    mean, aside = functional.objective(leaves, buffers, x, y, mask, key)
    mean.backward(inputs=list(leaves.values()))
    return _zeros_for_unused(leaves, [_own(leaf.grad) for leaf in leaves.values()]), *aside


_users: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
"""How many hold a piece of memory; older builds of torch do not tell, and every gradient is copied."""


def _own(gradient: Tensor | None) -> Tensor | None:
    """A copy where its memory is somebody else's too, for a step may write into it.

    Two leaves that are added have views of one gradient; a function of a model's own may return what it has kept.
    """
    if gradient is None or gradient.layout != torch.strided:
        return gradient
    memory = gradient.untyped_storage()
    shared = _users is None or _users(memory._cdata) > 2  # the gradient, and `memory` itself
    return gradient.clone() if shared else gradient


def stackable_gradient(
    functional: Functional,
    params: Params,
    buffers: Params,
    x: Features,
    y: Features,
    mask: Tensor | None,
    key: Tensor,
) -> Gradient:
    """As `torch.func.grad` takes it, which `vmap` can stack.

    Its own parts are put together here, since the whole imports torch's compiler, over a second for every run.
    """
    transforms: Any = eager_transforms
    with transforms.grad_increment_nesting() as level, torch.enable_grad():
        params, *rest = transforms._wrap_all_tensors((params, buffers, x, y, mask, key), level)
        leaves = {name: transforms._create_differentiable(leaf, level) for name, leaf in params.items()}
        mean, aside = functional.objective(leaves, *rest)
        gradients = torch.autograd.grad(mean, list(leaves.values()), allow_unused=True, create_graph=True)
        found = _zeros_for_unused(leaves, gradients), *aside
        outside: Gradient = transforms._undo_create_differentiable(found, level)
        return outside


def _zeros_for_unused(leaves: Params, gradients: Sequence[Tensor | None]) -> Params:
    pairs = zip(leaves.items(), gradients, strict=True)
    return {name: torch.zeros_like(leaf) if g is None else g for (name, leaf), g in pairs}
