"""`--set a.b=c`: a key of a file, given on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedloom.errors import FedloomError, cut
from fedloom.experiments.mistakes import shown
from fedloom.toml_text import DEPTH, value_of


def once(overrides: Iterable[str]) -> list[str]:
    """The overrides, of which no two may be for one key."""
    given = list(overrides)
    keys = [override.partition("=")[0].strip() for override in given]
    for key in keys:
        if keys.count(key) > 1:
            raise FedloomError(f"--set {cut(key)}: expected a key once, got it {keys.count(key)} times")
    return given


def put_override(table: dict[str, Any], override: str) -> list[str]:
    """Put one `a.b=c` into the table; returns its path."""
    key, equals, value = override.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise FedloomError(f"--set: expected KEY=VALUE, such as rounds=20 or data.alpha=0.1; got {cut(repr(override))}")
    if len(path) > DEPTH:
        raise FedloomError(f"--set {cut(key)}: expected a key of at most {DEPTH} parts, got more")
    for place in _places(table, path[:-1], key):
        if isinstance(place, list):
            if not value.strip():
                raise FedloomError(f"--set {key}: expected a value, got none: only a key of a table can be taken out")
            for index in _indices(place, path[-1], key):
                place[index] = value_of(key, value.strip())
        elif value.strip():
            place[path[-1]] = value_of(key, value.strip())
        else:
            place.pop(path[-1], None)
    return path


def _places(node: Any, path: list[str], key: str) -> list[Any]:
    """The tables or lists that a path leads to; tables on the way are made where there are none."""
    if not isinstance(node, dict | list):
        raise FedloomError(f"--set {key}: expected a table to hold it, got {shown(node)} there")
    if not path:
        return [node]
    first, *rest = path
    if isinstance(node, dict):
        return _places(node.setdefault(first, {}), rest, key)
    return [place for index in _indices(node, first, key) for place in _places(node[index], rest, key)]


def _indices(place: list[Any], part: str, key: str) -> Iterable[int]:
    if part == "*":
        return range(len(place))
    if not part.isdecimal() or int(part) >= len(place):
        raise FedloomError(f"--set {key}: expected an index of 0 to {len(place) - 1}, or *; got {part!r}")
    return [int(part)]
