"""What the papers printed, and when a measured number matches it. Nothing that trains reads this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fedloom.errors import FedloomError, choose, cut
from fedloom.experiments import mistakes, schema
from fedloom.experiments.measures import Measured
from fedloom.experiments.results import Key, Result, key, places_of
from fedloom.experiments.schema import Experiment
from fedloom.experiments.section import NonNegative, Number, Section, Text
from fedloom.experiments.study import Study
from fedloom.experiments.study_sections import FULL, MEASURE, Cell, Measure
from fedloom.toml_text import parse

PUBLISHED, CONFLICTS = "published.toml", "conflicts.toml"

_ABOUT = ("data", "models", "algorithms")


class Published(Section):
    """A number of a paper: its cell, its value with its spread; for a target never reached, `best` alone."""

    cell: Cell = Field(default_factory=dict)
    measure: Text | None = None
    value: Number | Text | None = None
    std: NonNegative | None = None
    best: Number | None = None

    @property
    def place(self) -> Cell:
        return self.cell if self.measure is None else {**self.cell, MEASURE: self.measure}


@dataclass(frozen=True)
class Conflict:
    """Where a paper disagrees with itself or its code, and the reading that is run."""

    id: str
    conflict: str
    reading: str
    about: Mapping[str, Sequence[str]] = field(default_factory=dict)  # data, models, algorithms: told of these alone

    def concerns(self, experiments: Iterable[Experiment]) -> bool:
        """Whether it is about one of them."""

        def names(experiment: Experiment) -> dict[str, str]:
            [algorithm] = experiment.algorithms
            return {"data": experiment.data.name, "models": experiment.model.name, "algorithms": algorithm.name}

        return any(all(names(each)[kind] in among for kind, among in self.about.items()) for each in experiments)


def published(study: Study, beside: Path | Traversable | None = None) -> list[Published]:
    """The numbers a paper printed for a study: in `published.toml` beside the study's file, or in the package."""
    tables: list[tuple[str, dict[str, Any]]] = []
    if isinstance(beside, Path) and (own := beside.with_name(PUBLISHED)).is_file():
        tables.append((str(own), parse(str(own), schema.text_of(own))))
    for name, table in (*tables, *_shipped()):
        if study.id in table:
            return _read(study, name, table[study.id])
    return []


@cache
def _shipped() -> list[tuple[str, dict[str, Any]]]:
    """The package's own numbers, a table for each paper."""
    papers = [folder for folder in files("fedloom.experiments").iterdir() if folder.is_dir()]
    found = [(paper.name, paper / PUBLISHED) for paper in papers]
    return [(f"{name}/{PUBLISHED}", parse(PUBLISHED, schema.text_of(file))) for name, file in found if file.is_file()]


def _read(study: Study, name: str, rows: Any) -> list[Published]:
    found: list[Published] = []
    places = None if study.facts else {key(place): place for place in places_of(study.at(FULL))}
    if not isinstance(rows, list):
        raise FedloomError(f"{name}, {study.id}: expected a list of numbers, got {mistakes.shown(rows)}")
    for number, row in enumerate(rows):
        try:
            each = Published.model_validate(row)
        except ValidationError as error:
            _, message = mistakes.told(error.errors(include_url=False)[0], row)
            raise FedloomError(f"{name}, {study.id}.{number}: {message}") from None
        if places is not None and key(each.place) not in places:
            raise FedloomError(
                f"{name}, {study.id}.{number}: expected a cell of the study, with its axes "
                f"{', '.join(next(iter(places.values()), {}))}; got {cut(each.place)}, which is none"
            )
        found.append(each)
    return found


def conflicts(ids: Sequence[str]) -> list[Conflict]:
    """What is said of these conflicts.

    >>> conflicts(["D-33"])[0].conflict
    'angles are smoothed by the number of rounds; of clients that were away nothing is said'
    """
    known = parse(CONFLICTS, schema.text_of(files("fedloom.experiments") / CONFLICTS))
    for name in ids:
        if name not in known:
            raise choose("conflicts", name, known)
    return [
        Conflict(
            name,
            known[name]["conflict"],
            known[name]["reading"],
            {kind: known[name][kind] for kind in _ABOUT if kind in known[name]},
        )
        for name in ids
    ]


def match(found: Sequence[Result], numbers: Sequence[Published]) -> Mapping[Key, Published]:
    """The published numbers by the place of the result they stand beside."""
    places = {key(result.cell) for result in found}
    return {key(each.place): each for each in numbers if key(each.place) in places}


def matched(measure: Measure, measured: Measured, number: Published) -> bool | None:
    """Whether a measured number matches the published one; None where nothing can be said.

    Within twice the published spread, or the measure's margin (1.5 points, for a percentage), whichever is more; rounds
    to a target within 15 percent. A target that most seeds did not reach matches one that the paper did not, if the
    best value does.
    """
    if isinstance(number.value, str):
        return None
    if measured.diverged and not measured.complete:
        return False
    if number.value is None:
        if number.best is None:
            return None
        return measured.unreached and measured.best is not None and abs(measured.best - number.best) <= 1.5
    if not measured.complete or measured.value is None:
        return False
    away = abs(measured.value - number.value)
    bounds = [2 * number.std] if number.std is not None else []
    bounds += [measure.margin] if measure.margin is not None else []
    bounds += [measure.share * abs(number.value)] if measure.share is not None else []
    return away <= max(bounds) + 1e-9 if bounds else None


def matched_in(study: Study, result: Result, number: Published) -> bool | None:
    """The same of a study's result; None where it has not all its runs, or not the paper's setting."""
    compared = result.whole and study.compares(result.cell)
    return matched(result.measure, result.measured, number) if compared else None
