"""Learning rates over rounds, and over the local steps within one.

A schedule is called with the 0-based round, and on a client also with the local step and how many there will be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.errors import FedloomError, choose, non_negative, positive


@dataclass(frozen=True)
class Schedule:
    """A learning rate; `rate(t)` over rounds, `shape(step, steps)` a factor within a round."""

    name: str
    rate: Callable[[int], float]
    shape: Callable[[int | Tensor, int | Tensor], float | Tensor] | None = None

    def __call__(
        self, round: int, step: int | Tensor = 0, steps: int | Tensor = 1, rate: float | Tensor | None = None
    ) -> float | Tensor:
        """The rate at a step; `rate` is what the round's comes to, where that is known already."""
        base = self.rate(round) if rate is None else rate
        return base if self.shape is None else base * self.shape(step, steps)

    def total(self, round: int, steps: Tensor) -> Tensor:
        """The sum of the rates of `steps` local steps: steps times the rate, unless it varies within a round."""
        steps = steps.to(torch.float64)
        if self.shape is None:
            return steps * self.rate(round)
        most = int(steps.max()) if steps.numel() else 0
        shapes = [torch.where(steps > step, self.shape(step, steps), 0.0) for step in range(most)]
        return self.rate(round) * torch.stack([torch.zeros_like(steps), *shapes]).sum(0)

    def __repr__(self) -> str:
        return self.name


Rate = float | Schedule


def as_schedule(rate: Rate, what: str) -> Schedule:
    """A number becomes a constant schedule; anything but a non-negative, finite rate is an error."""
    if isinstance(rate, Schedule):
        return rate
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not math.isfinite(rate) or rate < 0:
        raise FedloomError(f"{what}: expected a non-negative number or one of fl.schedule.*, got {rate!r}")
    return constant(rate)


def constant(base: float) -> Schedule:
    """The same rate in every round.

    >>> constant(0.1)(7)
    0.1
    """
    non_negative("rate", base)
    base = float(base)
    return Schedule(f"{base:g}", lambda t: base)


def inverse_sqrt(base: float) -> Schedule:
    """base / sqrt(t + 1): Reddi et al.'s INVSQRT.

    >>> inverse_sqrt(0.1)(3)
    0.05
    """
    non_negative("inverse_sqrt base", base)
    return Schedule(f"inverse_sqrt({base:g})", lambda t: base / math.sqrt(t + 1))


def staircase(base: float, factor: float = 0.1, every: int = 500) -> Schedule:
    """base * factor^floor(t / every): Reddi et al.'s EXPDECAY.

    >>> round(staircase(0.1)(999), 12)
    0.01
    """
    non_negative("staircase base", base)
    positive("staircase every", every)
    return Schedule(f"staircase({base:g}, {factor:g}, {every})", lambda t: base * factor ** (t // every))


def geometric(base: float, factor: float = 0.995) -> Schedule:
    """base * factor^t: FedAdp's decay per round.

    >>> round(geometric(0.01)(2), 9)
    0.00990025
    """
    non_negative("geometric base", base)
    return Schedule(f"geometric({base:g}, {factor:g})", lambda t: base * factor**t)


def warmup(rate: Rate, rounds: int = 100, start: float | None = None) -> Schedule:
    """Linear warm-up over the first `rounds`, from zero or from `start` to `rate`.

    >>> warmup(0.4)(49), warmup(0.4, start=0.1)(49)
    (0.2, 0.25)
    """
    target = as_schedule(rate, "warmup")
    positive("warmup rounds", rounds)

    def at(t: int) -> float:
        done = min(1.0, (t + 1) / rounds)
        base = start or 0.0
        return base + (target.rate(t) - base) * done

    origin = "" if start is None else f", start={start:g}"
    return Schedule(f"warmup({target}, {rounds}{origin})", at, target.shape)


def scaled(
    base: float,
    cohort: int,
    reference: int = 50,
    rule: str = "sqrt",
    warmup_rounds: int = 0,
    warmup_from: str = "zero",
) -> Schedule:
    """A server rate for a larger cohort (Charles et al. 2021, 5.1): times sqrt(M / M_ref) or M / M_ref.

    Below the reference cohort the rate stays. `warmup_from` is `"zero"` (their appendix and code) or `"base"` (their
    section 5.1).

    >>> scaled(0.1, cohort=800, warmup_rounds=100)(49), scaled(0.1, cohort=200, rule="linear")(0)
    (0.2, 0.4)
    """
    if rule not in ("sqrt", "linear"):
        raise choose("scaled rule", rule, ["sqrt", "linear"])
    if warmup_from not in ("zero", "base"):
        raise choose("scaled warmup_from", warmup_from, ["zero", "base"])
    positive("scaled reference", reference)
    ratio = max(1.0, cohort / reference)
    rate = base * (math.sqrt(ratio) if rule == "sqrt" else ratio)
    if not warmup_rounds:
        return constant(rate)
    return warmup(rate, warmup_rounds, base if warmup_from == "base" else None)


def within_round(rate: Rate, warmup: float = 0.06) -> Schedule:
    """Linear warm-up over the first share of a client's local steps, then linear decay towards zero.

    >>> within_round(1.0, warmup=0.5)(0, step=1, steps=4)
    tensor(0.5000, dtype=torch.float64)
    """
    base = as_schedule(rate, "within_round")
    return Schedule(f"within_round({base}, {warmup:g})", base.rate, _UpAndDown(warmup))


@dataclass(frozen=True)
class _UpAndDown:
    """A shape that says what it is: runs whose rates have the same one are trained in one stack."""

    warmup: float

    def __call__(self, step: int | Tensor, steps: int | Tensor) -> Tensor:
        count = torch.as_tensor(steps, dtype=torch.float64)
        rising = torch.ceil(self.warmup * count)
        up = step / rising.clamp(min=1.0)
        down = (count - step) / (count - rising).clamp(min=1.0)
        return torch.where(step < rising, up, down.clamp(min=0.0))
