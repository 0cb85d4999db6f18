"""Transforms that correct a gradient: towards the global model, for the client's drift, for the cohort's agreement."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedloom import tree
from fedloom.errors import choose, fraction, non_negative, positive
from fedloom.transforms.base import Transform, stateless
from fedloom.types import Info, Params, PartState

GROUPINGS = ("group", "universal")


def add_proximal(mu: float) -> Transform:
    """FedProx (Li et al. 2020): the local loss gains (mu / 2) ||y - x^t||^2, the gradient mu (y - x^t)."""
    non_negative("mu", mu)
    return stateless(
        f"add_proximal({mu:g})",
        lambda g, params, info: tree.map(lambda g, y, x: g + mu * (y - x), g, params, info.anchor),
        corrects=True,
        forgets=True,
    )


def add_control() -> Transform:
    """SCAFFOLD (Karimireddy et al. 2020): the gradient gains c - c_k."""
    return stateless(
        "add_control()",
        lambda g, params, info: tree.map(lambda g, c, ck: g + c - ck, g, info.shared, info.row),
        corrects=True,
        forgets=True,
    )


def add_dynamic(alpha: float) -> Transform:
    """FedDyn (Acar et al. 2021): the local loss gains -<q_k, y> + (alpha / 2) ||y - x^t||^2."""
    return stateless(
        f"add_dynamic({alpha:g})",
        lambda g, params, info: tree.map(lambda g, q, y, x: g - q + alpha * (y - x), g, info.row, params, info.anchor),
        corrects=True,
        forgets=True,
    )


def add_weight_decay(decay: float) -> Transform:
    """decay x: before an optimizer L2 regularisation, after it decoupled decay (AdamW)."""
    non_negative("client_weight_decay", decay)
    return stateless(
        f"add_weight_decay({decay:g})",
        lambda g, params, info: tree.map(lambda g, x: g + decay * x, g, params),
        forgets=True,
    )


def clip_gradient(norm: float) -> Transform:
    """Scale the gradient down to Euclidean norm `norm` over all parameters."""
    positive("client_clip_norm", norm)

    def apply(g: Params, params: Params, info: Info) -> Params:
        # torch's own reduction: this runs at every local step, where equal bits across stacks are not promised
        length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(leaf) for leaf in g.values()]))
        factor = torch.where(length > norm, norm / length, 1.0)
        return tree.map(lambda leaf: leaf * factor, g)

    return stateless(f"clip_gradient({norm:g})", apply, forgets=True)


def drift(alpha: float) -> Transform:
    """FedDyn's server: h = h + (alpha / N) sum_S g_k; step g + h / alpha.

    h reads the raw updates, as the clients' q_k do, so that it stays their mean over the population whatever is
    clipped, weighted or scaled. Without a memory that has them summed it takes them for M times the mean.
    """

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        sums = info.sums.get("update") or tree.map(lambda raw: info.admitted * raw, info.raw)
        h = tree.map(lambda h, total: h + alpha / info.population * total, state["h"], sums)
        step = tree.map(lambda g, h: g + h / alpha, g, h)
        raw = tree.map(lambda g, h: g + h / alpha, info.raw, h)
        return step, {"h": h}, replace(info, raw=raw)

    return Transform(f"drift({alpha:g})", update, lambda params: {"h": tree.zeros_like(params)}, reads_clients=True)


def glad(beta: float = 0.9, gamma: float = 0.02, grouping: str = "group") -> Transform:
    """FedGLAD (Yang et al. 2023): scale the pseudo-gradient by how far the cohort's agreement departs from its usual.

    Per group P (a parameter tensor, or all of them), with t counting rounds from 0:
    GSI_P = sqrt(sum_k p_k ||g_P,k||^2 / ||g_P||^2), at least 1, and larger the more the clients disagree;
    g_P <- min(max(GSI_P / B_P, 1 - gamma t), 1 + gamma t) g_P;  B_P <- beta B_P + (1 - beta) GSI_P.
    """
    if grouping not in GROUPINGS:
        raise choose("grouping", grouping, GROUPINGS)
    fraction("glad beta", beta)
    non_negative("glad gamma", gamma)
    universal = grouping == "universal"

    def init(params: Params) -> PartState:
        # 0 stands for "not seen yet": an indicator is never below 1
        names = ["all"] if universal else list(params)
        zero = torch.zeros((), dtype=torch.float64, device=next(iter(params.values())).device)
        return {"baseline": {name: zero.clone() for name in names}, "count": zero.long()}

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        t = state["count"]
        room = torch.where(t > 0, gamma * t.double(), 0.0)  # inf * 0 would be NaN
        mean = {name: tree.total(leaf.double() ** 2) for name, leaf in g.items()}
        together = _indicator(tree.sum_leaves(info.squares.values()), tree.sum_leaves(mean.values()))
        each = {name: _indicator(info.squares[name], mean[name]) for name in g}
        indicators = {"all": together} if universal else each
        ratios, baseline = {}, {}
        for name, gsi in indicators.items():
            ratios[name], baseline[name] = _ratio(gsi, state["baseline"][name], room, beta)
        scaled = {name: leaf * ratios["all" if universal else name].to(leaf.dtype) for name, leaf in g.items()}
        notes: dict[str, float | Tensor] = {"gsi": together, **{f"gsi/{name}": gsi for name, gsi in each.items()}}
        notes["glad_ratio"] = torch.stack(list(ratios.values())).mean()
        state = {"baseline": baseline, "count": t + 1}
        return scaled, state, replace(info, notes=info.notes | notes)  # info.raw stays: second moments read it

    name = f"glad(beta={beta:g}, gamma={gamma:g}, grouping={grouping!r})"
    return Transform(name, update, init, reads_clients=True)


def _indicator(spread: Tensor, mean: Tensor) -> Tensor:
    """sqrt(spread / mean), infinite where the updates cancel out and NaN where all of them are zero."""
    return (spread / mean).sqrt().clamp(min=1.0)


def _ratio(gsi: Tensor, baseline: Tensor, room: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """How far to scale a group, by at most `room` up or down, and its next baseline.

    Of a frozen tensor (NaN) nothing is scaled and nothing learnt. Where the mean is zero (an infinite indicator), any
    ratio does, and an infinite baseline would outlive the round.
    """
    usual = torch.where(baseline == 0, gsi, baseline)
    known = gsi.isfinite()
    extreme = torch.where(gsi.isnan() | room.isinf(), 1.0, 1 + room)
    ratio = torch.where(known, (gsi / usual).clamp(1 - room, 1 + room), extreme)
    return ratio, torch.where(known, beta * usual + (1 - beta) * gsi, baseline)
