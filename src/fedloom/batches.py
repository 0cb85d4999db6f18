"""Which rows a client sees at each local step: a function of (seed, round, client), for any stack of clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom import random
from fedloom.data.federated import FederatedData


@dataclass(frozen=True)
class Batching:
    """How much local work a client does: `steps` batches, or `epochs` passes when that is None."""

    epochs: int = 1
    steps: int | None = None
    batch_size: int | None = 20  # None: all rows in one batch
    drop_last: bool = False

    def counts(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """(examples used in one epoch, local steps) for clients with that many rows."""
        if self.batch_size is None:
            per_epoch = (examples > 0).long()
        elif self.drop_last:
            per_epoch = examples // self.batch_size
            examples = per_epoch * self.batch_size
        else:
            per_epoch = -(-examples // self.batch_size)
        if self.steps is None:
            return examples, self.epochs * per_epoch
        return examples, torch.where(per_epoch > 0, self.steps, 0)


@dataclass(frozen=True)
class Plan:
    """The batches of a stack of K clients over S steps of at most B rows; `sizes` says how many rows are real."""

    clients: Tensor  # (K,)
    examples: Tensor  # (K,) used in one epoch
    steps: Tensor  # (K,)
    index: Tensor  # (K, S, B) rows of the data set; padding repeats a row of the same client
    sizes: Tensor  # (K, S); 0 beyond the client's last step
    keys: Tensor  # (K, S) for dropout


def plan(
    data: FederatedData, clients: Tensor, batching: Batching, seed: int, round: int, purpose: str = "batches"
) -> Plan:
    """Every epoch is a fresh permutation of the client's rows, cut into batches, the short last one kept."""
    offsets = data.offsets.cpu()
    starts = offsets[clients]
    rows = offsets[clients + 1] - starts
    used, steps = batching.counts(rows)
    most_rows, most_steps = int(rows.max()), int(steps.max())
    batch = min(batching.batch_size or most_rows, max(1, most_rows))  # a batch is never wider than the largest client
    per_epoch = (-(-used // batch)).clamp(min=1)
    step = torch.arange(most_steps)
    taken = step < steps[:, None]  # (K, S)
    epoch = torch.where(taken, step // per_epoch[:, None], 0)
    turn = step % per_epoch[:, None]
    epochs = int(epoch.max()) + 1 if most_steps else 0

    keys = random.key(seed, round, clients, purpose)
    order = random.permutation(random.split(keys, epochs), max(1, most_rows), rows[:, None].expand(-1, epochs))
    position = turn[..., None] * batch + torch.arange(batch)  # (K, S, B) within the epoch
    real = (position < used[:, None, None]) & taken[..., None]
    position = torch.where(real, position, 0)
    flat = (epoch[..., None] * order.shape[-1] + position).flatten(1)
    chosen = order.flatten(1).gather(1, flat).reshape(position.shape) if most_steps else position
    where = (starts[:, None, None] + chosen).clamp(max=data.indices.numel() - 1)  # an empty last client starts beyond
    dropout = random.split(random.key(seed, round, clients, f"{purpose}/dropout"), most_steps)
    device = data.indices.device
    return Plan(clients, used, steps, data.indices[where.to(device)], real.sum(-1), dropout.to(device))
