"""IDX, the format of MNIST: two zero bytes, a type, the number of axes, their sizes in big-endian, then the items."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.data.bounded import damaged, open_maybe_compressed, read_exactly, reading

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path, kind: int, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """An IDX file, gzipped or not, of a type (0x08: bytes, 0x0C: int32) and shape; None stands for any size."""
    with reading(path, "an IDX file"):
        stream, most = open_maybe_compressed(path)
        with stream:
            magic = bytes(read_exactly(stream, 4, path, 0))
            expected = bytes([0, 0, kind, len(shape)])
            if magic != expected:
                raise damaged(path, f"magic 0x{expected.hex()}", f"0x{magic.hex()}", 0)
            sizes = struct.unpack(f">{len(shape)}I", read_exactly(stream, 4 * len(shape), path, 4))
            for axis, (size, wanted) in enumerate(zip(sizes, shape, strict=True)):
                if size == 0 or (wanted is not None and size != wanted):
                    raise damaged(path, f"size {wanted or 'of at least 1'} on axis {axis}", f"{size}", 4 + 4 * axis)
            start, dtype = 4 + 4 * len(shape), np.dtype(TYPES[kind])
            count = math.prod(sizes) * dtype.itemsize
            if most is not None and count > most - start:
                claim = f"{' x '.join(map(str, sizes))}, which is {count:,} bytes"
                raise damaged(path, f"sizes that {path.stat().st_size:,} bytes on disk can hold", claim, 4)
            data = read_exactly(stream, count, path, start)
            if stream.read(1):
                raise damaged(path, f"the end after {count:,} bytes of items", "more", start + count)
    return np.frombuffer(data, dtype).reshape(sizes)


def read_labels(path: Path, classes: int, first: int = 0) -> npt.NDArray[np.uint8]:
    """A vector of labels, each at least `first` and below `first + classes`."""
    labels = read_idx(path, 0x08, (None,))
    check_labels(path, labels, first, first + classes - 1, start=8)
    return labels


def check_labels(path: Path, labels: npt.NDArray[Any], low: int, high: int, start: int = 0, width: int = 1) -> None:
    """Labels are in range; they stand `width` bytes apart from byte `start` on."""
    wrong = np.flatnonzero((labels < low) | (labels > high))
    if wrong.size:
        row = int(wrong[0])
        raise damaged(path, f"a label from {low} to {high}", f"{labels[row]} in row {row}", start + width * row)
