"""The server's side of a round, recorded: the same bits as the ordinary way, and nothing of a round left in it.

On a CPU the recorder is a list of operations, which is as strict as a CUDA graph: a number that is read is an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from algorithm_table import TABLE, Row, ready
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import fedloom as fl
from fedloom.algorithm import Algorithm, Outcome
from fedloom.server_graphs import _PARTS, ServerGraphs, Work
from fedloom.transforms.base import Transform
from fedloom.types import Cohort, Info, Params, Report, State

POPULATION = 12
SHAPES = {"w": (5, 3), "b": (3,), "scale": ()}
READS = ("fedadp-round", "fednova", "scheduled")
"""Rules that read the number of the round, or the clients' steps: not to be recorded."""


def reads(operation: Any, given: list[Any]) -> bool:
    """Does it come to a number, or to as many rows as the values say? Of indices only masks do."""
    if operation is torch.ops.aten.index.Tensor:
        return any(isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in given[1:])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(operation.tags))


class Recorded(TorchDispatchMode):
    """Notes every operation and the tensors it works on; one that needs to know a value is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, list[Any], pytree.TreeSpec, list[Any]]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, structure = pytree.tree_flatten((args, kwargs or {}))
        if reads(operation, given):
            raise RuntimeError(f"{operation} reads a value")
        found = operation(*args, **(kwargs or {}))
        self.operations.append((operation, given, structure, pytree.tree_leaves(found)))
        return found

    def again(self) -> dict[int, Tensor]:
        """All operations on what lies in their tensors now: what each of the tensors that came out has become."""
        now: dict[int, Tensor] = {}
        for operation, given, structure, before in self.operations:
            args, kwargs = pytree.tree_unflatten([now.get(id(leaf), leaf) for leaf in given], structure)
            now |= zip(map(id, before), pytree.tree_leaves(operation(*args, **kwargs)), strict=True)
        return now


def recorded(work: Work, places: list[Tensor], numbers: Tensor) -> Callable[[], Outcome]:
    """As a CUDA graph does it: every replay leaves its outcome in the tensors of the first."""
    with Recorded() as operations:
        outcome = work(places, numbers)
    parts = [getattr(outcome.state, name) for name in _PARTS]

    def replay() -> Outcome:
        now = operations.again()
        for leaf in pytree.tree_leaves((outcome.params, parts, outcome.told.here)):
            if id(leaf) in now:
                leaf.copy_(now[id(leaf)])
        return outcome

    return replay


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cohort(round: int, size: int = 4) -> Cohort:
    ids = torch.randperm(POPULATION, generator=torch.Generator().manual_seed(round))[:size].sort().values
    updates = {name: draw(100 * round + index, size, *shape) for index, (name, shape) in enumerate(SHAPES.items())}
    return Cohort(
        clients=ids,
        examples=ids * 10 + 1,
        updates=updates,
        steps=ids + 1,
        losses=draw(round, size).abs(),
        extra={"control": {name: draw(7 + round, size, *shape) for name, shape in SHAPES.items()}},
    )


def play(algorithm: Algorithm, rounds: int, graphs: ServerGraphs | None) -> list[tuple[Params, State, Report]]:
    params = {name: draw(index, *shape) for index, (name, shape) in enumerate(SHAPES.items())}
    state, outcomes = algorithm.init(params, POPULATION), []
    for t in range(rounds):
        intake = algorithm.open(params, state, trusting=True, shortcut=graphs)
        given = cohort(t)
        intake.take(given)
        after = intake.close({"loss": given.losses} if given.losses is not None else None)
        assert after.sound
        params, state = after.params, after.state
        outcomes.append((params, state, after.report()))
    return outcomes


def same(one: Any, other: Any) -> None:
    left, right = pytree.tree_leaves(one), pytree.tree_leaves(other)
    for a, b in zip(left, right, strict=True):
        if isinstance(a, Tensor):
            assert torch.equal(torch.as_tensor(b, dtype=a.dtype).nan_to_num(), a.nan_to_num())
        elif isinstance(a, float):
            assert a == pytest.approx(b, rel=1e-15, nan_ok=True)
        else:
            assert a == b


def test_where_memory_is_short_nothing_recorded_is_kept() -> None:
    def full(*given: Any) -> Any:
        raise torch.OutOfMemoryError("no")

    algorithm = fl.fedavgm(0.1, 1.0)
    graphs = ServerGraphs(full)
    play(algorithm, 3, graphs)
    assert graphs.refused and not graphs.rooms  # a recording that failed leaves no room behind
    graphs = ServerGraphs(recorded)
    before = play(algorithm, 3, graphs)
    assert graphs.made and graphs.rooms
    graphs.forget()
    after = play(algorithm, 3, graphs)
    assert not graphs.made and not graphs.rooms
    for (params, _, _), (params_after, _, _) in zip(before, after, strict=True):
        same(params, params_after)


@pytest.mark.parametrize("row", TABLE, ids=[name for name, _ in TABLE])
def test_the_recorded_step_is_the_ordinary_one(row: Row) -> None:
    name, make = row
    algorithm = ready(make)
    graphs = ServerGraphs(recorded)
    expected, got = play(algorithm, 5, None), play(algorithm, 5, graphs)
    for (params, state, report), (params_r, state_r, report_r) in zip(expected, got, strict=True):
        same(params, params_r)
        same([getattr(state, part) for part in _PARTS], [getattr(state_r, part) for part in _PARTS])
        assert state.round == state_r.round
        same(dict(report), dict(report_r))
        same(dataclasses.astuple(report.clients), dataclasses.astuple(report_r.clients))
    on_host = "clip" in name  # what clipping notes is on a CPU a Python number
    if any(word in name for word in READS):
        assert not graphs.made
        assert graphs.refused or on_host
    elif "from_torch" not in name and not on_host:
        assert graphs.made
        assert not graphs.refused


def test_a_cohort_in_pieces_or_with_a_refused_row_goes_the_ordinary_way() -> None:
    algorithm, graphs = fl.fedavgm(0.1), ServerGraphs(recorded)
    params = {name: draw(index, *shape) for index, (name, shape) in enumerate(SHAPES.items())}
    state = algorithm.init(params, POPULATION)
    whole = cohort(0)
    for _ in range(3):
        intake = algorithm.open(params, state, trusting=True, shortcut=graphs)
        for rows in (slice(0, 2), slice(2, 4)):
            updates = {name: leaf[rows] for name, leaf in whole.updates.items()}
            intake.take(Cohort(whole.clients[rows], whole.examples[rows], updates))
        pieces = intake.close()
        twice = dataclasses.replace(whole, clients=whole.clients[[0, 1, 2, 2]], extra=None)
        intake = algorithm.open(params, state, trusting=True, shortcut=graphs)
        intake.take(twice)
        refused = intake.close()
    plain, _, _ = algorithm.apply(params, state, Cohort(whole.clients, whole.examples, whole.updates))
    same(plain, pieces.params)
    assert refused.report()["refused"] == 1
    assert refused.state.round == 1


def test_cohorts_that_are_never_alike_are_not_recorded_for_ever() -> None:
    algorithm, graphs = fl.fedavg(0.1), ServerGraphs(recorded)
    params = {name: draw(index, *shape) for index, (name, shape) in enumerate(SHAPES.items())}
    state = algorithm.init(params, POPULATION)
    for size in [*range(1, 9), *range(1, 9)]:
        intake = algorithm.open(params, state, trusting=True, shortcut=graphs)
        intake.take(cohort(size, size))
        expected, _, _ = algorithm.apply(params, state, cohort(size, size))
        same(expected, intake.close().params)
    assert len(graphs.made) == 4


def test_a_number_on_the_host_is_never_recorded() -> None:
    """A server that counts rounds for itself: another number is another program."""

    def fade(g: Params, state: Any, params: Params, info: Info) -> tuple[Params, Any, Info]:
        return {name: leaf / state["count"] for name, leaf in g.items()}, {"count": state["count"] + 1}, info

    fading = fl.replace(fl.fedavg(0.1), server=Transform("fade()", fade, lambda params: {"count": 1}))
    graphs = ServerGraphs(recorded)
    for expected, got in zip(play(fading, 5, None), play(fading, 5, graphs), strict=True):
        same(expected[0], got[0])
        assert expected[1].server == got[1].server
    assert not graphs.made and not graphs.refused
