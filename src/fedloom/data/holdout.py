"""Clients kept for validation: a rate is chosen by people whom the model was not trained on."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from fedloom import random
from fedloom.data.federated import FederatedData
from fedloom.errors import FedloomError


def hold_out(data: FederatedData, share: float = 0.2, seed: int = 0) -> FederatedData:
    """The same data without a share of its clients, whose rows are kept to validate on (Charles et al. 2021).

    Ids are shuffled by the seed; the first ceil((1 - share) N) train. `simulate(evaluate_on=["validation"])` measures
    `validation_accuracy` and the like on the rows of the others that no training client has.

    >>> from fedloom.data.federated import federate
    >>> data = hold_out(federate(torch.zeros(10, 1), torch.zeros(10), torch.arange(10).split(2)), 0.2)
    >>> data.population, len(data.held_out)
    (4, 2)
    """
    training = math.ceil((1 - share) * data.population - 1e-9)
    if not 0 < training < data.population:
        raise FedloomError(
            f"{data.name}, validation: expected a share that leaves clients on both sides, got {share:g} of "
            f"{data.population}"
        )
    order = random.permutation(random.key(seed, 0, 0, "validation"), data.population)
    parts = [data.rows(int(client)) for client in order[:training].sort().values]
    indices = torch.cat(parts)
    others = torch.cat([data.rows(int(client)) for client in order[training:]]).unique()
    own = others[~torch.isin(others, indices)]
    if not len(own):
        raise FedloomError(
            f"{data.name}, validation: expected rows that no training client has, got none: clients overlap"
        )
    return replace(
        data,
        indices=indices,
        offsets=_offsets([len(part) for part in parts]).to(indices.device),
        held_out=own,
        test_strangers=data.client_test is not None,  # it has the others too
    )


def _offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)
