"""Who is asked in a round and who of them reports: a function of (seed, round), and of what the sampler has observed.

One that observes nothing needs no training to be asked. So a run's clock can be told afterwards, and another one's
than it had, where nobody waited for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedloom import random
from fedloom.batches import Batching
from fedloom.data.federated import FederatedData
from fedloom.faults import Faults
from fedloom.sampling import Drawn, Sampler, cohort_size
from fedloom.system import Reports, System
from fedloom.types import PartState


@dataclass(frozen=True)
class Asked:
    """Those asked in a round, in the order they were drawn in, and those of them who report."""

    reporting: Drawn
    reports: Reports
    work: Tensor  # the examples that each of those asked goes through
    crashed: Tensor  # a mask of those asked who worked for nothing


@dataclass(frozen=True)
class Asking:
    """How clients come to take part."""

    data: FederatedData
    batching: Batching
    cohort: int | float | Callable[[int], int]
    seed: int
    sampler: Sampler
    system: System
    faults: Faults = field(default_factory=Faults)
    whole: bool = False  # a client goes through its rows once, whatever its batches: an exact gradient

    @property
    def most(self) -> float:
        """The largest cohort: with replacement there is no bound."""
        return math.inf if self.sampler.each_draw_counts else self.data.population

    @cached_property
    def used(self) -> Tensor:
        """The examples of each client that are used at all."""
        return self.batching.counts(self.data.sizes)[0]

    @cached_property
    def through(self) -> Tensor:
        """How many examples each client goes through in a round."""
        return self.used if self.whole else self.batching.rows(self.data.sizes)

    @cached_property
    def drawn_by(self) -> Tensor:
        """What a client's chance to be drawn goes by, where the sampler minds."""
        weighed = self.data.weighed(self.used)
        return self.used if weighed is None else weighed

    def ask(self, t: int, state: PartState) -> Asked:
        """Round t's cohort; `state` is what the sampler knows by then."""
        system, faults, population = self.system, self.faults, self.data.population
        goal = cohort_size(self.cohort, population, t, self.most)
        here = self.drawn_by
        if system.availability < 1:
            here = torch.where(system.available(self.seed, t, population), here, 0)
        key = random.key(self.seed, t, 0, "cohort")
        drawn = self.sampler.cohort(t, key, system.asked(goal), here, state)
        work, asked = self.through[drawn.clients], drawn.clients
        crashed = faults.struck("crash", t, asked)
        gone = crashed | faults.struck("dropout", t, asked)
        reports = system.reports(self.seed, t, asked, faults.slowed(t, asked, work), goal, gone)
        return Asked(drawn.only(reports.mask), reports, work, crashed)
