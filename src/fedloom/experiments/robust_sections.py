"""Clients that break or attack, and the rules that stand them: `[[faults]]`, and `combine` in an algorithm's table.

Nothing here imports torch. Names and defaults follow `fedloom.faults` and `fedloom.robust`; tests hold them together.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from fedloom.experiments.section import Count, Expected, Positive, Section, Share, by_name, mistake

Minority = Annotated[float, Field(ge=0, lt=0.5), Expected("a share of at least 0 and below 0.5")]
Base = Literal["by_examples", "uniform"]


class MultiKrum(Section):
    rule: Literal["multi_krum"]
    attackers: Minority = 0.2
    selected: Count | None = None


class GeometricMedian(Section):
    rule: Literal["geometric_median"]
    iterations: Count = 10
    smoothing: Positive = 1e-6
    base: Base | None = None


class CentredClipping(Section):
    rule: Literal["centred_clipping"]
    radius: Positive
    iterations: Count = 1
    base: Base | None = None


class CoordinateMedian(Section):
    rule: Literal["coordinate_median"]


class TrimmedMean(Section):
    rule: Literal["trimmed_mean"]
    share: Minority = 0.2


class NormBounding(Section):
    rule: Literal["norm_bounding"]
    bound: Positive
    base: Base | None = None


AnyRule: TypeAlias = Annotated[
    MultiKrum | GeometricMedian | CentredClipping | CoordinateMedian | TrimmedMean | NormBounding,
    Field(discriminator="rule"),
]
RULES = by_name(AnyRule, "rule")

STRONG = ("lateness", "sign_flip", "scaling", "gaussian", "inner_product", "a_little_is_enough")
"""Kinds of faults that have a strength."""


class FaultSection(Section):
    """See `fedloom.faults.Fault`."""

    kind: Literal[
        "dropout",
        "crash",
        "lateness",
        "nan",
        "wrong_shape",
        "stale",
        "double",
        "sign_flip",
        "scaling",
        "gaussian",
        "zero",
        "label_flip",
        "a_little_is_enough",
        "inner_product",
    ]
    rate: Share
    strength: Positive | None = None

    @model_validator(mode="after")
    def _has_a_strength(self) -> Self:
        if self.strength is not None and self.kind not in STRONG:
            raise mistake(f"none with kind = {self.kind!r}", "strength", self.strength)
        return self
