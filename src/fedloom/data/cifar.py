"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the binary release, and the same pictures as lossless WebP strips.

A record of the release is one label byte (CIFAR-10), or the coarse and the fine one (CIFAR-100), and 3 x 32 x 32 pixel
bytes. A strip is a picture of 32 x (32 n) pixels, n records in the order of the release one above the other, beside a
`labels.npz` with `train` and `test`, or `train_fine`, `train_coarse`, `test_fine`, `test_coarse`. It holds the same
bytes: SHA-1 of the records that it stands for is compared with the release's.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.data.bounded import DAMAGE, damaged, reading
from fedloom.data.idx import check_labels
from fedloom.errors import FedloomError

Bytes = npt.NDArray[np.uint8]
PIXELS = 3 * 32 * 32
LABELS: dict[str, dict[str, int]] = {"cifar10": {"": 10}, "cifar100": {"_coarse": 20, "_fine": 100}}
SHA1 = {  # of the release's files; CIFAR-10's five training batches one after another
    ("cifar10", "train"): (
        *("aadd24acce27caa71bf4b10992e9e7b2d74c2540", "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
        *("1dd00a74ab1d17a6e7d73e185b69dbf31242f295", "aab85764eb3584312d3c7f65fd2fd016e36a258e"),
        "26e2849e66a845b7f1e4614ae70f4889ae604628",
    ),
    ("cifar10", "test"): ("67eb016db431130d61cd03c7ad570b013799c88c",),
    ("cifar100", "train"): ("e207cd2e05b73b1393c74c7f5e7bea451d63e08e",),
    ("cifar100", "test"): ("8fb6623e830365ff53cf14adec797474f5478006",),
}


def read_records(name: str, path: Path) -> Bytes:
    """The records of a binary file: rows of label bytes and pixel bytes."""
    classes = LABELS[name]
    width = len(classes) + PIXELS
    with reading(path, "CIFAR records"):
        size = path.stat().st_size
        if size == 0 or size % width:
            raise damaged(path, f"records of {width} bytes", f"{size:,} bytes", size - size % width)
        records = np.fromfile(path, np.uint8).reshape(-1, width)
    for column, count in enumerate(classes.values()):
        check_labels(path, records[:, column], 0, count - 1, start=column, width=width)
    return records


def read_strips(name: str, labels: Path, strips: list[Path], split: str, verify: bool = True) -> Bytes:
    """The records that a folder of strips stands for."""
    chosen = sorted(path for path in strips if path.name.startswith(f"{split}_"))
    if not chosen:
        raise damaged(labels.parent / "webp" / f"{split}_000.webp", "a strip of pictures", "nothing there")
    planes = np.concatenate([_strip(path) for path in chosen])
    columns = []
    for suffix, count in LABELS[name].items():
        column = _column(labels, split + suffix, len(planes))
        check_labels(labels, column, 0, count - 1)
        columns.append(column.astype(np.uint8))
    records = np.concatenate([np.stack(columns, 1), planes], 1)
    if verify:
        _check_release(name, split, records, labels.parent)
    return records


def split_records(name: str, records: Bytes) -> tuple[Bytes, dict[str, Bytes]]:
    """Pictures, (N, 3, 32, 32), and labels by their names."""
    width = len(LABELS[name])
    pictures = records[:, width:].reshape(-1, 3, 32, 32)
    return pictures, {suffix.lstrip("_") or "label": records[:, at] for at, suffix in enumerate(LABELS[name])}


def _strip(path: Path) -> Bytes:
    try:
        from PIL import Image
    except ImportError:
        raise FedloomError(
            f"{path}: expected Pillow to read WebP strips, got no such package: install pillow, or use the binary files"
        ) from None
    try:
        with Image.open(path, formats=["WEBP"]) as picture:
            width, height = picture.size
            if width != 32 or height % 32 or not 0 < height <= 32 * 50_000 or getattr(picture, "n_frames", 1) != 1:
                raise damaged(path, "one picture of 32 x (32 n) pixels", f"{width} x {height}")
            pixels = np.asarray(picture.convert("RGB"))
    except FedloomError:
        raise
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise damaged(path, "a lossless WebP strip", f"{type(error).__name__}: {error}") from None
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)).reshape(-1, PIXELS)


def _column(path: Path, name: str, rows: int) -> npt.NDArray[Any]:
    with reading(path, f"an .npz file with {name}"):
        with zipfile.ZipFile(path) as archive:
            size = archive.getinfo(f"{name}.npy").file_size
        if size > 8 * rows + 4096:  # a header and int64 at most
            raise damaged(path, f"{rows} labels in {name}", f"{size:,} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            column: npt.NDArray[Any] = arrays[name]
    if column.shape != (rows,) or column.dtype.kind not in "iu":
        raise damaged(path, f"{rows} whole numbers in {name}", f"shape {column.shape} of {column.dtype}")
    return column


def _check_release(name: str, split: str, records: Bytes, folder: Path) -> None:
    wanted = SHA1[name, split]
    parts = np.array_split(records, len(wanted))
    for number, (part, expected) in enumerate(zip(parts, wanted, strict=True)):
        found = hashlib.sha1(np.ascontiguousarray(part).tobytes()).hexdigest()
        if found != expected:
            raise FedloomError(
                f"{folder}, {split} part {number + 1} of {len(wanted)}: expected the release's SHA-1 {expected}, "
                f"got {found}: fetch the strips again; fl.load(..., verify=False) takes them as they are"
            )
