"""Hugging Face datasets, or whatever has named columns in the same way, through `federate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedloom.data.federated import federate
from fedloom.errors import FedloomError


class Column:
    """Lazy, as the columns of recent releases are."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __getitem__(self, at: Any) -> Any:
        return self.values[at]


class Table:
    def __init__(self, columns: dict[str, Any], numpy: bool = False, lazy: bool = False) -> None:
        self.columns, self.numpy, self.lazy = columns, numpy, lazy

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def with_format(self, kind: str) -> Table:
        assert kind == "numpy"
        return Table(self.columns, numpy=True, lazy=self.lazy)

    def __getitem__(self, name: str) -> Any:
        values = np.array(self.columns[name]) if self.numpy else self.columns[name]
        return Column(values) if self.lazy else values


PICTURES = [[[0.0, 0.5], [1.0, 0.25]], [[1.0, 0.5], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]]


@pytest.mark.parametrize("lazy", [False, True])
def test_one_feature_and_labels(lazy: bool) -> None:
    table = Table({"image": PICTURES, "label": [2, 0, 1]}, lazy=lazy)
    data = federate(table, None, [[0, 1], [2]], test=table)
    assert torch.equal(data.x, torch.tensor(PICTURES))  # type: ignore[arg-type]
    assert torch.equal(data.y, torch.tensor([2, 0, 1]))  # type: ignore[arg-type]
    assert data.classes == 3 and data.test is not None


def test_several_features_and_a_named_target() -> None:
    table = Table({"ids": [[1, 2], [3, 0]], "mask": [[1, 1], [1, 0]], "topic": [1, 0]})
    data = federate(table, "topic", [[0], [1]], test=(table, "topic"))
    assert isinstance(data.x, dict) and set(data.x) == {"ids", "mask"}
    assert data.x["ids"].tolist() == [[1, 2], [3, 0]] and data.classes == 2


def test_objects_are_stacked() -> None:
    table = Table({"image": [np.ones((2, 2), np.uint8)] * 3, "labels": [0, 1, 1]})
    table.with_format = lambda kind: table  # type: ignore[method-assign]
    assert federate(table, None, [[0, 1, 2]]).x.shape == (3, 2, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("columns", "y", "message"),
    [
        ({"a": [1], "b": [2]}, None, "y: expected the name of the target's column, one of a, b and .*; got NoneType"),
        ({"a": [1], "b": [2]}, "c", "got c: pass y="),
        ({"label": [1]}, None, "got label"),
        ({"text": ["word"], "label": [1]}, None, "data, 'text': expected numbers, got <U4: encode them first"),
    ],
)
def test_mistakes(columns: dict[str, Any], y: Any, message: str) -> None:
    with pytest.raises(FedloomError, match=message):
        federate(Table(columns), y, [[0]])
