"""A private run before its first round: held to the terms of epsilon, with a ledger and cohorts that nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from fedloom import private_runs
from fedloom.accounting import Ledger, require_accounting
from fedloom.algorithm import Algorithm
from fedloom.errors import FedloomError
from fedloom.privacy import Privacy
from fedloom.ranks import ALONE, Ranks
from fedloom.sampling import Sampler, cohort_size, secret_poisson
from fedloom.trial import Setup


def under_terms(setup: Setup) -> Setup:
    """The run, its expected cohort known to its noise; an error where epsilon would not describe it."""
    algorithm = on_terms(
        *("simulate", setup.algorithm, setup.data.population, setup.cohort, setup.sampler, setup.seed),
        over_selection=setup.system.over_selection,
        evaluate_on=setup.evaluate_on,
        alignment=setup.alignment,
        min_reports=setup.min_reports,
    )
    return replace(setup, algorithm=algorithm)


def on_terms(
    where: str,
    algorithm: Algorithm,
    population: int,
    cohort: int | float | Callable[[int], int],
    sampler: Sampler,
    seed: int,
    *,
    over_selection: float = 1.0,
    evaluate_on: Sequence[str] = (),
    alignment: bool = False,
    min_reports: int = 1,
) -> Algorithm:
    """The algorithm, the expected cohort known to its noise; an error where epsilon would not describe such a run."""
    privacy = algorithm.privacy
    if privacy is None:
        return algorithm
    wrong = private_runs.objection(
        sampler=sampler.name,
        forced=bool(sampler.forced),
        fixed_cohort=not callable(cohort),
        over_selection=over_selection,
        evaluate_on=evaluate_on,
        alignment=alignment,
        min_reports=min_reports,
    )
    if wrong is not None:
        key, expected, got = wrong
        raise FedloomError(f"{where} {key}: expected {expected}; got {got!r}")
    require_accounting()
    size = cohort_size(cohort, population)
    if privacy.cohort not in (None, size):
        raise FedloomError(f"{where} cohort: expected private's cohort={privacy.cohort:g}, got {size}: leave that out")
    return replace(algorithm, privacy=replace(privacy, cohort=size, seed=seed))


def with_ledger(setup: Setup, folder: str | PathLike[str] | None) -> Setup:
    """The run, what it spends written down in `folder`, its cohorts drawn from the system's secure source."""
    privacy = setup.algorithm.privacy
    if privacy is None:
        return setup
    ledger, sampler = opened(privacy, setup.data.population, setup.sampler, folder, setup.ranks)
    return replace(setup, ledger=ledger, sampler=sampler)


def opened(
    privacy: Privacy, population: int, sampler: Sampler, folder: str | PathLike[str] | None, ranks: Ranks = ALONE
) -> tuple[Ledger, Sampler]:
    """The ledger in `folder`, and the sampler whose draws nobody knows."""
    ledger = Ledger(privacy, population, None if folder is None else Path(folder), ranks)
    return ledger, sampler if privacy.seeded_noise else secret_poisson(ranks)
