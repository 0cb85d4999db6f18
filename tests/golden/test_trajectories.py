"""Every algorithm goes where it went before: five rounds to nine digits, and to the bit within one process."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trajectories

from fedloom import aggregate, kept, tree
from fedloom import rows as row_sums

BLOCKS: dict[Any, dict[str, int]] = {
    aggregate: {"_BLOCK": 100},
    kept: {"_BLOCK": 4},
    row_sums: {"_BLOCK": 4, "WIDE": 8, "_GROUP": 2, "_SMALL": 0},
    tree: {"_BLOCK": 4},
}
KEPT = json.loads(trajectories.FILE.read_text())


@pytest.mark.parametrize(("name", "make"), trajectories.ROWS, ids=[name for name, _ in trajectories.ROWS])
def test_five_rounds_are_those_that_were_kept(name: str, make: Any) -> None:
    first = trajectories.trajectory(make)
    assert first == trajectories.trajectory(make)
    assert first.keys() == KEPT[name].keys()
    for key, values in KEPT[name].items():
        assert first[key] == pytest.approx(values, rel=1e-9, abs=1e-12), key


@pytest.mark.parametrize(("name", "make"), trajectories.ROWS, ids=[name for name, _ in trajectories.ROWS])
def test_a_model_of_many_blocks_goes_there_too(name: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums go over large leaves block by block: here blocks are so small that these leaves are large."""
    for module, sizes in BLOCKS.items():
        for size, value in sizes.items():
            assert getattr(module, size) > value
            monkeypatch.setattr(module, size, value)
    found = trajectories.trajectory(make)
    for key, values in KEPT[name].items():
        assert found[key] == pytest.approx(values, rel=1e-9, abs=1e-12), key


def test_every_trajectory_that_was_kept_is_compared() -> None:
    assert list(KEPT) == [name for name, _ in trajectories.ROWS]
