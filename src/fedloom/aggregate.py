"""A cohort's updates become one pseudo-gradient, chunk by chunk, in float64, in an order that is part of the promise.

Rows are added one after the other in ascending client order, and every other sum is a fold of elementwise additions
(`tree.total`), so the result has the same bits however the cohort is cut, permuted or threaded.
Two plans: `meta` adds each row as it comes and keeps none; `alignment` keeps them, to compare each with their mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedloom import gate, tree
from fedloom.errors import FedloomError
from fedloom.tree import Layout
from fedloom.types import ClientReport, Cohort, Evidence, Needs, Params, PartState, State
from fedloom.upload import Upload
from fedloom.weighting import Weighting, angle

OPTIONAL = ("steps", "losses", "buffers")
_BLOCK = 2**23
"""Elements of the float64 work matrix at a time: 64 MiB."""


@dataclass(frozen=True)
class Aggregate:
    """What the server step needs of a round."""

    admitted: int
    clients: ClientReport
    gradient: Params = field(default_factory=dict)
    squares: Params = field(default_factory=dict)  # per leaf: sum_k p_k ||scale_k g_k||^2
    buffers: Params | None = None
    extra: dict[str, Params] = field(default_factory=dict)  # sums over the admitted
    notes: dict[str, float] = field(default_factory=dict)  # means of what the upload noted
    combine: PartState = None
    cosine: float = float("nan")
    mean_norm: float = 0.0


def aggregate(
    chunks: Iterable[Cohort],
    params: Params,
    state: State,
    upload: Upload,
    combine: Weighting,
    needs: Needs,
    sums_updates: bool = False,
) -> Aggregate:
    """Gate every row, run the upload, weigh and add up; `sums_updates` adds up the raw updates too."""
    keep_rows = "alignment" in (needs, combine.needs) or combine.local is None
    stream = _Stream(Layout.of(params), state, upload, combine, keep_rows, sums_updates)
    for chunk in chunks:
        if not isinstance(chunk, Cohort):
            raise FedloomError(f"apply: expected a Cohort or an iterable of them, got {type(chunk).__name__}")
        gate.check(chunk, params, state.buffers)
        stream.take(chunk)
    return stream.finish()


class _Stream:
    """The running sums of a cohort that arrives in chunks."""

    def __init__(
        self, layout: Layout, state: State, upload: Upload, combine: Weighting, keep_rows: bool, sums_updates: bool
    ) -> None:
        self.layout, self.state, self.upload, self.combine = layout, state, upload, combine
        self.keep_rows, self.sums_updates = keep_rows, sums_updates
        self.seen: set[int] = set()
        self.ids: list[Tensor] = []
        self.reasons: list[str | None] = []
        self.order: list[Tensor] = []  # where each admitted row stood among all rows given
        self.carried: set[str] | None = None  # the optional fields of the first chunk
        self.columns: dict[str, list[Tensor]] = {}
        self.rows: list[Tensor] = []
        self.squares: list[Tensor] = []
        self.notes: dict[str, list[Tensor]] = {}
        self.buffers: dict[str, list[Tensor]] = {}
        self.sum: Tensor | None = None  # of weight_k scale_k g_k
        self.directions: Tensor | None = None  # of g_k / ||g_k||
        self.extra: dict[str, Tensor] = {}

    def take(self, chunk: Cohort) -> None:
        if not chunk.size:
            return
        carried = {name for name in OPTIONAL if getattr(chunk, name) is not None}
        for name in carried ^ (carried if self.carried is None else self.carried):
            raise FedloomError(f"Cohort.{name}: expected in every chunk of the round or in none, got both")
        self.carried = carried
        reasons = gate.admit(chunk, self.state, self.seen)
        start = len(self.reasons)
        ids = chunk.clients.cpu()
        self.ids.append(ids)
        self.reasons += reasons
        admitted = torch.tensor([i for i, reason in enumerate(reasons) if reason is None], dtype=torch.int64)
        admitted = admitted[ids[admitted].argsort(stable=True)]
        self.order.append(admitted + start)
        for block in admitted.split(max(1, _BLOCK // max(1, self.layout.size))):
            if block.numel():
                self._add(chunk, block)

    def _add(self, chunk: Cohort, block: Tensor) -> None:
        flat = self.layout.flatten(_rows(chunk.updates, block))
        if self.sums_updates:
            self.extra["update"] = _add_rows(self.extra.get("update"), flat, flat.new_ones(len(flat)))
        flat, notes = self._upload(flat)
        squares = self.layout.squares(flat)
        norms = tree.total(squares, lead=1).sqrt()
        columns = _columns(chunk, block, norms)
        for name, column in columns.items():
            self.columns.setdefault(name, []).append(column)
        for name, note in notes.items():
            self.notes.setdefault(name, []).append(note)
        for name, rows in _rows(chunk.buffers or {}, block).items():
            self.buffers.setdefault(name, []).append(rows)
        self.squares.append(squares)
        self.directions = _add_rows(self.directions, flat, torch.where(norms > 0, 1 / norms, 0.0))
        for kind, leaves in (chunk.extra or {}).items():
            rows = self.layout.flatten(_rows(leaves, block))
            self.extra[kind] = _add_rows(self.extra.get(kind), rows, torch.ones_like(norms))
        if self.keep_rows:
            self.rows.append(flat)
        else:
            assert self.combine.local is not None
            weight, scale = self.combine.local(self._evidence(columns))
            self.sum = _add_rows(self.sum, flat, weight * scale)

    def _upload(self, flat: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self.upload.name == "keep()":
            return flat, {}

        def one(row: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            update, notes = self.upload.apply(self.layout.unflatten(row), self.state.upload)
            return torch.cat([update[name].flatten() for name in self.layout.shapes]), notes

        result: tuple[Tensor, dict[str, Tensor]] = torch.func.vmap(one)(flat)
        return result

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
        )

    def finish(self) -> Aggregate:
        ids = torch.cat(self.ids) if self.ids else torch.zeros(0, dtype=torch.int64)
        admitted = torch.tensor([reason is None for reason in self.reasons], dtype=torch.bool)
        rows = ids.shape[0]
        empty = torch.zeros(rows, dtype=torch.float64)
        clients = ClientReport(ids, admitted, self.reasons, weight=empty, norm=empty.clone())
        if not self.squares:
            return Aggregate(0, clients, combine=self.state.combine)
        columns = {name: torch.cat(parts) for name, parts in self.columns.items()}
        squares = torch.cat(self.squares)
        if self.keep_rows:
            columns |= self._alignment(columns)
        evidence = self._evidence(columns)
        p, scale, combine_state = self.combine.weigh(evidence, self.state.combine)
        gradient = self._gradient(evidence, p, scale)
        spread = (p * scale * scale).unsqueeze(1) * squares
        order = torch.cat(self.order)
        clients.weight = empty.index_copy(0, order, p.cpu())
        clients.norm = empty.index_copy(0, order, evidence.norms.cpu())
        if self.keep_rows:
            clients.angle = torch.full_like(empty, torch.nan).index_copy(0, order, angle(evidence).cpu())
            clients.distance = torch.full_like(empty, torch.nan).index_copy(0, order, columns["distance"].cpu())
        return Aggregate(
            admitted=int(admitted.sum()),
            clients=clients,
            gradient=self.layout.unflatten(gradient),
            squares=dict(zip(self.layout.shapes, tree.total(spread.T, lead=1), strict=True)),
            buffers=_average_buffers({name: torch.cat(parts) for name, parts in self.buffers.items()}, p),
            extra={kind: self.layout.unflatten(total) for kind, total in self.extra.items()},
            notes={
                name: float(tree.total(torch.cat(parts).double())) / len(order) for name, parts in self.notes.items()
            },
            combine=combine_state,
            cosine=self._cosine(evidence.norms),
            mean_norm=float(tree.total(evidence.norms)) / len(order),
        )

    def _alignment(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each kept row against the mean of all: dot products, and distances taken directly, without cancellation."""
        evidence = self._evidence(columns)
        weight = torch.ones_like(evidence.norms) if self.combine.local is None else self.combine.local(evidence)[0]
        mean = None
        for rows, part in self._kept(weight):
            mean = _add_rows(mean, rows, part)
        assert mean is not None
        mean = mean / tree.total(weight)
        return {
            "dots": torch.cat([tree.total(rows * mean, lead=1) for rows in self.rows]),
            "distance": torch.cat([tree.total((rows - mean) ** 2, lead=1).sqrt() for rows in self.rows]),
            "mean_norm": tree.total(mean * mean).sqrt(),
        }

    def _gradient(self, evidence: Evidence, p: Tensor, scale: Tensor) -> Tensor:
        if self.keep_rows:
            gradient = None
            for rows, part in self._kept(p * scale):
                gradient = _add_rows(gradient, rows, part)
            assert gradient is not None
            return gradient
        assert self.sum is not None and self.combine.local is not None
        weight, local_scale = self.combine.local(evidence)
        whole = tree.total(weight * local_scale)
        return self.sum * torch.where(whole > 0, tree.total(p * scale) / whole, 0.0)  # every scale may be zero

    def _kept(self, column: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.rows, column.split([rows.shape[0] for rows in self.rows]), strict=True)

    def _cosine(self, norms: Tensor) -> float:
        """Mean pairwise cosine, (||sum u||^2 - M) / (M (M - 1)) over the updates that are not zero; NaN below two."""
        count = int((norms > 0).sum())
        if count < 2:
            return float("nan")
        assert self.directions is not None
        square = float(tree.total(self.directions * self.directions))
        return (square - count) / (count * (count - 1))


def _columns(chunk: Cohort, block: Tensor, norms: Tensor) -> dict[str, Tensor]:
    """The numbers of a block's clients, beside the updates on their device; whole counts may come from anywhere."""
    given = {
        "weights": chunk.examples if chunk.weights is None else chunk.weights,
        "multiplicity": torch.ones(chunk.size) if chunk.multiplicity is None else chunk.multiplicity,
        "steps": chunk.steps,
        "losses": chunk.losses,
    }
    columns = {name: column.cpu()[block].to(norms) for name, column in given.items() if column is not None}
    return columns | {"clients": chunk.clients.cpu()[block].to(norms.device, torch.int64), "norms": norms}


def _rows(leaves: Params, block: Tensor) -> Params:
    return {name: rows[block.to(rows.device)] for name, rows in leaves.items()}


def _add_rows(total: Tensor | None, rows: Tensor, coefficients: Tensor) -> Tensor:
    """total + sum_k coefficient_k row_k, row after row, each product rounded first: a fused multiply-add may differ."""
    if total is None:
        total = torch.zeros(rows.shape[1], dtype=rows.dtype, device=rows.device)
    for row, coefficient in zip(rows, coefficients, strict=True):
        total += row * coefficient
    return total


def _average_buffers(buffers: Params, p: Tensor) -> Params | None:
    """Weighted means of the clients' own statistics, in their dtype; of integer counters the largest."""

    def average(rows: Tensor) -> Tensor:
        if not rows.is_floating_point():
            return rows.amax(0)
        flat = tree.matrix(rows.to(torch.float64))
        return _add_rows(None, flat, p).reshape(rows.shape[1:]).to(rows.dtype)

    return {name: average(rows) for name, rows in buffers.items()} or None


def require(cohort: Cohort, name: str, kinds: tuple[str, ...]) -> Cohort:
    """Raise when memory needs an extra that the cohort does not carry."""
    for kind in kinds:
        if kind not in (cohort.extra or {}):
            got = ", ".join(cohort.extra or {}) or "none"
            raise FedloomError(
                f"{name}: expected Cohort(extra={{{kind!r}: ...}}), what its clients' memory sends; got {got}"
            )
    return cohort
