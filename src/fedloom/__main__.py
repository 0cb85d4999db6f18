"""The program: `fedloom`, `python -m fedloom`, and what `torchrun -m fedloom` starts."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import NoReturn

from fedloom.exits import answered, unheard

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's `mallopt`."""
SPINS = "1000"
"""So little that on cores which nobody else uses a round takes as long as with 300,000, which is usual."""


def main() -> NoReturn:
    """From its first import to its end a signal has a line and a code of ours."""
    _keep_freed_memory()
    _wait_asleep()
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


def _wait_asleep() -> None:
    """Have threads that wait for each other fall asleep soon: GNU's OpenMP has them turn for milliseconds.

    Two programs on the same cores keep each other from what they wait for, and both take many times as long. It is read
    when torch is loaded; who has said how threads are to wait is obeyed, and a benchmark has them wait as torch does,
    for the plain loop's sake.
    """
    if "OMP_WAIT_POLICY" not in os.environ and "bench" not in sys.argv[1:2]:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


if __name__ == "__main__":
    main()
