"""What a run with differential privacy may be: the terms under which epsilon holds, and what its records may say.

Nothing here imports torch: an experiment file is held to the same terms before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

COVERED = ("round", "pseudo_gradient_norm", "clip_norm")
"""Numbers of a round that follow from noised ones alone."""

ADAPTIVE = ("unclipped_fraction",)
"""What is noised besides, where the clip norm adapts."""

TRAINING = ("train", "clients")
"""Evaluations that read the training clients' rows."""


def objection(
    *,
    sampler: str,
    forced: bool,
    fixed_cohort: bool,
    over_selection: float,
    evaluate_on: Collection[str],
    alignment: bool,
    min_reports: int | None,
) -> tuple[str, str, Any] | None:
    """The first setting that epsilon does not allow: its key, what was expected, what was got.

    >>> run = {"forced": False, "fixed_cohort": True, "over_selection": 1.0, "evaluate_on": (), "alignment": False}
    >>> objection(sampler="uniform", min_reports=None, **run)
    ('sampler', "'poisson' with privacy: every client is drawn by itself", 'uniform')
    """
    if sampler != "poisson":
        return "sampler", "'poisson' with privacy: every client is drawn by itself", sampler
    if forced:
        return "forced", "no cohorts by choice with privacy", "some"
    if not fixed_cohort:
        return "cohort", "a number or a fraction with privacy, the same in every round", "one that changes"
    if over_selection > 1:
        return "over_selection", "1 with privacy: who is taken must not depend on others", over_selection
    for name in evaluate_on:
        if name in TRAINING:
            return "evaluate_on", "'test' or 'validation' with privacy: the others read training clients' rows", name
    if alignment:
        return "alignment", "false with privacy: angles are single clients'", True
    if (min_reports or 1) > 1:
        return "min_reports", "1 with privacy: whether a round is void would tell how many came", min_reports
    return None


def covered(record: Mapping[str, Any], adaptive: bool) -> dict[str, Any]:
    """What a private run records of a round: all else would tell of its clients without noise."""
    kept = (*COVERED, *ADAPTIVE) if adaptive else COVERED
    return {name: record[name] for name in kept if name in record}
