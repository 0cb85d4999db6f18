"""What clients do wrong, as data: they do not come, send what is broken, or are hostile.

Accidents befall a client in a round; who is hostile is so for the whole run. All of it is drawn from (seed, round,
client): the same whatever the executor, the chunks and the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom import gate, random, tree
from fedloom.aggregate import select
from fedloom.data.federated import FederatedData
from fedloom.errors import FedloomError, choose, fraction, positive
from fedloom.executors.job import Trained
from fedloom.lanes import Lanes
from fedloom.ranks import Ranks
from fedloom.tree import Layout
from fedloom.types import Cohort, Params

ACCIDENTS = ("dropout", "crash", "lateness", "nan", "wrong_shape", "stale", "double")
ATTACKS = (
    *("sign_flip", "scaling", "gaussian", "zero", "label_flip"),
    *("a_little_is_enough", "inner_product"),
)
STRENGTHS = {"lateness": 10.0, "sign_flip": 1.0, "scaling": 10.0, "gaussian": 1.0, "inner_product": 10.0}
"""What `strength` is unless it is given; `a_little_is_enough` computes its own."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. `rate` is its chance in a round, or, of an attack, the share of hostile clients.

    `dropout` never reports, `crash` works and never reports, `lateness` takes `strength` times as long (there must be a
    `System` with a deadline or over-selection to be late for). `nan`, `wrong_shape`, `stale` (for an earlier round) and
    `double` are reports that the gate refuses. Hostile clients send, instead of g_k, with c the `strength`:

    - `sign_flip`: -c g_k; `scaling`: c g_k; `zero`: 0; `gaussian`: independent normal numbers of deviation c;
    - `label_flip`: what they learn from labels C - 1 - y;
    - `a_little_is_enough` (Baruch et al. 2019): mean - c std of the cohort's honest updates, in every coordinate; by
      default c is the paper's z_max, for which the honest clients that lie farther out are just enough for a majority;
    - `inner_product` (Xie et al. 2020): -c times the honest mean.

    >>> Fault("sign_flip", rate=0.2)
    Fault(kind='sign_flip', rate=0.2, strength=1.0)
    """

    kind: str
    rate: float
    strength: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in (*ACCIDENTS, *ATTACKS):
            raise choose("fault", self.kind, (*ACCIDENTS, *ATTACKS))
        fraction(f"{self.kind} rate", self.rate)
        if self.strength is None:
            object.__setattr__(self, "strength", STRENGTHS.get(self.kind))
            return
        if self.kind not in (*STRENGTHS, "a_little_is_enough"):
            raise FedloomError(f"{self.kind} strength: expected none, which it does not have, got {self.strength!r}")
        positive(f"{self.kind} strength", self.strength)


def as_faults(given: Fault | Sequence[Fault]) -> tuple[Fault, ...]:
    """One fault or several, each kind once."""
    faults = (given,) if isinstance(given, Fault) else tuple(given)
    for fault in faults:
        if not isinstance(fault, Fault):
            raise FedloomError(f"faults: expected fl.Fault(kind, rate), or a list of them, got {fault!r}")
    kinds = [fault.kind for fault in faults]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        raise FedloomError(f"faults: expected each kind once, got {twice!r} twice")
    hostile = sum(fault.rate for fault in faults if fault.kind in ATTACKS)
    if hostile > 1:
        raise FedloomError(f"faults: expected shares of hostile clients that sum to at most 1, got {hostile:g}")
    return faults


class Faults:
    """The faults of one run."""

    def __init__(self, faults: Sequence[Fault] = (), seed: int = 0, population: int = 1) -> None:
        self.seed = seed
        self.accidents = {fault.kind: fault for fault in faults if fault.kind in ACCIDENTS}
        self.attackers = _hostile([fault for fault in faults if fault.kind in ATTACKS], seed, population)

    @property
    def forgers(self) -> list[tuple[Fault, Tensor]]:
        """Those who send something else than what they learnt."""
        return [(fault, clients) for fault, clients in self.attackers if fault.kind != "label_flip"]

    @property
    def tampers(self) -> bool:
        """Whether anything may happen to a report on its way."""
        return bool(self.forgers) or any(kind in self.accidents for kind in ("nan", "wrong_shape", "stale", "double"))

    def struck(self, kind: str, t: int, clients: Tensor) -> Tensor:
        """A mask of the clients that have this accident in round t."""
        if kind not in self.accidents:
            return torch.zeros_like(clients, dtype=torch.bool)
        drawn = random.uniform(random.key(self.seed, t, clients, f"faults/{kind}"), 1)[..., 0]
        return drawn < self.accidents[kind].rate

    def slowed(self, t: int, clients: Tensor, work: Tensor) -> Tensor:
        """The work of late clients counts several times."""
        if "lateness" not in self.accidents:
            return work
        late = self.struck("lateness", t, clients)
        return torch.where(late, work * (self.accidents["lateness"].strength or 1.0), work)

    def poisoned(self, data: FederatedData) -> FederatedData:
        """The data as clients train on them: those who flip labels have C - 1 - y for y."""
        clients = self.of("label_flip")
        if not len(clients):
            return data
        if data.classes is None or not isinstance(data.y, Tensor):
            raise FedloomError(f"label_flip: expected data with class labels, got {data.name!r} without")
        rows = torch.cat([data.indices[data.offsets[k] : data.offsets[k + 1]] for k in clients.tolist()])
        return replace(data, y=data.y.index_copy(0, rows, data.classes - 1 - data.y[rows]))

    def of(self, kind: str) -> Tensor:
        """The clients with this attack, ascending."""
        found = [clients for fault, clients in self.attackers if fault.kind == kind]
        return found[0] if found else torch.zeros(0, dtype=torch.int64)

    def tampered(
        self, trained: Sequence[Trained], t: int, server_round: int, params: Params, ranks: Ranks
    ) -> Iterator[tuple[Trained, dict[int, str]]]:
        """What arrives of a cohort's reports, and why some do not fit the model."""
        colluding = any(fault.kind in COLLUDING for fault, _ in self.forgers)
        honest = _Honest(trained, self.attackers, ranks) if colluding else None
        for part in trained:
            cohort = part.cohort
            for fault, clients in self.forgers:
                mask = torch.isin(cohort.clients.cpu(), clients)
                if bool(mask.any()):
                    cohort = replace(cohort, updates=self._forged(fault, cohort, mask, t, honest))
            yield self._broken(replace(part, cohort=cohort), t, server_round, params)

    def _forged(self, fault: Fault, cohort: Cohort, mask: Tensor, t: int, honest: _Honest | None) -> Params:
        """The updates with those under the mask replaced."""
        updates, c = cohort.updates, fault.strength or 0.0
        if fault.kind in COLLUDING:
            assert honest is not None
            if not honest.count:
                return updates
            point = honest.against(c) if fault.kind == "inner_product" else honest.little(fault.strength)
            sent = {name: point[name].reshape(leaf.shape[1:]).expand_as(leaf) for name, leaf in updates.items()}
        elif fault.kind == "gaussian":
            keys = random.key(self.seed, t, cohort.clients.cpu(), "faults/gaussian")
            layout = Layout({name: leaf.shape[1:] for name, leaf in updates.items()})
            sent = layout.unflatten(_normal(keys, layout.size) * c)
        else:
            factor = {"sign_flip": -c, "scaling": c, "zero": 0.0}[fault.kind]
            sent = {name: factor * leaf for name, leaf in updates.items()}
        return {name: _where(mask, sent[name].to(leaf), leaf) for name, leaf in updates.items()}

    def _broken(self, part: Trained, t: int, server_round: int, params: Params) -> tuple[Trained, dict[int, str]]:
        """The same reports with their accidents."""
        cohort, clients = part.cohort, part.cohort.clients.cpu()
        first, rows = next(iter(cohort.updates.items()))
        spoilt = _where(self.struck("nan", t, clients), torch.full_like(rows, torch.nan), rows)
        stale = self.struck("stale", t, clients).long() if server_round else torch.zeros_like(clients)
        cohort = replace(cohort, updates=cohort.updates | {first: spoilt}, rounds=server_round - stale)
        misshapen = params | {first: params[first].new_zeros(params[first].numel() + 1)}
        why = gate.misfit(misshapen, params) or ""
        misfits = dict.fromkeys(clients[self.struck("wrong_shape", t, clients)].tolist(), why)
        twice = torch.nonzero(self.struck("double", t, clients)).flatten()
        order = torch.cat([torch.arange(len(clients)), twice])
        sent = Trained(part.part, select(cohort, order), _rows(part.rows, order), _rows(part.counted, order))
        return sent, misfits


COLLUDING = ("a_little_is_enough", "inner_product")


class _Honest:
    """Mean and deviation of the honest clients' updates, of all ranks, added up in the order of all sums."""

    def __init__(self, trained: Sequence[Trained], attackers: Sequence[tuple[Fault, Tensor]], ranks: Ranks) -> None:
        hostile = torch.cat([clients for _, clients in attackers])
        parts, self.count, self.hostile = [], 0, 0
        for part in trained:
            theirs = torch.isin(part.cohort.clients.cpu(), hostile)
            sound = torch.nonzero(~theirs & gate.finite(part.cohort).cpu()).flatten()
            parts.append((part.part.lane, _flat(_rows(part.cohort.updates, sound)), len(sound)))
            self.count, self.hostile = self.count + len(sound), self.hostile + int(theirs.sum())
        self.count, self.hostile = sum(ranks.gather_json(self.count)), sum(ranks.gather_json(self.hostile))

        def mean(entries: Callable[[Params], Params]) -> Params:
            lanes = Lanes()
            for lane, rows, size in parts:
                device = next(iter(rows.values())).device
                lanes.add(lane, entries(rows), torch.ones(1, size, dtype=torch.float64, device=device))
            return {name: sums[0] / max(1, self.count) for name, sums in lanes.total(ranks).items()}

        self.mean = mean(lambda leaves: leaves)
        self.deviation = tree.map(
            torch.sqrt, mean(lambda leaves: {name: (leaf - self.mean[name]) ** 2 for name, leaf in leaves.items()})
        )

    def little(self, z: float | None) -> Params:
        z = z_max(self.count + self.hostile, self.hostile) if z is None else z
        return {name: leaf - z * self.deviation[name] for name, leaf in self.mean.items()}

    def against(self, c: float) -> Params:
        return tree.map(lambda leaf: -c * leaf, self.mean)


def z_max(clients: int, attackers: int) -> float:
    """Baruch et al.'s z: s honest clients beyond it make a majority with the attackers, s = floor(n / 2 + 1) - m.

    >>> round(z_max(50, 24), 2)
    1.43
    """
    needed = max(1, clients // 2 + 1 - attackers)
    share = (clients - attackers - needed) / max(1, clients - attackers)
    return max(0.0, float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64))))


def _hostile(attacks: Sequence[Fault], seed: int, population: int) -> list[tuple[Fault, Tensor]]:
    """Who is hostile, and how: shares of one permutation of all clients, so that nobody is twice."""
    if not attacks:
        return []
    order = random.permutation(random.key(seed, 0, 0, "faults/hostile"), population)
    ends = [0]
    for fault in attacks:
        ends.append(min(population, ends[-1] + math.floor(fault.rate * population + 0.5)))
    return [(fault, order[a:b].sort().values) for fault, a, b in zip(attacks, ends, ends[1:], strict=False)]


def _normal(keys: Tensor, count: int) -> Tensor:
    """Independent standard normal numbers, by their distribution function's inverse."""
    numbers: Tensor = torch.special.ndtri(random.uniform(keys, count).clamp(min=2.0**-54))
    return numbers


def _flat(leaves: Params) -> Params:
    return {name: tree.matrix(leaf.detach()) for name, leaf in leaves.items()}


def _where(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Rows under the mask replaced."""
    return torch.where(mask.to(old.device).reshape(-1, *[1] * (old.dim() - 1)), new, old)


def _rows(leaves: Params, order: Tensor) -> Params:
    return {name: leaf[order.to(leaf.device)] for name, leaf in leaves.items()}
