"""The files of a run directory read back: a wrong kind of value is told in a line that names the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.documents import read_json, read_records
from fedloom.errors import Damaged


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"seconds": "x"}', "seconds: expected a number, got 'x'"),
        ('{"seconds": NaN}', "seconds: expected a number, got None"),
        ('{"seconds": 1e400}', "seconds: expected a number, got inf"),
        ('{"seconds": true}', "seconds: expected a number, got True"),
        ('{"seconds": %s}' % ("9" * 400), "seconds: expected a number, got 9{57}..."),
        ('{"diverged": [1]}', "diverged: expected the words of an error, got list"),
    ],
)
def test_what_figures_are_made_of_has_its_kind(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(Damaged, match=f"summary.json, {told}$"):
        read_json(tmp_path / "summary.json")


def test_how_many_runs_of_a_study_diverged_is_a_number(tmp_path: Path) -> None:
    """In `results.json` that key counts runs, and is no error's words."""
    (tmp_path / "results.json").write_text('{"diverged": 2}')
    assert read_json(tmp_path / "results.json") == {"diverged": 2}


@pytest.mark.parametrize(
    ("value", "told"),
    [('"y"', "'y'"), ("[1]", "list"), ("{}", "dict"), ("true", "True"), ("1e400", "inf"), ("9" * 400, "9{57}...")],
)
def test_records_are_numbers_unless_notes_are_expected(value: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"round": 0, "test_loss": null, "seconds": 0.5}}\n{{"round": 1, "test_accuracy": {value}}}\n')
    with pytest.raises(Damaged, match=f"metrics.jsonl, line 2, 'test_accuracy': expected a finite number, got {told}$"):
        read_records(path)
    assert [record["round"] for record in read_records(path, notes=True)] == [0, 1]
