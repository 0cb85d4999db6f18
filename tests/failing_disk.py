"""A disk that fails at a moment of the test's choosing: one call is refused, the process dies, or the power goes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CALLS = ("open", "write", "fsync", "close", "mkdir", "rename", "replace", "truncate", "unlink", "rmdir")
"""Everything that our writers ask of the system; reading goes elsewhere."""


class Death(BaseException):
    """The process is gone: nothing that would clean up after it can run."""


class FailingDisk:
    """Fails the call of number `at`: with "No space left" (`refuse`), or for good (`die`, `power cut`).

    A write that fails has written half. A power cut takes what no fsync has brought to the disk: content and renames.
    """

    def __init__(self, at: int, how: str) -> None:
        self.at, self.how, self.count = at, how, -1
        self.failed: str | None = None
        self.paths: dict[int, Path] = {}
        self.safe: dict[Path, int] = {}  # bytes of a file that would outlive a power cut
        self.renamed: list[tuple[Path, Path]] = []

    @contextmanager
    def mounted(self) -> Iterator[None]:
        real = {name: getattr(os, name) for name in CALLS}
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._call(name, real[name]))
            try:
                yield
            except (Death, OSError):
                assert self.failed is not None
        if self.failed is not None and self.how == "power cut":
            self._forget()

    def _call(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                self.failed = name
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            if self.failed is not None and (self.how != "refuse" or self.count == self.at):
                if name == "close":
                    real(*arguments)  # the system closes the files of a dead process
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if self.how == "refuse" else Death
            result = real(*arguments, **options)
            self._watch(name, arguments, result)
            return result

        return call

    def _watch(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name == "open":
            self.paths[result] = Path(arguments[0])
            if self.paths[result].is_file():
                self.safe.setdefault(self.paths[result], self.paths[result].stat().st_size)
        elif name == "fsync":
            path = self.paths[arguments[0]]
            if path.is_dir():
                self.renamed = [pair for pair in self.renamed if pair[1].parent != path]
            else:
                self.safe[path] = path.stat().st_size
        elif name in ("rename", "replace"):
            self.renamed.append((Path(arguments[0]), Path(arguments[1])))

    def _forget(self) -> None:
        for path, size in self.safe.items():
            if path.is_file() and path.stat().st_size > size:
                os.truncate(path, size)
        for before, after in reversed(self.renamed):
            if after.exists() and after.is_dir():
                after.rename(before)
