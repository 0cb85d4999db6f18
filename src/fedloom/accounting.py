"""Epsilon, by dp-accounting, and the ledger of what a run has spent.

A round is the Gaussian mechanism on a Poisson sample of the clients; rounds are composed as Rényi differential privacy,
neighbours being federations that differ by one client.
"""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedloom.differences import difference
from fedloom.documents import read_json, shown
from fedloom.errors import Damaged, FedloomError, positive
from fedloom.privacy import Privacy
from fedloom.ranks import ALONE, Ranks
from fedloom.rundir import rounds_seen, write_json

LEDGER = "privacy.json"
MOST = 2**31 - 1
"""The rounds that a run may have."""


def epsilon(noise_multiplier: float, sampling_rate: float, rounds: int, delta: float) -> float:
    """What so many rounds cost: every client is drawn with probability `sampling_rate`, by itself, in each.

    >>> round(epsilon(noise_multiplier=1.0, sampling_rate=0.01, rounds=1000, delta=1e-5), 3)
    2.101
    """
    positive("epsilon noise_multiplier", noise_multiplier)
    if not 0 < sampling_rate <= 1:
        raise FedloomError(f"epsilon sampling_rate: expected a number above 0 and up to 1, got {sampling_rate!r}")
    if not 0 < delta < 1:
        raise FedloomError(f"epsilon delta: expected a number above 0 and below 1, got {delta!r}")
    if rounds == 0:
        return 0.0
    require_accounting()
    from dp_accounting import rdp

    orders, divergences = _one_round(noise_multiplier, sampling_rate)
    return float(rdp.compute_epsilon(orders, rounds * divergences, delta)[0])


def require_accounting() -> None:
    if find_spec("dp_accounting") is None:
        raise FedloomError(
            "privacy: expected dp-accounting to be installed, which computes epsilon, got none: "
            "pip install 'fedloom[privacy]'"
        )


@lru_cache(maxsize=64)
def _one_round(noise_multiplier: float, sampling_rate: float) -> tuple[Any, Any]:
    """Rényi orders, and a round's divergence at each: it takes longer than everything else."""
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant()
    mechanism = dp_accounting.GaussianDpEvent(noise_multiplier)
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)  # an order whose series does not converge is left out, which can only raise epsilon
    try:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(sampling_rate, mechanism))
    finally:
        log.setLevel(before)
    return accountant.orders, accountant.rdp


class Ledger:
    """How many noised sums a run has released. One is written down before its noise is drawn: no crash undoes it."""

    def __init__(self, privacy: Privacy, population: int, folder: Path | None = None, ranks: Ranks = ALONE) -> None:
        self.privacy = privacy
        self.sampling_rate = privacy.expected / population
        self.path = None if folder is None else folder / LEDGER
        self.charged: int = ranks.gather_json(self._spent())[0]

    def _settings(self) -> dict[str, Any]:
        return {
            "noise_multiplier": self.privacy.noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "delta": self.privacy.delta,
            "seeded_noise": self.privacy.seeded_noise,
        }

    def _spent(self) -> int:
        """What a run that goes on has spent before: at least the rounds that its directory has seen."""
        if self.path is None:
            return 0
        charged, seen = self._written(self.path) if self.path.exists() else 0, rounds_seen(self.path.parent)
        if charged < seen:
            got = f"{charged} charged" if self.path.exists() else "nothing there"
            raise Damaged(
                f"{self.path}: expected what {seen} rounds have spent, which are told of beside it, got {got}: "
                "put the file back, or begin another run and count this one besides"
            )
        return charged

    def _written(self, path: Path) -> int:
        """What the file says, under the same settings."""
        there = read_json(path)
        charged = there.pop("charged", None)
        if type(charged) is not int or not 0 <= charged <= MOST:
            raise Damaged(f"{path}: expected how many rounds the run has spent, got {shown(charged)}")
        if (found := difference(self._settings(), there)) is not None:
            key, expected, got = found
            raise FedloomError(f"{path}, {shown(key)}: expected {expected!r}, got {shown(got)}: start another run")
        return charged

    def charge(self) -> None:
        """The next round's noise is about to be drawn."""
        self.charged += 1
        if self.path is not None:
            write_json(self.path, {**self._settings(), "charged": self.charged})

    @property
    def epsilon(self) -> float:
        """Spent so far; noise that can be repeated hides nothing."""
        if self.privacy.seeded_noise:
            return math.inf
        return epsilon(self.privacy.noise_multiplier, self.sampling_rate, self.charged, self.privacy.delta)

    def figures(self) -> dict[str, Any]:
        """For the summary."""
        return {**self._settings(), "charged": self.charged, "epsilon": self.epsilon}
