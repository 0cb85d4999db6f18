"""How the cost of a round grows: with the clients in it, with the model, with the population it is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import fedloom as fl
from fedloom.bench.measure import Effort, Tell, machine, measure_ours, measure_plain, same_precision
from fedloom.bench.workloads import Workload, patterns

POOL = 10_000
"""Rows that all clients share: memory is then the library's, not the data's."""
_ROWS = patterns(784, classes=10)


def _mlp(hidden: int) -> torch.nn.Module:
    return fl.models.MLP(784, 10, hidden=(hidden,))


def _regression() -> torch.nn.Module:
    return fl.models.Logistic(784, 10)


def _by_clients(clients: int) -> Workload:
    about = "784-10 regression, 2 steps x 5"
    return Workload("clients", about, _regression, _ROWS, clients, clients, 5, 0.1, 10, POOL)


def _by_width(hidden: int) -> Workload:
    return Workload(
        "model", "784-H-10, 10 clients x 5 steps x 20", partial(_mlp, hidden), _ROWS, 100, 10, 20, 0.05, 100, POOL
    )


def _by_population(population: int) -> Workload:
    about = "784-10 regression, 100 clients x 2 steps x 5"
    return Workload("population", about, _regression, _ROWS, population, 100, 5, 0.1, 10, POOL)


GROWTHS: dict[str, tuple[str, Callable[[int], Workload], tuple[int, ...]]] = {
    "clients": ("clients a round", _by_clients, (10, 100, 1000, 10_000)),
    "model": ("parameters", _by_width, (16, 160, 1600, 12_800)),
    "population": ("population", _by_population, (1000, 10_000, 100_000, 1_000_000)),
}


def grow(
    kind: str,
    executor: str = "auto",
    device: torch.device | None = None,
    rounds: int | None = None,
    quick: bool = False,
    tell: Tell = lambda stage: None,
) -> dict[str, Any]:
    """Seconds a round and memory at every size, ours and the plain loop's; `quick`: at the two smallest."""
    axis, workload_of, sizes = GROWTHS[kind]
    device = device or torch.device("cpu")
    sizes = sizes[:2] if quick else sizes
    effort = Effort.of(device, rounds, quick).share(2 * len(sizes))
    points: list[dict[str, Any]] = []
    for size in sizes:
        workload = workload_of(size)
        at = sum(leaf.numel() for leaf in workload.model().parameters()) if kind == "model" else size
        data = workload.data().to(device)
        tell(f"{at:,} {axis}: fedloom, {executor}")
        ours, precision = measure_ours(workload, data, executor, device, effort)
        tell(f"{at:,} {axis}: the plain loop")
        with same_precision(precision):
            plain = measure_plain(workload, data, device, replace(effort, warm=1))
        points.append(
            {
                "at": at,
                "seconds": ours["seconds"],
                "plain_seconds": plain.seconds if plain else None,
                "ratio": plain.seconds / ours["seconds"] if plain and ours["seconds"] else None,
                "executor": ours["executor"],
                "memory_mib": ours["memory_mib"],
                "plain_memory_mib": plain.memory_mib if plain else None,
            }
        )
    return {**machine(device), "quick": quick, "growth": kind, "axis": axis, "about": workload.about, "points": points}
