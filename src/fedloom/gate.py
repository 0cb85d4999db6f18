"""Admission: a client's row is admitted or refused with a reason before anything else sees it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedloom import tree
from fedloom.errors import FedloomError
from fedloom.types import Cohort, Params, State

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

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
    for name in ("examples", "steps", "losses", "multiplicity", "weights"):
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


def admit(cohort: Cohort, state: State, seen: set[int]) -> list[str | None]:
    """Per row: None where it is admitted, else the reason it is not. `seen` gains the clients that reported."""
    bad_leaf = _nonfinite(cohort)
    weights = cohort.examples if cohort.weights is None else cohort.weights
    reasons: list[str | None] = []
    for index, client in enumerate(cohort.clients.tolist()):
        reason = next(_objections(cohort, state, index, client, float(weights[index]), bad_leaf[index], seen), None)
        seen.add(client)  # whatever became of it: a client's second row is refused
        reasons.append(reason)
    return reasons


def _objections(
    cohort: Cohort, state: State, index: int, client: int, weight: float, bad_leaf: str | None, seen: set[int]
) -> Iterator[str]:
    if not 0 <= client < state.population:
        yield f"unknown client: expected an id in 0..{state.population - 1}, got {client}"
    if client in seen:
        yield "second report of this client in the round"
    if not 1 / LARGEST <= weight <= LARGEST:
        yield f"weight: expected a finite positive number, got {weight:g}"
    if state.examples is not None and float(cohort.examples[index]) > float(state.examples[client]):
        yield f"examples: expected at most the known {state.examples[client]:g}, got {cohort.examples[index]:g}"
    for name in ("multiplicity", "steps"):
        column = getattr(cohort, name)
        if column is not None and not 1 <= float(column[index]) < float("inf"):
            yield f"{name}: expected a finite number of at least 1, got {float(column[index]):g}"
    if bad_leaf is not None:
        yield f"{NONFINITE} {bad_leaf}"


def _nonfinite(cohort: Cohort) -> list[str | None]:
    """Per row, the first leaf of what the client sent that holds a NaN or an infinity."""
    sent: dict[str, Tensor] = {f"update {leaf!r}": rows for leaf, rows in cohort.updates.items()}
    sent |= {f"buffer {leaf!r}": rows for leaf, rows in (cohort.buffers or {}).items()}
    for kind, leaves in (cohort.extra or {}).items():
        sent |= {f"{kind} {leaf!r}": rows for leaf, rows in leaves.items()}
    found: list[str | None] = [None] * cohort.size
    for leaf, rows in sent.items():
        finite = tree.matrix(torch.isfinite(rows)).all(1)
        if not bool(finite.all()):
            for index in torch.nonzero(~finite).flatten().tolist():
                found[index] = found[index] or leaf
    return found
