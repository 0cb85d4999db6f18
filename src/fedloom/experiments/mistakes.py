"""A mistake in a file as one line: the key's path, what was expected, what was got, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

from fedloom.errors import choose, cut
from fedloom.experiments.algorithm_sections import ALGORITHMS, SCHEDULES
from fedloom.experiments.data_sections import PARTITIONS
from fedloom.experiments.model_sections import MODELS
from fedloom.experiments.robust_sections import RULES

Key = str | int
"""One step of a key's path: a name in a table, or a place in a list."""

_PLAIN = re.compile(r"[\w-]+")


def told(error: ErrorDetails, table: Mapping[str, Any]) -> tuple[list[Key], str]:
    """The path of the key that is wrong, and the line that says so."""
    path, context = _path(error["loc"], table), error.get("ctx", {})
    got, kind = error["input"], error["type"]
    if "key" in context:
        path = [*path, context["key"]]
    where = ".".join(cut(part) if _PLAIN.fullmatch(str(part)) else cut(repr(part)) for part in path)
    if kind == "unknown_key":
        return path, str(choose(f"{where}: unknown key", context["key"], context["allowed"]))
    if kind == "choice":
        return path, str(choose(where, context["got"], context["allowed"]))
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'|(\d+)", context["expected"])
        return path, str(choose(where, got, [word or digits for word, digits in allowed]))
    if kind in ("union_tag_invalid", "union_tag_not_found") and isinstance(got, dict):
        key = context["discriminator"].strip("'")
        return [*path, key], _told_name(f"{where}.{key}", got.get(key), _names(path))
    if kind == "expected" and "key" in context:
        got = context["got"]
    expected = context["expected"] if kind == "expected" else "a table"
    return path, f"{where}: expected {expected}, got {'nothing' if got is None else shown(got)}"


def _told_name(where: str, got: Any, allowed: Iterable[str]) -> str:
    if got is None:
        return f"{where}: expected one of {', '.join(sorted(allowed))}; got nothing"
    if got == "fedglad":
        return f"{where}: expected the algorithm that FedGLAD wraps, got 'fedglad': name that one, and add glad = true"
    return str(choose(where, got, allowed))


def _names(path: list[Key]) -> Iterable[str]:
    if path == ["data"]:
        return PARTITIONS
    if path == ["model"]:
        return MODELS
    if path[-1] == "combine":
        return RULES
    return ALGORITHMS if isinstance(path[-1], int) else SCHEDULES


def _path(location: Iterable[Key], table: Any) -> list[Key]:
    """The part of an error's location that the file has: pydantic adds the names of the alternatives it tried."""
    path: list[Key] = []
    for part in location:
        if (isinstance(table, dict) and part in table) or (isinstance(table, list) and isinstance(part, int)):
            path.append(part)
            table = table[part]  # type: ignore[index]
    return path


def shown(value: Any) -> str:
    """A value as TOML writes it, cut to a length that fits on a line."""
    if isinstance(value, bool):
        return str(value).lower()
    return cut(repr(value))
