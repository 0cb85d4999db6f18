"""Files and folders that a crash leaves as they were or as they were to be: written aside, flushed, then renamed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LEFT = re.compile(r"\..+\.\d+\.(new|old)")
"""What a process that was killed leaves behind: a name of `aside`."""


def aside(path: Path, end: str) -> Path:
    """A name beside `path` for what is not there yet, `new`, or no longer, `old`."""
    return path.with_name(f".{path.name}.{os.getpid()}.{end}")


def write(path: Path, content: bytes) -> None:
    """Write a file, down to the disk."""
    handle = _open(path, os.O_TRUNC)
    try:
        with named(path):
            _put(handle, content)
            os.fsync(handle)
    finally:
        os.close(handle)


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file, which `flush` may bring to the disk later."""
    handle = _open(path, os.O_APPEND)
    try:
        with named(path):
            _put(handle, content)
    finally:
        os.close(handle)


def _open(path: Path, how: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | how | getattr(os, "O_BINARY", 0), 0o666)


def _put(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]


@contextmanager
def named(path: Path) -> Iterator[None]:
    """An error says which file it is about: of a full disk the system says only that it is full."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader, or a power cut, sees the old one or the new one and nothing between."""
    fresh = aside(path, "new")
    try:
        with named(path):
            write(fresh, text.encode())
            fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    flush(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, so that a power cut does not take the names."""
    if path.is_dir():
        return
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    flush(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder; whoever looks sees all of it or nothing."""
    gone = aside(path, "old")
    path.rename(gone)
    shutil.rmtree(gone)


def sweep(folder: Path) -> None:
    """Remove what killed processes left in a folder, where nobody else writes."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if _LEFT.fullmatch(entry.name):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def flush(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power cut."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
