"""A study: a table or a figure of a paper as a file, and the runs it stands for.

```toml
id = "fedadp-table1"                     # also the file's name
paper = "Wu and Wang 2021, table 1"
title = "Rounds until FedAvg and FedAdp reach the target"
conflicts = ["D-31"]                     # what experiments/conflicts.toml says of the paper and how it is read
partition_per_seed = true                # data.seed is the run's seed

[experiment]                             # what all cells share: an experiment with one [experiment.algorithm]
rounds = 300
cohort = 10
data = { name = "mnist", partition = "class_mix" }
model = { name = "mnist_cnn" }
algorithm = { name = "fedavg", client_lr = 0.01 }

[[axes]]                                 # the cells are all combinations of the axes' values
name = "method"
values.FedAvg = {}
values.FedAdp = { "algorithm.name" = "fedadp" }

[[where]]                                # what depends on several axes, or does not exist
cell = { method = "FedAdp", "data set" = "MNIST" }
set = { "algorithm.alpha" = 5 }

[[measures]]
name = "rounds"
kind = "rounds_to"

[scales.smoke]
says = "one seed, two rounds"
set = { seeds = [0], rounds = 2 }
only = { "data set" = ["MNIST"] }
```

A key is a path into [experiment], in quotes where it has a dot; its value takes the place of what is there. Later ones
win: [experiment], the axes in order, [[where]], the scale, `--set`. Published numbers stand in `published.toml` beside
the file and are read only to be printed beside what was measured. docs/experiments.md tells it all.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import tomli_w
from pydantic import Field, ValidationError, model_validator

from fedloom.errors import FedloomError, choose, cut
from fedloom.experiments import mistakes, schema
from fedloom.experiments.schema import Experiment, Name
from fedloom.experiments.section import Expected, Section, Text, mistake
from fedloom.experiments.study_sections import (
    FACT_NEEDS,
    FULL,
    MEASURE,
    Axis,
    Cell,
    Claim,
    FactRow,
    Facts,
    FigureSection,
    Measure,
    Names,
    Scale,
    Settings,
    TableSection,
    Where,
    picked,
)
from fedloom.rundir import MACHINE

MOST = 100_000
"""Cells of a study."""

USUAL = ("smoke", "short")
"""The scales that every study has beside it."""

HARMLESS = MACHINE | {"seeds"}
"""Keys whose change leaves a cell comparable with what was published."""


class Study(Section):
    """A table or figure of a paper; see the module."""

    id: Name
    paper: Text
    title: Text
    conflicts: Names = Field(default_factory=list)
    notes: Names = Field(default_factory=list)
    stand_in: Text | None = None
    partition_per_seed: Annotated[bool, Expected("true or false")] = False
    facts: Facts | None = None
    rows: list[FactRow] = Field(default_factory=list)
    experiment: Settings = Field(default_factory=dict)
    axes: list[Axis] = Field(default_factory=list)
    only: Annotated[dict[str, Names], Expected("a table of axes, each with a list of values")] = Field(
        default_factory=dict
    )
    where: list[Where] = Field(default_factory=list)
    measures: list[Measure] = Field(default_factory=list)
    table: TableSection = Field(default_factory=TableSection)
    figure: FigureSection | None = None
    claims: list[Claim] = Field(default_factory=list)
    scales: dict[str, Scale] = Field(default_factory=dict)
    scale: Text = FULL
    overrides: Settings = Field(default_factory=dict)
    asked: dict[str, Names] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if self.facts is None:
            if not self.experiment:
                raise mistake("an [experiment] table, or facts for a study that trains nothing", "experiment")
            if not self.measures:
                raise mistake("at least one [[measures]] table", "measures")
        elif self.experiment or self.axes:
            raise mistake("none beside an [experiment] or [[axes]]", "facts", self.facts)
        for row in self.rows:
            for key in FACT_NEEDS[row.kind(self.facts)]:
                if getattr(row, key) is None:
                    raise mistake(f"{key} in every row, for facts = {self.facts!r}", "rows", row.row)
        if FULL in self.scales:
            raise mistake(f"scales beside {FULL!r}, which is the study as it stands", "scales", FULL)
        return self

    @property
    def searched(self) -> list[Axis]:
        """The axes of which a cell keeps the best value."""
        return [axis for axis in self.axes if axis.best]

    @property
    def shown(self) -> list[Axis]:
        """The axes that tables, claims and published numbers have."""
        return [axis for axis in self.axes if not axis.best]

    @property
    def fixed(self) -> Cell:
        """The axes of which `only` leaves one value, which need not be told in every row."""
        return {axis: values[0] for axis, values in self.only.items() if len(values) == 1}

    @property
    def counted(self) -> list[Measure]:
        """The measures that come to a number."""
        return [measure for measure in self.measures if measure.kind != "curve"]

    def at(self, scale: str) -> Study:
        """The study at another scale."""
        if self.facts is not None and not self.scales and scale in USUAL:
            return self  # there is nothing to make smaller
        if scale != FULL and scale not in self.scales:
            raise choose(f"{self.id}, scale", scale, [FULL, *self.scales])
        return self.model_copy(update={"scale": scale})

    @property
    def compared(self) -> bool:
        """Whether its cells can be held against published ones: the scale drops seeds and cells, and nothing else."""
        scale = self.scales.get(self.scale)
        changed = set(self.overrides)
        if scale is not None:
            changed |= set(scale.set)
            changed |= {key for where in scale.where for key in where.set}
        return self.standing_in is None and changed <= HARMLESS

    @property
    def standing_in(self) -> str | None:
        """What is not the paper's own in all cells, at this scale."""
        scale = self.scales.get(self.scale)
        told = [self.stand_in, scale.stand_in if scale else None]
        return "; ".join(words for words in told if words) or None

    @property
    def stand_ins(self) -> str | None:
        """What is not the paper's own, in all cells or in some of those that are run."""
        places = [where for where in self.places if where.stand_in]
        there = [[where for where in places if picked(cell, where.cell)] for cell in (cells(self) if places else ())]

        def applies(own: Sequence[Where], place: int) -> bool:
            return not any(own[place].set.keys() <= later.set.keys() for later in own[place + 1 :])

        kept = [each for own in there for place, each in enumerate(own) if applies(own, place)]
        told = [f"{where.words}: {where.stand_in}" for where in places if any(where is each for each in kept)]
        return "; ".join([*([self.standing_in] if self.standing_in else []), *told]) or None

    @property
    def headline(self) -> str:
        """The title of its picture: what a scale changes and what stands in belong to what is seen there."""
        scale = [] if self.scale == FULL else [f"scale {self.scale}"]
        standing_in = [] if self.stand_ins is None else [f"stand-in: {self.stand_ins}"]
        aside = "; ".join([*scale, *standing_in])
        return f"{self.title} ({aside})" if aside else self.title

    def compares(self, cell: Cell) -> bool:
        """Whether this cell can be held against what was published."""
        return self.compared and not self.stands_in(cell)

    def stands_in(self, cell: Cell) -> bool:
        """Whether this cell is not the paper's own: numbers of other data are not subtracted from each other."""
        places = (where for where in self.places if where.stand_in)
        return self.standing_in is not None or any(picked(cell, where.cell) for where in places)

    @property
    def places(self) -> list[Where]:
        """What depends on the cell, at this scale."""
        scale = self.scales.get(self.scale)
        return [*self.where, *(scale.where if scale else [])]

    def to_toml(self) -> str:
        """The complete file: reading it gives an equal study."""
        return tomli_w.dumps(self.model_dump(exclude_none=True, exclude_defaults=True))

    def values(self, axis: str) -> list[str]:
        """The names of an axis's values; of `measure`, the measures'."""
        if axis == MEASURE:
            return [measure.name for measure in self.counted]
        if self.facts is not None:
            return [row.row for row in self.rows]
        return next(each for each in self.axes if each.name == axis).names()


@dataclass(frozen=True)
class StudyRun:
    """One cell with one seed: where it goes, and the experiment that repeats it alone."""

    cell: Cell
    seed: int
    slug: str
    experiment: Experiment
    target: float | None  # what rounds are counted to, whether or not the run ends there

    @property
    def label(self) -> str:
        return ", ".join([*self.cell.values(), f"seed {self.seed}"])


# The cells and their runs ---------------------------------------------------------------------------------------------


def cells(study: Study) -> Iterator[Cell]:
    """Every combination of the axes' values that there is at the study's scale, searched axes included."""
    scale = study.scales.get(study.scale)
    kept = [study.only, study.asked, *([scale.only] if scale else [])]
    skips = [(where.cell, where.skip) for where in study.places if where.skip is not None]
    names = [axis.name for axis in study.axes]
    choices = [
        [value for value in study.values(name) if all(value in each.get(name, [value]) for each in kept)]
        for name in names
    ]
    if math.prod(map(len, choices)) > MOST:
        sizes = " x ".join(str(len(choice)) for choice in choices)
        raise FedloomError(f"{study.id}, axes: expected at most {MOST:,} cells, got {sizes}: leave out values")
    for values in itertools.product(*choices):
        cell = dict(zip(names, values, strict=True))
        if not any([skip for where, skip in skips if picked(cell, where)][-1:]):
            yield cell


def settings(study: Study, cell: Cell) -> Settings:
    """What the cell sets, in the order in which later ones win."""
    found: Settings = {}
    for axis in study.axes:
        found |= axis.settings()[cell[axis.name]]
    scale = study.scales.get(study.scale)
    for where in study.where:
        if picked(cell, where.cell):
            found |= where.set
    if scale is not None:
        found |= scale.set
        for where in scale.where:
            if picked(cell, where.cell):
                found |= where.set
    return found | study.overrides


def seeds_of(study: Study, cell: Cell) -> list[int]:
    """The seeds that a cell is run with."""
    given = {**study.experiment, **settings(study, cell)}
    return list(given.get("seeds", Experiment.model_fields["seeds"].default))


def table_of(study: Study, cell: Cell) -> dict[str, Any]:
    """The [experiment] of one cell, as it would be written."""
    table = copy.deepcopy(study.experiment)
    for path, value in settings(study, cell).items():
        _put(table, path, copy.deepcopy(value), _words(study, cell))
    return table


def _words(study: Study, cell: Cell) -> str:
    return f"{study.id}, cell {', '.join(map(cut, cell.values())) or 'all'}"


def experiment_of(study: Study, cell: Cell) -> Experiment:
    """The experiment of one cell, with all its seeds."""
    table = table_of(study, cell)
    algorithm = table.pop("algorithm", None)
    table |= {"name": study.id, "title": ", ".join(cell.values()) or study.title}
    table["algorithms"] = [] if algorithm is None else [algorithm]
    try:
        return Experiment.model_validate(table)
    except ValidationError as error:
        _, message = mistakes.told(error.errors(include_url=False)[0], table)
        message = message.replace("algorithms.0", "algorithm").replace("[[algorithms]]", "[experiment.algorithm]")
        raise FedloomError(f"{_words(study, cell)}: {message}") from None


def runs(study: Study) -> list[StudyRun]:
    """One run for every cell and seed, each an experiment of its own with a folder of its own."""
    found: list[StudyRun] = []
    stop = ends_at_target(study)
    for cell in cells(study):
        experiment = experiment_of(study, cell)
        folder = schema.slug("-".join(cell.values()) or study.id)
        for seed in experiment.seeds:
            own: dict[str, Any] = {"seeds": [seed]}
            if study.partition_per_seed:
                own["data"] = experiment.data.model_copy(update={"seed": seed})
            if not stop:
                own["target"] = None
            alone = experiment.model_copy(update=own, deep=True)
            found.append(StudyRun(cell, seed, f"{folder}/seed{seed}", alone, experiment.target))
    kept = [run.cell for run in found] or list(cells(study.model_copy(update={"asked": {}})))
    for axis, values in study.asked.items():
        there = {cell[axis] for cell in kept}
        if left := [value for value in values if value not in there]:
            raise choose(f"--only, {axis!r} at scale {study.scale!r}", left[0], sorted(there))
    if not found:
        raise FedloomError(f"--only: expected cells that there are at scale {study.scale!r}, got none that is both")
    _check_folders(study, found)
    return found


def ends_at_target(study: Study) -> bool:
    """Whether no measure needs anything that comes after the run's target."""
    return all(
        measure.kind == "rounds_to" and measure.metric == "test_accuracy" and measure.target is None
        for measure in study.measures
    )


def _put(table: dict[str, Any], path: str, value: Any, where: str) -> None:
    *way, last = path.split(".")
    for part in way:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise FedloomError(f"{where}, {path}: expected a table to hold it, got {mistakes.shown(table)} at {part!r}")
    table[last] = value


def _check_folders(study: Study, found: list[StudyRun]) -> None:
    seen: dict[str, StudyRun] = {}
    for run in found:
        if run.slug in seen:
            raise FedloomError(
                f"{study.id}, cells {seen[run.slug].label!r} and {run.label!r}: expected names that give different "
                f"folders, got {run.slug!r} for both: rename a value"
            )
        seen[run.slug] = run
