"""Processes of their own that need not import torch anew: they are forked from one that has imported it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

FORKED = get_context("forkserver")
FORKED.set_forkserver_preload(["fedloom.simulation", "fedloom.experiments.runner", "torch._dynamo"])  # vmap's import


def program(folder: Path, *arguments: str, first: Callable[[], object] | None = None) -> ForkServerProcess:
    """`fedloom ARGUMENTS`, begun in a folder, where the file `said` is its stderr; `first` comes before it."""
    process = FORKED.Process(target=_program, args=(folder, arguments, first), daemon=True)  # ended with the tests
    process.start()
    return process


def _program(folder: Path, arguments: tuple[str, ...], first: Callable[[], object] | None) -> None:
    from fedloom import cli

    os.chdir(folder)
    os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if first is not None:
        first()
    cli.main(list(arguments))


def on_ranks(world: int, work: Callable[[], T], restarts: int = 0) -> list[T]:
    """What `work`, a module's function, returns on each of so many ranks, told of each other as `torchrun` does it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": restarts,
    }
    with ProcessPoolExecutor(world, FORKED) as processes:
        return list(processes.map(partial(_as_rank, work, told), range(world), timeout=240))


def _as_rank(work: Callable[[], T], told: dict[str, object], rank: int) -> T:
    import torch
    from torch import distributed

    os.environ |= {name: str(value) for name, value in {**told, "RANK": rank, "LOCAL_RANK": rank}.items()}
    torch.set_num_threads(1)
    try:
        return work()
    finally:  # those that wait for this rank, should it fail, hear of it
        if distributed.is_initialized():
            distributed.destroy_process_group()
