"""Every algorithm goes where it went before: five rounds to nine digits, and to the bit within one process."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trajectories

KEPT = json.loads(trajectories.FILE.read_text())


@pytest.mark.parametrize(("name", "make"), trajectories.ROWS, ids=[name for name, _ in trajectories.ROWS])
def test_five_rounds_are_those_that_were_kept(name: str, make: Any) -> None:
    first = trajectories.trajectory(make)
    assert first == trajectories.trajectory(make)
    assert first.keys() == KEPT[name].keys()
    for key, values in KEPT[name].items():
        assert first[key] == pytest.approx(values, rel=1e-9, abs=1e-12), key


def test_every_trajectory_that_was_kept_is_compared() -> None:
    assert list(KEPT) == [name for name, _ in trajectories.ROWS]
