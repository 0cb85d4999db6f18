"""Which settings win: a run's score, the best of many, and whether it lies at the edge of what was tried."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.errors import choose
from fedloom.experiments.tune_file import Axis, TuneSection

Record = Mapping[str, Any]

LAST = {"validation": 10, "last": 100}
"""Rounds at the end that are averaged: 100 in Reddi et al. 2020."""


@dataclass(frozen=True)
class Rule:
    """What is compared: a metric's mean over the last rounds, or the training loss of the first ones."""

    select: str
    metric: str
    last: int | None  # None: all the rounds there are

    @staticmethod
    def of(tune: TuneSection, measured: Collection[str]) -> Rule:
        """The rule of a file, its metric among those that are measured."""
        if tune.select == "train_loss":
            return Rule("train_loss", "train_loss", None)
        prefix = "validation" if tune.select == "validation" else "test"
        usual = f"{prefix}_accuracy" if f"{prefix}_accuracy" in measured else f"{prefix}_loss"
        metric = tune.metric or usual
        if tune.metric is not None and metric not in measured:
            raise choose("tune.metric", metric, measured)
        return Rule(tune.select, metric, tune.last or LAST[tune.select])

    @property
    def lower(self) -> bool:
        """Whether less is better."""
        return "loss" in self.metric or "error" in self.metric

    def score(self, records: Sequence[Record], rounds: int) -> float | None:
        """The mean over the rounds that count; None where one of them is not finite, or there is none.

        >>> records = [{"round": t, "test_accuracy": t / 10} for t in range(5)]
        >>> Rule("last", "test_accuracy", 2).score(records, 5)
        0.35
        """
        begin = 0 if self.last is None else rounds - self.last
        told = [record for record in records if record["round"] >= begin and self.metric in record]
        values = [record[self.metric] for record in told]
        if not values or any(value is None or not math.isfinite(value) for value in values):
            return None
        return statistics.fmean(values)

    def best(self, scores: Sequence[float | None]) -> int | None:
        """The place of the best score, of equal ones the first; None where there is none.

        >>> Rule("train_loss", "train_loss", None).best([0.5, None, 0.2, 0.2])
        2
        """
        sign = 1.0 if self.lower else -1.0
        known = [(sign * score, place) for place, score in enumerate(scores) if score is not None]
        return min(known)[1] if known else None


def edges(axes: Mapping[str, Axis], settings: Mapping[str, Any]) -> list[str]:
    """The settings that are the smallest or the largest of what was tried.

    >>> edges({"client_lr": Axis((0.1, 1.0, 10.0)), "option": Axis(("I", "II"))}, {"client_lr": 10.0, "option": "I"})
    ['client_lr = 10 (the largest tried)']
    """
    found = []
    for key, axis in axes.items():
        if not axis.numeric or len(axis.values) < 2:
            continue
        for which, value in (("smallest", min(axis.values)), ("largest", max(axis.values))):
            if settings[key] == value:
                found.append(f"{key} = {value:g} (the {which} tried)")
    return found
