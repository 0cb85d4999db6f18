"""Damaged files of every kind that is read: 500 here, 100,000 in `benchmarks/fuzz`."""

from __future__ import annotations

from pathlib import Path

import fuzzing
import pytest


@pytest.mark.filterwarnings("ignore")  # a picture too large, a header that is odd: said, and then refused or read
@pytest.mark.parametrize("make", fuzzing.MADE, ids=lambda make: make.__name__)
def test_nothing_but_our_own_error_comes_out(make: fuzzing.Make, tmp_path: Path) -> None:
    seen = fuzzing.fuzz(make, tmp_path, 20)
    assert seen.failures == []
    assert seen.refused > 0
