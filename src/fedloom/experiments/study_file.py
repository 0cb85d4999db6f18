"""A study's file read: with what it leaves out, what is changed and asked for on the command line, and checked."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedloom.errors import FedloomError, cut
from fedloom.experiments import mistakes, schema
from fedloom.experiments.overrides import once
from fedloom.experiments.study import Study
from fedloom.experiments.study_checks import check_names
from fedloom.experiments.study_like import completed
from fedloom.toml_text import DEPTH, parse, value_of


def is_study(table: Mapping[str, Any]) -> bool:
    """Whether a file's contents are a study's, and not a single experiment's.

    >>> is_study({"id": "x", "facts": "none"}), is_study({"name": "x", "rounds": 1})
    (True, False)
    """
    return "id" in table and "rounds" not in table


def read_study(
    source: Path | Traversable | str,
    overrides: Iterable[str] = (),
    scale: str | None = None,
    asked: Iterable[str] = (),
) -> Study:
    """A study from a file, or from TOML text.

    `overrides` are `rounds=5`, or `experiment.rounds=5`, for every cell; `asked` are `data set=MNIST,CIFAR-10`, for
    the cells that are wanted.
    """
    name, text = ("", source) if isinstance(source, str) else (source.name, schema.text_of(source))
    where = f"{name}: " if name else ""
    table = completed(where, parse(name, text))
    given = dict(_setting(override) for override in once(overrides))
    if given:
        table["overrides"] = {**table.get("overrides", {}), **given}
    if wanted := dict(_asked(each) for each in asked):
        table["asked"] = wanted
    try:
        study = Study.model_validate(table)
    except ValidationError as error:
        _, message = mistakes.told(error.errors(include_url=False)[0], table)
        raise FedloomError(f"{where}{message}") from None
    try:
        check_names(study)
    except FedloomError as error:
        raise FedloomError(f"{where}{error}") from None
    return study if scale is None else study.at(scale)


def _setting(override: str) -> tuple[str, Any]:
    key, equals, value = override.partition("=")
    key = key.strip().removeprefix("experiment.")
    if not equals or not key or not value.strip():
        raise FedloomError(f"--set: expected KEY=VALUE, such as experiment.rounds=20; got {cut(repr(override))}")
    if key.count(".") >= DEPTH:
        raise FedloomError(f"--set {cut(key)}: expected a key of at most {DEPTH} parts, got more")
    return key, value_of(key, value.strip())


def _asked(choice: str) -> tuple[str, list[str]]:
    """
    >>> _asked("data set=MNIST, CIFAR-10")
    ('data set', ['MNIST', 'CIFAR-10'])
    >>> _asked('setting="E 1, C 0.05"')
    ('setting', ['E 1, C 0.05'])
    """
    axis, _, values = choice.partition("=")
    try:
        [given] = csv.reader([values], skipinitialspace=True) if values else [[]]
    except csv.Error:  # a line's end within it
        given = []
    names = [value.strip() for value in given if value.strip()]
    if not axis.strip() or not names:
        raise FedloomError(f"--only: expected AXIS=VALUE, or AXIS=VALUE,VALUE; got {cut(repr(choice))}")
    return axis.strip(), names
