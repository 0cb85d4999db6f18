"""Reading files that may be damaged: every mistake is one line, and no more is read than the file can hold."""

from __future__ import annotations

import csv
import gzip
import lzma
import sqlite3
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from fedloom.errors import FedloomError

CHUNK = 1 << 20
GZIP_RATIO = 1032  # deflate cannot expand a byte into more
DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, OverflowError, RecursionError, struct.error, zlib.error),
    *(lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, csv.Error, sqlite3.Error, SyntaxError, RuntimeError),
)
"""What the readers of the standard library, of numpy and of Pillow raise over a damaged file."""


def damaged(path: Path, expected: str, got: object, offset: int | None = None, unit: str = "byte") -> FedloomError:
    """The error over a file's content, with the place where there is one.

    >>> str(damaged(Path("train.gz"), "16 bytes", "the end of the file", offset=4))
    'train.gz, byte 4: expected 16 bytes, got the end of the file: fetch the file again'
    """
    where = f"{path}" if offset is None else f"{path}, {unit} {offset}"
    return FedloomError(f"{where}: expected {expected}, got {got}: fetch the file again")


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turns whatever a library says of a damaged file into one line that names it."""
    try:
        yield
    except FedloomError:
        raise
    except FileNotFoundError:
        raise damaged(path, what, "nothing there") from None
    except UnicodeDecodeError as error:
        raise damaged(path, f"{what} in {error.encoding}", f"byte {error.object[error.start]:#04x}") from None
    except DAMAGE as error:
        said = " ".join(str(error).split())[:200]
        raise damaged(path, what, f"{type(error).__name__}: {said}" if said else type(error).__name__) from None


def open_maybe_compressed(path: Path) -> tuple[IO[bytes], int | None]:
    """The content of a file, decompressed where its name ends in .gz or .xz, and the most bytes it can hold."""
    size = path.stat().st_size
    if path.suffix == ".xz":
        return cast(IO[bytes], lzma.open(path, "rb")), None
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb")), size * GZIP_RATIO
    return path.open("rb"), size


def read_exactly(stream: IO[bytes], count: int, path: Path, offset: int) -> bytearray:
    """`count` bytes, read in pieces, so that a false count costs no more memory than the file has bytes."""
    data = bytearray()
    while len(data) < count:
        piece = stream.read(min(CHUNK, count - len(data)))
        if not piece:
            raise damaged(path, f"{count} bytes", f"{len(data)}", offset)
        data += piece
    return data


def read_limited(path: Path, limit: int) -> bytes:
    """A whole file of at most `limit` bytes."""
    size = path.stat().st_size
    if size > limit:
        raise damaged(path, f"at most {limit:,} bytes", f"{size:,}")
    return path.read_bytes()
