"""Central differential privacy: what one client can change is bounded, and noise hides whether it did.

    g = (sum_k clip_C(g_k) + N(0, (z C)^2)) / (q N)

Clients are drawn by themselves with probability q (Poisson sampling), all count alike, and the denominator is the
expected cohort, not the one that came. Whatever the server makes of g is post-processing (McMahan et al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedloom import tree
from fedloom.aggregate import Aggregate
from fedloom.errors import FedloomError, positive
from fedloom.noise import Uniforms, noised, secure, seeded, step_of
from fedloom.ranks import Ranks
from fedloom.types import Evidence, Params, PartState, State
from fedloom.upload import Notes, Upload
from fedloom.weighting import Weighting

if TYPE_CHECKING:
    from fedloom.algorithm import Algorithm

SENSITIVITY_OF_A_BIT = 0.5
"""Of [||g_k|| <= C] - 1/2, whichever it is."""

LEAST_MULTIPLIER = 2.0**-10
"""Less noise than this gets no finer grid, on which sums would not fit."""


@dataclass(frozen=True)
class Privacy:
    """The noise on a round's sum.

    `noise_multiplier` z is the noise's standard deviation over the clip norm. `cohort` is the expected number of
    clients q N; `simulate` fills it in. `count_noise` is the standard deviation sigma_b of the noise on the number of
    clients below an adaptive clip norm, q N / 20 unless given (Andrew et al. 2021).
    """

    noise_multiplier: float
    delta: float
    cohort: float | None = None
    count_noise: float | None = None
    seeded_noise: bool = False
    seed: int = 0  # of seeded noise

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "cohort", "count_noise"):
            if (value := getattr(self, name)) is not None:
                positive(f"private {name}", value)
                if not math.isfinite(value):
                    raise FedloomError(f"private {name}: expected a finite number, got {value!r}")
        if not (isinstance(self.delta, float) and 0 < self.delta < 1):
            raise FedloomError(f"private delta: expected a number above 0 and below 1, got {self.delta!r}")

    def check_start(self, upload: Upload, population: int, buffers: Params) -> None:
        """Raise where a run cannot begin."""
        if self.expected > population:
            raise FedloomError(f"private cohort: expected at most the population of {population}, got {self.cohort}")
        for name in buffers:
            raise FedloomError(
                f"private buffers: expected a model without, got {name!r}: averages of the clients' own statistics "
                "would have no noise: take group norm instead of batch norm"
            )
        self.sum_multiplier(upload)

    @property
    def expected(self) -> float:
        """q N."""
        if self.cohort is None:
            raise FedloomError(
                "private cohort: expected the number of clients that a round draws on average, got None: simulate "
                "fills it in; outside of it pass cohort="
            )
        return self.cohort

    def bit_deviation(self) -> float:
        """sigma_b: of the noise on the number of clients below an adaptive clip norm."""
        return self.expected / 20 if self.count_noise is None else self.count_noise

    def sum_multiplier(self, upload: Upload) -> float:
        """Standard deviation over clip norm of the noise on the sum.

        With an adaptive norm a part of z goes to the count: z_sum = (z^-2 - (2 sigma_b)^-2)^(-1/2), so that sum and
        count together cost what z costs (Andrew et al. 2021, theorem 1).
        """
        if not upload.learns:
            return self.noise_multiplier
        bit = self.bit_deviation() / SENSITIVITY_OF_A_BIT
        if bit <= self.noise_multiplier:
            raise FedloomError(
                f"private count_noise: expected above noise_multiplier / 2 = {self.noise_multiplier / 2:g}, got "
                f"{self.bit_deviation():g}{'' if self.count_noise else ' (a twentieth of the cohort)'}: set it"
            )
        return float((self.noise_multiplier**-2 - bit**-2) ** -0.5)

    def scale(self, upload: Upload, state: PartState, size: int) -> Scale:
        assert upload.bound is not None, "checked by `check`"
        norm, multiplier = float(upload.bound(state)), self.sum_multiplier(upload)
        step = step_of(max(multiplier, LEAST_MULTIPLIER) * norm)
        # rounding to the grid moves an entry by half a step at most; the other half is for float64's own rounding
        return Scale(multiplier * (norm + step * math.sqrt(size)), step)

    def bounded(self, upload: Upload, size: int) -> Upload:
        """The upload, its result on the grid: sums of such updates are exact."""

        def apply(update: Params, state: PartState) -> tuple[Params, Notes]:
            step = self.scale(upload, state, size).step
            update, notes = upload.apply(update, state)
            return tree.map(lambda leaf: (leaf / step).round() * step, update), notes

        return replace(upload, name=f"bounded({upload.name})", apply=apply)

    def release(self, got: Aggregate, upload: Upload, params: Params, state: State, ranks: Ranks) -> Aggregate:
        """The noised mean in place of the sum, also where nobody came; nothing of single clients beside it."""
        uniforms = seeded(self.seed, state.round) if self.seeded_noise else secure
        scale = self.scale(upload, state.upload, sum(leaf.numel() for leaf in params.values()))
        total = got.gradient or {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in params.items()}
        gradient = {
            name: noised(leaf, scale.deviation, scale.step, uniforms, ranks) / self.expected
            for name, leaf in total.items()
        }
        weight = {name: column / self.expected for name, column in got.columns.items() if name == "weight"}
        return replace(
            got,
            gradient=gradient,
            notes={"unclipped": self._unclipped(got, uniforms, ranks) if upload.learns else math.nan},
            columns={**got.columns, **weight},
            squares={},
            extra={},
            expected=round(self.expected),
            void=False,
        )

    def _unclipped(self, got: Aggregate, uniforms: Uniforms, ranks: Ranks) -> float:
        """The noised share of clients below the clip norm: (sum_k (b_k - 1/2) + N(0, sigma_b^2)) / (q N) + 1/2."""
        below = round(got.admitted * float(got.notes["unclipped"])) if got.admitted else 0
        centred = torch.tensor(below - 0.5 * got.admitted, dtype=torch.float64, device=ranks.device)
        deviation = self.bit_deviation()
        return float(noised(centred, deviation, step_of(deviation), uniforms, ranks)) / self.expected + 0.5


@dataclass(frozen=True)
class Scale:
    """The noise on a sum of updates: its standard deviation, and the step of the grid it lies on."""

    deviation: float
    step: float


def summed() -> Weighting:
    """Every row once, however often it was drawn: the bound on a client's part holds whatever is asked of it."""

    def local(evidence: Evidence) -> tuple[Tensor, Tensor]:
        ones = torch.ones_like(evidence.norms)
        return ones, ones

    return Weighting("summed()", lambda evidence, state: (*local(evidence), state), local=local)


def check(algorithm: Algorithm) -> None:
    """Raise where an algorithm reads of single clients what no noise covers."""
    bound = algorithm.upload.bound
    finite = bound is not None and math.isfinite(float(bound(algorithm.upload.init())))
    memory = "clients that keep nothing between rounds: their memory reads updates without noise"
    estimate = "a number for initial_accumulator: an estimate reads the clients' gradients without noise"
    objections: Iterable[tuple[bool, str, Any]] = (
        (algorithm.work.pooled, "clients that train by themselves", algorithm.work),
        (algorithm.memory is not None, memory, algorithm.memory),
        (not finite, "an upload that clips, fl.clip(norm) or fl.adaptive_clip()", algorithm.upload),
        (algorithm.combine.name != "uniform()", "weighting=fl.uniform(): all clients count alike", algorithm.combine),
        (algorithm.server.reads_clients, "a server step that reads the noised mean alone", algorithm.server),
        (algorithm.server.resolve is not None, estimate, "'estimate'"),
    )
    for refused, expected, got in objections:
        if refused:
            raise FedloomError(f"private: expected {expected}; got {got}")
