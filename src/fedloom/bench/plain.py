"""The baseline: FedAvg as one writes it with PyTorch alone, a loop over clients, sharing no code with our executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.data.federated import FederatedData

Batches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]
"""A client's batches of one round."""


class PlainLoop:
    """One model that every client of the cohort trains in turn, from the global state; their states' weighted mean.

    >>> data = FederatedData(torch.ones(4, 2), torch.tensor([0, 1, 1, 1]), torch.arange(4), torch.tensor([0, 1, 4]))
    >>> loop = PlainLoop(nn.Linear(2, 2), data, cohort=2, batch_size=2, client_lr=0.1)
    >>> loop.round() > 0
    True
    """

    def __init__(
        self,
        model: nn.Module,
        data: FederatedData,
        cohort: int,
        batch_size: int,
        client_lr: float,
        device: torch.device | str = "cpu",
    ) -> None:
        data = data.to(device)
        assert isinstance(data.x, Tensor) and isinstance(data.y, Tensor)
        self.x, self.y, self.indices = data.x, data.y, data.indices
        self.offsets: list[int] = data.offsets.tolist()  # on the host: reading them off a device would wait for it
        self.cohort, self.batch_size = cohort, batch_size
        self.model = model.to(device).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=client_lr)
        self.state = {name: leaf.clone() for name, leaf in self.model.state_dict().items()}

    def round(self, clients: Sequence[int] | None = None, batches: Batches | None = None) -> float:
        """One round; the mean loss over all steps. Clients and batches are drawn anew unless given."""
        if clients is None:
            clients = torch.randperm(len(self.offsets) - 1)[: self.cohort].tolist()
        examples = {client: self.offsets[client + 1] - self.offsets[client] for client in clients}
        everything = sum(examples.values())
        mean = {name: torch.zeros_like(leaf) for name, leaf in self.state.items()}
        losses = []
        for client in clients:
            self.model.load_state_dict(self.state)
            for x, y in (batches or self.epoch)(client):
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
            for name, leaf in self.model.state_dict().items():
                mean[name].add_(leaf, alpha=examples[client] / everything)
        self.state = mean
        return float(torch.stack(losses).mean())

    def epoch(self, client: int) -> Iterable[tuple[Tensor, Tensor]]:
        """The client's rows in a new order, gathered once and cut into batches."""
        rows = self.indices[self.offsets[client] : self.offsets[client + 1]]
        rows = rows[torch.randperm(len(rows), device=rows.device)]
        return zip(self.x[rows].split(self.batch_size), self.y[rows].split(self.batch_size), strict=True)
