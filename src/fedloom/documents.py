"""The files of a run directory read back: whatever is wrong with one is told in a line that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedloom.errors import Damaged, FedloomError
from fedloom.rundir import METRICS, SUMMARY
from fedloom.toml_text import parse


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
    return content


def read_records(path: Path) -> list[dict[str, Any]]:
    """A record per line, none where there is no file.

    The last line may be torn, when the run was killed while it wrote; any other mistake is an error.
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
            expected = f"a round after {records[-1]['round']}"
            raise Damaged(f"{path}, line {number}: expected {expected}, got {record['round']}")
        records.append(record)
    return records


def left_behind(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A finished run's summary, and its rounds: as many as the summary says."""
    summary, records = read_json(folder / SUMMARY), read_records(folder / METRICS)
    if summary.get("rounds", len(records)) != len(records):
        expected = f"the {summary['rounds']} rounds of its {SUMMARY}"
        raise Damaged(f"{folder / METRICS}: expected {expected}, got {len(records)}: remove {folder} to run it again")
    return summary, records


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Damaged(f"{path}: expected a file of a run, got nothing there") from None
    except UnicodeDecodeError as error:
        raise Damaged(f"{path}: expected UTF-8 text, got byte {error.start} of something else") from None
    except OSError as error:
        raise Damaged(f"{path}: expected a readable file, got {error.strerror or error}") from None
