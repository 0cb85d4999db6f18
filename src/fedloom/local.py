"""One client's work, pure and stackable: the same functions run a client alone and, under `vmap`, a stack of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from fedloom import tree
from fedloom.algorithm import Algorithm
from fedloom.data.federated import Features
from fedloom.functional import Functional, Gradient
from fedloom.types import Info, Params, PartState

Carry = dict[str, Any]
"""What goes from one local step to the next: parameters, buffers, the optimizer's state, running sums."""

GradientOf = Callable[..., Gradient]


def start(functional: Functional, algorithm: Algorithm, params: Params, buffers: Params) -> Carry:
    """Clients begin a round from the global model, with a new optimizer."""
    zero = next(iter(params.values()))
    return {
        "params": params,
        "buffers": buffers,
        "optimizer": algorithm.client.init(params),
        "gradients": tree.zeros_like(params) if wants_sum(algorithm) else {},
        "loss": zero.new_zeros(()),
        "counted": {name: zero.new_zeros(2) for name in functional.metrics},
    }


def optimizer_row(optimizer: PartState) -> Params:
    """An optimizer's state as a row that a client can keep: its tensors, numbered."""
    row: Params = {}

    def put(leaf: Tensor) -> Tensor:
        row[str(len(row))] = leaf.clone()
        return leaf

    tree.map_state(put, optimizer)
    return row


def optimizer_of(row: Params, like: PartState) -> PartState:
    """The optimizer's state that was kept in a row."""
    numbers = count()
    return tree.map_state(lambda _: row[str(next(numbers))], like)


def wants_sum(algorithm: Algorithm) -> bool:
    """Whether the gradients along the path are added up: for FedSGD, and for a memory that reads their mean."""
    memory = algorithm.memory
    return algorithm.work.name == "full_gradient" or (memory is not None and memory.gradient == "mean")


def step(
    functional: Functional,
    algorithm: Algorithm,
    gradient_of: GradientOf,
    carry: Carry,
    batch: tuple[Features, Features],
    mask: Tensor | None,
    rows: Tensor | int,
    key: Tensor,
    info: Info,
    in_place: bool = False,
) -> Carry:
    """One local step: y = y - transform(gradient of the batch's mean loss at y).

    `in_place` writes into y, which has to be nobody else's, and into the gradient: for a transform that `forgets`.
    """
    y = carry["params"]
    gradient, loss, buffers, counted = gradient_of(functional, y, carry["buffers"], *batch, mask, key)
    gradients = tree.map(torch.add, carry["gradients"], gradient) if carry["gradients"] else {}
    told = replace(info, raw=gradient, spent=in_place)
    direction, optimizer, _ = algorithm.client.update(gradient, carry["optimizer"], y, told)
    return {
        "params": tree.map(Tensor.sub_ if in_place else torch.sub, y, direction),
        "buffers": buffers,
        "optimizer": optimizer,
        "gradients": gradients,
        "loss": carry["loss"] + loss * rows,
        "counted": tree.map(torch.add, carry["counted"], counted),
    }


def gradient_step(
    functional: Functional,
    algorithm: Algorithm,
    gradient_of: GradientOf,
    carry: Carry,
    batch: tuple[Features, Features],
    mask: Tensor | None,
    rows: Tensor | int,
    key: Tensor,
    info: Info,
) -> Carry:
    """One batch's part of the gradient of the whole local loss: parameters stay, gradients are added by rows."""
    gradient, loss, buffers, counted = gradient_of(functional, carry["params"], carry["buffers"], *batch, mask, key)
    return carry | {
        "buffers": buffers,
        "gradients": tree.map(lambda total, g: total + rows * g, carry["gradients"], gradient),
        "loss": carry["loss"] + loss * rows,
        "counted": tree.map(torch.add, carry["counted"], counted),
    }
