"""Tables that train nothing: sizes of models, counts of data sets, settings of our own studies, beside the papers'."""

from __future__ import annotations

import fnmatch
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from fedloom.errors import FedloomError, choose, cut
from fedloom.experiments import mistakes
from fedloom.experiments.data_sections import AnyData
from fedloom.experiments.measures import Measured
from fedloom.experiments.published import Published
from fedloom.experiments.registry import find_study
from fedloom.experiments.results import Result
from fedloom.experiments.study import Study, cells, experiment_of, settings
from fedloom.experiments.study_file import read_study
from fedloom.experiments.study_sections import COLUMN, ROW, Cell, FactRow, Measure

if TYPE_CHECKING:
    from fedloom.data.catalog import Shelf
    from fedloom.data.federated import FederatedData


@dataclass(frozen=True)
class Fact:
    """A number or a word of our own, and its place in the table; None where this machine cannot say, and why."""

    cell: Cell
    value: float | str | None
    why: str = ""


def same(fact: Fact, number: Published) -> bool | None:
    """Whether a fact is what was printed; None where there is nothing to compare.

    >>> same(Fact({}, 7850.0), Published(value=7850.0))
    True
    """
    if fact.value is None or number.value is None:
        return None
    if isinstance(fact.value, float) and isinstance(number.value, float):
        return math.isclose(fact.value, number.value, rel_tol=1e-9)
    return str(fact.value) == str(number.value)


@dataclass(frozen=True)
class Files:
    """Where data sets are read from, once each, and what the scale and `--set` change in their [data] tables."""

    folder: Path | None
    shelf: Shelf
    changed: dict[str, Any]

    def load(self, row: FactRow) -> FederatedData:
        """The row's data; an error where its files are not here."""
        from fedloom.experiments.build import build_data

        table = {**(row.data or {}), **self.changed}
        try:
            section = TypeAdapter(AnyData).validate_python(table)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            _, message = mistakes.told({**first, "loc": ("data", *first["loc"])}, {"data": table})
            raise FedloomError(f"rows, {row.row!r}: {message}") from None
        try:
            return build_data(section, self.folder, self.shelf)
        except (FedloomError, OSError) as error:
            raise NotHere(str(error)) from None


class NotHere(Exception):
    """The files of a data set are not on this machine."""


def facts(study: Study, data_folder: Path | None = None, shelf: Shelf | None = None) -> list[Fact]:
    """Our side of a table of facts, row after row."""
    source = _files(study, data_folder, shelf)
    return [fact for row in study.rows for fact in _TELL[row.kind(study.facts)](row, source)]


def partitions(study: Study, data_folder: Path | None = None, shelf: Shelf | None = None) -> dict[str, FederatedData]:
    """The data of every row whose files are here, by the row's name."""
    source, found = _files(study, data_folder, shelf), {}
    for row in study.rows:
        with suppress(NotHere):
            found[row.row] = source.load(row)
    return found


def as_results(found: Sequence[Fact]) -> list[Result]:
    """Facts as claims read them: the column is the measure."""
    numbers = [(fact, fact.value) for fact in found if isinstance(fact.value, float)]
    return [
        Result({ROW: fact.cell[ROW]}, Measure(name=fact.cell[COLUMN], kind="final"), Measured((value,)))
        for fact, value in numbers
    ]


def _files(study: Study, data_folder: Path | None, shelf: Shelf | None) -> Files:
    from fedloom.data.catalog import Shelf

    changed = {name.removeprefix("data."): value for name, value in settings(study, {}).items()}
    return Files(data_folder, shelf or Shelf(), changed)


def _models(row: FactRow, source: Files) -> Iterator[Fact]:
    """The number of parameters that are trained."""
    from fedloom.models import MODELS

    options = dict(row.model or {})
    name = options.pop("name", None)
    if name not in MODELS:
        raise choose(f"rows, {row.row!r}, model.name", name, MODELS)
    try:
        model = MODELS[name].load()(**options)
    except TypeError as error:
        raise FedloomError(
            f"rows, {row.row!r}, model: expected the sizes of {name!r}, got {options}: {error}"
        ) from None
    trained = {name: leaf.numel() for name, leaf in model.named_parameters() if leaf.requires_grad}
    counted = fnmatch.filter(trained, row.part or "*")
    if not counted:
        raise choose(f"rows, {row.row!r}, part", str(row.part), trained)
    yield _fact(row, "parameters", sum(trained[name] for name in counted))


def _data(row: FactRow, source: Files) -> Iterator[Fact]:
    """Clients and examples, for training and for testing, and classes, as far as the files are here."""
    from fedloom.data.federated import count

    columns = ("clients", "examples", "test clients", "test examples")
    try:
        data = source.load(row)
    except NotHere as error:
        yield from _absent(row, columns, str(error))
        return
    tested = None if data.test is None else count(data.test[1])
    clients = None if data.client_test is None else data.client_test[1].numel() - 1
    found = (data.population, int(data.sizes.sum()), clients, tested)
    yield from (_fact(row, column, value) for column, value in zip(columns, found, strict=True))
    if data.classes is not None:
        yield _fact(row, "classes", data.classes)


def _partition(row: FactRow, source: Files) -> Iterator[Fact]:
    """How many labels the clients have, as far as the files are here."""
    from fedloom.data.skew import label_counts, label_skew

    columns = ("clients", "examples per client", "fewest labels", "median labels", "most labels", "label entropy")
    try:
        data = source.load(row)
    except NotHere as error:
        yield from _absent(row, columns, str(error))
        return
    skew = label_skew(label_counts(data))
    labels = sorted(skew.distinct.tolist())
    each = statistics.median(data.sizes.tolist())
    entropy = round(skew.summary()["label entropy"], 4)
    found = (data.population, each, labels[0], statistics.median(labels), labels[-1], entropy)
    yield from (_fact(row, column, value) for column, value in zip(columns, found, strict=True))


def _absent(row: FactRow, columns: Sequence[str], why: str) -> Iterator[Fact]:
    """What this machine cannot say, and why, once."""
    yield from (_fact(row, column, None, "" if number else why) for number, column in enumerate(columns))


def _hyperparameters(row: FactRow, source: Files) -> Iterator[Fact]:
    """A setting that a study runs with, in all its cells that the row names."""
    study = read_study(find_study(str(row.study)))
    wanted = [cell for cell in cells(study) if row.cell.items() <= cell.items()]
    if not wanted:
        raise FedloomError(f"rows, {row.row!r}, cell: expected one of {row.study}, got {cut(row.cell)}, which is none")
    values = {str(value): value for cell in wanted for value in [_setting(study, cell, str(row.key))]}
    value: Any = next(iter(values.values())) if len(values) == 1 else " / ".join(values)
    if row.log10 and _is_number(value) and value > 0:
        value = round(math.log10(value), 9)
    yield _fact(row, str(row.column), value)


def _setting(study: Study, cell: Cell, key: str) -> Any:
    place: Any = experiment_of(study, cell).to_mapping()
    place["algorithm"] = place["algorithms"][0]
    for part in key.split("."):
        if not isinstance(place, dict) or part not in place:
            return None
        place = place[part]
    return place


def _none(row: FactRow, source: Files) -> Iterator[Fact]:
    """Nothing of our own."""
    yield _fact(row, "", None)


def _fact(row: FactRow, column: str, value: Any, why: str = "") -> Fact:
    plain = value if isinstance(value, str) or value is None else float(value) if _is_number(value) else str(value)
    return Fact({ROW: row.row, COLUMN: row.column or column}, plain, why)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TELL: dict[str, Callable[[FactRow, Files], Iterator[Fact]]] = {
    "models": _models,
    "data": _data,
    "partition": _partition,
    "hyperparameters": _hyperparameters,
    "none": _none,
}
