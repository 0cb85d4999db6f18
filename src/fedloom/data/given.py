"""Tensors out of what a user has: arrays, a dataset of pairs, a table whose columns have names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedloom.errors import FedloomError

if TYPE_CHECKING:
    from fedloom.data.federated import Features


def pair(where: str, x: Any, y: Any) -> tuple[Features, Features]:
    """Features and targets out of what the user has: two values, or one dataset of pairs."""
    if hasattr(x, "column_names"):
        return _columns(where, x, y)
    if y is not None:
        return _features(f"{where}, x", x), _features(f"{where}, y", y, target=True)
    if isinstance(x, Tensor | np.ndarray | tuple | dict) or not (hasattr(x, "__getitem__") and hasattr(x, "__len__")):
        raise FedloomError(f"{where}, y: expected targets beside {type(x).__name__} features, got None: pass y")
    items = [x[row] for row in range(len(x))]
    for row, item in enumerate(items):
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise FedloomError(f"{where}, item {row}: expected a pair (x, y), got {type(item).__name__}: return both")
    if not items:
        raise FedloomError(f"{where}: expected a dataset with items, got an empty one")
    return _stack(f"{where}, x", [item[0] for item in items]), _stack(f"{where}, y", [item[1] for item in items], True)


def _columns(where: str, table: Any, target: Any) -> tuple[Features, Features]:
    """Features and targets out of a Hugging Face dataset, or anything that has named columns in the same way."""
    names = list(table.column_names)
    if target is None:
        target = next((name for name in ("label", "labels") if name in names), None)
    if not isinstance(target, str) or target not in names or len(names) < 2:
        raise FedloomError(
            f"{where}, y: expected the name of the target's column, one of {', '.join(map(str, names))} and not the "
            "only one; "
            f"got {target if isinstance(target, str) else type(target).__name__}: pass y='...'"
        )
    arrays = table.with_format("numpy") if hasattr(table, "with_format") else table
    read = {name: _column(f"{where}, {name!r}", arrays[name], name == target) for name in names}
    targets = read.pop(target)
    return (next(iter(read.values())) if len(read) == 1 else read), targets


def _column(where: str, column: Any, target: bool) -> Tensor:
    values = column if isinstance(column, Tensor | np.ndarray) else column[:]
    if isinstance(values, Tensor) or (isinstance(values, np.ndarray) and values.dtype != object):
        return _tensor(where, values, target)
    return _stack_leaf(where, list(values), target)


def _features(where: str, value: Any, target: bool = False) -> Features:
    if isinstance(value, dict):
        return {str(name): _tensor(f"{where}, {name!r}", leaf, target) for name, leaf in value.items()}
    if isinstance(value, tuple):
        return tuple(_tensor(f"{where}[{place}]", leaf, target) for place, leaf in enumerate(value))
    return _tensor(where, value, target)


def _stack(where: str, values: list[Any], target: bool = False) -> Features:
    """The items of a dataset as one value with a leading axis, tuples and dicts of them leaf by leaf."""
    first = values[0]
    if isinstance(first, dict):
        return {str(key): _stack_leaf(f"{where}, {key!r}", [value[key] for value in values], target) for key in first}
    if isinstance(first, tuple):
        columns = zip(*values, strict=True)
        return tuple(_stack_leaf(f"{where}[{place}]", list(leaf), target) for place, leaf in enumerate(columns))
    return _stack_leaf(where, values, target)


def _stack_leaf(where: str, values: list[Any], target: bool) -> Tensor:
    shapes = [np.shape(value) for value in values]
    for row, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise FedloomError(f"{where}, item {row}: expected shape {shapes[0]}, got {shape}: pad or crop the items")
    if isinstance(values[0], Tensor):
        return torch.stack(values)
    return _tensor(where, np.stack([np.asarray(value) for value in values]), target)


def _tensor(where: str, value: Any, target: bool) -> Tensor:
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise FedloomError(f"{where}: expected numbers, got {array.dtype}: encode them first")
    dtype = np.dtype(np.int64) if target and array.dtype.kind in "iu" else array.dtype.newbyteorder("=")
    tensor = torch.from_numpy(array.astype(dtype, order="C"))  # a copy: what becomes of the array later is no matter
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor
