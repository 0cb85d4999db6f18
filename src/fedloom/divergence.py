"""When it is the training that diverged, and not one client that is broken."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedloom.errors import Diverged
from fedloom.gate import NONFINITE
from fedloom.types import Report


def lost_since(before: Mapping[int, str], report: Report, struck: Collection[int] = ()) -> dict[int, str]:
    """The clients that became non-finite by training, and in which leaf, since anybody was admitted last.

    One broken client is refused and the run goes on, however often it comes; when several do and nobody else is left,
    it is the training that diverged.
    """
    if report["admitted"]:
        return {}
    rows = zip(report.clients.ids.tolist(), report.clients.reasons, strict=True)
    found = {client: reason for client, reason in rows if reason is not None and reason.startswith(NONFINITE)}
    found = {client: reason for client, reason in found.items() if client not in struck}
    return {**before, **{client: reason.split("'")[1] for client, reason in found.items()}}


def nobody_left(t: int, lost: Mapping[int, str], population: int) -> Diverged | None:
    """Whether so many clients are lost that it was the training."""
    if len(lost) < min(3, population):
        return None
    return Diverged(t, next(iter(lost.values())), "every client's model")
