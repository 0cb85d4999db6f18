"""Test loss and metrics: means over examples, batched on the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom.data.federated import Features, count, take
from fedloom.functional import Functional
from fedloom.task import PerExample
from fedloom.types import Params


def per_example(
    functional: Functional,
    params: Params,
    buffers: Params,
    x: Features,
    y: Features,
    metrics: Mapping[str, PerExample],
    rows: Tensor | None = None,
    batch: int = 1024,
) -> dict[str, Tensor]:
    """The loss and every metric of each example (of those in `rows`), in evaluation mode."""
    functional.module.eval()
    if rows is None:
        rows = torch.arange(count(y), device=next(iter(params.values())).device)
    found: dict[str, list[Tensor]] = {name: [] for name in ("loss", *metrics)}
    with torch.no_grad():
        for index in rows.split(batch):
            target = take(y, index)
            output = functional.output(params, buffers, take(x, index))
            found["loss"].append(functional.loss(output, target))
            for name, metric in metrics.items():
                found[name].append(metric(output, target))
    return {name: torch.cat(parts).double() for name, parts in found.items() if parts}


def evaluate(
    functional: Functional,
    params: Params,
    buffers: Params,
    x: Features,
    y: Features,
    metrics: Mapping[str, PerExample],
) -> dict[str, float]:
    """Means over all examples, by name."""
    values = per_example(functional, params, buffers, x, y, metrics)
    return {name: float(value.mean()) for name, value in values.items()}
