"""The heat map of two rates: it can be drawn whatever came of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fedloom.report.heatmap import heat_map

RATES = [(c, s) for c in (0.01, 0.1, 1.0) for s in (0.316228, 1.0)]


@pytest.mark.parametrize(
    "values",
    [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.1, None, 0.3, None, 0.5, 0.6], [0.5] * 6, [None] * 6, [1e9, 0.1, 2, 3, 4, 5]],
)
@pytest.mark.parametrize("lower", [False, True])
def test_it_is_drawn(values: list[float | None], lower: bool, tmp_path: Path) -> None:
    cells = dict(zip(RATES, values, strict=True))
    best = None if values[1] is None else RATES[1]
    heat_map(cells, tmp_path / "map.png", title="FedAvg", best=best, percent=not lower, lower=lower)
    with Image.open(tmp_path / "map.png") as image:
        assert image.format == "PNG" and image.width >= 700 and len(image.convert("RGB").getcolors(2**24) or []) > 20


def test_a_grid_may_have_gaps_and_a_single_cell(tmp_path: Path) -> None:
    heat_map({(0.1, 1.0): 0.5, (1.0, 0.1): 0.6}, tmp_path / "gaps.png", title="FedAvg", best=(1.0, 0.1))
    heat_map({(0.0, 1.0): 0.5}, tmp_path / "one.png", title="FedAvg", best=(0.0, 1.0))
