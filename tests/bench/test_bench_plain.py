"""The baseline computes what the loop executor computes, given the same batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from small_federations import classification, noise, split
from torch import Tensor, nn

import fedloom as fl
from fedloom.batches import Batching, plan
from fedloom.bench.plain import PlainLoop

SIZES = [7, 4, 12]


class Small(nn.Module):
    """A convolution, a buffer and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 3, 3), nn.Linear(48, 4)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.relu(self.conv(x)).flatten(1) * self.scale)
        return logits


def test_one_round_equals_the_loop_executor() -> None:
    x = noise(sum(SIZES), 1, 6, 6, dtype=torch.float32)
    y = torch.randint(0, 4, (sum(SIZES),), generator=torch.Generator().manual_seed(1))
    data = fl.federate(x, y, split(SIZES))
    torch.manual_seed(0)
    model = Small()
    start = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    history = fl.simulate(
        fl.Task(model=Small),
        data,
        fl.fedavg(client_lr=0.1),
        rounds=1,
        cohort=3,
        batch_size=5,
        seed=3,
        executor="loop",
        params=start,
    )
    made = plan(data, torch.arange(3), Batching(batch_size=5), seed=3, round=0)

    def batches(client: int) -> Iterator[tuple[Tensor, Tensor]]:
        for index, size in zip(made.index[client], made.sizes[client].tolist(), strict=True):
            if size:
                yield x[index[:size]], y[index[:size]]

    plain = PlainLoop(model, data, cohort=3, batch_size=5, client_lr=0.1)
    loss = plain.round([2, 0, 1], batches)
    assert loss == pytest.approx(history.rounds[0]["train_loss"], abs=0.2)  # a mean over steps, and one over examples
    for name, leaf in history.state_dict().items():
        torch.testing.assert_close(plain.state[name], leaf, rtol=0, atol=1e-5)
    moved = max(float((plain.state[name] - start[name]).abs().max()) for name in start)
    assert moved > 1e-2


def test_an_epoch_is_every_row_once_in_a_new_order() -> None:
    data = classification(SIZES, dtype=torch.float32)
    plain = PlainLoop(nn.Linear(6, 4), data, cohort=2, batch_size=5, client_lr=0.1)
    plain.x = torch.arange(sum(SIZES))
    epochs = [[x.tolist() for x, _ in plain.epoch(2)] for _ in range(3)]
    assert all([len(batch) for batch in epoch] == [5, 5, 2] for epoch in epochs)
    orders = [[row for batch in epoch for row in batch] for epoch in epochs]
    assert all(sorted(order) == list(range(11, 23)) for order in orders)
    assert orders[0] != orders[1] or orders[1] != orders[2]


def test_clients_start_from_the_global_state_and_train_with_dropout() -> None:
    """With a rate of zero nothing moves, whoever trains; dropout makes the losses differ all the same."""
    data = classification(SIZES, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
    plain = PlainLoop(model.eval(), data, cohort=2, batch_size=5, client_lr=0.0)
    before = {name: leaf.clone() for name, leaf in plain.state.items()}
    losses = {plain.round([0, 1, 2]) for _ in range(4)}
    assert len(losses) > 1
    for name, leaf in before.items():
        torch.testing.assert_close(plain.state[name], leaf)
