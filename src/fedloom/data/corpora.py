"""Labelled texts: AG News as CSV (Zhang et al. 2015), and the tar file of 20 Newsgroups by date (Lang 1995)."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from fedloom.data.bounded import CHUNK, damaged, open_maybe_compressed, read_limited, reading

Texts = tuple[list[str], list[int]]
_LARGEST = 1 << 28  # of all texts of a data set together; the releases have 30 to 40 MB


def read_csv(path: Path, classes: int, columns: int = 3) -> Texts:
    """Rows of a label from 1 on and texts, which are joined by a space; labels are counted from 0."""
    with reading(path, "a CSV file"):
        content = read_limited(path, _LARGEST).decode("utf-8")
        texts, labels = [], []
        rows = csv.reader(io.StringIO(content, newline=""), strict=True)
        for row in rows:
            if len(row) != columns:
                raise damaged(path, f"{columns} columns", f"{len(row)}", rows.line_num, "line")
            if not (row[0].isascii() and row[0].isdigit() and 1 <= int(row[0][:9]) <= classes):
                raise damaged(path, f"a label from 1 to {classes}", repr(row[0][:40]), rows.line_num, "line")
            labels.append(int(row[0]) - 1)
            texts.append(" ".join(row[1:]))
    if not texts:
        raise damaged(path, "rows", "none")
    return texts, labels


class _Bounded:
    """A stream that refuses to give more than `limit` bytes: a small file may decompress to any size."""

    def __init__(self, stream: IO[bytes], limit: int, path: Path) -> None:
        self.stream, self.left, self.limit, self.path = stream, limit, limit, path

    def read(self, size: int = -1) -> bytes:
        piece = self.stream.read(self.left + 1 if size < 0 else min(size, self.left + 1))
        self.left -= len(piece)
        if self.left < 0:
            raise damaged(self.path, f"at most {self.limit:,} bytes when decompressed", "more")
        return piece


def tar_members(path: Path, limit: int = _LARGEST) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The plain files of a tar file, .gz or .xz, one after another; links, devices and paths outside are refused."""
    with reading(path, "a tar file"):
        stream = open_maybe_compressed(path)[0]
        bounded = _Bounded(stream, limit, path)
        with stream, tarfile.open(fileobj=cast(Any, bounded), mode="r|") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                where = f"member {member.name[:100]!r}"
                if name.is_absolute() or ".." in name.parts or "\\" in member.name:
                    raise damaged(path, "paths inside the folder", where)
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise damaged(path, "plain files and folders", f"{where} of type {member.type!r}")
                content = tar.extractfile(member)
                data = content.read() if content else b""
                if len(data) != member.size:
                    raise damaged(path, f"{member.size:,} bytes of {where}", f"{len(data):,}")
                yield name, data
            while rest := bounded.read(CHUNK):  # tarfile takes a damaged header for the end
                if rest.strip(b"\0"):
                    raise damaged(path, "nothing after the last member", "a damaged header")


def read_newsgroups(path: Path) -> dict[str, tuple[list[str], list[int], list[str]]]:
    """Texts, labels and group names of the splits `train` and `test`; labels number the sorted names of the groups."""
    found: dict[str, list[tuple[str, str, bytes]]] = {"train": [], "test": []}
    for name, data in tar_members(path):
        if len(name.parts) != 3 or name.parts[0] not in ("20news-bydate-train", "20news-bydate-test"):
            raise damaged(path, "20news-bydate-{train,test}/GROUP/NUMBER", str(name)[:100])
        found[name.parts[0].rpartition("-")[2]].append((name.parts[1], name.parts[2], data))
    groups = sorted({group for rows in found.values() for group, _, _ in rows})
    if not found["train"] or not found["test"]:
        raise damaged(path, "messages to train on and to test", f"{len(found['train'])} and {len(found['test'])}")
    number = {group: label for label, group in enumerate(groups)}
    return {
        split: ([data.decode("latin-1") for _, _, data in rows], [number[group] for group, _, _ in rows], groups)
        for split, rows in ((split, sorted(rows, key=lambda row: row[:2])) for split, rows in found.items())
    }
