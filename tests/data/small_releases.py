"""Small files in the official formats, written by hand."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import struct
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def rng() -> np.random.Generator:
    """The same numbers in every file."""
    return np.random.default_rng(7)


def idx(array: np.ndarray[Any, Any], kind: int = 0x08) -> bytes:
    """An IDX file's content."""
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def mnist(folder: Path, name: str = "MNIST", suffix: str = ".gz") -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """40 training and 10 test pictures; the training pictures and labels."""
    pictures = rng().integers(0, 256, (50, 28, 28), np.uint8)
    labels = np.arange(50, dtype=np.uint8) % 10
    for prefix, rows in (("train", slice(40)), ("t10k", slice(40, 50))):
        put(folder / name / "raw" / f"{prefix}-images-idx3-ubyte{suffix}", idx(pictures[rows]))
        put(folder / name / "raw" / f"{prefix}-labels-idx1-ubyte{suffix}", idx(labels[rows]))
    return pictures[:40], labels[:40]


def qmnist(folder: Path) -> None:
    """Four writers of ten digits each; other writers in the test rows, of which there are more than pictures."""
    mnist(folder)
    for split, rows, first in (("train", 40, 100), ("test", 30, 900)):
        table = np.zeros((rows, 8), ">i4")
        table[:, 0], table[:, 2] = np.arange(rows) % 10, first + np.arange(rows) // 10
        put(folder / "QMNIST" / "raw" / f"qmnist-{split}-labels-idx2-int.gz", idx(table, 0x0C))


def cifar_records(name: str, rows: int) -> np.ndarray[Any, Any]:
    classes = {"cifar10": [10], "cifar100": [20, 100]}[name]
    fine = np.arange(rows) % classes[-1]
    labels = [fine] if len(classes) == 1 else [fine // 5, fine]
    return np.concatenate([np.stack(labels, 1), rng().integers(0, 256, (rows, 3072))], 1).astype(np.uint8)


def cifar(folder: Path, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """The binary release with a few records in every file."""
    if name == "cifar10":
        names = {f"cifar-10-batches-bin/data_batch_{i}.bin": 8 for i in range(1, 6)}
        names["cifar-10-batches-bin/test_batch.bin"] = 6
    else:
        names = {"cifar-100-binary/train.bin": 200, "cifar-100-binary/test.bin": 20}
    written = {path: cifar_records(name, rows) for path, rows in names.items()}
    for path, records in written.items():
        put(folder / path, records.tobytes())
    return written


def strips(folder: Path, name: str, train: np.ndarray[Any, Any], test: np.ndarray[Any, Any], each: int = 50) -> None:
    """The layout of WebP strips, as `tools/cifar.py pack` makes it."""
    from PIL import Image

    names = {"cifar10": [""], "cifar100": ["_coarse", "_fine"]}[name]
    root = folder / name.upper()
    (root / "webp").mkdir(parents=True)
    labels = {}
    for split, records in (("train", train), ("test", test)):
        labels |= {split + suffix: records[:, at] for at, suffix in enumerate(names)}
        pictures = records[:, len(names) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        for number, start in enumerate(range(0, len(pictures), each)):
            strip = Image.fromarray(np.ascontiguousarray(pictures[start : start + each]).reshape(-1, 32, 3))
            strip.save(root / "webp" / f"{split}_{number:03d}.webp", lossless=True, quality=0, method=0)
    np.savez_compressed(root / "labels.npz", **labels)


def tar(
    path: Path, members: Iterable[tuple[str, bytes]], kind: str = "gz", special: tarfile.TarInfo | None = None
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, f"w:{kind}") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if special is not None:
            archive.addfile(special)
    return path


NEWS = {
    "20news-bydate-train/alt.atheism/1": b"From: a\n\nGod and reason and reason",
    "20news-bydate-train/sci.space/2": b"From: b\n\nOrbit, orbit and reason \xff",
    "20news-bydate-test/sci.space/3": b"An orbit unseen",
    "20news-bydate-test/alt.atheism/4": b"God",
}


def newsgroups(folder: Path, kind: str = "xz") -> Path:
    return tar(folder / "20newsgroups" / f"20news-bydate.tar.{kind}", NEWS.items(), kind)


def agnews(folder: Path) -> None:
    rows = [(k % 4 + 1, f"title {k}", 'a "quoted" word, and\nanother line') for k in range(12)]
    text = "".join(f'"{label}","{title}","{body.replace(chr(34), chr(34) * 2)}"\n' for label, title, body in rows)
    put(folder / "AGNews" / "train.csv", text.encode())
    put(folder / "AGNews" / "test.csv", text.encode())


PLAY = """	A PLAY


	DRAMATIS PERSONAE

KING	of somewhere.

ACT I

SCENE I	A street.

	[Enter KING and Fool]

KING	Who's there?
	Speak! [Exit
	Page] Now.

Fool	Nobody.

KING	Good.

ACT II

SCENE I	The same.

Fool	[Sings] Hey ho.

Page	My lord.

KING	Again!
"""


def leaf(folder: Path) -> None:
    for split, users in (("train", ["b", "a"]), ("test", ["a", "b"])):
        data = {user: {"x": ["x" * 80, user * 80], "y": ["q", "~"]} for user in users}
        content = {"users": users, "num_samples": [2, 2], "user_data": data}
        put(folder / "Shakespeare" / "leaf" / split / "all.json", json.dumps(content).encode())


SPLITS = ("train", "test")
SNIPPETS = {"train": {"b": [b"To be", b"Or not"], "a": [b"x" * 100]}, "test": {"b": [b"End"], "a": [b"Fin"]}}


def emnist_clients(rows: int = 3) -> dict[str, dict[str, dict[str, Any]]]:
    def client(count: int) -> dict[str, Any]:
        return {"pixels": rng().random((count, 28, 28), np.float32), "label": np.arange(count, dtype=np.int32)}

    return {"train": {"f2": client(rows), "f1": client(5)}, "test": {"f1": client(2), "f2": client(1), "f9": client(1)}}


def questions() -> dict[str, dict[str, dict[str, Any]]]:
    def user(*rows: tuple[str, str, str]) -> dict[str, Any]:
        columns = zip(*((text.encode() for text in row) for row in rows), strict=True)
        return dict(zip(("tokens", "title", "tags"), map(list, columns), strict=True))

    train = {
        "u2": user(("use a loop", "loop how", "c|loops"), ("a a b", "t", "c")),
        "u1": user(("the end", "why", "python")),
    }
    return {"train": train, "test": {"u1": user(("a loop", "so", "c|python"))}}


def hdf5(path: Path, clients: dict[str, dict[str, Any]]) -> None:
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for client, features in clients.items():
            for feature, values in features.items():
                text = isinstance(values, list)
                file.create_dataset(
                    f"examples/{client}/{feature}", data=values, dtype=h5py.string_dtype() if text else None
                )


def sqlite(path: Path, splits: dict[str, dict[str, dict[str, Any]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
    database.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
    for split, clients in splits.items():
        for client, features in clients.items():
            rows = list(zip(*features.values(), strict=True))
            database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(rows)))
            for row in rows:
                message = example(dict(zip(features, row, strict=True)))
                database.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, client, message))
    database.commit()
    database.close()


def example(features: dict[str, Any]) -> bytes:
    """A serialized tf.train.Example."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            content = _field(1, _field(1, value))
        elif np.asarray(value).dtype.kind == "f":
            content = _field(2, _field(1, np.asarray(value, "<f4").tobytes()))
        else:
            content = _field(3, _field(1, b"".join(_varint(int(n) % 2**64) for n in np.ravel(value))))
        entries += _field(1, _field(1, name.encode()) + _field(2, content))
    return _field(1, entries)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])
