"""TensorFlow Federated's files: a client's examples in HDF5 groups, or in rows of an SQLite table.

HDF5: `examples/<client>/<feature>`, one array per feature. SQLite: a table `examples` of `split_name`, `client_id` and
`serialized_example_proto`, one tf.train.Example a row. Either gives a client's features by name, one entry an example.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedloom.data.bounded import damaged, reading
from fedloom.errors import FedloomError

Features: TypeAlias = dict[str, Any]
_MESSAGE = "a tf.train.Example"
_HEAP = b"GCOL\1\0\0\0"


def read_hdf5(path: Path, features: tuple[str, ...], limit: int | None = None) -> Iterator[tuple[str, Features]]:
    """The clients of an HDF5 file, sorted by name, the first `limit` of them."""
    try:
        h5py: Any = import_module("h5py")
    except ImportError:
        raise FedloomError(
            f"{path}: expected h5py to read it, got no such package: pip install 'fedloom[hdf5]'"
        ) from None
    _check_heaps(path)
    with reading(path, "an HDF5 file of TFF"), h5py.File(path, "r") as file:
        examples = file.get("examples")
        if not isinstance(examples, h5py.Group) or not len(examples):
            raise damaged(path, "a group 'examples' with clients", "none")
        for client in islice(sorted(examples), limit):
            try:
                found = _group(path, client, examples[client], features)
            except TypeError as error:  # a kind of data that h5py does not know
                raise damaged(path, f"features of client {client!r}", error) from None
            yield client, found


def _check_heaps(path: Path) -> None:
    """Refuse a heap of texts with an entry that leads to itself: libhdf5, going from one to the next, would never end.

    A heap is `GCOL`, version 1, three zeros and its size, then entries: number, references, four bytes, size, content
    in steps of eight bytes. The entry of number 0 is what is free, and its size is that of the whole entry.
    """
    with (
        reading(path, "an HDF5 file of TFF"),
        path.open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as content,
    ):
        heap = content.find(_HEAP)
        while heap >= 0:
            (size,) = struct.unpack_from("<Q", content, heap + len(_HEAP))
            at, end = heap + 16, min(heap + size, len(content))
            while at + 16 <= end:
                number, length = struct.unpack_from("<H6xQ", content, at)
                step = length if number == 0 else 16 + -(-length // 8) * 8
                if step % 2**64 == 0:  # as libhdf5 counts
                    raise damaged(path, "a heap that ends", "an entry that leads to itself", at)
                at += step
            heap = content.find(_HEAP, heap + 1)


def _group(path: Path, client: str, group: Any, features: tuple[str, ...]) -> Features:
    found: Features = {}
    for feature in features:
        dataset = group.get(feature) if hasattr(group, "get") else None
        if dataset is None or not hasattr(dataset, "shape") or not dataset.shape:
            raise damaged(path, f"a data set 'examples/{client}/{feature}'", "none")
        declared = dataset.size * dataset.dtype.itemsize
        if declared > max(1 << 24, 64 * path.stat().st_size):  # a header may claim what the file cannot hold
            raise damaged(
                path, f"'examples/{client}/{feature}' of a size that the file can hold", f"{declared:,} bytes"
            )
        found[feature] = dataset[()]
    sizes = {len(values) for values in found.values()}
    if len(sizes) != 1:
        raise damaged(path, f"features of one length for client {client!r}", f"{sorted(sizes)}")
    return found


def read_sqlite(
    path: Path, split: str, features: tuple[str, ...], limit: int | None = None
) -> Iterator[tuple[str, Features]]:
    """The clients of one split of an SQLite file, sorted by name, the first `limit` of them."""
    with reading(path, "an SQLite file of TFF"):
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id"
            clients = [row[0] for row in islice(database.execute(query, (split,)), limit)]
            if not clients:
                raise damaged(path, f"clients in split {split!r}", "none")
            query = (
                "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid"
            )
            for client in clients:
                if not isinstance(client, str):
                    raise damaged(path, "text as client_id", type(client).__name__)
                rows = [_row(path, client, row[0], features) for row in database.execute(query, (split, client))]
                yield client, {feature: [row[feature] for row in rows] for feature in features}
        finally:
            database.close()


def _row(path: Path, client: str, message: Any, features: tuple[str, ...]) -> Features:
    if not isinstance(message, bytes):
        raise damaged(path, f"bytes for an example of client {client!r}", type(message).__name__)
    example = parse_example(message, lambda got: damaged(path, f"{_MESSAGE} of client {client!r}", got))
    for feature in features:
        if not len(example.get(feature, ())):
            raise damaged(path, f"feature {feature!r} in an example of client {client!r}", f"{sorted(example)}")
    return {feature: example[feature][0] if len(example[feature]) == 1 else example[feature] for feature in features}


Complaint = Callable[[str], FedloomError]


def parse_example(message: bytes, complain: Complaint) -> Features:
    """The features of a serialized tf.train.Example: lists of bytes, float32 or int64 by name."""
    features: Features = {}
    for _, group in _fields(message, complain, wanted=1):
        for _, entry in _fields(group, complain, wanted=1):
            parts = dict(_fields(entry, complain))
            if not isinstance(parts.get(1), bytes) or not isinstance(parts.get(2), bytes):
                raise complain("a feature without a name or a value")
            name = parts[1].decode("utf-8", "replace")
            features[name] = _values(parts[2], complain)
    return features


def _values(feature: bytes, complain: Complaint) -> Any:
    for kind, content in _fields(feature, complain):
        if not isinstance(content, bytes):
            break
        if kind == 1:
            return [value for _, value in _fields(content, complain, wanted=1)]
        packed = [value for _, value in _fields(content, complain)]
        if kind == 2:
            raw = b"".join(value if isinstance(value, bytes) else b"" for value in packed)
            if len(raw) % 4:
                raise complain("a list of floats cut short")
            return np.frombuffer(raw, "<f4")
        if kind == 3:
            return np.array([_signed(n) for value in packed for n in _integers(value, complain)], np.int64)
    return []


def _integers(value: bytes | int, complain: Complaint) -> list[int]:
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at, complain)
        numbers.append(number)
    return numbers


def _fields(message: bytes, complain: Complaint, wanted: int | None = None) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol-buffer message: bytes, or an int for a varint; `wanted`: that one, and as bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at, complain)
        number, wire = tag >> 3, tag & 7
        value: Any
        if wire == 0:
            value, at = _varint(message, at, complain)
        elif wire in (1, 5):
            at, value = at + (8 if wire == 1 else 4), message[at : at + (8 if wire == 1 else 4)]
        elif wire == 2:
            size, at = _varint(message, at, complain)
            at, value = at + size, message[at : at + size]
        else:
            raise complain(f"wire type {wire}")
        if at > len(message):
            raise complain("a message cut short")
        if wanted is None or (number == wanted and isinstance(value, bytes)):
            yield number, value


def _varint(message: bytes, at: int, complain: Complaint) -> tuple[int, int]:
    number = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise complain("a number cut short")


def _signed(number: int) -> int:
    return int(struct.unpack("<q", struct.pack("<Q", number & (2**64 - 1)))[0])
