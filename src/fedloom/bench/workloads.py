"""What is timed: models and cohorts of the papers' shapes, on seeded rows made in memory.

The table can be read without torch, so that a mistyped name is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fedloom as fl

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Rows = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]

SEED = 0
CHARACTERS = 86
"""Of Shakespeare's plays; 0 is padding, which a full sequence has none of."""


@dataclass(frozen=True)
class Workload:
    """One epoch of FedAvg by every client of a cohort: model, rows, sizes.

    >>> WORKLOADS["W1"].steps, WORKLOADS["W6"].steps
    (10, None)
    """

    name: str
    about: str
    model: Callable[[], nn.Module]
    rows: Rows  # features and targets of so many rows
    population: int
    cohort: int
    batch_size: int
    client_lr: float
    examples: int | None = None  # of every client; None: as unequal as writers are
    shared: int | None = None  # all clients own these many rows together; None: each has its own

    @property
    def steps(self) -> int | None:
        """A client's local steps in a round; None where clients differ."""
        return None if self.examples is None else -(-self.examples // self.batch_size)

    def sizes(self) -> Tensor:
        """The number of rows of every client."""
        import torch

        return writers(self.population) if self.examples is None else torch.full((self.population,), self.examples)

    def data(self) -> fl.FederatedData:
        """The federation; without a test set, so that a round is training alone."""
        import torch

        sizes = self.sizes()
        owned = int(sizes.sum())
        x, y = self.rows(self.shared or owned, torch.Generator().manual_seed(SEED))
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return fl.FederatedData(x=x, y=y, indices=torch.arange(owned) % len(y), offsets=offsets, name=self.name)

    def task(self) -> fl.Task:
        return fl.Task(model=self.model)

    def algorithm(self) -> fl.Algorithm:
        return fl.fedavg(client_lr=self.client_lr)

    def settings(self) -> dict[str, Any]:
        """Keyword arguments for `fl.simulate`."""
        return {"cohort": self.cohort, "epochs": 1, "batch_size": self.batch_size, "seed": SEED}


def writers(population: int) -> Tensor:
    """1 to 400 examples, log-normal: most writers have little, a few have very much."""
    import torch

    normal = torch.randn(population, generator=torch.Generator().manual_seed(SEED))
    return (60 * normal.exp()).round().long().clamp(1, 400)


def patterns(*shape: int, classes: int) -> Rows:
    """A pattern per class under as much noise: something to learn, so that no rate diverges."""

    def make(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        import torch

        pattern = torch.rand(classes, *shape, generator=generator)
        y = torch.randint(0, classes, (rows,), generator=generator)
        return torch.rand(rows, *shape, generator=generator).lerp_(pattern[y], 0.5), y

    return make


def sequences(length: int) -> Rows:
    """Characters that each follow from the one before, up to a choice of three; targets are the next ones."""

    def make(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        import torch

        moves = torch.randint(1, 4, (rows, length + 1), generator=generator)
        start = torch.randint(0, CHARACTERS, (rows, 1), generator=generator)
        characters = 1 + (start + moves.cumsum(1)) % CHARACTERS
        return characters[:, :-1].contiguous(), characters[:, 1:].contiguous()

    return make


def _emnist_cnn() -> nn.Module:
    return fl.models.EmnistCNN(62)


def _logistic() -> nn.Module:
    return fl.models.Logistic(784, 10)


def _lstm() -> nn.Module:
    return fl.models.ShakespeareLSTM()


def _resnet() -> nn.Module:
    return fl.models.ResNet18GN(100)


_EMNIST = patterns(1, 28, 28, classes=62)
_MNIST = patterns(784, classes=10)
_CIFAR = patterns(3, 24, 24, classes=100)
_TABLE = (  # population, cohort, batch size, client_lr, examples of each client
    Workload("W1", "EMNIST CNN, 10 clients x 10 steps x 20", _emnist_cnn, _EMNIST, 100, 10, 20, 0.1, 200),
    Workload("W2", "784-10 regression, 100 clients x 10 steps x 10", _logistic, _MNIST, 1000, 100, 10, 0.1, 100),
    Workload("W3", "Shakespeare LSTM, 10 clients x 5 steps x 4", _lstm, sequences(80), 100, 10, 4, 0.5, 20),
    Workload("W4", "EMNIST CNN, 100 clients x 10 steps x 20", _emnist_cnn, _EMNIST, 400, 100, 20, 0.1, 200),
    Workload("W5", "ResNet-18, 10 clients x 5 steps x 20", _resnet, _CIFAR, 100, 10, 20, 0.03, 100),
    Workload("W5-50", "ResNet-18, 50 clients x 5 steps x 20", _resnet, _CIFAR, 200, 50, 20, 0.03, 100),
    Workload("W6", "EMNIST CNN, 800 clients of 1 to 400 examples", _emnist_cnn, _EMNIST, 1600, 800, 20, 0.1),
)
WORKLOADS = {workload.name: workload for workload in _TABLE}
ON_A_CPU = ("W1", "W2", "W3")
"""What a processor does in about two minutes; a large GPU does all."""
