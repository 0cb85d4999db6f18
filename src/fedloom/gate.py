"""Admission: a client's row is admitted or refused with a reason before anything else sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom import tree
from fedloom.errors import FedloomError
from fedloom.types import Cohort, Params, State

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

COUNTS = ("multiplicity", "steps")

LARGEST = 1e100
"""A weight beyond it, or below its inverse, is no count of anything and would overflow sums."""

NONFINITE = "non-finite value in"
"""How the reason begins when a client sent a NaN or an infinity."""


def check(cohort: Cohort, params: Params, buffers: Params) -> None:
    """Raise when the stack does not fit the model: names and shapes are the caller's mistake, not a client's."""
    for name in ("clients", "examples"):
        if not isinstance(getattr(cohort, name), Tensor):
            raise FedloomError(f"Cohort.{name}: expected a tensor, got {type(getattr(cohort, name)).__name__}")
    if cohort.clients.dim() != 1 or cohort.clients.dtype not in _INTEGERS:
        got = f"{cohort.clients.dtype} of shape {tuple(cohort.clients.shape)}"
        raise FedloomError(f"Cohort.clients: expected integers of shape (K,), got {got}")
    size = cohort.size
    for name in ("examples", "steps", "losses", "multiplicity", "weights", "rounds"):
        column = getattr(cohort, name)
        if column is not None and tuple(column.shape) != (size,):
            raise FedloomError(f"Cohort.{name}: expected shape ({size},), got {tuple(column.shape)}")
    _check_leaves("updates", cohort.updates, params, size)
    for leaf, rows in cohort.updates.items():
        if not rows.is_floating_point():
            raise FedloomError(f"Cohort.updates[{leaf!r}]: expected a floating dtype, got {rows.dtype}")
    if cohort.buffers is not None:
        _check_leaves("buffers", cohort.buffers, buffers, size)
    for kind, leaves in (cohort.extra or {}).items():
        _check_leaves(f"extra[{kind!r}]", leaves, params, size)


def _check_leaves(what: str, leaves: Params, like: Params, size: int) -> None:
    missing, unknown = like.keys() - leaves.keys(), leaves.keys() - like.keys()
    if missing or unknown:
        expected, got = ", ".join(sorted(like)) or "none: pass buffers= to init", ", ".join(sorted(leaves))
        raise FedloomError(f"Cohort.{what}: expected leaves {expected}; got {got}")
    for leaf, rows in leaves.items():
        expected_shape = (size, *like[leaf].shape)
        if tuple(rows.shape) != expected_shape:
            raise FedloomError(f"Cohort.{what}[{leaf!r}]: expected shape {expected_shape}, got {tuple(rows.shape)}")


def misfit(update: Params, params: Params) -> str | None:
    """Why one client's update cannot be stacked with the others': names or shapes that are not the model's."""
    if update.keys() != params.keys():
        return f"update: expected leaves {', '.join(sorted(params))}; got {', '.join(sorted(update))}"
    for name, leaf in params.items():
        if update[name].shape != leaf.shape:
            return f"update {name!r}: expected shape {tuple(leaf.shape)}, got {tuple(update[name].shape)}"
    return None


@dataclass(frozen=True)
class _Row:
    """What a client says of itself."""

    client: int
    weight: float
    examples: float
    known: float | None  # the most it can have
    counts: dict[str, float]
    bad_leaf: str | None
    round: int | None = None  # that it reports for


def admit(cohort: Cohort, state: State, seen: set[int], trusting: bool = False) -> list[str | None]:
    """Per row: None where it is admitted, else the reason it is not. `seen` gains the clients that reported.

    `trusting` leaves out the look at the values, for which a device would have to be waited for.
    """
    bad_leaf: list[str | None] = [None] * cohort.size if trusting else _nonfinite(cohort)
    reasons: list[str | None] = []
    for row in _rows(cohort, state, bad_leaf):
        reasons.append(next(_objections(row, state, seen), None))
        seen.add(row.client)  # whatever became of it: a client's second row is refused
    return reasons


def _rows(cohort: Cohort, state: State, bad_leaf: list[str | None]) -> Iterator[_Row]:
    clients, examples = cohort.clients.tolist(), cohort.examples.tolist()
    weights = examples if cohort.weights is None else cohort.weights.tolist()
    known: list[float | None] = [None] * len(clients)
    if state.examples is not None:
        inside = cohort.clients.clamp(0, state.population - 1).to(state.examples.device)
        known = state.examples[inside].tolist()
    rounds = [None] * len(clients) if cohort.rounds is None else cohort.rounds.tolist()
    given = {name: column.tolist() for name in COUNTS if (column := getattr(cohort, name)) is not None}
    for index, client in enumerate(clients):
        counts = {name: column[index] for name, column in given.items()}
        yield _Row(client, weights[index], examples[index], known[index], counts, bad_leaf[index], rounds[index])


def _objections(row: _Row, state: State, seen: set[int]) -> Iterator[str]:
    if not 0 <= row.client < state.population:
        yield f"unknown client: expected an id in 0..{state.population - 1}, got {row.client}"
    if row.client in seen:
        yield "second report of this client in the round"
    if row.round is not None and row.round != state.round:
        yield f"stale report: expected one for round {state.round}, got one for round {row.round}"
    if not 1 / LARGEST <= row.weight <= LARGEST:
        yield f"weight: expected a finite positive number, got {row.weight:g}"
    if row.known is not None and row.examples > row.known:
        yield f"examples: expected at most the known {row.known:g}, got {row.examples:g}"
    for name, count in row.counts.items():
        if not 1 <= count < float("inf"):
            yield f"{name}: expected a finite number of at least 1, got {count:g}"
    if row.bad_leaf is not None:
        yield f"{NONFINITE} {row.bad_leaf}"


def _sent(cohort: Cohort) -> dict[str, Tensor]:
    """Everything the clients sent, under the name that a reason gives it."""
    sent: dict[str, Tensor] = {f"update {leaf!r}": rows for leaf, rows in cohort.updates.items()}
    sent |= {f"buffer {leaf!r}": rows for leaf, rows in (cohort.buffers or {}).items()}
    for kind, leaves in (cohort.extra or {}).items():
        sent |= {f"{kind} {leaf!r}": rows for leaf, rows in leaves.items()}
    return sent


def finite(cohort: Cohort) -> Tensor:
    """Per row, whether everything the client sent is finite: a mask on the device, for which nobody waits."""
    masks = [tree.matrix(torch.isfinite(rows)).all(1) for rows in _sent(cohort).values()]
    return torch.stack(masks).all(0) if masks else torch.ones(cohort.size, dtype=torch.bool)


def _nonfinite(cohort: Cohort) -> list[str | None]:
    """Per row, the first leaf of what the client sent that holds a NaN or an infinity."""
    found: list[str | None] = [None] * cohort.size
    for leaf, rows in _sent(cohort).items():
        if not rows.is_floating_point() or bool(torch.linalg.vector_norm(rows).isfinite()):
            continue  # the usual case in one pass; a norm that only overflows is looked at again
        mask = tree.matrix(torch.isfinite(rows)).all(1)
        if not bool(mask.all()):
            for index in torch.nonzero(~mask).flatten().tolist():
                found[index] = found[index] or leaf
    return found
