"""Federated data: all rows as tensors, and a CSR index of which client owns which of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom import tree
from fedloom.data.given import pair
from fedloom.errors import FedloomError

Features: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
Augment: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""`f(x, key)`: a batch of features as a training step is to see them; `key` is one int64 number."""


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Rows and their owners: the rows of client k are `indices[offsets[k]:offsets[k + 1]]`.

    >>> federate(torch.zeros(3, 2), torch.tensor([0, 1, 1]), [[0], [1, 2]]).examples
    tensor([1, 2])
    """

    x: Features
    y: Features
    indices: Tensor
    offsets: Tensor
    test: tuple[Features, Features] | None = None
    client_test: tuple[Tensor, Tensor] | None = None
    """Indices into the rows of `test` and their offsets: each client's own, or those of clients to test on."""
    name: str = "data"
    classes: int | None = None
    augment: Augment | None = None
    """What chance does to the features of a batch in training; tests see `test` as it is."""
    held_out: Tensor | None = None
    """Rows of clients that do not train, to validate on."""
    row_weights: Tensor | None = None
    """What each row adds to its client's weight in an average (its tokens, say); one unless given."""
    words: tuple[str, ...] | None = None
    """What the numbers 1, 2, ... in `x` stand for, where they are words."""
    test_strangers: bool = False
    """Whether client k of `client_test` is another than client k, who trains."""

    @property
    def population(self) -> int:
        """The number of clients."""
        return self.offsets.numel() - 1

    @property
    def examples(self) -> Tensor:
        """The number of rows of every client."""
        return self.offsets.diff()

    @cached_property
    def host_offsets(self) -> Tensor:
        """The offsets on the host, where batches are planned."""
        return self.offsets.cpu()

    @cached_property
    def host_indices(self) -> Tensor:
        return self.indices.cpu()

    @cached_property
    def sizes(self) -> Tensor:
        """The number of rows of every client, on the host."""
        return self.host_offsets.diff()

    @cached_property
    def weights(self) -> Tensor | None:
        """What replaces the clients' numbers of rows as weights, float64 on the host; None where nothing does."""
        if self.row_weights is None:
            return None
        rows, given = count(self.y), torch.as_tensor(self.row_weights).cpu().double()
        if given.shape != (rows,) or not (given.isfinite() & (given >= 0)).all():
            got = f"shape {tuple(given.shape)}" if given.shape != (rows,) else "others among them"
            raise FedloomError(f"{self.name}, row_weights: expected {rows:,} finite numbers of at least 0, got {got}")
        owners = torch.repeat_interleave(torch.arange(self.population), self.sizes)
        return given.new_zeros(self.population).index_add(0, owners, given[self.host_indices])

    def weighed(self, used: Tensor, clients: Tensor | slice = slice(None)) -> Tensor | None:
        """The weights of clients that use so many of their rows in an epoch; None where those are the weights."""
        if self.weights is None:
            return None
        return self.weights[clients] * (used / self.sizes[clients].clamp(min=1).double())

    @property
    def nbytes(self) -> int:
        """Memory that the rows take, test set included."""
        parts = [self.x, self.y, *(self.test or ())]
        return sum(leaf.numel() * leaf.element_size() for part in parts for _, leaf in named_leaves(part))

    @cached_property
    def pooled(self) -> FederatedData:
        """The same data with one client that has everybody's rows, each once."""
        rows = self.indices.unique()
        return replace(self, indices=rows, offsets=torch.tensor([0, rows.numel()], device=rows.device))

    def rows(self, client: int) -> Tensor:
        """The rows that `client` owns."""
        if not 0 <= client < self.population:
            raise FedloomError(f"{self.name}, client: expected 0 to {self.population - 1}, got {client}")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> FederatedData:
        """The same data on `device`; floating features and targets become `dtype`, where one is given."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        return replace(
            self,
            x=_map(move, self.x),
            y=_map(move, self.y),
            indices=self.indices.to(device),
            offsets=self.offsets.to(device),
            test=self.test and (_map(move, self.test[0]), _map(move, self.test[1])),
            client_test=self.client_test and (self.client_test[0].to(device), self.client_test[1].to(device)),
            held_out=None if self.held_out is None else self.held_out.to(device),
        )

    def fingerprint(self) -> str:
        """SHA-256 of everything that training and testing read; the same on every device.

        >>> federate(torch.zeros(2, 1), torch.tensor([0, 1]), [[0], [1]]).fingerprint()[:8]
        '891be4d3'
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        x_test, y_test = self.test or ((), ())
        parts: dict[str, Features] = {
            "x": self.x,
            "y": self.y,
            "indices": self.indices,
            "offsets": self.offsets,
            "test x": x_test,
            "test y": y_test,
            "client test": self.client_test or (),
        }
        for part, tensor in (("held out", self.held_out), ("row weights", self.row_weights)):
            if tensor is not None:
                parts[part] = tensor
        digest = hashlib.sha256()
        for part, features in parts.items():
            for leaf, rows in named_leaves(features):
                tree.into_digest(digest, f"{part}/{leaf}", rows)
        if self.augment is not None:
            named = getattr(self.augment, "__qualname__", None)  # a function's repr has its address
            digest.update(f"augment: {named or repr(self.augment)}\n".encode())
        return digest.hexdigest()


def federate(
    x: Any,
    y: Any,
    partition: Sequence[npt.ArrayLike | Tensor],
    test: Any = None,
    client_test: Sequence[npt.ArrayLike | Tensor] | None = None,
    name: str = "data",
    *,
    overlap: bool = False,
    augment: Augment | None = None,
) -> FederatedData:
    """Joins rows with a partition of them: one array of row numbers per client, as `fedloom.data.partition` makes.

    `x` and `y` are a tensor, an array, or a tuple or dict of them, with one entry per row; or `x` is a map-style
    `Dataset` of pairs and `y` is None: its items are read once, transforms included. `test` is `(x, y)` or a `Dataset`,
    `client_test` one array of its row numbers per client. `overlap=True` lets a row have several owners.
    `augment(x, key)` is what a training step does to a batch of features.

    Of a Hugging Face `Dataset`, whose columns have names, `y` names the target's, "label" or "labels" when it is None;
    all others are features, one tensor or a dict of them.

    Tensors are kept as they are. Of arrays, float64 becomes torch's default dtype, and whole-numbered targets int64.

    >>> data = federate(np.eye(4), np.array([0, 1, 1, 0]), [[0, 3], [1, 2]])
    >>> data.population, data.classes, data.rows(1), data.x.dtype
    (2, 2, tensor([1, 2]), torch.float32)
    """
    features, targets = pair(name, x, y)
    total = _rows(name, features, targets)
    indices, offsets = _csr(f"{name}, partition", partition, total)
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if empty.size:
        raise FedloomError(f"{name}, partition, client {empty[0]}: expected at least 1 row, got none: leave it out")
    if not overlap:
        _check_owned_once(name, indices, offsets, total)
    tested = None if test is None else _test_pair(f"{name}, test", test)
    return FederatedData(
        x=features,
        y=targets,
        indices=torch.from_numpy(indices),
        offsets=torch.from_numpy(offsets),
        test=tested,
        client_test=None if client_test is None else _client_test(name, client_test, tested, len(offsets) - 1),
        name=name,
        classes=_class_count(targets, tested),
        augment=augment,
    )


def take(features: Features, index: Tensor | slice) -> Features:
    """Rows `index` of every tensor.

    >>> take({"a": torch.arange(3), "b": torch.eye(3)}, torch.tensor([2]))
    {'a': tensor([2]), 'b': tensor([[0., 0., 1.]])}
    """

    def pick(tensor: Tensor) -> Tensor:
        if isinstance(index, slice) or tensor.device.type != "cpu" or index.dtype != torch.int64:
            return tensor[index]
        rows = tensor.index_select(0, index.flatten())  # whole rows at a time: twice as fast as the general form
        return rows.reshape(*index.shape, *tensor.shape[1:])

    return _map(pick, features)


def count(features: Features) -> int:
    """The number of rows, which every tensor must agree on.

    >>> count((torch.zeros(3, 2), torch.zeros(3)))
    3
    """
    sizes = {leaf: len(tensor) if tensor.ndim else None for leaf, tensor in named_leaves(features)}
    if not sizes:
        raise FedloomError("features: expected at least one tensor, got none")
    first, rows = next(iter(sizes.items()))
    for leaf, size in sizes.items():
        if size is None:
            raise FedloomError(f"features, {leaf}: expected one entry per row, got a single number")
        if size != rows:
            raise FedloomError(f"features, {leaf}: expected {rows} rows, as many as {first}, got {size}")
    return rows or 0


def _map(function: Callable[[Tensor], Tensor], features: Features) -> Features:
    if isinstance(features, dict):
        return {name: function(tensor) for name, tensor in features.items()}
    if isinstance(features, tuple):
        return tuple(function(tensor) for tensor in features)
    return function(features)


def named_leaves(features: Features) -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its name, in an order that does not depend on a dictionary's."""
    if isinstance(features, dict):
        yield from ((repr(name), features[name]) for name in sorted(features))
    elif isinstance(features, tuple):
        yield from ((f"[{place}]", tensor) for place, tensor in enumerate(features))
    else:
        yield "tensor", features


def _test_pair(where: str, test: Any) -> tuple[Features, Features]:
    if isinstance(test, tuple) and len(test) == 2:  # also a dataset and the name of its target's column
        features, targets = pair(where, *test)
    else:
        features, targets = pair(where, test, None)
    _rows(where, features, targets)
    return features, targets


def _rows(where: str, x: Features, y: Features) -> int:
    try:
        rows, targets = count(x), count(y)
    except FedloomError as error:
        raise FedloomError(f"{where}, {error}") from None
    if rows != targets:
        raise FedloomError(f"{where}, y: expected {rows} rows, as many as x, got {targets}")
    return rows


def _csr(where: str, parts: Iterable[Any], rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Index arrays, one per client, as one array and the places where each client begins."""
    arrays = [np.asarray(part.cpu() if isinstance(part, Tensor) else part) for part in parts]
    if not arrays:
        raise FedloomError(f"{where}: expected an index array for each client, got an empty list")
    for client, array in enumerate(arrays):
        if array.ndim == 0:
            raise FedloomError(
                f"{where}, client {client}: expected an array of row numbers, got the number {array}: "
                "turn an array of owners into index arrays with partition.natural(owners)"
            )
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise FedloomError(
                f"{where}, client {client}: expected a vector of row numbers, got shape {array.shape} of {array.dtype}"
            )
    offsets = np.cumsum([0, *(array.size for array in arrays)], dtype=np.int64)
    indices = np.concatenate([array.astype(np.int64) for array in arrays])
    outside = np.flatnonzero((indices < 0) | (indices >= rows))
    if outside.size:
        client = int(np.searchsorted(offsets, outside[0], side="right")) - 1
        raise FedloomError(f"{where}, client {client}: expected rows 0 to {rows - 1}, got {indices[outside[0]]}")
    return indices, offsets


def _check_owned_once(name: str, indices: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], rows: int) -> None:
    owned = np.bincount(indices, minlength=rows)
    if owned.max() <= 1:
        return
    row = int(owned.argmax())
    first, second = np.searchsorted(offsets, np.flatnonzero(indices == row)[:2], side="right") - 1
    raise FedloomError(
        f"{name}, partition, client {second}: expected rows of its own, got row {row}, which client {first} has too: "
        "pass overlap=True if clients may share rows"
    )


def _client_test(
    name: str, parts: Iterable[Any], test: tuple[Features, Features] | None, population: int
) -> tuple[Tensor, Tensor]:
    if test is None:
        raise FedloomError(f"{name}, client_test: expected test rows to point into, got test=None: pass test=(x, y)")
    indices, offsets = _csr(f"{name}, client_test", parts, count(test[0]))
    if len(offsets) - 1 != population:
        raise FedloomError(
            f"{name}, client_test: expected {population} index arrays, one per client, got {len(offsets) - 1}"
        )
    return torch.from_numpy(indices), torch.from_numpy(offsets)


def _class_count(y: Features, test: tuple[Features, Features] | None) -> int | None:
    """One more than the largest label, where the targets are a vector of labels."""
    targets = [y] if test is None else [y, test[1]]
    labels = [target for target in targets if isinstance(target, Tensor) and target.ndim == 1 and len(target)]
    if len(labels) < len(targets) or any(label.is_floating_point() or label.is_complex() for label in labels):
        return None
    if any(label.dtype == torch.bool or bool(label.min() < 0) for label in labels):
        return None
    return 1 + max(int(label.max()) for label in labels)
