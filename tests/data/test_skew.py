"""How far clients are from the population, on partitions whose figures are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.data.catalog import load
from fedloom.data.federated import federate
from fedloom.data.skew import label_counts, label_skew
from fedloom.errors import FedloomError
from fedloom.report.partition_plot import partition_picture


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
