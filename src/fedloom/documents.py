"""The files of a run directory read back: whatever is wrong with one is told in a line that names it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

from fedloom.errors import Damaged, FedloomError, cut
from fedloom.rundir import METRICS, SUMMARY
from fedloom.toml_text import parse


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


_Kinds = dict[str, tuple[str, Callable[[Any], bool]]]
_KINDS: _Kinds = {"seconds": ("a number", is_number)}
"""What a key is, in every object that has it: figures are computed with these."""
_OF_A_SUMMARY: _Kinds = {"diverged": ("the words of an error", lambda value: isinstance(value, str))}
"""And in a `summary.json`; in the results of a study it is a count."""


def read_toml(path: Path) -> dict[str, Any]:
    """A table, such as that of a `config.toml`."""
    try:
        return parse(str(path), _text(path))
    except FedloomError as error:
        raise Damaged(str(error)) from None


def read_json(path: Path) -> dict[str, Any]:
    """An object, such as that of a `summary.json`; what is not finite becomes None."""
    try:
        content = json.loads(_text(path), parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path}: expected JSON, got a mistake in it: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise Damaged(f"{path}: expected a JSON object, got {type(content).__name__}")
    for key, (expected, fits) in (_KINDS | (_OF_A_SUMMARY if path.name == SUMMARY else {})).items():
        if key in content and not fits(content[key]):
            raise Damaged(f"{path}, {key}: expected {expected}, got {shown(content[key])}")
    return content


def read_records(path: Path, *, notes: bool = False) -> list[dict[str, Any]]:
    """A record per line, none where there is no file: finite numbers, or None where one is not.

    The last line may be torn, when the run was killed while it wrote; any other mistake is an error. With `notes` there
    may be other things among the numbers, which a callback of one's own can add.
    """
    lines = _text(path).splitlines(keepends=True) if path.exists() else []
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            if number == len(lines) and not line.endswith("\n"):
                break
            raise Damaged(f"{path}, line {number}: expected a JSON object, got {line.strip()!r:.60}") from None
        if not isinstance(record, dict) or type(record.get("round")) is not int:
            raise Damaged(f"{path}, line {number}: expected an object with a round, got {line.strip()!r:.60}")
        if records and record["round"] <= records[-1]["round"]:
            expected = f"a round after {shown(records[-1]['round'])}"
            raise Damaged(f"{path}, line {number}: expected {expected}, got {shown(record['round'])}")
        for key, value in () if notes else record.items():
            if value is not None and not is_number(value):
                raise Damaged(f"{path}, line {number}, {shown(key)}: expected a finite number, got {shown(value)}")
        records.append(record)
    return records


def left_behind(folder: Path, instead: str | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A finished run's summary, and its rounds: as many as it says. `instead` is what to do if they are not."""
    try:
        summary, records = read_json(folder / SUMMARY), read_records(folder / METRICS)
        if summary.get("rounds", len(records)) != len(records):
            expected = f"the {shown(summary['rounds'])} rounds of its {SUMMARY}"
            raise Damaged(f"{folder / METRICS}: expected {expected}, got {len(records)}")
    except Damaged as error:
        raise Damaged(f"{error}: {instead or f'remove {folder} to run it again'}") from None
    return summary, records


def shown(value: Any) -> str:
    """A value at a length that fits on a line; what holds others may be deeper than can be shown."""
    return type(value).__name__ if isinstance(value, dict | list) else cut(repr(value))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Damaged(f"{path}: expected a file of a run, got nothing there") from None
    except UnicodeDecodeError as error:
        raise Damaged(f"{path}: expected UTF-8 text, got byte {error.start} of something else") from None
    except OSError as error:
        raise Damaged(f"{path}: expected a readable file, got {error.strerror or error}") from None
