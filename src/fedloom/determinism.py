"""The same bits from run to run on one device: what torch has to be told for that, and told back afterwards.

On a CPU with one thread per rank a run has the same bits anyway. On a GPU some of torch's own kernels add in an order
that changes from run to run, cuBLAS splits sums by its workspace, and cuDNN and Inductor choose kernels by the clock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedloom.errors import FedloomError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = (":4096:8", ":16:8")
"""The workspaces with which cuBLAS gives the same bits from run to run."""


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Only operations with one outcome, or an error that names the one that has several; as before afterwards."""
    if not wanted:
        yield
        return
    _fix_workspace()
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        said = str(error).partition(",")[0].partition(". ")[0]
        raise FedloomError(
            f"deterministic: expected operations that give the same bits every time, got one that does not: {said}: "
            "replace it in the model, or leave deterministic out"
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[2:]


def _fix_workspace() -> None:
    """cuBLAS reads the size of its workspace once: it stays in the environment for as long as the process runs."""
    got = os.environ.get(WORKSPACE)
    if got in FIXED:
        return
    if got is not None or torch.cuda.is_initialized():
        found = f"{got!r}" if got is not None else "CUDA started without it"
        raise FedloomError(
            f"deterministic: expected {WORKSPACE} to be {' or '.join(FIXED)} before CUDA starts, got {found}: "
            "set it in the environment, or leave it out and run this first"
        )
    os.environ[WORKSPACE] = FIXED[0]
