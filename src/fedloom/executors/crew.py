"""Threads that share a stack on a CPU: each takes some of the clients through all their steps.

Torch would share every operation among its threads and have them wait for each other after each, for long where
another program takes a core. Clients have nothing to wait for: a thread that has some to itself goes on at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise

import torch

SHARE = 2**19
"""Bytes of parameters that are worth a thread: with fewer, the others would have finished before it has begun."""


def worth(size: int, most: int) -> int:
    """How many threads operations on so many bytes of parameters are worth, of those there are.

    >>> worth(2**15, 2), worth(2**20, 2), worth(2**22, 2)
    (1, 2, 2)
    """
    return max(1, min(most, size // SHARE))


def members(clients: int, size: int, most: int) -> int:
    """How many, at most, share a stack of that many clients with that many bytes of parameters each.

    >>> members(100, 2**15, 2), members(10, 2**15, 2), members(1, 2**22, 2)
    (2, 1, 1)
    """
    return min(clients, worth(clients * size, most))


def shares(count: int, members: int) -> list[slice]:
    """That many clients, dealt to so many as evenly as it goes.

    >>> shares(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return [slice(*cuts) for cuts in pairwise(-(-count * member // members) for member in range(members + 1))]


@contextmanager
def operations_on(threads: int | None) -> Iterator[None]:
    """Operations have so many threads in here; as many as before where it is not said."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)


class Crew:
    """So many threads, which divide those that operations have; they wait for work until nobody has the crew."""

    def __init__(self, members: int, threads: int) -> None:
        self.members, self.threads = members, max(1, threads // members)
        self.pool = ThreadPoolExecutor(members, "fedloom", partial(torch.set_num_threads, self.threads))

    def repeat(self, works: Sequence[Callable[[], object]], times: int) -> None:
        """Each of the works so many times, side by side; what one raises ends the others, and is raised here."""
        stop = threading.Event()

        def work(once: Callable[[], object]) -> None:
            with torch.no_grad():  # each thread has its own say
                for _ in range(times):
                    if stop.is_set():
                        return
                    once()

        begun = [self.pool.submit(work, each) for each in works]
        try:
            wait(begun, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            wait(begun)  # nobody is left who writes: a step at most
        for each in begun:
            each.result()


@cache
def keep_freed_memory() -> None:
    """Have glibc keep up to 64 MB that are freed, instead of mapping and clearing them anew at every local step.

    It takes the largest block that was mapped and freed, up to 32 MB, for the size that a program comes back to.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)
