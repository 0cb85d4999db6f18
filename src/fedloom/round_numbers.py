"""What a round's record says of it, computed from the server's report."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fedloom.algorithm import After
from fedloom.types import Report


def loss(after: After, report: Report) -> float:
    """The mean training loss of the admitted clients, with their weights in the average."""
    weight = report.clients.weight
    if not float(weight.sum()) > 0:
        return float("nan")
    return float((torch.where(weight > 0, after.also("loss").double(), 0.0) * weight).sum())


def metrics(after: After, report: Report, names: Iterable[str]) -> dict[str, float]:
    """What the admitted clients measured on the batches they trained on, all their rows together."""
    admitted = report.clients.admitted
    if not bool(admitted.any()):
        return {}
    sums = {name: after.also(f"counted/{name}")[admitted].sum(0) for name in names}
    return {f"train_{name}": float(above / below) for name, (above, below) in sums.items()}


def divergence(report: Report, rate: float) -> float:
    """The mean distance of the clients' gradients, -D / eta, to their mean (Wu and Wang 2021, figure 7)."""
    distance = report.clients.distance
    if distance is None or not rate:
        return math.nan
    return float(distance[report.clients.admitted].mean()) / rate


def angles(report: Report) -> dict[str, float]:
    """The angle of every admitted client's update to the mean, in radians: `angle/K` for client K."""
    if report.clients.angle is None:
        return {}
    rows = zip(
        report.clients.ids.tolist(), report.clients.angle.tolist(), report.clients.admitted.tolist(), strict=True
    )
    return {f"angle/{client}": angle for client, angle, admitted in rows if admitted}


def variation(report: Report) -> float:
    """Standard deviation over mean of the admitted clients' squared norms (Yang et al. 2023, figure 7)."""
    squares = report.clients.norm[report.clients.admitted].double() ** 2
    mean = float(squares.mean()) if len(squares) else 0.0
    return float(squares.std(correction=0)) / mean if mean > 0 else math.nan


def label_cosine(report: Report, counts: Tensor) -> float:
    """Between the labels of the cohort, with their weights in the average, and everybody's (ibid., figure 9)."""
    weight = report.clients.weight.double()
    if not float(weight.sum()) > 0:
        return math.nan
    rows = counts[report.clients.ids]
    cohort = weight @ (rows / rows.sum(1, keepdim=True).clamp(min=1))
    return float(torch.cosine_similarity(cohort, counts.sum(0), dim=0))
