"""The clients as devices: away, dropping out, slow. Who reports in a round, and how long it would have taken.

Nothing here reads a clock: a client's time is drawn from (seed, round, client) by Charles et al.'s straggler model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom import random
from fedloom.errors import FedloomError, fraction, non_negative, positive


@dataclass(frozen=True)
class System:
    """How devices behave, all of it off by default.

    `availability`: the share of clients that can be asked at all, drawn anew each round. `dropout`: the share of those
    asked that never report. `straggling`: lambda of the clock X_k = n_k + lambda n_k Z_k, Z_k exponential with mean
    one, in units of an example's time (None: no clock). `over_selection`: how many times the cohort is asked, the first
    `cohort` to finish being taken. `deadline`: later clients are dropped.

    >>> System(availability=0.8, straggling=1.0, deadline=500.0).needs_clock
    True
    """

    availability: float = 1.0
    dropout: float = 0.0
    straggling: float | None = None
    over_selection: float = 1.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        fraction("availability", self.availability)
        fraction("dropout", self.dropout)
        if not isinstance(self.over_selection, int | float) or not 1 <= self.over_selection < math.inf:
            raise FedloomError(f"over_selection: expected a number of at least 1, got {self.over_selection!r}")
        if self.straggling is not None:
            non_negative("straggling", self.straggling)
        if self.deadline is not None:
            positive("deadline", self.deadline)
        if self.straggling is None and self.needs_clock:
            given = "deadline" if self.deadline is not None else "over_selection"
            raise FedloomError(f"{given}: expected a clock to go by: set straggling (0 for none), got None")

    @property
    def needs_clock(self) -> bool:
        return self.deadline is not None or self.over_selection > 1

    def asked(self, goal: int) -> int:
        """How many clients are asked so that `goal` report."""
        return math.ceil(goal * self.over_selection)

    def available(self, seed: int, round: int, population: int) -> Tensor:
        """Who can be asked this round."""
        if self.availability == 1:
            return torch.ones(population, dtype=torch.bool)
        return _draw(seed, round, torch.arange(population), "available") < self.availability

    def reports(
        self, seed: int, round: int, clients: Tensor, work: Tensor, goal: int, gone: Tensor | None = None
    ) -> Reports:
        """Which of `clients` report, `work` being the examples each goes through; those that are `gone` never do."""
        alive = torch.ones_like(clients, dtype=torch.bool) if gone is None else ~gone
        if self.dropout > 0:
            alive = alive & (_draw(seed, round, clients, "dropout") >= self.dropout)
        if self.straggling is None:
            return Reports(alive, None)
        times = finishing_times(work, -torch.log1p(-_draw(seed, round, clients, "clock")), self.straggling)
        counted = torch.where(alive, times, math.inf)
        if self.deadline is not None:
            counted = torch.where(times <= self.deadline, counted, math.inf)
        first = counted.argsort(stable=True)[: goal if self.over_selection > 1 else None]
        reports = torch.zeros_like(alive).index_fill(0, first, True) & counted.isfinite()
        seconds = float(times[reports].max()) if bool(reports.any()) else 0.0
        if self.deadline is not None and int(reports.sum()) < min(goal, len(clients)):
            seconds = self.deadline  # the server waited for somebody who did not come
        return Reports(reports, seconds)


@dataclass(frozen=True)
class Reports:
    """A mask over the clients asked, and the round's time where there is a clock."""

    mask: Tensor
    seconds: float | None


def finishing_times(work: Tensor, z: Tensor, straggling: float, per_example: float = 1.0) -> Tensor:
    """X_k = a n_k + lambda n_k Z_k (Charles et al. 2021).

    >>> finishing_times(torch.tensor([10, 20]), torch.tensor([0.5, 0.1]), 1.0)
    tensor([15., 22.])
    """
    return per_example * work + straggling * work * z


def _draw(seed: int, round: int, clients: Tensor, purpose: str) -> Tensor:
    return random.uniform(random.key(seed, round, clients, f"system/{purpose}"), 1)[..., 0]
