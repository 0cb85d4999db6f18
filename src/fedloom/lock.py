"""One process at a time in a run's directory. The system lets go of a lock when its process ends, however it ends."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom import durable
from fedloom.errors import FedloomError
from fedloom.launched import first_rank

try:
    import fcntl
except ImportError:  # Windows: nobody is kept out
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"

_held: set[Path] = set()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes out of `folder`, which is made where there is none, and remove what killed ones left in it.

    Within one process it may be asked for again: an experiment's only run is in the experiment's own directory.
    """
    durable.make_folder(folder)
    place = folder.resolve()
    if place in _held:
        yield
        return
    handle = _take(folder)
    _held.add(place)
    try:
        durable.sweep(folder)
        yield
    finally:
        _held.discard(place)
        (place / NAME).unlink(missing_ok=True)
        os.close(handle)


def check(folder: Path) -> None:
    """An error that names the process at work in `folder`, if there is one.

    Of those that `torchrun` started the first has the lock for all, and may have it already when another one looks.
    """
    if fcntl is None or not first_rank() or folder.resolve() in _held or not (folder / NAME).exists():
        return
    with (folder / NAME).open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _occupied(folder) from None


def _take(folder: Path) -> int:
    """The open file whose lock is held; who was locked out reads in it by whom."""
    path = folder / NAME
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(handle)):
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
                return handle
        except BlockingIOError:
            os.close(handle)
            raise _occupied(folder) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # removed by whoever held it, between our opening and locking it


def _occupied(folder: Path) -> FedloomError:
    by = (folder / NAME).read_text(encoding="utf-8", errors="replace") if (folder / NAME).exists() else ""
    return FedloomError(
        f"{folder}: expected a directory that nobody works in, got one of {by or 'another process'}: "
        "wait for it, end it, or choose another directory"
    )
