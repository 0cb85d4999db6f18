"""The program: `fedloom`, `python -m fedloom`, and what `torchrun -m fedloom` starts."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import NoReturn

from fedloom.exits import answered, unheard

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's `mallopt`."""


def main() -> NoReturn:
    """From its first import to its end a signal has a line and a code of ours."""
    _keep_freed_memory()
    try:
        with answered():
            from fedloom.cli import main as program

            program()
    finally:
        unheard()


def _keep_freed_memory() -> None:
    """Have glibc keep up to 2 GiB that are freed: tensors above 32 MB would be mapped and cleared anew at every step.

    That is for a program to decide, since it holds for all of the process; the library leaves it as it is.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, 2**31 - 1)


if __name__ == "__main__":
    main()
