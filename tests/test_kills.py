"""Runs that are killed at random moments come to the bits of those that are not; benchmarks/faults kills 200."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "faults" / "kills.py"


@pytest.mark.slow
def test_a_dozen_kills_change_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "12", "--rounds", "20", "--out", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["kills"] >= 12 and found["differing"] == []
