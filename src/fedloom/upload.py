"""What leaves one client: its update as it is, clipped, or zeroed.

`apply` sees one client's update and is pure, so a stack of clients is a `vmap` of it. What it notes about a client (was
it clipped?) is averaged over the cohort, plainly, and `settle` adjusts the threshold once a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom import tree
from fedloom.errors import fraction, non_negative, positive
from fedloom.types import Params, PartState

Notes = dict[str, Tensor]

Number = float | Tensor
"""On a GPU a number stays there: nobody waits for it."""


def _no_init() -> PartState:
    return {}


def _no_settle(state: PartState, notes: dict[str, Number]) -> PartState:
    return state


def _no_report(state: PartState, notes: dict[str, Number]) -> dict[str, Number]:
    return {}


@dataclass(frozen=True)
class Upload:
    """`apply(update, state) -> (update, notes)` per client; `settle(state, mean notes) -> state` once a round."""

    name: str
    apply: Callable[[Params, PartState], tuple[Params, Notes]]
    init: Callable[[], PartState] = _no_init
    settle: Callable[[PartState, dict[str, Number]], PartState] = _no_settle
    report: Callable[[PartState, dict[str, Number]], dict[str, Number]] = _no_report
    bound: Callable[[PartState], Number] | None = None  # the largest norm it lets through, where there is one

    @property
    def learns(self) -> bool:
        """Whether it changes with what it noted."""
        return self.settle is not _no_settle

    def then(self, *others: Upload) -> Upload:
        if not others:
            return self
        parts = (self, *others)

        def init() -> PartState:
            return tuple(part.init() for part in parts)

        def apply(update: Params, state: PartState) -> tuple[Params, Notes]:
            notes: Notes = {}
            for index, (part, part_state) in enumerate(zip(parts, state, strict=True)):
                update, noted = part.apply(update, part_state)
                notes |= {f"{index}/{name}": note for name, note in noted.items()}
            return update, notes

        def own(index: int, notes: dict[str, Number]) -> dict[str, Number]:
            start = f"{index}/"
            return {name.removeprefix(start): note for name, note in notes.items() if name.startswith(start)}

        def settle(state: PartState, notes: dict[str, Number]) -> PartState:
            return tuple(part.settle(state[index], own(index, notes)) for index, part in enumerate(parts))

        def report(state: PartState, notes: dict[str, Number]) -> dict[str, Number]:
            told: dict[str, Number] = {}
            for index, part in enumerate(parts):
                told |= part.report(state[index], own(index, notes))
            return told

        return Upload(f"chain({', '.join(part.name for part in parts)})", apply, init, settle, report)

    def __repr__(self) -> str:
        return self.name


def keep() -> Upload:
    """The update as it is."""
    return Upload("keep()", lambda update, state: (update, {}))


def clip(norm: float) -> Upload:
    """Scale an update whose Euclidean norm over all parameters exceeds `norm` down to it.

    >>> clip(1.0).apply({"w": torch.tensor([3.0, 4.0])}, {})[0]
    {'w': tensor([0.6000, 0.8000])}
    """
    positive("clip norm", norm)
    return Upload(
        f"clip({norm:g})",
        lambda update, state: _clip(update, norm),
        report=lambda state, notes: {"clip_norm": norm, "unclipped_fraction": notes["unclipped"]},
        bound=lambda state: norm,
    )


def adaptive_clip(quantile: float = 0.8, initial: float = 1.0, lr: float = 0.2) -> Upload:
    """Clip at an estimate rho of the `quantile` of the clients' norms (Andrew et al. 2021; Charles et al. 2021).

    b = mean over the cohort of [||g_k|| <= rho], taken from the original norms; rho <- rho exp(-lr (b - quantile)).

    >>> upload = adaptive_clip(initial=0.4)
    >>> round(upload.settle(upload.init(), {"unclipped": 0.0})["rho"], 10)
    0.4694043484
    """
    positive("adaptive_clip initial", initial)
    fraction("adaptive_clip quantile", quantile)
    non_negative("adaptive_clip lr", lr)
    return Upload(
        f"adaptive_clip(quantile={quantile:g}, initial={initial:g}, lr={lr:g})",
        lambda update, state: _clip(update, state["rho"]),
        lambda: {"rho": float(initial)},
        lambda state, notes: {"rho": _geometric(state["rho"], notes["unclipped"], quantile, lr)},
        lambda state, notes: {"clip_norm": state["rho"], "unclipped_fraction": notes["unclipped"]},
        lambda state: state["rho"],
    )


def zeroing(
    quantile: float = 0.98,
    initial: float = 10.0,
    lr: float = math.log(10.0),
    multiplier: float = 2.0,
    offset: float = 1.0,
) -> Upload:
    """Replace an update by zeros when its largest entry exceeds `multiplier` * z + `offset`; it keeps its weight.

    z estimates the `quantile` of the clients' L-infinity norms, as in Charles et al.'s code (on by default there).
    """
    positive("zeroing initial", initial)
    fraction("zeroing quantile", quantile)
    non_negative("zeroing lr", lr)

    def apply(update: Params, state: PartState) -> tuple[Params, Notes]:
        largest = torch.stack([leaf.abs().amax() for leaf in update.values() if leaf.numel()]).amax()
        kept = largest <= multiplier * state["z"] + offset
        notes = {"below": (largest <= state["z"]).to(torch.float64), "kept": kept.to(torch.float64)}
        return tree.map(lambda leaf: torch.where(kept, leaf, 0.0), update), notes

    return Upload(
        f"zeroing(quantile={quantile:g}, initial={initial:g}, lr={lr:g}, multiplier={multiplier:g}, offset={offset:g})",
        apply,
        lambda: {"z": float(initial)},
        lambda state, notes: {"z": _geometric(state["z"], notes["below"], quantile, lr)},
        lambda state, notes: {
            "zeroing_norm": multiplier * state["z"] + offset,
            "zeroed_fraction": 1.0 - notes["kept"],
        },
    )


def _clip(update: Params, rho: Number) -> tuple[Params, Notes]:
    norm = tree.norm(update)
    factor = torch.where(norm > rho, rho / norm, 1.0)  # never divides by a zero norm: the other branch is taken
    return tree.map(lambda leaf: leaf * factor, update), {"unclipped": (norm <= rho).to(torch.float64)}


def _geometric(estimate: Number, below: Number, quantile: float, lr: float) -> Number:
    exponent = -lr * (below - quantile)
    return estimate * (exponent.exp() if isinstance(exponent, Tensor) else math.exp(exponent))
