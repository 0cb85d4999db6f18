"""An algorithm is data: six slots. `init` and `apply` run the whole server side of a round as a pure function."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fedloom import tree
from fedloom.aggregate import Aggregate, Aggregation, Rule, require
from fedloom.errors import FedloomError, choose
from fedloom.memory import Memory
from fedloom.privacy import Privacy, check, summed
from fedloom.ranks import ALONE, Ranks
from fedloom.readings import Packed, Readings, pack
from fedloom.schedule import Schedule, constant
from fedloom.transforms.base import Transform
from fedloom.types import ClientReport, Cohort, Info, Needs, Params, Report, State
from fedloom.upload import Upload
from fedloom.weighting import Weighting


@dataclass(frozen=True)
class Work:
    """What a client does with its data: train over epochs or steps, or take one exact gradient of its whole loss.

    `central` is training as with `epochs` by one client that has everybody's rows and keeps its optimizer.
    """

    name: Literal["epochs", "full_gradient", "central"] = "epochs"

    @property
    def pooled(self) -> bool:
        """Whether all clients' rows are one client's."""
        return self.name == "central"

    def __repr__(self) -> str:
        return f"{self.name}()"


@dataclass(frozen=True)
class Algorithm:
    """Six slots: `work` and `client` on a client, `upload` on what leaves it, `combine`, `server`, and `memory`."""

    name: str
    work: Work
    client: Transform
    upload: Upload
    combine: Weighting
    server: Transform
    memory: Memory | None = None
    privacy: Privacy | None = None  # noise on the sum of the updates

    def __post_init__(self) -> None:
        for slot, kind in _KINDS.items():
            part = getattr(self, slot)
            if not isinstance(part, kind) and not (slot == "memory" and part is None):
                hint = ": call it" if callable(part) else ""
                raise FedloomError(f"{self.name} {slot}: expected a {kind.__name__}, got {part!r}{hint}")
        if self.privacy is not None:
            check(self)

    @property
    def client_rates(self) -> Schedule:
        """The clients' learning rate: their memory reads its sum."""
        return self.client.rates or constant(1.0)

    @property
    def keeps_rows(self) -> bool:
        """Whether clients keep anything between rounds: a memory's row, or their optimizer."""
        return self.memory is not None or self.work.pooled

    def init(
        self, params: Params, population: int, *, buffers: Params | None = None, examples: Tensor | None = None
    ) -> State:
        """The server's state before the first round; `examples` are the clients' known counts, for the gate."""
        if examples is not None and not isinstance(examples, Tensor):
            raise FedloomError(f"examples: expected a tensor of counts, got {type(examples).__name__}")
        if not params:
            raise FedloomError("params: expected at least one leaf, got none")
        if population < 1:
            raise FedloomError(f"population: expected at least 1 client, got {population}")
        if examples is not None and tuple(examples.shape) != (population,):
            raise FedloomError(f"examples: expected shape ({population},), got {tuple(examples.shape)}")
        for name, leaf in params.items():
            if not isinstance(leaf, Tensor):
                raise FedloomError(f"params[{name!r}]: expected a tensor, got {type(leaf).__name__}")
            if not leaf.is_floating_point():
                raise FedloomError(f"params[{name!r}]: expected a floating dtype, got {leaf.dtype}: pass it in buffers")
        if self.privacy is not None:
            self.privacy.check_start(self.upload, population, buffers or {})
        exact = _exact(params)
        device = next(iter(exact.values())).device
        return State(
            round=0,
            population=population,
            examples=examples,
            buffers=dict(buffers or {}),
            server=tree.map_state(lambda part: part.to(device), self.server.init(exact)),
            combine=tree.map_state(lambda part: part.to(device), self.combine.init(population)),
            upload=self.upload.init(),
            memory=tree.zeros_like(exact) if self.memory and self.memory.settle else {},
        )

    def apply(
        self,
        params: Params,
        state: State,
        cohort: Cohort | Iterable[Cohort],
        needs: Needs = "meta",
        *,
        min_reports: int = 1,
    ) -> tuple[Params, State, Report]:
        """One server round: gate, upload, combine, server step. Inputs are left as they are.

        `cohort` may come in chunks, in ascending client order, whose tensors stay as they are until this returns. With
        fewer than `min_reports` admitted the round is void: parameters and state are returned unchanged. All arithmetic
        is float64; parameters keep their dtype.
        """
        intake = self.open(params, state, needs, min_reports=min_reports)
        for chunk in [cohort] if isinstance(cohort, Cohort) else cohort:
            intake.take(chunk)
        after = intake.close()
        return after.params, after.state, after.report()

    def open(
        self,
        params: Params,
        state: State,
        needs: Needs = "meta",
        *,
        trusting: bool = False,
        ranks: Ranks = ALONE,
        shortcut: Shortcut | None = None,
        min_reports: int = 1,
    ) -> Intake:
        """`apply` for those who run many rounds: chunks are handed in as they come, the report is read later.

        `trusting` waits for no device: finite rows are taken for granted, and `After.sound` tells whether they were.
        A `shortcut` may then do the server's work.
        """
        totals = self.memory is not None and self.memory.sums_updates
        upload, combine = self.upload, self.combine
        if self.privacy is not None:
            upload = self.privacy.bounded(upload, sum(leaf.numel() for leaf in params.values()))
            combine = summed()
            trusting = False  # noise is added once: nothing is taken back
        rule = Rule(upload, combine, needs, totals, trusting, ranks, min_reports)
        return Intake(self, Aggregation(params, state, rule), shortcut if trusting else None)

    def __repr__(self) -> str:
        shown = (*SLOTS, "privacy")
        slots = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown if getattr(self, name) is not None)
        return f"{self.name}({slots})"


class Intake:
    """A round that is open: chunks go in, `close` takes the server step."""

    def __init__(self, algorithm: Algorithm, aggregation: Aggregation, shortcut: Shortcut | None = None) -> None:
        self.algorithm, self.aggregation, self.shortcut = algorithm, aggregation, shortcut
        self.waiting: list[tuple[Cohort, int]] = []  # the first chunk, which may be the only one

    def take(self, chunk: Cohort, lane: int = 0, misfits: Mapping[int, str] | None = None) -> None:
        """`misfits`: clients whose reply did not fit the model, and why; their rows hold nothing of it."""
        if self.algorithm.memory is not None:
            require(chunk, self.algorithm.name, self.algorithm.memory.sends)
        first = not self.aggregation.ids
        self._add_waiting()
        self.waiting = [(block, lane) for block in self.aggregation.admit(chunk, misfits)]
        if self.shortcut is None or not first:
            self._add_waiting()

    def _add_waiting(self) -> None:
        for block, lane in self.waiting:
            self.aggregation.add(block, lane)
        self.waiting = []

    def close(self, also: Mapping[str, Tensor] | None = None) -> After:
        """The server step. `also`: what else is to be read with the round's numbers, under its names."""
        params, state, rule = self.aggregation.params, self.aggregation.state, self.aggregation.rule
        if self.shortcut is not None and len(self.waiting) == 1 and self.waiting[0][0].size >= rule.min_reports:
            [(block, _)] = self.waiting
            outcome = self.shortcut(self.algorithm, rule, params, state, block, also or {})
            if outcome is not None:
                return After(outcome, state.round + 1, self.aggregation.roster())
        self._add_waiting()
        got = self.aggregation.finish()
        if self.algorithm.privacy is not None:
            got = self.algorithm.privacy.release(got, self.algorithm.upload, params, state, rule.ranks)
        outcome = server_step(self.algorithm, params, state, got, also or {})
        return After(outcome, state.round + (not got.void), got)


@dataclass(frozen=True)
class Outcome:
    """What a server step leaves: the state still has the number of the round before it."""

    params: Params
    state: State
    told: Packed


Shortcut: TypeAlias = Callable[[Algorithm, Rule, Params, State, Cohort, Mapping[str, Tensor]], Outcome | None]
"""The server's side of a round whose cohort comes in one chunk, all of it admitted; None where it cannot be taken."""


def server_step(
    algorithm: Algorithm, params: Params, state: State, got: Aggregate, also: Mapping[str, Tensor]
) -> Outcome:
    """Parameters and state after the round; as they were where it is void."""
    memory = algorithm.memory
    numbers: dict[str, float | Tensor] = {
        "pseudo_gradient_norm": 0.0,
        "mean_update_norm": got.mean_norm,
        "cosine": got.cosine,
    }
    if not got.void:
        admitted = got.admitted if got.expected is None else got.expected
        info = Info(state.round, got.gradient, admitted, state.population, got.squares, got.extra)
        x = _exact(params)
        step, server, info = algorithm.server.update(got.gradient, state.server, x, info)
        shared = state.memory
        if memory is not None and memory.settle is not None:
            shared = memory.settle(shared, got.extra, state.population)
        numbers["pseudo_gradient_norm"] = tree.norm(got.gradient)
        numbers |= {**algorithm.upload.report(state.upload, got.notes), **info.notes}
        state = dataclasses.replace(
            state,
            buffers=got.buffers or state.buffers,
            server=server,
            combine=got.combine,
            upload=algorithm.upload.settle(state.upload, got.notes),
            memory=shared,
        )
        differences = torch._foreach_sub([x[name] for name in params], [step[name] for name in params])
        params = {name: d.to(leaf.dtype) for (name, leaf), d in zip(params.items(), differences, strict=True)}
    values = {f"number/{name}": value for name, value in numbers.items()}
    values |= {f"column/{name}": column for name, column in got.columns.items()}
    values |= {f"also/{name}": value for name, value in also.items()}
    values["leaves"] = torch.stack(torch._foreach_norm(list(params.values()), torch.inf))
    if got.finite is not None:
        values["finite"] = got.finite
    return Outcome(params, state, pack(values))


class After:
    """What a round leaves: parameters and state at once, its numbers when they are read."""

    def __init__(self, outcome: Outcome, round: int, got: Aggregate) -> None:
        self.params, self.state = outcome.params, outcome.state
        if round != outcome.state.round:  # a void round leaves the very same state
            self.state = dataclasses.replace(outcome.state, round=round)
        self._got, self.readings = got, Readings(outcome.told)

    @property
    def void(self) -> bool:
        """Whether too few were admitted, so that nothing changed."""
        return self._got.void

    @property
    def sound(self) -> bool:
        """Whether every row that was taken for finite was."""
        finite = self.readings.read().get("finite")
        return finite is None or bool(finite.bool().all())

    def nonfinite_leaf(self) -> str | None:
        """The first leaf of the model that holds a NaN or an infinity."""
        largest = self.readings.read()["leaves"].tolist()
        return next((name for name, most in zip(self.params, largest, strict=True) if not math.isfinite(most)), None)

    def also(self, name: str) -> Tensor:
        return self.readings.read()[f"also/{name}"]

    def report(self) -> Report:
        got = self._got
        read = self.readings.read()
        report = Report(admitted=got.admitted, refused=len(got.reasons) - got.admitted)
        report.update(
            {name.removeprefix("number/"): float(v) for name, v in read.items() if name.startswith("number/")}
        )

        def column(name: str, elsewhere: float) -> Tensor | None:
            found = read.get(f"column/{name}")
            whole = torch.full(got.ids.shape, elsewhere, dtype=torch.float64)
            return None if found is None else whole.index_copy(0, got.order, found.cpu())

        nothing = torch.zeros(got.ids.shape, dtype=torch.float64)
        weight, norm = column("weight", 0.0), column("norm", 0.0)
        report.clients = ClientReport(
            got.ids,
            torch.tensor([reason is None for reason in got.reasons], dtype=torch.bool),
            got.reasons,
            weight=nothing if weight is None else weight,
            norm=nothing.clone() if norm is None else norm,
            angle=column("angle", torch.nan),
            distance=column("distance", torch.nan),
        )
        return report


SLOTS = ("work", "client", "upload", "combine", "server", "memory")
_KINDS: dict[str, type] = dict(zip(SLOTS, (Work, Transform, Upload, Weighting, Transform, Memory), strict=True))


def replace(algorithm: Algorithm, **slots: Any) -> Algorithm:
    """The same algorithm with other parts in some of its slots.

    >>> import fedloom as fl
    >>> fl.replace(fl.fedavg(client_lr=0.1), upload=fl.clip(1.0)).upload
    clip(1)
    """
    if not isinstance(algorithm, Algorithm):
        raise FedloomError(f"replace: expected an Algorithm, got {algorithm!r}")
    for slot in slots:
        if slot not in (*SLOTS, "name"):
            raise choose("replace", slot, [*SLOTS, "name"])
    return dataclasses.replace(algorithm, **slots)


def _exact(params: Params) -> Params:
    return {name: leaf.detach().to(torch.float64) for name, leaf in params.items()}
