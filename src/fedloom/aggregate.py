"""A cohort's updates become one pseudo-gradient, chunk by chunk, in float64, in an order that is part of the promise.

Rows are added one after the other in ascending client order, and every other sum is a fold of elementwise additions
(`tree.total`), so the result has the same bits however the cohort is cut, permuted or threaded. A run cuts its cohort
into lanes besides, whose sums are added as a tree: then it does not matter either which process adds which.
Three plans: `meta` adds each row as it comes and keeps none; `alignment` keeps them, to compare each with their mean;
`rows` keeps them for a rule that measures them itself, or goes through them coordinate by coordinate (`kept.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedloom import gate, tree
from fedloom import rows as row_sums
from fedloom.errors import FedloomError
from fedloom.kept import Kept
from fedloom.lanes import Lanes
from fedloom.ranks import Ranks, gather_columns
from fedloom.readings import to_device
from fedloom.tree import Layout
from fedloom.types import Cohort, Evidence, Needs, Params, PartState, State
from fedloom.upload import Upload
from fedloom.weighting import Weighting, angle

OPTIONAL = ("steps", "losses", "buffers")
_BLOCK, _GPU_BLOCK = 2**23, 2**28
"""Entries that an upload works on at a time, in float64: 64 MiB, on a GPU 2 GiB."""


@dataclass(frozen=True)
class Rule:
    """How rows become one pseudo-gradient, and with whom the work is shared."""

    upload: Upload
    combine: Weighting
    needs: Needs = "meta"
    sums_updates: bool = False  # add up the raw updates too
    trusting: bool = False  # take finite rows for granted; whether they were is told beside the result
    ranks: Ranks = field(default_factory=Ranks)
    min_reports: int = 1  # with fewer admitted the round is void

    @property
    def keep_rows(self) -> bool:
        return {self.needs, self.combine.needs} != {"meta"} or self.combine.local is None


@dataclass(frozen=True)
class Aggregate:
    """What the server step needs of a round."""

    ids: Tensor  # of all rows, in the order given
    reasons: list[str | None]  # why a row was refused
    order: Tensor  # where each admitted row stood among them
    columns: Params = field(default_factory=dict)  # per admitted row: weight, norm, and what else was computed
    finite: Tensor | None = None  # per row, where rows were trusted
    gradient: Params = field(default_factory=dict)
    squares: Params = field(default_factory=dict)  # per leaf: sum_k p_k ||scale_k g_k||^2
    buffers: Params | None = None
    extra: dict[str, Params] = field(default_factory=dict)  # sums over the admitted
    notes: dict[str, float | Tensor] = field(default_factory=dict)  # means of what the upload noted
    combine: PartState = None
    cosine: float | Tensor = float("nan")
    mean_norm: float | Tensor = 0.0
    void: bool = False  # too few were admitted: nothing changes
    expected: int | None = None  # under noise: how many were to come; how many did is not told, nor that nobody did

    @property
    def admitted(self) -> int:
        return len(self.order)


class Aggregation:
    """The running sums of a cohort that arrives in chunks."""

    def __init__(self, params: Params, state: State, rule: Rule) -> None:
        self.params, self.state, self.rule = params, state, rule
        self.layout = Layout.of(params)
        self.seen: set[int] = set()
        self.ids: list[Tensor] = []
        self.reasons: list[str | None] = []
        self.finite: list[Tensor] = []
        self.order: list[Tensor] = []  # where each admitted row stood among all rows given
        self.carried: set[str] | None = None  # the optional fields of the first chunk
        self.columns: dict[str, list[Tensor]] = {}
        self.kept = Kept(self.layout, rule.ranks, self._centre() if rule.combine.centred else None)
        self.squares: list[Tensor] = []
        self.notes: dict[str, list[Tensor]] = {}
        self.buffers: dict[str, list[Tensor]] = {}
        self.sums = Lanes()  # of g_k / ||g_k||, and of weight_k scale_k g_k where rows are not kept
        self.extra: dict[str, Lanes] = {}

    def _centre(self) -> Params:
        """The pseudo-gradient of the last round, flat; zero before the first."""
        last: Params = self.state.combine or tree.zeros_like(self.params)
        return {name: leaf.double().flatten() for name, leaf in last.items()}

    def admit(self, chunk: Cohort, misfits: Mapping[int, str] | None = None) -> list[Cohort]:
        """Gate a chunk's rows: those admitted, ascending in client, in blocks that an upload can work on at once.

        `misfits` are clients whose reply does not fit the model, and why: their rows hold nothing of it.
        """
        if not isinstance(chunk, Cohort):
            raise FedloomError(f"apply: expected a Cohort or an iterable of them, got {type(chunk).__name__}")
        gate.check(chunk, self.params, self.state.buffers)
        if not chunk.size:
            return []
        carried = {name for name in OPTIONAL if getattr(chunk, name) is not None}
        for name in carried ^ (carried if self.carried is None else self.carried):
            raise FedloomError(f"Cohort.{name}: expected in every chunk of the round or in none, got both")
        self.carried = carried
        reasons = gate.admit(chunk, self.state, self.seen, self.rule.trusting)
        if misfits:
            reasons = [misfits.get(client, why) for client, why in zip(chunk.clients.tolist(), reasons, strict=True)]
        start = len(self.reasons)
        ids = chunk.clients.cpu()
        self.ids.append(ids)
        self.reasons += reasons
        admitted = torch.tensor([i for i, reason in enumerate(reasons) if reason is None], dtype=torch.int64)
        admitted = admitted[ids[admitted].argsort(stable=True)]
        self.order.append(admitted + start)
        size = chunk.size
        if self.rule.upload.name != "keep()":
            on_gpu = _device(chunk).type == "cuda"
            size = max(1, (_GPU_BLOCK if on_gpu else _BLOCK) // max(1, self.layout.size))
        return [select(chunk, block) for block in admitted.split(size) if block.numel()]

    def add(self, chunk: Cohort, lane: int = 0, numbers: Tensor | None = None) -> None:
        """Run the upload on a block of admitted rows and add them up; lanes come in ascending order.

        `numbers` are the `known` ones, where they are on the device already.
        """
        given = self._flat(chunk.updates)
        rows, notes = self._upload(given)
        squares = torch.stack([row_sums.squares(part) for part in rows.values()], dim=1)
        norms = tree.total(squares, lead=1).sqrt()
        ones = torch.ones(1, chunk.size, dtype=torch.float64, device=norms.device)
        if self.rule.sums_updates:
            self.extra.setdefault("update", Lanes()).add(lane, given, ones)
        numbers = to_device(known(chunk), norms.device) if numbers is None else numbers
        columns = _columns(chunk, numbers, norms)
        for name, column in columns.items():
            self.columns.setdefault(name, []).append(column)
        for name, note in notes.items():
            self.notes.setdefault(name, []).append(note)
        for name, buffer in (chunk.buffers or {}).items():
            self.buffers.setdefault(name, []).append(buffer)
        self.squares.append(squares)
        if self.rule.trusting:
            self.finite.append(self._finite(chunk, squares))
        for kind, leaves in (chunk.extra or {}).items():
            self.extra.setdefault(kind, Lanes()).add(lane, self._flat(leaves), ones)
        direction = torch.where(norms > 0, 1 / norms, 0.0)
        if self.rule.keep_rows:
            self.kept.add(lane, rows)
            self.sums.add(lane, rows, direction.unsqueeze(0))
        else:
            assert self.rule.combine.local is not None
            weight, scale = self.rule.combine.local(self._evidence(columns))
            self.sums.add(lane, rows, torch.stack([direction, weight * scale]))

    def _upload(self, rows: Params) -> tuple[Params, dict[str, Tensor]]:
        if self.rule.upload.name == "keep()":
            return rows, {}

        def one(update: Params) -> tuple[Params, dict[str, Tensor]]:
            shaped = {name: part.reshape(self.layout.shapes[name]) for name, part in update.items()}
            update, notes = self.rule.upload.apply(shaped, self.state.upload)
            return {name: update[name].flatten() for name in self.layout.shapes}, notes

        exact = {name: part.to(torch.float64) for name, part in rows.items()}
        result: tuple[Params, dict[str, Tensor]] = torch.func.vmap(one)(exact)
        return result

    def _finite(self, chunk: Cohort, squares: Tensor) -> Tensor:
        """The rows that the gate would admit, on their device. A sum of squares tells, unless the upload hides it."""
        if self.rule.upload.name != "keep()":
            return gate.finite(chunk)
        others = replace(chunk, updates={}) if chunk.buffers or chunk.extra else None
        mask = squares.isfinite().all(1)
        return mask if others is None else mask & gate.finite(others)

    def _evidence(self, columns: dict[str, Tensor]) -> Evidence:
        return Evidence(
            clients=columns["clients"],
            weights=columns["weights"],
            multiplicity=columns["multiplicity"],
            round=self.state.round,
            population=self.state.population,
            norms=columns["norms"],
            steps=columns.get("steps"),
            losses=columns.get("losses"),
            dots=columns.get("dots"),
            mean_norm=columns.get("mean_norm"),
            rows=self.kept if self.rule.keep_rows else None,
        )

    def finish(self) -> Aggregate:
        """Weigh, now that all evidence is in."""
        got = self.roster()
        if got.void:
            return replace(got, combine=self.state.combine)
        columns = {name: torch.cat(parts) for name, parts in self.columns.items()}
        sums = self.sums.total(self.rule.ranks)
        if self.rule.keep_rows:
            columns |= self._alignment(columns)
        evidence = self._evidence(columns)
        p, scale, combine_state = self.rule.combine.weigh(evidence, self.state.combine)
        told = {"weight": p, "norm": evidence.norms}
        if self.rule.keep_rows:
            told |= {"angle": angle(evidence), "distance": columns["distance"]}
        count = got.admitted
        notes = {name: tree.total(torch.cat(parts).double()) / count for name, parts in self.notes.items()}
        gradient = self._shaped(self._gradient(sums, evidence, p, scale))
        return replace(
            got,
            columns=told,
            gradient=gradient,
            squares=dict(zip(self.layout.shapes, self._spread(evidence, p, scale), strict=True)),
            buffers=self._buffers(evidence, p),
            extra={
                kind: self._shaped({name: part[0] for name, part in lanes.total(self.rule.ranks).items()})
                for kind, lanes in self.extra.items()
            },
            notes={name: note if note.is_cuda else float(note) for name, note in notes.items()},
            combine=gradient if self.rule.combine.centred else combine_state,
            cosine=_cosine(sums, evidence.norms),
            mean_norm=tree.total(evidence.norms) / count,
        )

    def roster(self) -> Aggregate:
        """Who came in, with the other ranks' part of it: from here on every rank has all clients' numbers."""
        ids = torch.cat(self.ids) if self.ids else torch.zeros(0, dtype=torch.int64)
        order = torch.cat(self.order) if self.order else torch.zeros(0, dtype=torch.int64)
        ranks = self.rule.ranks
        if ranks.world > 1:
            ids, order, self.reasons = _gather_rows(ranks, ids, order, self.reasons)
            self.columns = gather_columns(ranks, self.columns)
            self.notes = gather_columns(ranks, self.notes)
            self.buffers = gather_columns(ranks, self.buffers)
            self.squares = gather_columns(ranks, {"": self.squares} if self.squares else {}).get("", [])
            for kind in sorted({kind for kinds in ranks.gather_json(list(self.extra)) for kind in kinds}):
                self.extra.setdefault(kind, Lanes())
        finite = torch.cat(self.finite) if self.finite else None
        return Aggregate(ids, self.reasons, order, finite=finite, void=len(order) < max(1, self.rule.min_reports))

    def _alignment(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each kept row against the mean of all: dot products, and distances taken directly, without cancellation."""
        evidence = self._evidence(columns)
        local = self.rule.combine.local
        weight = torch.ones_like(evidence.norms) if local is None else local(evidence)[0]
        whole = tree.total(weight)
        mean = {name: part / whole for name, part in self.kept.weighted(weight).items()}
        length = tree.total(torch.stack([tree.total(part * part) for part in mean.values()])).sqrt()
        return {"dots": self.kept.dots(mean), "distance": self.kept.apart(mean), "mean_norm": length}

    def _gradient(self, sums: Params, evidence: Evidence, p: Tensor, scale: Tensor) -> Params:
        column = self.rule.combine.column
        if column is not None:
            return self.kept.columns(lambda rows: column(rows, evidence))
        if self.rule.keep_rows:
            return self.kept.blend(p * scale)
        assert self.rule.combine.local is not None
        weight, local_scale = self.rule.combine.local(evidence)
        whole = tree.total(weight * local_scale)
        factor = torch.where(whole > 0, tree.total(p * scale) / whole, 0.0)  # every scale may be zero
        return {name: part[1] * factor for name, part in sums.items()}

    def _spread(self, evidence: Evidence, p: Tensor, scale: Tensor) -> Tensor:
        """Per leaf: sum_k p_k ||scale_k g_k||^2; a coordinate-wise rule takes the squares as it takes the updates."""
        column = self.rule.combine.column
        if column is not None:
            found = self.kept.columns(lambda rows: column(rows * rows, evidence))
            return torch.stack([tree.total(part) for part in found.values()])
        if self.rule.combine.centred:
            return tree.total((p.unsqueeze(1) * self.kept.moved(scale)).T, lead=1)
        spread = (p * scale * scale).unsqueeze(1) * torch.cat(self.squares)
        return tree.total(spread.T, lead=1)

    def _buffers(self, evidence: Evidence, p: Tensor) -> Params | None:
        """The clients' own statistics, in their dtype: averaged, or by the rule's `column`; of counters the largest."""
        column = self.rule.combine.column

        def average(rows: Tensor) -> Tensor:
            if not rows.is_floating_point():
                return rows.amax(0)
            flat = tree.matrix(rows)
            mean = row_sums.add(None, flat, p.unsqueeze(0))[0] if column is None else column(flat.double(), evidence)
            return mean.reshape(rows.shape[1:]).to(rows.dtype)

        return {name: average(torch.cat(parts)) for name, parts in self.buffers.items()} or None

    def _flat(self, leaves: Params) -> Params:
        return {name: tree.matrix(leaves[name].detach()) for name in self.layout.shapes}

    def _shaped(self, flat: Params) -> Params:
        return {name: flat[name].reshape(shape) for name, shape in self.layout.shapes.items()}


def _cosine(sums: Params, norms: Tensor) -> Tensor:
    """Mean pairwise cosine, (||sum u||^2 - M) / (M (M - 1)) over the updates that are not zero; NaN below two."""
    count = (norms > 0).sum()
    square = tree.norm({name: part[0] for name, part in sums.items()}) ** 2
    return torch.where(count < 2, torch.nan, (square - count) / (count * (count - 1)))


def _device(chunk: Cohort) -> torch.device:
    return next(iter(chunk.updates.values())).device


def select(chunk: Cohort, rows: Tensor) -> Cohort:
    """Those rows of a chunk, in that order; the chunk itself where that is what it holds."""
    if torch.equal(rows, torch.arange(chunk.size)):
        return chunk

    def pick(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[to_device(rows, column.device)]

    def leaves(of: Params) -> Params:
        return {name: leaf[to_device(rows, leaf.device)] for name, leaf in of.items()}

    columns = {name: pick(getattr(chunk, name)) for name in ("steps", "losses", "multiplicity", "weights", "rounds")}
    clients, examples = chunk.clients[rows.to(chunk.clients.device)], chunk.examples[rows.to(chunk.examples.device)]
    buffers = None if chunk.buffers is None else leaves(chunk.buffers)
    extra = None if chunk.extra is None else {kind: leaves(of) for kind, of in chunk.extra.items()}
    return Cohort(clients, examples, leaves(chunk.updates), **columns, buffers=buffers, extra=extra)


def known(chunk: Cohort) -> Tensor:
    """What the server knows of a block's clients before it looks at their updates, on the host: id, weight, draws."""
    weights = chunk.examples if chunk.weights is None else chunk.weights
    multiplicity = torch.ones(chunk.size) if chunk.multiplicity is None else chunk.multiplicity
    return torch.stack([column.cpu().double() for column in (chunk.clients, weights, multiplicity)])


def _columns(chunk: Cohort, numbers: Tensor, norms: Tensor) -> dict[str, Tensor]:
    """The numbers of a block's clients, beside the updates on their device; steps stay on the host."""
    clients, weights, multiplicity = numbers
    columns = {"clients": clients.long(), "weights": weights, "multiplicity": multiplicity, "norms": norms}
    if chunk.steps is not None:
        columns["steps"] = chunk.steps.cpu().double()
    if chunk.losses is not None:
        columns["losses"] = chunk.losses.to(norms)
    return columns


def _gather_rows(
    ranks: Ranks, ids: Tensor, order: Tensor, reasons: list[str | None]
) -> tuple[Tensor, Tensor, list[str | None]]:
    every_ids: list[int] = []
    every_order: list[int] = []
    every_reasons: list[str | None] = []
    for part_ids, part_order, part_reasons in ranks.gather_json([ids.tolist(), order.tolist(), reasons]):
        every_order += [len(every_ids) + place for place in part_order]
        every_ids += part_ids
        every_reasons += part_reasons
    return torch.tensor(every_ids), torch.tensor(every_order, dtype=torch.int64), every_reasons


def require(cohort: Cohort, name: str, kinds: tuple[str, ...]) -> Cohort:
    """Raise when memory needs an extra that the cohort does not carry."""
    for kind in kinds:
        if kind not in (cohort.extra or {}):
            got = ", ".join(cohort.extra or {}) or "none"
            raise FedloomError(
                f"{name}: expected Cohort(extra={{{kind!r}: ...}}), what its clients' memory sends; got {got}"
            )
    return cohort
