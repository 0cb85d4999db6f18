"""A study that is like another: `like = "fedadp-table1"`, and what is different."""

from __future__ import annotations

from typing import Any

from fedloom.errors import FedloomError
from fedloom.experiments import schema
from fedloom.experiments.mistakes import shown
from fedloom.toml_text import parse

TAKEN = ("partition_per_seed", "experiment", "axes", "only", "where", "measures", "table", "figure", "scales")
"""What a study has from the one that it is like. Its claims, conflicts and notes are its own."""


def completed(where: str, table: dict[str, Any], likes: tuple[str, ...] = ()) -> dict[str, Any]:
    """The file's table with what it leaves out taken from the study that `like` names; `likes` led to this one."""
    _check(where, table)
    if "like" not in table:
        return table
    from fedloom.experiments.registry import find_study  # which reads studies

    own = {key: value for key, value in table.items() if key != "like"}
    try:
        file = find_study(str(table["like"]))
    except FedloomError as error:
        raise FedloomError(f"{where}like: {error}") from None
    if file.name == f"{own.get('id')}.toml":
        raise FedloomError(f"{where}like: expected another study, got the study itself")
    if str(file) in likes:
        raise FedloomError(f"{where}like: expected a study of its own in the end, got one that is like this one")
    other = completed(f"{file.name}: ", parse(file.name, schema.text_of(file)), (*likes, str(file)))
    return {key: other[key] for key in TAKEN if key in other} | {
        key: _joined(key, other[key], value) if key in TAKEN and key in other else value for key, value in own.items()
    }


def _check(where: str, table: dict[str, Any]) -> None:
    """What is joined has to be a table, or a list of tables; all else is checked afterwards."""
    for key in ("experiment", "only", "scales"):
        if not isinstance(table.get(key, {}), dict):
            raise FedloomError(f"{where}{key}: expected a table, got {shown(table[key])}")
    for key in ("axes", "where"):
        found = table.get(key, [])
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise FedloomError(f"{where}{key}: expected [[{key}]], got {shown(found)}")


def _joined(key: str, other: Any, own: Any) -> Any:
    """Tables are joined key by key, and a scale that says nothing of itself; axes by name; [[where]] follows."""
    if key in ("experiment", "only"):
        return other | own
    if key == "scales":
        changed = {name: scale for name, scale in own.items() if isinstance(scale, dict) and "says" not in scale}
        return other | own | {name: _table(other.get(name)) | scale for name, scale in changed.items()}
    if key == "where":
        return other + own
    if key == "axes":
        mine = {str(axis.get("name")): axis for axis in own}
        kept = [mine.pop(str(axis.get("name")), axis) for axis in other]
        return kept + list(mine.values())
    return own


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
