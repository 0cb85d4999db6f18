"""Whether a run fits in memory: refused before it is allocated, with what it takes and what there is.

What is compared is what a run takes at the very least, so that none is refused that fits. Where a system does not tell
how much memory is free, nothing is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedloom import random
from fedloom.data.federated import FederatedData
from fedloom.errors import FedloomError
from fedloom.task import Task

GIB = 2**30
COPIES = 4
"""Of the parameters at the least: the model's, the server's, a client's own, and its gradient."""


def check_model(task: Task, data: FederatedData, device: torch.device, dtype: torch.dtype | None) -> None:
    """An error unless the model, and the data where they have to be moved, fit."""
    moved = data.nbytes if data.indices.device.type != device.type else 0
    size = model_bytes(task, dtype)
    beside = f" and {moved:,} bytes of data" if moved else ""
    _require(f"a model of {size:,} bytes{beside}", COPIES * size + moved, device)


def check_training(estimate: int, rows: float, row_bytes: int, device: torch.device) -> None:
    """An error unless half of what training is estimated to take fits, beside the `rows` that clients keep."""
    _require("training a stack of clients", estimate // 2, device)
    _require(f"what {rows:,.0f} clients keep between rounds", int(rows * row_bytes), device)


def rows_kept(population: int, cohort: int, rounds: int) -> float:
    """How many clients have been seen at the end, on average, where cohorts are drawn uniformly.

    >>> round(rows_kept(100, 10, 1)), round(rows_kept(100, 10, 1000))
    (10, 100)
    """
    return population * (1 - (1 - min(1.0, cohort / population)) ** rounds)


def model_bytes(task: Task, dtype: torch.dtype | None = None) -> int:
    """Memory of the model's parameters, found without taking any; 0 where the model cannot be built so.

    >>> import fedloom as fl
    >>> model_bytes(fl.Task(lambda: torch.nn.Linear(10**6, 10**6)))
    4000004000000
    """
    try:
        with random.generator_kept(), warnings.catch_warnings(), torch.device("meta"), _Undrawn():
            warnings.simplefilter("ignore")  # of weights that a factory reads and that have nowhere to go here
            leaves = list(task.model().parameters())
    except Exception:  # whatever is wrong is told where the model is built in earnest
        return 0
    width = None if dtype is None else dtype.itemsize
    return sum(leaf.numel() * (width if width and leaf.is_floating_point() else leaf.element_size()) for leaf in leaves)


class _Undrawn(TorchFunctionMode):
    """Within it nothing is drawn for a model's initial values: without memory torch's compiler would be imported."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _DRAWS and (leaf := args[0] if args else kwargs["tensor"]).is_meta:
            return leaf
        return func(*args, **(kwargs or {}))


_DRAWS: tuple[Callable[..., Any], ...] = (
    Tensor.normal_,
    nn.init.normal_,
    nn.init.trunc_normal_,
    nn.init.xavier_normal_,
    nn.init.kaiming_normal_,
    nn.init.orthogonal_,
    nn.init.sparse_,
)


def _require(what: str, wanted: int, device: torch.device) -> None:
    free = free_bytes(device)
    if free is not None and wanted > free:
        raise FedloomError(
            f"memory: expected at most the {free / GIB:,.1f} GiB that are free on {device}, {what} takes "
            f"{wanted / GIB:,.1f} GiB at the least: pass a smaller model, batch_size, chunk or cohort"
        )


def free_bytes(device: torch.device) -> int | None:
    """What can still be allocated; None where nobody tells."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type != "cpu":
        return None
    told = _numbers(Path("/proc/meminfo"), 1024)
    if "MemAvailable:" not in told:
        return None
    free = told["MemAvailable:"] + told.get("SwapFree:", 0)
    return min(free, _left_by_container(Path("/sys/fs/cgroup"), free))


def _left_by_container(group: Path, otherwise: int) -> int:
    """What a limit on the process leaves, counting the file cache, which is given back when it is needed, as free."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no limit
        return otherwise
    return limit - used + _numbers(group / "memory.stat").get("file", 0)


def _numbers(path: Path, unit: int = 1) -> dict[str, int]:
    """The numbers of a file with a name and a number on each line."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {parts[0]: int(parts[1]) * unit for parts in lines if len(parts) > 1 and parts[1].isdecimal()}
