"""Names in a study's file that must agree: axes, their values, measures, and what refers to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedloom.errors import FedloomError, choose
from fedloom.experiments.study_sections import COLUMN, FULL, MEASURE, ROW, Chosen, Claim

if TYPE_CHECKING:
    from fedloom.experiments.study import Study


def check_names(study: Study) -> None:
    axes = [axis.name for axis in study.axes]
    _check_different("axes", axes)
    _check_different("measures", [measure.name for measure in study.measures])
    if MEASURE in axes:
        raise FedloomError(f"axes: expected another name than {MEASURE!r}, which the measures have")
    for axis in study.axes:
        _check_different(f"axis {axis.name!r}, values", axis.names())
    every = [*axes, MEASURE] if study.facts is None else [ROW, COLUMN]
    for place in ("rows", "columns"):
        _check_known(f"table.{place}", getattr(study.table, place), every)
    if study.figure is not None:
        shown = [*(axis.name for axis in study.shown), MEASURE]
        _check_known("figure.panels", study.figure.panels, shown)
        _check_known("figure.lines", study.figure.lines, shown)
        if study.figure.measure is not None:
            _check_known("figure.measure", [study.figure.measure], study.values(MEASURE))
        if study.figure.kind != "curves":
            _check_known("figure.x", study.figure.across[:1], axes)
        elif MEASURE in (*study.figure.panels, *study.figure.lines):
            raise FedloomError(f"figure: expected metrics beside kind = 'curves', got the axis {MEASURE!r}")
        _check_chosen(study, "figure.level", study.figure.level)
    _check_chosen(study, "only", dict(study.only))
    _check_known("--only", study.asked, axes)
    _check_chosen(study, "--only", dict(study.asked))
    for number, where in enumerate(study.where):
        _check_chosen(study, f"where.{number}", where.cell)
    for name, scale in study.scales.items():
        _check_chosen(study, f"scales.{name}.only", dict(scale.only))
        for number, where in enumerate(scale.where):
            _check_chosen(study, f"scales.{name}.where.{number}", where.cell)
    if study.scale != FULL:
        _check_known("scale", [study.scale], [FULL, *study.scales])
    for measure in study.measures:
        _check_chosen(study, f"measure {measure.name!r}, over", dict(measure.over))
        _check_chosen(study, f"measure {measure.name!r}, where", measure.where)
        if measure.kind == "chosen":
            _check_known(f"measure {measure.name!r}, metric", [measure.metric], [axis.name for axis in study.searched])
    for claim in study.claims:
        _check_claim(study, claim)
    kinds = {(axis.best, axis.by) for axis in study.searched}
    if len(kinds) > 1:
        raise FedloomError("axes: expected the same best and by in all that are searched, which are searched together")
    for _, by in kinds:
        _check_known("by", [by or study.measures[0].name], study.values(MEASURE))


def _check_claim(study: Study, claim: Claim) -> None:
    where = f"claim {claim.text!r}"
    axes = [axis.name for axis in study.shown] if study.facts is None else [ROW]
    _check_chosen(study, where, claim.where)
    if claim.axis is not None:
        _check_known(f"{where}, axis", [claim.axis], [*axes, MEASURE])
        _check_known(f"{where}, {claim.axis!r}", claim.named(), study.values(claim.axis))
    if study.facts is not None:
        if claim.measure is None:
            raise FedloomError(f"{where}, measure: expected the column that is meant, got none")
    elif claim.measure is not None:
        _check_known(f"{where}, measure", [claim.measure], study.values(MEASURE))


def _check_chosen(study: Study, where: str, chosen: Chosen) -> None:
    axes = [axis.name for axis in study.axes] if study.facts is None else [ROW]
    _check_known(where, list(chosen), [*axes, MEASURE])
    for axis, want in chosen.items():
        _check_known(f"{where}, {axis!r}", [want] if isinstance(want, str) else want, study.values(axis))


def _check_known(where: str, got: Iterable[str], allowed: Iterable[str]) -> None:
    allowed = list(allowed)
    for name in got:
        if name not in allowed:
            raise choose(where, name, allowed)


def _check_different(where: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FedloomError(f"{where}: expected different names, got {twice!r} twice")
