"""A private run before its first round: held to the terms of epsilon, with a ledger and cohorts that nobody knows."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path

from fedloom import private_runs
from fedloom.accounting import Ledger, require_accounting
from fedloom.errors import FedloomError
from fedloom.sampling import cohort_size, secret_poisson
from fedloom.trial import Setup


def under_terms(setup: Setup) -> Setup:
    """The run, its expected cohort known to its noise; an error where epsilon would not describe it."""
    privacy = setup.algorithm.privacy
    if privacy is None:
        return setup
    wrong = private_runs.objection(
        sampler=setup.sampler.name,
        forced=bool(setup.sampler.forced),
        fixed_cohort=not callable(setup.cohort),
        over_selection=setup.system.over_selection,
        evaluate_on=setup.evaluate_on,
        alignment=setup.alignment,
        min_reports=setup.min_reports,
    )
    if wrong is not None:
        key, expected, got = wrong
        raise FedloomError(f"simulate {key}: expected {expected}; got {got!r}")
    require_accounting()
    size = cohort_size(setup.cohort, setup.data.population)
    if privacy.cohort not in (None, size):
        raise FedloomError(f"simulate cohort: expected private's cohort={privacy.cohort:g}, got {size}: leave that out")
    return replace(setup, algorithm=replace(setup.algorithm, privacy=replace(privacy, cohort=size, seed=setup.seed)))


def with_ledger(setup: Setup, folder: str | PathLike[str] | None) -> Setup:
    """The run, what it spends written down in `folder`, its cohorts drawn from the system's secure source."""
    privacy = setup.algorithm.privacy
    if privacy is None:
        return setup
    ledger = Ledger(privacy, setup.data.population, None if folder is None else Path(folder), setup.ranks)
    sampler = setup.sampler if privacy.seeded_noise else secret_poisson(setup.ranks)
    return replace(setup, ledger=ledger, sampler=sampler)
