"""How far clients' labels are from the population's: counts, entropies, divergences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedloom.data.federated import FederatedData
from fedloom.errors import FedloomError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Skew:
    """One number per client: the entropy of its labels in nats, and their divergence from those of all clients."""

    entropy: Floats
    kl: Floats
    total_variation: Floats
    distinct: Ints

    def summary(self) -> dict[str, float]:
        """The means over clients."""
        return {
            "label entropy": float(self.entropy.mean()),
            "KL divergence": float(self.kl.mean()),
            "total variation": float(self.total_variation.mean()),
            "distinct labels": float(self.distinct.mean()),
        }


def label_counts(data: FederatedData) -> Ints:
    """How many rows of every class each client has: clients x classes."""
    if data.classes is None or not isinstance(data.y, Tensor):
        raise FedloomError(f"{data.name}: expected a class label per row, got none")
    sizes = data.examples.cpu().numpy()
    owner = np.repeat(np.arange(data.population), sizes)
    labels = data.y.cpu()[data.indices.cpu()].numpy()
    flat = np.bincount(owner * data.classes + labels, minlength=data.population * data.classes)
    return flat.reshape(data.population, data.classes)


def label_skew(counts: Ints) -> Skew:
    """Every client's label entropy, its KL divergence D(p_k || p) and total variation |p_k - p| / 2, in nats.

    >>> label_skew(np.array([[2, 2], [4, 0]])).summary()["total variation"]
    0.25
    """
    p = counts / counts.sum(1, keepdims=True)
    population = counts.sum(0) / counts.sum()
    log_p = np.log(np.where(p > 0, p, 1.0))
    log_population = np.log(np.where(population > 0, population, 1.0))
    return Skew(
        entropy=np.asarray(-(p * log_p).sum(1) + 0.0),
        kl=np.asarray((p * (log_p - log_population)).sum(1)),
        total_variation=np.asarray(np.abs(p - population).sum(1) / 2),
        distinct=(counts > 0).sum(1),
    )
