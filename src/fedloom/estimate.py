"""Reddi et al.'s initial accumulator for FedYogi, estimated from the data."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedloom import random, tree
from fedloom.data.federated import FederatedData, take
from fedloom.functional import Functional, floating_dtype, plain_gradient
from fedloom.task import Task
from fedloom.types import Params


def estimate_accumulator(
    task: Task,
    data: FederatedData,
    params: Params | None = None,
    seed: int = 0,
    *,
    fraction: float = 0.01,
    batch_size: int | None = 20,
) -> float:
    """zeta = mean over batches of the mean over their examples of ||grad f(x^0; z)||^2 / d (Reddi et al. 2020, C.5).

    One random batch from each of a random `fraction` of the clients; gradients are per example, in evaluation mode.
    """
    device = data.indices.device
    dtype = None if params is None else floating_dtype(params)
    functional = Functional.of(task, seed, device, dtype)
    if params is not None:
        functional = functional.starting_from(params)
    functional = replace(functional, augment=data.augment)
    data, params = data.to(device, dtype), functional.params
    functional.module.eval()
    key = random.key(seed, 0, 0, "estimate")
    size = sum(leaf.numel() for leaf in params.values())
    owners = torch.nonzero(data.examples > 0).flatten().cpu()
    wanted = max(1, round(fraction * data.population))
    drawn = owners[random.permutation(key, len(owners))[:wanted]]
    batches = []
    for client in drawn.tolist():
        rows = data.rows(client)
        order = random.permutation(random.key(seed, 0, client, "estimate/batch"), len(rows)).to(device)
        squares = []
        for row in rows[order[:batch_size]]:
            index = row.unsqueeze(0)
            batch = take(data.x, index), take(data.y, index)
            with torch.backends.cudnn.flags(enabled=False):  # cuDNN has no backward for a recurrent net in evaluation
                gradient, *_ = plain_gradient(functional, params, functional.buffers, *batch, None, key.to(device))
            squares.append(float(tree.dot(gradient, gradient)) / size)
        batches.append(sum(squares) / len(squares))
    return sum(batches) / len(batches)
