"""The server's side of a round as one launch: aggregation and server step, recorded for rounds that are alike.

Rounds are alike when algorithm, shapes and every number that is not a tensor are the same. The arithmetic is that of
`Aggregation` and `server_step`; what is saved is the host's time to dispatch it, some milliseconds a round and run.
A rule that reads the number of the round, or the clients' steps, goes the ordinary way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedloom.aggregate import Aggregation, Rule, known
from fedloom.algorithm import Algorithm, Outcome, server_step
from fedloom.graphs import NoRound, captured
from fedloom.types import Cohort, Params, State

Work = Callable[[list[Tensor], Tensor], Outcome]
Recorder = Callable[[Work, list[Tensor], Tensor], Callable[[], Outcome]]
"""Records the work on tensors in their places; the replay does it again on what lies there then."""

_PLACE = object()
_PARTS = ("buffers", "server", "combine", "upload", "memory")
_MOST = 4
"""Shapes that are recorded for an algorithm: cohorts that are never alike are not worth it."""
_ABREAST = 5
"""Stacked runs whose servers work at once. Each is many small kernels, one after the other, and leaves a GPU idle; but
each holds a copy of its cohort's updates."""


@dataclass(frozen=True)
class _Recorded:
    places: list[Tensor]
    numbers: Tensor
    replay: Callable[[], Outcome]


class ServerGraphs:
    """What has been recorded in a run; a `Shortcut` for `Algorithm.open`."""

    def __init__(self, record: Recorder | None = None, stream: torch.cuda.Stream | None = None) -> None:
        self.record, self.stream = record or _on_a_gpu(), stream
        self.made: dict[Any, _Recorded] = {}
        self.rooms: dict[Any, tuple[list[Tensor], Tensor]] = {}  # by shapes: one round after another lies there
        self.seen: set[Any] = set()
        self.recorded: Counter[Algorithm] = Counter()
        self.refused: dict[Algorithm, str] = {}
        self.over = False

    def __call__(
        self, algorithm: Algorithm, rule: Rule, params: Params, state: State, chunk: Cohort, also: Mapping[str, Tensor]
    ) -> Outcome | None:
        if self.over or algorithm in self.refused or rule.ranks.world > 1:
            return None
        given = _Given(algorithm, rule, params, state, chunk, also)
        if any(leaf.device != given.device for leaf in given.tensors):
            return None  # a number on the host would be recorded as it is now
        found = self.made.get(given.kind)
        if found is None:
            if given.kind not in self.seen:  # alike rounds are what this is for: wait for the second
                self.seen.add(given.kind)
                return None
            found = self._made(given)
            if found is None:
                return None
        torch._foreach_copy_(found.places, given.tensors, non_blocking=True)
        found.numbers.copy_(given.numbers, non_blocking=True)
        return _kept(found.replay(), found.places, given)

    def _made(self, given: _Given) -> _Recorded | None:
        if self.recorded[given.algorithm] >= _MOST:
            return None
        try:
            places, numbers = room = self.rooms.get(given.shapes) or _room(given)
            recorded = _Recorded(places, numbers, self.record(given.work(), places, numbers))
        except Exception as error:  # the ordinary way needs less memory, and says what is wrong if anything is
            self.refused[given.algorithm] = f"{type(error).__name__}: {error}"
            return None
        self.recorded[given.algorithm] += 1
        self.rooms[given.shapes], self.made[given.kind] = room, recorded
        return recorded

    def forget(self) -> None:
        """Memory is short: what was recorded gives its own back, and nothing is recorded any more."""
        self.made.clear()
        self.rooms.clear()
        self.over = True


def _room(given: _Given) -> tuple[list[Tensor], Tensor]:
    """Places of a round's shapes, which algorithms share: a round is written there just before its replay."""
    return [leaf.clone() for leaf in given.tensors], given.numbers.to(given.device, copy=True)


def servers(runs: int) -> list[ServerGraphs]:
    """One for each of the runs that are stacked; a few at a time have streams of their own."""
    if runs == 1:
        return [ServerGraphs()]
    abreast = [ServerGraphs(stream=torch.cuda.Stream()) for _ in range(min(runs, _ABREAST))]
    return [abreast[run % _ABREAST] for run in range(runs)]


@contextmanager
def beside(server: ServerGraphs | None) -> Iterator[None]:
    """Work inside begins when what was asked of the device before is done, and goes on beside that of other servers."""
    if server is None or server.stream is None:
        yield
        return
    server.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(server.stream):
        yield


def join(server: ServerGraphs | None) -> None:
    """What is asked of the device from here on begins when the server's work is done.

    With `beside`, which waits for the other side, memory that is free again on either is free on both.
    """
    if server is not None and server.stream is not None:
        torch.cuda.current_stream().wait_stream(server.stream)


class _Given:
    """A round's inputs: its tensors in a fixed order, and what kind of round it is."""

    def __init__(
        self,
        algorithm: Algorithm,
        rule: Rule,
        params: Params,
        state: State,
        chunk: Cohort,
        also: Mapping[str, Tensor],
    ) -> None:
        self.algorithm, self.rule, self.state = algorithm, rule, state
        parts = {name: getattr(state, name) for name in _PARTS}
        sent = {name: getattr(chunk, name) for name in ("updates", "losses", "buffers", "extra")}
        leaves, self.structure = pytree.tree_flatten([params, parts, sent, dict(also)])
        self.tensors: list[Tensor] = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.fixed = [_PLACE if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.device = self.tensors[0].device
        self.numbers = known(chunk)
        if self.device.type == "cuda":
            self.numbers = self.numbers.pin_memory()
        self.shapes = (self.numbers.shape, *((leaf.shape, leaf.dtype) for leaf in self.tensors))
        names = tuple(tuple(part) for part in (params, state.buffers, sent["updates"], sent["extra"] or (), also))
        self.kind = (algorithm, rule.needs, state.population, names, tuple(self.fixed), self.shapes)

    def work(self) -> Work:
        """The round's work on tensors in places like these; it holds none of them."""
        algorithm, rule, fixed, structure = self.algorithm, self.rule, self.fixed, self.structure
        empty = replace(self.state, round=NoRound(), examples=None, **dict.fromkeys(_PARTS))  # type: ignore[arg-type]

        def run(places: list[Tensor], numbers: Tensor) -> Outcome:
            left = iter(places)
            leaves = [next(left) if leaf is _PLACE else leaf for leaf in fixed]
            params, parts, sent, also = pytree.tree_unflatten(leaves, structure)
            state = replace(empty, **parts)
            aggregation = Aggregation(params, state, rule)
            clients = torch.arange(numbers.shape[1])  # who they are is among the numbers
            aggregation.ids, aggregation.order, aggregation.reasons = [clients], [clients], [None] * len(clients)
            aggregation.add(Cohort(clients, clients, **sent), 0, numbers)
            return server_step(algorithm, params, state, aggregation.finish(), also)

        return run


def _kept(outcome: Outcome, places: list[Tensor], given: _Given) -> Outcome:
    """The outcome as tensors of its own, before the next round is written in the same places."""
    mine = {id(place): tensor for place, tensor in zip(places, given.tensors, strict=True)}
    written: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) in mine:
            return mine[id(leaf)]  # handed through
        if id(leaf) not in written:
            written[id(leaf)] = torch.empty_like(leaf), leaf
        return written[id(leaf)][0]

    params, parts = pytree.tree_map(keep, (outcome.params, {name: getattr(outcome.state, name) for name in _PARTS}))
    if written:
        torch._foreach_copy_([new for new, _ in written.values()], [old for _, old in written.values()])
    return Outcome(params, replace(given.state, **parts), outcome.told)


def _on_a_gpu() -> Recorder:
    """CUDA graphs that share their memory: each outcome is copied before the next is replayed."""
    pool = torch.cuda.graph_pool_handle()
    return lambda work, places, numbers: captured(lambda: work(places, numbers), pool)
