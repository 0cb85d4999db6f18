"""How far clients are from the population, on partitions whose figures are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from fedloom.data.catalog import load
from fedloom.data.federated import federate
from fedloom.data.skew import label_counts, label_skew
from fedloom.errors import FedloomError
from fedloom.report.partition_plot import partition_panels, partition_picture


def test_one_class_each() -> None:
    data = federate(torch.zeros(8, 1), torch.arange(8) // 2, [[0, 1], [2, 3], [4, 5], [6, 7]])
    skew = label_skew(label_counts(data))
    assert skew.entropy.tolist() == [0] * 4 and skew.distinct.tolist() == [1] * 4
    np.testing.assert_allclose(skew.kl, np.log(4))
    np.testing.assert_allclose(skew.total_variation, 0.75)


def test_all_alike() -> None:
    data = federate(torch.zeros(8, 1), torch.arange(8) % 2, [[0, 1], [2, 3, 4, 5]])
    skew = label_skew(label_counts(data)).summary()
    assert skew["label entropy"] == pytest.approx(np.log(2))
    assert skew["KL divergence"] == pytest.approx(0) and skew["total variation"] == pytest.approx(0)


def test_skew_grows_as_alpha_falls() -> None:
    found = [
        label_skew(label_counts(load("digits", partition="dirichlet", clients=20, alpha=alpha))).summary()
        for alpha in (0.1, 10.0, 1000.0)
    ]
    for measure in ("KL divergence", "total variation"):
        assert found[0][measure] > found[1][measure] > found[2][measure] > 0


def test_rows_without_a_class(tmp_path: Path) -> None:
    data = federate(torch.zeros(4, 1), torch.rand(4), [[0, 1], [2, 3]])
    with pytest.raises(FedloomError, match="data: expected a class label per row, got none"):
        label_counts(data)
    partition_picture(data, tmp_path / "sizes.png", "sizes only")
    assert (tmp_path / "sizes.png").stat().st_size > 5_000


def test_a_picture_of_partitions_has_medians_clients_and_ticks_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (seen.append(self), save(self, *a, **k)))
    y = torch.arange(400) % 4
    few = federate(torch.zeros(400, 1), y, [[4 * k, 4 * k + 1, *([4 * k + 2] if k % 2 else [])] for k in range(100)])
    one = federate(torch.zeros(400, 1), y, [[4 * k] for k in range(100)])
    partition_panels({"few": few, "one": one}, tmp_path / "a.png", "a title of many words " * 8)
    upper, lower = seen[0].axes[:2], seen[0].axes[2:]
    for axes in upper:
        assert axes.get_yticks().tolist() == [3 * index for index in range(10)]  # 30 bars for 100 clients
        assert [label.get_text() for label in axes.get_yticklabels()] == [str(10 * index) for index in range(10)]
    assert [[text.get_text() for text in axes.texts] for axes in lower] == [["2 to 3, median 2.5"], ["1 each"]]
    assert lower[1].get_xticks().tolist() == [1]
    least, most = lower[0].get_xlim()
    assert all(tick >= 0 for tick in lower[0].get_xticks() if least <= tick <= most)
    title = seen[0].get_suptitle()
    assert "\n" in title and title.split() == ("a title of many words " * 8).split()
