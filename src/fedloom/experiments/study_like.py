"""A study that is like another: `like = "fedadp-table1"`, and what is different."""

from __future__ import annotations

from typing import Any

from fedloom.errors import FedloomError
from fedloom.experiments import schema
from fedloom.toml_text import parse

TAKEN = ("partition_per_seed", "experiment", "axes", "only", "where", "measures", "table", "figure", "scales")
"""What a study has from the one that it is like. Its claims, conflicts and notes are its own."""


def completed(where: str, table: dict[str, Any]) -> dict[str, Any]:
    """The file's table with what it leaves out taken from the study that `like` names."""
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
    other = completed(f"{file.name}: ", parse(file.name, schema.text_of(file)))
    return {key: other[key] for key in TAKEN if key in other} | {
        key: _joined(key, other[key], value) if key in TAKEN and key in other else value for key, value in own.items()
    }


def _joined(key: str, other: Any, own: Any) -> Any:
    """Tables are joined key by key, and a scale that says nothing of itself; axes by name; [[where]] follows."""
    if key in ("experiment", "only") and isinstance(own, dict):
        return other | own
    if key == "scales" and isinstance(own, dict):
        changed = {name: scale for name, scale in own.items() if isinstance(scale, dict) and "says" not in scale}
        return other | own | {name: other.get(name, {}) | scale for name, scale in changed.items()}
    if key == "where" and isinstance(own, list):
        return other + own
    if key == "axes" and isinstance(own, list):
        mine = {axis.get("name"): axis for axis in own if isinstance(axis, dict)}
        kept = [mine.pop(axis["name"], axis) for axis in other]
        return kept + list(mine.values())
    return own
