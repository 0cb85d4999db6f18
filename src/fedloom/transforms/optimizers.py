"""Optimizers as transforms: g is the gradient on a client, the pseudo-gradient on the server; x the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedloom import tree
from fedloom.errors import FedloomError, choose, fraction, non_negative
from fedloom.schedule import Rate, as_schedule
from fedloom.transforms.base import Transform, changed, stateless
from fedloom.types import Info, Params, PartState

BIAS_CORRECTIONS = ("none", "keras", "torch")
MOMENTUM_VARIANTS = ("heavyball", "nesterov", "ema")


def scale(rate: Rate, what: str = "rate") -> Transform:
    """Multiply by a learning rate: the last link of a chain, and alone plain SGD."""
    schedule = as_schedule(rate, what)

    def apply(g: Params, params: Params, info: Info) -> Params:
        eta = schedule(info.round, info.step, info.steps, info.rate if info.schedule is schedule else None)
        times = Tensor.mul_ if info.spent and info.raw is g else torch.mul
        return tree.map(lambda leaf: times(leaf, eta.to(leaf.dtype) if isinstance(eta, Tensor) else eta), g)

    return replace(stateless(f"scale({schedule})", apply, forgets=True), rates=schedule)


def momentum(beta: float = 0.9, variant: str = "heavyball") -> Transform:
    """FedAvgM's server (Hsu, Qi and Brown 2019), or SGD with momentum on a client.

    heavyball  v = beta v + g             step v
    nesterov   v = beta v + g             step g + beta v
    ema        v = beta v + (1 - beta) g  step v
    """
    if variant not in MOMENTUM_VARIANTS:
        raise choose("momentum variant", variant, MOMENTUM_VARIANTS)
    fraction("momentum", beta, below_one=True)
    shown = f"{beta:g}" if variant == "heavyball" else f"{beta:g}, {variant!r}"
    weight = 1 - beta if variant == "ema" else 1.0

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        v = tree.map(lambda v, g: beta * v + weight * g, state["v"], g)
        step = tree.map(lambda v, g: g + beta * v, v, g) if variant == "nesterov" else v
        return changed(step, {"v": v}, info)

    return Transform(f"momentum({shown})", update, lambda params: {"v": tree.zeros_like(params)})


def adagrad(tau: float = 1e-3, initial_accumulator: float | str | None = None, beta1: float = 0.0) -> Transform:
    """FedAdagrad's server (Reddi et al. 2020): v = v + g^2; m = beta1 m + (1 - beta1) g; step m / (sqrt(v) + tau)."""
    _moments(beta1, 0.0, tau)
    return _adaptive(
        "adagrad",
        f"beta1={beta1:g}, tau={tau:g}",
        lambda v, g: v + g * g,
        beta1,
        tau,
        "none",
        tau**2 if initial_accumulator is None else initial_accumulator,
        lambda count: torch.ones_like(count),
    )


def adam(
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    bias_correction: str = "none",
    initial_accumulator: float | str | None = None,
) -> Transform:
    """FedAdam's server (Reddi et al. 2020): m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2.

    Step, with s the number of steps so far:
    none   m / (sqrt(v) + tau), v starting at tau^2
    keras  sqrt(1 - beta2^s) / (1 - beta1^s) m / (sqrt(v) + tau)
    torch  (m / (1 - beta1^s)) / (sqrt(v / (1 - beta2^s)) + tau)
    """
    _moments(beta1, beta2, tau)
    return _adaptive(
        "adam",
        f"beta1={beta1:g}, beta2={beta2:g}, tau={tau:g}",
        lambda v, g: beta2 * v + (1 - beta2) * g * g,
        beta1,
        tau,
        bias_correction,
        _accumulator(initial_accumulator, tau, bias_correction),
        lambda count: 1 - _power(beta2, count),
    )


def yogi(
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    bias_correction: str = "none",
    initial_accumulator: float | str | None = None,
) -> Transform:
    """FedYogi's server (Reddi et al. 2020): as Adam but v = v - (1 - beta2) g^2 sign(v - g^2)."""
    _moments(beta1, beta2, tau)
    return _adaptive(
        "yogi",
        f"beta1={beta1:g}, beta2={beta2:g}, tau={tau:g}",
        lambda v, g: v - (1 - beta2) * g * g * torch.sign(v - g * g),
        beta1,
        tau,
        bias_correction,
        _accumulator(initial_accumulator, tau, bias_correction),
        lambda count: 1 - _power(beta2, count),
    )


def lars(beta: float = 0.9, eps: float = 1e-3, weight_decay: float = 0.0) -> Transform:
    """FedLARS's server (Charles et al. 2021), per tensor: m = beta m + (1 - beta) (g + decay x).

    Step ||x|| / (||m|| + eps) m, or m itself where a norm is zero.
    The trust ratio nearly cancels any scaling of g, FedGLAD's included.
    """
    fraction("beta", beta, below_one=True)
    non_negative("eps", eps)

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        m = tree.map(lambda m, g, x: beta * m + (1 - beta) * (g + weight_decay * x), state["m"], g, params)
        return changed(tree.map(lambda m, x: _trust(x, m, eps) * m, m, params), {"m": m}, info)

    return Transform(
        f"lars({beta:g}, eps={eps:g}, weight_decay={weight_decay:g})",
        update,
        lambda params: {"m": tree.zeros_like(params)},
    )


def lamb(beta1: float = 0.9, beta2: float = 0.99, eps: float = 1e-3, weight_decay: float = 0.0) -> Transform:
    """FedLamb's server (Charles et al. 2021): Adam's step u, bias-corrected, then per tensor ||x|| / ||u|| u."""
    moments = adam(beta1, beta2, eps, "torch")

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        u, state, info = moments.update(g, state, params, info)
        u = tree.map(lambda u, x: u + weight_decay * x, u, params)
        return changed(tree.map(lambda u, x: _trust(x, u, 0.0) * u, u, params), state, info)

    return Transform(f"lamb({beta1:g}, {beta2:g}, eps={eps:g}, weight_decay={weight_decay:g})", update, moments.init)


def normalize() -> Transform:
    """Normalised FedAvg (Charles et al. 2021, 5.4): g / ||g|| over all parameters jointly; zero stays zero."""

    def apply(g: Params, params: Params, info: Info) -> Params:
        norm = tree.norm(g)
        return tree.map(lambda leaf: torch.where(norm > 0, leaf / norm, 0.0), g)

    return stateless("normalize()", apply)


def _adaptive(
    name: str,
    settings: str,
    second_moment: Callable[[Tensor, Tensor], Tensor],
    beta1: float,
    tau: float,
    bias_correction: str,
    initial: float | str,
    second_correction: Callable[[Tensor], Tensor],
) -> Transform:
    """What Adagrad, Adam and Yogi share: the first moment reads g, the second what FedGLAD leaves as it was."""
    if bias_correction not in BIAS_CORRECTIONS:
        raise choose("bias_correction", bias_correction, BIAS_CORRECTIONS)
    if initial != "estimate" and not (isinstance(initial, int | float) and initial >= 0):
        raise FedloomError(f"initial_accumulator: expected None, a number of at least 0 or 'estimate', got {initial!r}")

    def init(params: Params) -> PartState:
        if isinstance(initial, str):
            raise FedloomError(
                f"{name}: initial_accumulator='estimate' is not resolved: let fl.simulate do it, "
                "or pass the number fl.estimate_accumulator(task, data, params, seed) returns"
            )
        v = tree.map(lambda x: torch.full_like(x, initial), params)
        count = torch.zeros((), dtype=torch.int64, device=next(iter(params.values())).device)
        return {"m": tree.zeros_like(params), "v": v, "count": count}

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        m = tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state["m"], g)
        v = tree.map(second_moment, state["v"], info.raw)
        count = state["count"] + 1
        first, second = 1 - _power(beta1, count), second_correction(count)

        def step(m: Tensor, v: Tensor) -> Tensor:
            a, b = first.to(m), second.to(m)
            if bias_correction == "none":
                return _divide(m, v.sqrt() + tau)
            if bias_correction == "keras":
                return b.sqrt() / a * _divide(m, v.sqrt() + tau)
            return _divide(m / a, (v / b).sqrt() + tau)

        return changed(tree.map(step, m, v), {"m": m, "v": v, "count": count}, info)

    shown = f"{settings}, bias_correction={bias_correction!r}, initial_accumulator={initial!r}"
    resolve = None
    if initial == "estimate":

        def resolve(estimate: float) -> Transform:
            return _adaptive(name, settings, second_moment, beta1, tau, bias_correction, estimate, second_correction)

    return Transform(f"{name}({shown})", update, init, resolve)


def _moments(beta1: float, beta2: float, tau: float) -> None:
    fraction("beta1", beta1, below_one=True)
    fraction("beta2", beta2, below_one=True)
    non_negative("tau", tau)


def _accumulator(initial: float | str | None, tau: float, bias_correction: str) -> float | str:
    """tau^2 where the step has no bias correction (Reddi et al.'s algorithm), else 0 (the official code)."""
    if initial is not None:
        return initial
    return tau**2 if bias_correction == "none" else 0.0


def _power(beta: float, count: Tensor) -> Tensor:
    return torch.pow(beta, count.double())


def _divide(m: Tensor, d: Tensor) -> Tensor:
    """m / d with 0 / 0 = 0: a coordinate never updated does not move, with tau = 0 too."""
    return torch.where((d == 0) & (m == 0), 0.0, m / d)


def _trust(x: Tensor, u: Tensor, eps: float) -> Tensor:
    """||x|| / (||u|| + eps) where both norms are positive, else 1: a zero-initialised bias takes one unscaled step."""
    above, below = tree.norm({"": x}), tree.norm({"": u})
    return torch.where((above > 0) & (below > 0), above / (below + eps), 1.0)
