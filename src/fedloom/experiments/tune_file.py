"""A tune file: an experiment with a [tune] table, and the settings it stands for.

Nothing here imports torch: a typing mistake is answered before anything heavy is loaded.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedloom.errors import FedloomError, choose, cut
from fedloom.experiments.algorithm_sections import ALGORITHMS
from fedloom.experiments.schema import Experiment, Fraction, Written, slug, told_apart
from fedloom.experiments.section import Count, Expected, Section, Seed, Text

Path_ = tuple[str, ...]
"""Where a key of the grid stands in the experiment."""

MOST = 10_000
"""Settings of one algorithm's grid."""

EVERY = "algorithm"
"""`algorithm.client_lr` is every algorithm's, as `algorithms.*.client_lr` is."""


class Decades(Section):
    """10^from, ..., 10^to: `{ decades = [-4, 0], per_decade = 2 }` is 1e-4, 3.16e-4, 1e-3, ..., 1."""

    decades: Annotated[
        list[Annotated[float, Field(ge=-300, le=300)]],
        Field(min_length=2, max_length=2),
        Expected("two exponents of ten from -300 to 300, such as [-4, 0]"),
    ]
    per_decade: Annotated[int, Field(ge=1, le=100), Expected("a whole number from 1 to 100")] = 1


class SearchSection(Section):
    """Settings proposed one after the other instead of a grid of them."""

    sampler: Literal["optuna"] = "optuna"
    trials: Count = 50
    at_once: Count = 5  # proposed together, to be run as one program
    prune: Annotated[bool, Expected("true or false")] = True
    seed: Seed = 0


class TuneSection(Section):
    """What is tried, and what decides."""

    grid: Annotated[dict[str, Any], Expected("a table of keys with the values to try")]
    select: Literal["validation", "train_loss", "last"] = "validation"
    metric: Text | None = None  # validation_accuracy or test_accuracy; the loss where there is none
    last: Count | None = None  # rounds at the end that are averaged: 10 for validation, 100 for last
    first: Annotated[float, Field(gt=0, le=1), Expected("a share of the rounds above 0 and up to 1")] = 0.2
    validation: Fraction = 0.2
    together: Count = 32  # runs in one program, at most
    search: SearchSection | None = None


@dataclass(frozen=True)
class Axis:
    """The values of one setting; in a search, `span` is where it is looked for on a scale of decades."""

    values: tuple[Any, ...]
    span: tuple[float, float] | None = None

    @property
    def numeric(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


@dataclass(frozen=True)
class Point:
    """One algorithm with one choice of settings: an experiment to run with all its seeds."""

    label: str
    folder: str
    settings: dict[str, Any]
    experiment: Experiment


@dataclass(frozen=True, eq=False)
class Tuned:
    """One algorithm of the file and what is tried of it."""

    file: TuneFile
    index: int
    label: str
    slug: str
    axes: dict[str, Axis]
    paths: dict[str, Path_]

    def points(self) -> Iterator[Point]:
        """The whole grid, the last key's values changing fastest."""
        sizes = [len(axis.values) for axis in self.axes.values()]
        if math.prod(sizes) > MOST:
            raise FedloomError(
                f"tune.grid: expected at most {MOST:,} settings of {self.label}, got "
                f"{' x '.join(map(str, sizes))}: leave out values, or search with [tune.search]"
            )
        for values in itertools.product(*(axis.values for axis in self.axes.values())):
            yield self.point(dict(zip(self.axes, values, strict=True)))

    def point(self, settings: dict[str, Any], folder: str | None = None) -> Point:
        experiment = self.file.tuning(self.complete(settings))
        return Point(self.label, f"{self.slug}/{folder or _folder(settings)}", settings, experiment)

    def complete(self, settings: Mapping[str, Any]) -> Experiment:
        """The experiment of this algorithm alone, with these settings."""
        table = copy.deepcopy(self.file.experiment_table)
        for other in self.file.algorithms():  # whose values may be nowhere but in the grid
            own = settings if other.index == self.index else {key: axis.values[0] for key, axis in other.axes.items()}
            for key, value in own.items():
                if other.index == self.index or other.paths[key][0] == "algorithms":
                    put(table, other.paths[key], value)
        whole = self.file.written.valid(Experiment, table)
        algorithm = whole.algorithms[self.index].model_copy(update={"label": self.label})
        return whole.model_copy(update={"algorithms": [algorithm]})


@dataclass(frozen=True)
class TuneFile:
    """The file, its [tune] table apart."""

    written: Written
    tune: TuneSection
    grid: dict[str, Axis]
    experiment_table: dict[str, Any]

    def algorithms(self) -> list[Tuned]:
        """Each algorithm with the keys of the grid that are its own."""
        tables = self.experiment_table.get("algorithms")
        if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
            self.written.valid(Experiment, self.experiment_table)
            tables = []
        labels = told_apart((_title(table) for table in tables), " ({})")
        slugs = told_apart((slug(label) for label in labels), "-{}")
        places = [dict(_place(key, tables, labels)) for key in self.grid]
        return [
            Tuned(
                self,
                index,
                labels[index],
                slugs[index],
                {
                    _short(place[index]): axis
                    for axis, place in zip(self.grid.values(), places, strict=True)
                    if index in place
                },
                {_short(place[index]): place[index] for place in places if index in place},
            )
            for index in range(len(tables))
        ]

    def tuning(self, experiment: Experiment) -> Experiment:
        """The experiment as far as it has to be run to be judged: on held-out clients, or for its first rounds."""
        changes: dict[str, Any] = {"target": None}
        if self.tune.select == "validation":
            changes |= {"validation": self.tune.validation, "evaluate_on": ["validation"]}
        if self.tune.select == "train_loss":
            if any(part.privacy for part in experiment.algorithms):
                raise FedloomError("tune.select: expected 'validation' or 'last' with privacy, got 'train_loss'")
            changes["rounds"] = max(1, math.ceil(self.tune.first * experiment.rounds - 1e-9))
        return experiment.model_copy(update=changes)


def read_tune(source: Path | Traversable | str, overrides: Iterable[str] = ()) -> TuneFile:
    """A tune file, or TOML text; `overrides` are as for an experiment, and reach `tune.*` too."""
    written = Written.of(source, overrides)
    table = dict(written.table)
    given = table.pop("tune", None)
    where = f"{written.name}: " if written.name else ""
    if given is None:
        raise FedloomError(f"{where}tune: expected a [tune] table with a grid, got none")
    tune = written.valid(TuneSection, given, "tune")
    file = TuneFile(written, tune, dict(_axes(tune.grid, where)), table)
    if not file.grid:
        raise FedloomError(
            f"{where}tune.grid: expected keys with values to try, such as "
            "'algorithm.client_lr' = [0.01, 0.1]; got nothing"
        )
    for algorithm in file.algorithms():
        for _ in algorithm.points():  # every value is checked now
            pass
    return file


def put(table: Any, path: Path_, value: Any) -> None:
    """Set a key; tables on the way are made where there are none."""
    *way, last = path
    for part in way:
        if isinstance(table, list):
            table = table[int(part)]
        else:
            if not isinstance(table.get(part), dict | list):
                table[part] = {}
            table = table[part]
    table[last] = value


def _axes(grid: Mapping[str, Any], where: str, above: str = "") -> Iterator[tuple[str, Axis]]:
    """The values of every key; a table that is no range of decades is a part of the key."""
    for key, value in grid.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and "decades" not in value:
            yield from _axes(value, where, f"{name}.")
        elif isinstance(value, dict):
            yield name, _decades(name, value, where)
        elif isinstance(value, list) and value:
            if len(value) > 1000:
                raise FedloomError(f"{where}tune.grid {name!r}: expected at most 1,000 values, got {len(value):,}")
            if any(one == other for one, other in itertools.combinations(value, 2)):
                raise FedloomError(f"{where}tune.grid {name!r}: expected different values, got {cut(repr(value))}")
            yield name, Axis(tuple(value))
        else:
            raise FedloomError(
                f"{where}tune.grid {name!r}: expected a list of values to try, or {{ decades = [-4, 0] }}; "
                f"got {cut(repr(value))}"
            )


def _decades(name: str, value: dict[str, Any], where: str) -> Axis:
    """Powers of ten, rounded to six digits so that they can be read.

    >>> _decades("rate", {"decades": [-1, 0], "per_decade": 2}, "").values
    (0.1, 0.316228, 1.0)
    """
    section = Written(where.removesuffix(": "), {}, []).valid(Decades, value, "tune", "grid", name)
    low, high = section.decades
    steps = (high - low) * section.per_decade
    if steps < 0 or abs(steps - round(steps)) > 1e-9:
        raise FedloomError(
            f"{where}tune.grid {name!r}: expected decades = [FROM, TO], a whole number of steps apart; got "
            f"{section.decades!r} with {section.per_decade} in each"
        )
    values = tuple(float(f"{10 ** (low + step / section.per_decade):.6g}") for step in range(round(steps) + 1))
    return Axis(values, (values[0], values[-1]))


def _place(key: str, tables: list[dict[str, Any]], labels: list[str]) -> Iterator[tuple[int, Path_]]:
    """Which algorithms a key of the grid is for, and where it stands in each one's experiment."""
    what = f"tune.grid {cut(repr(key))}"
    first, _, rest = key.partition(".")
    if first not in (EVERY, "algorithms"):
        fixed = {"name", "title", "seeds", "algorithms"}
        if first not in Experiment.model_fields or first in fixed:
            if any(first in section.model_fields for section in ALGORITHMS.values()) and first not in fixed:
                raise FedloomError(
                    f"{what}: expected a key of the experiment, got one of an algorithm: {EVERY}.{cut(key)}"
                )
            raise choose(what, first, {*Experiment.model_fields, EVERY} - fixed)
        yield from ((index, tuple(key.split("."))) for index in range(len(tables)))
        return
    chosen, rest = (range(len(tables)), rest) if first == EVERY else _chosen(rest, labels, tables, what)
    path = tuple(rest.split("."))
    known = {index: ALGORITHMS.get(str(tables[index].get("name"))) for index in chosen}
    takes = [index for index, section in known.items() if section is None or path[0] in section.model_fields]
    if not takes or path[0] in ("name", "label"):
        fields = {field for section in known.values() if section is not None for field in section.model_fields}
        raise choose(what, path[0], fields - {"name", "label"})
    yield from ((index, ("algorithms", str(index), *path)) for index in takes)


def _chosen(rest: str, labels: list[str], tables: list[dict[str, Any]], what: str) -> tuple[Iterable[int], str]:
    """`*`, a number, or a label, and what follows it."""
    for index, label in enumerate(labels):
        if rest.startswith(f"{label}."):
            return [index], rest.removeprefix(f"{label}.")
    who, _, path = rest.partition(".")
    if who == "*":
        return range(len(tables)), path
    if who.isdecimal() and int(who) < len(tables):
        return [int(who)], path
    raise choose(what, who, ["*", *labels])


def _title(table: Mapping[str, Any]) -> str:
    name = str(table.get("name"))
    return str(table.get("label") or (f"fedglad({name})" if table.get("glad") else name))


def _short(path: Path_) -> str:
    return ".".join(path[2:] if path[0] == "algorithms" else path)


def _folder(settings: Mapping[str, Any]) -> str:
    """A name that says what is in it.

    >>> _folder({"client_lr": 0.1, "server_lr": 1.0})
    'client_lr=0.1,server_lr=1.0'
    """
    shown = ",".join(f"{key}={value}" for key, value in settings.items())
    return re.sub(r"[^A-Za-z0-9.=,_+-]+", "-", shown).strip("-.") or "as-it-is"
