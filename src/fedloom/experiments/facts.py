"""Tables that train nothing: sizes of models, counts of data sets, settings of our own studies, beside the papers'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedloom.errors import FedloomError, choose
from fedloom.experiments import schema
from fedloom.experiments.data_sections import AnyData
from fedloom.experiments.registry import find_study
from fedloom.experiments.study import Study, cells, experiment_of, read_study
from fedloom.experiments.study_sections import Cell, FactRow

ROW, COLUMN = "row", "column"


@dataclass(frozen=True)
class Fact:
    """A number or a word of our own, and its place in the table; None where this machine cannot say, and why."""

    cell: Cell
    value: float | str | None
    why: str = ""


def facts(study: Study, data_folder: Path | None = None) -> list[Fact]:
    """Our side of a table of facts, row after row."""
    return [fact for row in study.rows for fact in _TELL[row.kind(study.facts)](row, data_folder)]


def _models(row: FactRow, data_folder: Path | None) -> Iterator[Fact]:
    """The number of parameters that are trained."""
    from fedloom.models import MODELS

    options = dict(row.model or {})
    name = options.pop("name", None)
    if name not in MODELS:
        raise choose(f"rows, {row.row!r}, model.name", name, MODELS)
    model = MODELS[name].load()(**options)
    yield _fact(row, "parameters", sum(leaf.numel() for leaf in model.parameters() if leaf.requires_grad))


def _data(row: FactRow, data_folder: Path | None) -> Iterator[Fact]:
    """Clients and examples, for training and for testing, and classes, as far as the files are here."""
    from fedloom.data.federated import count
    from fedloom.experiments.build import build_data

    try:
        section = TypeAdapter(AnyData).validate_python(row.data)
    except ValidationError as error:
        _, message = schema.told(error.errors(include_url=False)[0], {"data": row.data})
        raise FedloomError(f"rows, {row.row!r}: {message}") from None
    columns = ("clients", "examples", "test clients", "test examples")
    try:
        data = build_data(section, data_folder)
    except (FedloomError, OSError) as error:  # the files are not here
        yield from (_fact(row, column, None, str(error)) for column in columns)
        return
    tested = None if data.test is None else count(data.test[1])
    clients = None if data.client_test is None else data.client_test[1].numel() - 1
    found = (data.population, int(data.sizes.sum()), clients, tested)
    yield from (_fact(row, column, value) for column, value in zip(columns, found, strict=True))
    if data.classes is not None:
        yield _fact(row, "classes", data.classes)


def _hyperparameters(row: FactRow, data_folder: Path | None) -> Iterator[Fact]:
    """A setting that a study runs with, in all its cells that the row names."""
    study = read_study(find_study(str(row.study)))
    wanted = [cell for cell in cells(study) if row.cell.items() <= cell.items()]
    if not wanted:
        raise FedloomError(f"rows, {row.row!r}, cell: expected one of {row.study}, got {row.cell}, which is none")
    values = {str(value): value for cell in wanted for value in [_setting(study, cell, str(row.key))]}
    value = next(iter(values.values())) if len(values) == 1 else " / ".join(values)
    yield _fact(row, str(row.column), value)


def _setting(study: Study, cell: Cell, key: str) -> Any:
    place: Any = experiment_of(study, cell).to_mapping()
    place["algorithm"] = place["algorithms"][0]
    for part in key.split("."):
        if not isinstance(place, dict) or part not in place:
            return None
        place = place[part]
    return place


def _none(row: FactRow, data_folder: Path | None) -> Iterator[Fact]:
    """Nothing of our own."""
    yield _fact(row, "", None)


def _fact(row: FactRow, column: str, value: Any, why: str = "") -> Fact:
    plain = value if isinstance(value, str) or value is None else float(value) if _is_number(value) else str(value)
    return Fact({ROW: row.row, COLUMN: row.column or column}, plain, why)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TELL: dict[str, Callable[[FactRow, Path | None], Iterator[Fact]]] = {
    "models": _models,
    "data": _data,
    "hyperparameters": _hyperparameters,
    "none": _none,
}
