"""K updates -> K coefficients. A rule sees evidence (counts, norms, dot products), never the updates themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedloom import tree
from fedloom.errors import FedloomError, choose, positive
from fedloom.readings import to_device
from fedloom.types import Evidence, Needs, PartState

Shape = Callable[[int, "int | Tensor"], "float | Tensor"]
Weighed = tuple[Tensor, Tensor, PartState]


def _no_state(population: int) -> PartState:
    return {}


@dataclass(frozen=True)
class Weighting:
    """`weigh(evidence, state) -> (p, scale, state)`: g = sum_k p_k scale_k g_k, p summing to one.

    `local` gives p and scale up to a common factor from a client's own numbers, so that a cohort of any size is summed
    in the memory of one chunk; its first part also weighs the mean that alignment is measured against. Without it, rows
    are kept until all evidence is in.

    A rule that `needs` rows measures them by `evidence.rows`. One that is `centred` looks from v, the pseudo-gradient
    of the last round: g = v + sum_k p_k scale_k (g_k - v). One with a `column` takes g coordinate by coordinate, as
    `column(rows, evidence)`, `(K, n) -> (n,)`; its p is for the report alone. One that `reads_steps` has no use for a
    client that does not tell them.
    """

    name: str
    weigh: Callable[[Evidence, PartState], Weighed]
    init: Callable[[int], PartState] = _no_state
    needs: Needs = "meta"
    local: Callable[[Evidence], tuple[Tensor, Tensor]] | None = None
    centred: bool = False
    column: Callable[[Tensor, Evidence], Tensor] | None = None
    reads_steps: bool = False

    def __repr__(self) -> str:
        return self.name


def _normalized(name: str, weight: Callable[[Evidence], Tensor]) -> Weighting:
    """The rule p_k proportional to `weight`, with no scale."""

    def local(evidence: Evidence) -> tuple[Tensor, Tensor]:
        w = weight(evidence)
        return w, torch.ones_like(w)

    def weigh(evidence: Evidence, state: PartState) -> Weighed:
        w, scale = local(evidence)
        return w / tree.total(w), scale, state

    return Weighting(name, weigh, local=local)


def by_examples() -> Weighting:
    """p_k proportional to n_k: FedAvg (McMahan et al. 2017)."""
    return _normalized("by_examples()", lambda evidence: evidence.weights * evidence.multiplicity)


def uniform() -> Weighting:
    """p_k = 1 / M; a client drawn twice counts twice."""
    return _normalized("uniform()", lambda evidence: evidence.multiplicity)


def base_weight(weighting: Weighting) -> Callable[[Evidence], Tensor]:
    """A client's weight, up to a common factor, in the rule that another one refines."""
    if not isinstance(weighting, Weighting):
        raise FedloomError(f"weighting: expected fl.by_examples() or fl.uniform(), got {weighting!r}")
    local = weighting.local
    if local is None or weighting.needs != "meta":
        raise FedloomError(f"weighting: expected fl.by_examples() or fl.uniform() as a base, got {weighting!r}")
    return lambda evidence: local(evidence)[0]


def by_angle(alpha: float = 5.0, smoothing: str = "count", base: Weighting | None = None) -> Weighting:
    """FedAdp (Wu and Wang 2021): psi_k proportional to n_k exp f(theta_k), theta_k the smoothed angle to the mean.

    f(theta) = alpha (1 - exp(-exp(-alpha (theta - 1)))). The smoothed angle is the running mean over the rounds the
    client took part in (`"count"`), or equation 9 with the global round (`"round"`). Absent clients keep theirs.
    """
    if smoothing not in ("count", "round"):
        raise choose("smoothing", smoothing, ["count", "round"])
    positive("fedadp alpha", alpha)
    size = base_weight(base or by_examples())

    def init(population: int) -> PartState:
        return {
            "angle": torch.zeros(population, dtype=torch.float64),
            "count": torch.zeros(population, dtype=torch.int64),
        }

    def weigh(evidence: Evidence, state: PartState) -> Weighed:
        theta = angle(evidence)
        clients = evidence.clients
        count = state["count"][clients] + 1
        t = count if smoothing == "count" else torch.full_like(count, evidence.round + 1)
        smoothed = torch.where(count == 1, theta, ((t - 1) * state["angle"][clients] + theta) / t)
        contribution = alpha * (1 - torch.exp(-torch.exp(-alpha * (smoothed - 1))))
        psi = torch.softmax(contribution + size(evidence).log(), 0)
        state = {
            "angle": state["angle"].index_copy(0, clients, smoothed),
            "count": state["count"].index_copy(0, clients, count),
        }
        return psi, torch.ones_like(psi), state

    def local(evidence: Evidence) -> tuple[Tensor, Tensor]:
        weight = size(evidence)
        return weight, torch.ones_like(weight)

    shown = "" if base is None else f", base={base!r}"
    name = f"by_angle({alpha:g}, {smoothing!r}{shown})"
    return Weighting(name, weigh, init, "alignment", local, reads_steps=base is not None and base.reads_steps)


def angle(evidence: Evidence) -> Tensor:
    """Angles between the updates and their mean, in radians; a right angle where either is zero."""
    assert evidence.dots is not None and evidence.mean_norm is not None
    length = evidence.norms * evidence.mean_norm
    cosine = torch.where(length > 0, evidence.dots / length, 0.0).nan_to_num(0.0)  # squares may have overflowed
    return cosine.clamp(-1, 1).arccos()


def by_effective_steps(
    momentum: float = 0.0,
    nesterov: bool = False,
    proximal: float = 0.0,
    shape: Shape | None = None,
    base: Weighting | None = None,
) -> Weighting:
    """FedNova (Wang et al. 2020): scale_k = tau_eff / ||a_k||_1, tau_eff = sum_k p_k ||a_k||_1.

    ||a_k||_1 is what tau_k local steps add up to when every gradient is one: tau_k for SGD. `momentum` is the clients'
    momentum, `proximal` their eta_c * mu (then tau_eff = sum_k p_k tau_k, as the reference code has it), `shape` a
    rate that varies over the local steps. An adaptive client optimizer moves by one rate a step, so counts as SGD.
    """
    size = base_weight(base or by_examples())

    def local(evidence: Evidence) -> tuple[Tensor, Tensor]:
        if evidence.steps is None:
            raise FedloomError(
                "by_effective_steps: expected Cohort(steps=...), the local steps of each client, got None"
            )
        steps = [int(tau) for tau in evidence.steps.tolist()]
        lengths = [accumulated_steps(tau, momentum, nesterov, proximal, shape) for tau in steps]
        weight = size(evidence)
        length = to_device(torch.tensor(lengths, dtype=torch.float64), weight.device)
        return weight, torch.where(length > 0, 1 / length, 0.0)  # rates that are all zero moved nothing

    def weigh(evidence: Evidence, state: PartState) -> Weighed:
        weight, scale = local(evidence)
        p = weight / tree.total(weight)
        assert evidence.steps is not None
        taken = to_device(evidence.steps.double(), p.device)
        length = taken if proximal else torch.where(scale > 0, 1 / scale, 0.0)
        return p, tree.total(p * length) * scale, state

    shown = f"momentum={momentum:g}, nesterov={nesterov}, proximal={proximal:g}, base={base or by_examples()!r}"
    return Weighting(f"by_effective_steps({shown})", weigh, local=local, reads_steps=True)


@lru_cache(maxsize=4096)
def accumulated_steps(
    steps: int,
    momentum: float = 0.0,
    nesterov: bool = False,
    proximal: float = 0.0,
    shape: Shape | None = None,
) -> float:
    """||a||_1: how far unit gradients carry a client, in units of its learning rate.

    >>> round(accumulated_steps(2, momentum=0.9), 12), round(accumulated_steps(4, momentum=0.9), 12)
    (2.9, 9.049)
    """
    if momentum == 0 and proximal == 0 and shape is None:
        return float(steps)
    distance = velocity = 0.0
    for step in range(steps):
        gradient = 1.0 - proximal * distance
        velocity = momentum * velocity + gradient
        move = gradient + momentum * velocity if nesterov else velocity
        distance += (1.0 if shape is None else float(shape(step, steps))) * move
    return distance
