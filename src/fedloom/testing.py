"""Batteries for your own parts: `check_algorithm` puts an algorithm through the laws that every one of ours keeps."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom import checkpoint, random
from fedloom.algorithm import Algorithm
from fedloom.errors import FedloomError
from fedloom.tree import Layout
from fedloom.types import Cohort, Params, Report, State

_SHAPES: dict[str, tuple[int, ...]] = {
    "conv.weight": (2, 1, 3, 3),
    "fc.weight": (3, 4),
    "fc.bias": (4,),
    "scale": (1,),
    "offset": (),
}
_EXAMPLES = torch.tensor([20, 35, 50, 65, 80, 95, 110])  # of the population
_COHORTS = ((4, 1, 6, 2, 5), (0, 3), (5, 2, 3, 0))  # partial participation, in no order

Outcome = tuple[Params, State, Report]


@dataclass(frozen=True)
class _Round:
    """One round as it was played: what went in, and what came out."""

    params: Params
    state: State
    cohort: Cohort
    outcome: Outcome


class _Broken(Exception):
    """What a law found: expected and got, in one line."""


def check_algorithm(algorithm: Algorithm) -> None:
    """Put `algorithm` through the laws of the server side; the first one that fails is a `FedloomError` that names it.

    The same inputs give the same bits, whatever the order of the clients and however the cohort is cut; parameters keep
    their dtype; the state is plain data; inputs are left alone; a refused client leaves no trace, and a round without
    anybody changes nothing.

    >>> import fedloom as fl
    >>> check_algorithm(fl.fedadam(client_lr=0.1))
    >>> from fedloom.transforms.base import stateless
    >>> careless = stateless("unit()", lambda g, x, info: {name: leaf / leaf.norm() for name, leaf in g.items()})
    >>> check_algorithm(fl.replace(fl.fedavg(client_lr=0.1), server=careless))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedloom.errors.FedloomError: ...zero updates: expected finite parameters, got nan in 'conv.weight'
    """
    if not isinstance(algorithm, Algorithm):
        raise FedloomError(f"check_algorithm: expected an Algorithm, got {algorithm!r}")
    if algorithm.privacy is not None:
        raise FedloomError(
            "check_algorithm: expected an algorithm without noise, got a private one: check what it wraps"
        )
    if algorithm.server.resolve is not None:
        algorithm = dataclasses.replace(algorithm, server=algorithm.server.resolve(0.1))
    _play(algorithm, torch.float32)
    first, *_, last = _play(algorithm, torch.float64)
    for name, law in _LAWS.items():
        with _law(algorithm, name):
            law(algorithm, [first, last])


@contextmanager
def _law(algorithm: Algorithm, name: str) -> Iterator[None]:
    """Whatever goes wrong inside is told as this law's failure."""
    start = f"check_algorithm({algorithm.name}): {name}"
    try:
        yield
    except _Broken as broken:
        raise FedloomError(f"{start}: {broken}") from None
    except Exception as error:
        got = " ".join(f"{type(error).__name__}: {error}".split())
        raise FedloomError(f"{start}: expected no exception, got {got}") from error


def _play(algorithm: Algorithm, dtype: torch.dtype) -> list[_Round]:
    """The rounds that the laws look at; those that need nothing else are checked on the way."""
    with _law(algorithm, "start"):
        params, state = _start(algorithm, dtype)
    rounds = []
    for clients in _COHORTS:
        cohort = _cohort(algorithm, params, clients)
        given = {"params": params, "state": _plain(state), "cohort": _plain(cohort)}
        with _law(algorithm, "plain state"):
            before = checkpoint.pack(given)
        with _law(algorithm, "round"):
            outcome = algorithm.apply(params, state, cohort)
        with _law(algorithm, "inputs"):
            if found := _difference(checkpoint.pack(given), before):
                raise _Broken(f"expected params, state and cohort left as they were, got {found}")
        with _law(algorithm, "dtype"):
            _dtypes(params, outcome[0])
        rounds.append(_Round(params, state, cohort, outcome))
        params, state, _ = outcome
    with _law(algorithm, "plain state"):
        checkpoint.pack(_plain(state))
    return rounds


def _dtypes(before: Params, after: Params) -> None:
    if list(after) != list(before):
        raise _Broken(f"expected leaves {', '.join(before)}; got {', '.join(after)}")
    for name, leaf in after.items():
        expected, got = _kind(before[name]), _kind(leaf)
        if expected != got:
            raise _Broken(f"expected {name!r} to stay {expected}, got {got}")


def _determinism(algorithm: Algorithm, rounds: list[_Round]) -> None:
    for played in rounds:
        _same_outcome(algorithm.apply(played.params, played.state, played.cohort), played.outcome)


def _plain_state(algorithm: Algorithm, rounds: list[_Round]) -> None:
    """The state survives being written down, and the round after it is the same."""
    for played in rounds:
        tensors, skeleton = checkpoint.pack(_plain(played.state))
        written = json.loads(json.dumps(skeleton, allow_nan=False))
        restored = checkpoint.state_from_dict(checkpoint.unpack(tensors, written))
        _same_outcome(algorithm.apply(played.params, restored, played.cohort), played.outcome)


def _permutation(algorithm: Algorithm, rounds: list[_Round]) -> None:
    """The rows in reverse: the report's rows move along, nothing else does."""
    for played in rounds:
        order = torch.arange(played.cohort.size).flip(0)
        got = algorithm.apply(played.params, played.state, _rows(played.cohort, order))
        _same_outcome(got, played.outcome)
        _same(got[2].clients.weight, played.outcome[2].clients.weight[order], "report.clients.weight")


def _chunks(algorithm: Algorithm, rounds: list[_Round]) -> None:
    """Client by client from an iterator, and in two parts."""
    for played in rounds:
        order = played.cohort.clients.argsort()
        most = (len(order) + 1) // 2
        singly = (_rows(played.cohort, order[index : index + 1]) for index in range(len(order)))
        parts = [_rows(played.cohort, part) for part in (order[:most], order[most:])]
        for chunks in (singly, parts):
            _same_outcome(algorithm.apply(played.params, played.state, chunks), played.outcome)


def _single_client(algorithm: Algorithm, rounds: list[_Round]) -> None:
    params, state = rounds[0].params, rounds[0].state
    for _ in range(2):
        params, state, report = algorithm.apply(params, state, _cohort(algorithm, params, [3]))
        if report["admitted"] != 1:
            raise _Broken(f"expected 1 client admitted, got {report['admitted']:g}")
        _finite(params)


def _zero_updates(algorithm: Algorithm, rounds: list[_Round]) -> None:
    """All clients agree that nothing is to be done: in the first rounds, and after ordinary ones."""
    for start, count in ((rounds[0], 2), (rounds[-1], 1)):
        params, state = start.params, start.state
        zero = {name: torch.zeros_like(rows) for name, rows in start.cohort.updates.items()}
        for _ in range(count):
            params, state, _ = algorithm.apply(params, state, dataclasses.replace(start.cohort, updates=zero))
            _finite(params)


def _void_round(algorithm: Algorithm, rounds: list[_Round]) -> None:
    for played in rounds:
        updates = {name: torch.full_like(rows, torch.nan) for name, rows in played.cohort.updates.items()}
        cohort = dataclasses.replace(played.cohort, updates=updates)
        params, state, report = algorithm.apply(played.params, played.state, cohort)
        if report["admitted"] != 0:
            raise _Broken(f"expected nobody admitted, got {report['admitted']:g}")
        _same(params, played.params, "the parameters")
        _same(state, played.state, "the state")


def _refused_row(algorithm: Algorithm, rounds: list[_Round]) -> None:
    """A client that sends NaN stands first: as if it had not been there, but for the report."""
    for played in rounds:
        clients = played.cohort.clients.tolist()
        stranger = next(client for client in range(len(_EXAMPLES)) if client not in clients)
        cohort = _cohort(algorithm, played.params, [stranger, *clients])
        for leaf in cohort.updates.values():
            leaf[0] = torch.nan
        params, state, report = algorithm.apply(played.params, played.state, cohort)
        _same(params, played.outcome[0], "the parameters")
        _same(state, played.outcome[1], "the state")
        for name in ("admitted", "pseudo_gradient_norm", "mean_update_norm"):
            _same(report[name], played.outcome[2][name], f"report[{name!r}]")


_LAWS: dict[str, Callable[[Algorithm, list[_Round]], None]] = {
    "determinism": _determinism,
    "plain state": _plain_state,
    "permutation": _permutation,
    "chunks": _chunks,
    "single client": _single_client,
    "zero updates": _zero_updates,
    "void round": _void_round,
    "refused row": _refused_row,
}


def _start(algorithm: Algorithm, dtype: torch.dtype) -> tuple[Params, State]:
    params = {name: leaf.to(dtype) for name, leaf in _draw("params", _SHAPES).items()}
    params["fc.bias"] = torch.zeros_like(params["fc.bias"])  # a norm of zero, as layer-wise rules meet it at first
    buffers = {"mean": torch.zeros(4, dtype=dtype), "batches": torch.tensor(3)}
    return params, algorithm.init(params, len(_EXAMPLES), buffers=buffers, examples=_EXAMPLES)


def _cohort(algorithm: Algorithm, params: Params, clients: Iterable[int]) -> Cohort:
    """What clients send who pull the model to places of their own: every field that an algorithm may ask for."""
    ids = torch.tensor(list(clients))

    def rows(purpose: str) -> Params:
        places = _draw(purpose, _SHAPES, ids)
        return {name: 0.3 * (leaf - places[name].to(leaf.dtype)) for name, leaf in params.items()}

    return Cohort(
        clients=ids,
        examples=_EXAMPLES[ids],
        updates=rows("updates"),
        steps=1 + ids % 3,
        losses=0.5 + 0.1 * ids,
        buffers={"mean": _draw("buffers", {"mean": (4,)}, ids)["mean"], "batches": 3 + ids},
        extra={kind: rows(kind) for kind in algorithm.memory.sends} if algorithm.memory else None,
    )


def _draw(purpose: str, shapes: dict[str, tuple[int, ...]], ids: int | Tensor = 0) -> Params:
    """Numbers in [-1, 1), the same on every machine."""
    layout = Layout({name: torch.Size(shape) for name, shape in shapes.items()})
    numbers = random.uniform(random.key(0, 0, ids, f"check_algorithm {purpose}"), layout.size)
    return layout.unflatten(2 * numbers - 1)


def _rows(cohort: Cohort, order: Tensor) -> Cohort:
    def pick(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: pick(item) for name, item in value.items()}
        return value[order] if isinstance(value, Tensor) else value

    return Cohort(**pick(_plain(cohort)))


def _plain(value: Cohort | State) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _same_outcome(got: Outcome, expected: Outcome) -> None:
    _same(got[0], expected[0], "the parameters")
    _same(got[1], expected[1], "the state")
    _same(dict(got[2]), dict(expected[2]), "the report")


def _same(got: Any, expected: Any, what: str) -> None:
    got, expected = (_plain(value) if isinstance(value, State) else value for value in (got, expected))
    if found := _difference(checkpoint.pack(got), checkpoint.pack(expected)):
        raise _Broken(f"expected the same bits in {what}, got {found}")


def _difference(got: tuple[dict[str, Tensor], Any], expected: tuple[dict[str, Tensor], Any]) -> str | None:
    """The first place where two packed values differ, or None; a NaN equals itself."""
    if got[1] != expected[1]:
        return _parting(got[1], expected[1])
    for name, tensor in got[0].items():
        other = expected[0][name]
        if _kind(tensor) != _kind(other):
            return f"{_kind(tensor)} instead of {_kind(other)} at {name!r}"
        if not tensor.flatten().view(torch.uint8).equal(other.flatten().view(torch.uint8)):
            gap = float((tensor.double() - other.double()).abs().max())
            return f"a difference of up to {gap:.3g} at {name!r}"
    return None


def _parting(got: Any, expected: Any, path: str = "") -> str:
    """Where two skeletons part."""
    if isinstance(got, dict) and isinstance(expected, dict) and list(got) == list(expected):
        key = next(key for key in got if got[key] != expected[key])
        return _parting(got[key], expected[key], path if key in ("dict", "tuple", "list") else f"{path}/{key}")
    if isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        index = next(index for index in range(len(got)) if got[index] != expected[index])
        return _parting(got[index], expected[index], f"{path}/{index}")
    return f"{got!r:.60} instead of {expected!r:.60} at {path.removeprefix('/')!r}"


def _finite(params: Params) -> None:
    for name, leaf in params.items():
        if not bool(leaf.isfinite().all()):
            worst = float(leaf.double().sum())
            raise _Broken(f"expected finite parameters, got {'nan' if math.isnan(worst) else 'inf'} in {name!r}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
