"""Federated data: what goes in, what is refused, and what the fingerprint sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from fedloom.data import partition
from fedloom.data.federated import FederatedData, count, federate, take
from fedloom.errors import FedloomError
from fedloom.preparation import Place


def small(**changes: Any) -> FederatedData:
    arguments = {
        "x": torch.arange(12.0).reshape(6, 2),
        "y": torch.tensor([0, 1, 2, 0, 1, 2]),
        "partition": [[5, 0], [1], [2, 3, 4]],
        "test": (torch.zeros(3, 2), torch.tensor([0, 1, 3])),
    }
    return federate(**{**arguments, **changes})


def test_rows_and_counts() -> None:
    data = small()
    assert data.population == 3
    assert data.examples.tolist() == [2, 1, 3]
    assert data.examples.dtype == data.indices.dtype == data.offsets.dtype == torch.int64
    assert data.offsets.tolist() == [0, 2, 3, 6]
    assert [data.rows(k).tolist() for k in range(3)] == [[5, 0], [1], [2, 3, 4]]
    with pytest.raises(FedloomError, match="client: expected 0 to 2, got 3"):
        data.rows(3)
    with pytest.raises(FedloomError, match="got -1"):
        data.rows(-1)


@given(st.integers(1, 40), st.integers(1, 10))
@settings(deadline=None, max_examples=50)
def test_rows_give_back_the_partition(rows: int, clients: int) -> None:
    parts = partition.iid(rows, min(rows, clients))
    data = federate(torch.zeros(rows, 1), torch.zeros(rows), parts)
    assert all(np.array_equal(data.rows(k), part) for k, part in enumerate(parts))


def test_tensors_are_kept_as_they_are() -> None:
    x, y = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.int32)
    data = federate(x, y, [[0, 1]])
    assert data.x is x
    assert data.y is y


@pytest.mark.parametrize(
    ("given", "features", "targets"),
    [
        (np.float64, torch.float32, torch.float32),
        (np.float32, torch.float32, torch.float32),
        (np.uint8, torch.uint8, torch.int64),
        (np.int32, torch.int32, torch.int64),
        (np.dtype(">i4"), torch.int32, torch.int64),
        (np.bool_, torch.bool, torch.bool),
    ],
)
def test_dtypes_of_arrays(given: Any, features: torch.dtype, targets: torch.dtype) -> None:
    data = federate(np.ones((2, 2), given), np.ones(2, given), [[0, 1]])
    assert isinstance(data.x, torch.Tensor)
    assert isinstance(data.y, torch.Tensor)
    assert data.x.dtype == features
    assert data.y.dtype == targets
    assert data.x.tolist() == [[1, 1], [1, 1]]


def test_arrays_are_copied_whatever_their_layout() -> None:
    x = np.arange(6.0, dtype=np.float32).reshape(3, 2)[::-1]
    x.setflags(write=False)
    data = federate(x, np.arange(3), [[0, 1, 2]])
    assert data.x.tolist() == [[4, 5], [2, 3], [0, 1]]  # type: ignore[union-attr]
    y = np.arange(3)
    data = federate(x, y, [[0, 1, 2]])
    y[:] = 9
    assert data.y.tolist() == [0, 1, 2]  # type: ignore[union-attr]


def test_several_tensors_a_row() -> None:
    data = federate((np.zeros((4, 2)), torch.ones(4)), {"a": np.arange(4), "b": [0.5, 1, 2, 3]}, [[0, 1], [2, 3]])
    assert isinstance(data.x, tuple)
    assert isinstance(data.y, dict)
    assert data.y["b"].dtype == torch.float32
    assert data.classes is None
    part = take(data.y, data.rows(1))
    assert isinstance(part, dict)
    assert part["a"].tolist() == [2, 3]
    assert count(take(data.x, slice(1))) == 1


def test_classes_come_from_label_vectors_only() -> None:
    assert small().classes == 4
    assert small(test=None).classes == 3
    assert small(test=None, y=torch.zeros(6)).classes is None
    assert small(test=None, y=torch.zeros(6, 2, dtype=torch.int64)).classes is None
    assert small(test=None, y=torch.full((6,), -1)).classes is None


class Doubled(Dataset[tuple[torch.Tensor, int]]):
    """A dataset whose stored data are not what its items are."""

    data = torch.zeros(3, 2)
    targets = torch.zeros(3)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), 2.0 * row), row


def test_a_dataset_is_read_by_its_items() -> None:
    data = federate(Doubled(), None, [[0], [1, 2]], test=Doubled())
    assert data.x.tolist() == [[0, 0], [2, 2], [4, 4]]  # type: ignore[union-attr]
    assert data.y.tolist() == [0, 1, 2]  # type: ignore[union-attr]
    assert data.y.dtype == torch.int64  # type: ignore[union-attr]
    assert data.test is not None
    assert count(data.test[0]) == 3
    assert data.classes == 3


def test_other_datasets() -> None:
    same = federate(TensorDataset(torch.eye(2), torch.tensor([0, 1])), None, [[0, 1]])
    assert torch.equal(same.x, torch.eye(2))  # type: ignore[arg-type]
    items = [({"a": np.zeros(2), "b": 1}, (0.5, 1)), ({"a": np.ones(2), "b": 2}, (1.5, 0))]
    nested = federate(items, None, [[0, 1]])
    assert isinstance(nested.x, dict)
    assert nested.x["a"].dtype == torch.float32
    assert isinstance(nested.y, tuple)
    assert nested.y[0].tolist() == [0.5, 1.5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": [[0], [6]]}, "data, partition, client 1: expected rows 0 to 5, got 6"),
        ({"partition": [[0, 1], [], [-1]]}, "client 2: expected rows 0 to 5, got -1"),
        ({"partition": [[0, 1], [2, 0]]}, "client 1: expected rows of its own, got row 0, which client 0 has too"),
        ({"partition": [[0, 1], [2, 2]]}, "client 1: expected rows of its own, got row 2, which client 1 has too"),
        ({"partition": []}, "partition: expected an index array for each client, got an empty list"),
        ({"partition": [[0], []]}, "client 1: expected at least 1 row, got none"),
        ({"partition": np.array([0, 0, 1, 1, 2, 2])}, r"got the number 0: .*partition.natural\(owners\)"),
        ({"partition": [[0.5]]}, r"client 0: expected a vector of row numbers, got shape \(1,\) of float64"),
        ({"partition": [[[0]]]}, r"got shape \(1, 1\)"),
        ({"y": torch.zeros(5)}, "data, y: expected 6 rows, as many as x, got 5"),
        ({"x": (torch.zeros(6), torch.zeros(4))}, r"features, \[1\]: expected 6 rows, as many as \[0\], got 4"),
        ({"y": torch.tensor(1)}, "expected one entry per row, got a single number"),
        ({"x": ()}, "expected at least one tensor, got none"),
        ({"y": None}, "y: expected targets beside Tensor features, got None"),
        ({"y": np.array(list("abcdef"))}, "data, y: expected numbers, got <U1"),
        ({"test": (torch.zeros(3), torch.zeros(2))}, "data, test, y: expected 3 rows, as many as x, got 2"),
        ({"test": torch.zeros(3)}, "data, test, y: expected targets"),
        ({"client_test": [[0], [1]]}, "client_test: expected 3 index arrays, one per client, got 2"),
        ({"client_test": [[0], [1], [3]]}, "client_test, client 2: expected rows 0 to 2, got 3"),
        ({"client_test": [[0], [1], [2]], "test": None}, "client_test: expected test rows to point into"),
        ({"x": [(1, 2), 3], "y": None}, r"item 1: expected a pair \(x, y\), got int"),
        ({"x": [([1], 2), ([3, 4], 5)], "y": None}, r"x, item 1: expected shape \(1,\), got \(2,\)"),
        ({"x": [], "y": None}, "expected a dataset with items"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FedloomError, match=message):
        small(**changes)


def test_overlap_must_be_asked_for() -> None:
    data = small(partition=[[0, 1], [1, 2]], overlap=True)
    assert data.indices.tolist() == [0, 1, 1, 2]


def test_client_test_rows() -> None:
    data = small(client_test=[[0], [], [2, 1]])
    assert data.client_test is not None
    assert [part.tolist() for part in data.client_test] == [[0, 2, 1], [0, 1, 1, 3]]


def test_to_moves_everything_and_casts_only_floats() -> None:
    data = small(client_test=[[0], [], [2, 1]], y={"label": torch.arange(6), "weight": torch.ones(6)})
    moved = data.to("meta", torch.float64)
    assert isinstance(moved.y, dict)
    assert moved.test is not None
    assert moved.client_test is not None
    tensors = [moved.x, *moved.y.values(), moved.indices, moved.offsets, *moved.test, *moved.client_test]
    assert all(tensor.device.type == "meta" for tensor in tensors)  # type: ignore[union-attr]
    assert moved.x.dtype == moved.y["weight"].dtype == moved.test[0].dtype == torch.float64  # type: ignore[union-attr]
    assert moved.y["label"].dtype == moved.indices.dtype == torch.int64
    assert data.to("cpu").x is data.x


def test_another_partition_of_the_same_rows_is_moved_without_them() -> None:
    first = small(client_test=[[0], [], [2, 1]])
    second = replace(first, indices=first.indices.flip(0))
    place = Place(torch.device("meta"), None)
    one, two = place.put(first), place.put(second)
    assert two.client_test is not None and two.x is one.x
    assert all(part.device.type == "meta" for part in (two.indices, two.offsets, *two.client_test))


def test_fingerprint_sees_every_part() -> None:
    data = small(client_test=[[0], [1], [2]])
    same = small(client_test=[[0], [1], [2]], x=torch.arange(12.0).reshape(2, 6).reshape(6, 2).clone(), name="other")
    assert data.fingerprint() == same.fingerprint()
    assert len(data.fingerprint()) == 64
    changed = [
        small(),
        small(test=None),
        small(x=torch.arange(12.0).reshape(6, 2, 1)),
        small(x=torch.arange(12.0).reshape(6, 2) + 1e-6),
        small(x=(torch.arange(12.0).reshape(6, 2),)),
        small(y=torch.tensor([0, 1, 2, 0, 1, 1])),
        small(partition=[[0, 5], [1], [2, 3, 4]]),
        small(partition=[[5], [0, 1], [2, 3, 4]]),
        small(test=(torch.zeros(3, 2), torch.tensor([0, 1, 2]))),
        small(test=(torch.ones(3, 2), torch.tensor([0, 1, 3]))),
        data.to("cpu", torch.float64),
        replace(data, row_weights=torch.ones(6)),
        replace(data, row_weights=torch.arange(6)),
    ]
    assert len({data.fingerprint(), *(other.fingerprint() for other in changed)}) == 1 + len(changed)


def test_fingerprint_of_unusual_tensors() -> None:
    x = {"b": torch.ones(2, 3, dtype=torch.bfloat16).t().contiguous().t(), "a": torch.zeros(2, 0)}
    y = torch.tensor([True, False])
    swapped = {"a": x["a"], "b": torch.ones(2, 3, dtype=torch.bfloat16)}
    assert federate(x, y, [[0, 1]]).fingerprint() == federate(swapped, y, [[0, 1]]).fingerprint()
