"""Which rows a client sees at each local step: a function of (seed, round, client), for any stack of clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom import random
from fedloom.data.federated import FederatedData
from fedloom.errors import FedloomError

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batching:
    """How much local work a client does: `steps` batches, or `epochs` passes when that is None."""

    epochs: int = 1
    steps: int | None = None
    batch_size: int | None = 20  # None: all rows in one batch
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "steps", "batch_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise FedloomError(f"{name}: expected a whole number of at least 1, got {value!r}")

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

    def rows(self, examples: Tensor) -> Tensor:
        """How many rows clients with that many go through in a round, each as often as it is used."""
        used, steps = self.counts(examples)
        if self.steps is None:
            return used * self.epochs
        batch = self.batch_size or used.clamp(min=1)
        per_epoch = (-(-used // batch)).clamp(min=1)
        return steps // per_epoch * used + torch.minimum(steps % per_epoch * batch, used)


@dataclass(frozen=True)
class Plan:
    """The batches of a stack of K clients over S steps of at most B rows; `sizes` says how many rows are real.

    All of it lies on the host, where it is made.
    """

    clients: Tensor  # (K,)
    examples: Tensor  # (K,) used in one epoch
    steps: Tensor  # (K,)
    index: Tensor  # (K, S, B) rows of the data set; padding repeats a row of the same client
    sizes: Tensor  # (K, S); 0 beyond the client's last step
    keys: Tensor  # (K, S) for dropout

    def of(self, rows: slice | Tensor) -> Plan:
        """That of some of the clients."""
        return Plan(*(column[rows] for column in vars(self).values()))


def plan(
    data: FederatedData,
    clients: Tensor,
    batching: Batching,
    seed: int | Sequence[int],
    round: int,
    purpose: str = "batches",
) -> Plan:
    """Every epoch is a fresh permutation of the client's rows, cut into batches, the short last one kept.

    The seed is that of the run, or one for each client where several runs are planned at once. In NumPy, for a plan is
    many operations on few numbers, in which torch takes several times as long.
    """
    offsets, ids = data.host_offsets.numpy(), clients.numpy()
    starts = offsets[ids]
    rows = offsets[ids + 1] - starts
    used, steps = (column.numpy() for column in batching.counts(torch.from_numpy(rows)))
    most_rows, most_steps = int(rows.max()), int(steps.max())
    batch = min(batching.batch_size or most_rows, max(1, most_rows))  # a batch is never wider than the largest client
    per_epoch = np.maximum(-(-used // batch), 1)
    step = np.arange(most_steps, dtype=np.int64)
    taken = step < steps[:, None]  # (K, S)
    epoch = np.where(taken, step // per_epoch[:, None], 0)
    position = (step % per_epoch[:, None])[..., None] * batch + np.arange(
        batch, dtype=np.int64
    )  # (K, S, B) within the epoch
    real = (position < used[:, None, None]) & taken[..., None]
    position = np.where(real, position, 0)

    keys = random.key(seed, round, clients, purpose)
    chosen = np.zeros_like(position)
    epochs = -(-steps // per_epoch)
    for members in _alike(rows, epochs):
        widest, longest = max(1, int(rows[members].max())), int(epochs[members].max())
        lengths = torch.from_numpy(rows[members, None]).expand(-1, longest)
        order = random.permutation(random.bits(keys[members], longest), widest, lengths).flatten(1).numpy()
        where = (epoch[members, :, None] * widest + position[members]).reshape(len(order), most_steps * batch)
        chosen[members] = np.take_along_axis(order, where, 1).reshape(len(order), most_steps, batch)
    where = np.minimum(starts[:, None, None] + chosen, data.indices.numel() - 1)  # an empty last client starts beyond
    dropout = random.bits(random.key(seed, round, clients, f"{purpose}/dropout"), most_steps)
    index, sizes = torch.from_numpy(data.host_indices.numpy()[where]), torch.from_numpy(real.sum(-1, dtype=np.int64))
    return Plan(clients, torch.from_numpy(used), torch.from_numpy(steps), index, sizes, dropout)


NO_PLAN = Plan(*(torch.zeros(0, dtype=torch.int64) for _ in range(6)))


def joined(plans: Sequence[Plan]) -> Plan:
    """The plans of several stacks as that of one; what a shorter one lacks in steps or rows is padding."""
    if len(plans) == 1:
        return plans[0]
    steps, rows = (max(plan.index.shape[axis] for plan in plans) for axis in (1, 2))

    def grown(plan: Plan) -> Plan:
        short, narrow = steps - plan.index.shape[1], rows - plan.index.shape[2]
        if not short and not narrow:
            return plan
        index = torch.nn.functional.pad(plan.index, (0, narrow, 0, short))
        first = plan.index[:, :1, :1] if plan.index[:1].numel() else plan.index.new_zeros(len(plan.clients), 1, 1)
        padding = first.expand(-1, steps, rows)
        real = torch.nn.functional.pad(torch.ones_like(plan.index, dtype=torch.bool), (0, narrow, 0, short))
        sizes, keys = (torch.nn.functional.pad(each, (0, short)) for each in (plan.sizes, plan.keys))
        return replace(plan, index=torch.where(real, index, padding), sizes=sizes, keys=keys)

    columns = zip(*(vars(grown(plan)).values() for plan in plans), strict=True)
    return Plan(*(torch.cat(column) for column in columns))


def _alike(rows: Numbers, epochs: Numbers) -> Iterator[Numbers]:
    """The clients at work, in groups alike in rows and epochs within a factor of two: one table is mostly padding."""
    if (rows == rows[0]).all() and (epochs == epochs[0]).all() and epochs[0] > 0:
        yield np.arange(len(rows))
        return
    kinds = np.stack([np.ceil(np.log2(np.maximum(column, 1))) for column in (rows, epochs)], 1)
    _, kind = np.unique(kinds, axis=0, return_inverse=True)
    kind = kind.reshape(len(rows))
    for value in np.unique(kind[epochs > 0]):
        yield np.flatnonzero((kind == value) & (epochs > 0))
