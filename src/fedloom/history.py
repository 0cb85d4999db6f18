"""A run's outcome, and the figures papers take from it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fedloom.errors import Diverged, choose
from fedloom.types import Params, State


@dataclass
class History:
    """A run's outcome: one dict per round, the final model, the server's state, what was resolved."""

    rounds: list[dict[str, Any]] = field(default_factory=list)
    params: Params = field(default_factory=dict)
    buffers: Params = field(default_factory=dict)
    constants: Params = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # keys of the module's state -> leaves
    state: State | None = None
    resolved: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    diverged: Diverged | None = None  # why a trial among others ended early

    def state_dict(self) -> Params:
        """Everything `nn.Module.load_state_dict` needs: what was trained, what was averaged, what was frozen."""
        leaves = {**self.constants, **self.params, **self.buffers}
        return {key: leaves[name] for key, name in self.names.items()}

    def values(self, metric: str) -> list[tuple[int, float]]:
        """(round, value) of every round the metric was measured in; a NaN, as of a round without clients, is none."""
        found = [(record["round"], record.get(metric)) for record in self.rounds]
        return [(round, value) for round, value in found if value is not None and value == value]

    def _measured(self, metric: str) -> list[tuple[int, float]]:
        values = self.values(metric)
        if not values:
            raise choose("metric", metric, {name for record in self.rounds for name in record})
        return values

    def last(self, metric: str, count: int = 10) -> float:
        """The mean over the last `count` measured rounds: 10 in FedGLAD's paper, 100 in Reddi et al.'s.

        >>> History([{"round": t, "test_accuracy": t / 10} for t in range(5)]).last("test_accuracy", 2)
        0.35
        """
        return statistics.fmean(value for _, value in self._measured(metric)[-count:])

    def best(self, metric: str) -> float:
        return max(value for _, value in self._measured(metric))

    def rounds_to(self, metric: str, target: float) -> int | None:
        """How many rounds it took until the metric was first at least `target`; None when it never was.

        >>> records = [{"round": 0, "test_accuracy": 0.5}, {"round": 1, "test_accuracy": 0.9}]
        >>> History(records).rounds_to("test_accuracy", 0.9)
        2
        """
        return next((round + 1 for round, value in self.values(metric) if value >= target), None)

    def catastrophic(self, metric: str = "train_accuracy", chance: float = 0.0) -> bool:
        """Whether the metric ever halved from one round to the next (Charles et al. 2021), where it was above chance.

        >>> History([{"round": 0, "train_accuracy": 0.8}, {"round": 1, "train_accuracy": 0.3}]).catastrophic()
        True
        """
        values = [value for _, value in self.values(metric)]
        return any(before > chance and after <= 0.5 * before for before, after in pairwise(values))
