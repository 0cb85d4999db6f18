"""The [[algorithms]] tables, one small model per constructor, and the schedules their rates may follow.

Nothing here imports torch: a typing mistake is answered before anything heavy is loaded. Names, types and defaults
follow `fedloom.algorithms` and `fedloom.schedule`; tests hold them together.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fedloom.experiments.robust_sections import AnyRule
from fedloom.experiments.section import (
    Count,
    Decay,
    Described,
    Expected,
    NonNegative,
    Number,
    Positive,
    Section,
    Seed,
    Share,
    Text,
    Unbounded,
    by_name,
    mistake,
)

# What each torch optimizer takes, as `server = { torch = "SGD", lr = 0.5 }`; its speed switches are left out.
TORCH_OPTIMIZERS = {
    "ASGD": ("lr", "lambd", "alpha", "t0", "weight_decay"),
    "Adadelta": ("lr", "rho", "eps", "weight_decay"),
    "Adagrad": ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
    "Adam": ("lr", "betas", "eps", "weight_decay", "amsgrad", "decoupled_weight_decay"),
    "AdamW": ("lr", "betas", "eps", "weight_decay", "amsgrad"),
    "Adamax": ("lr", "betas", "eps", "weight_decay"),
    "NAdam": ("lr", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay"),
    "RAdam": ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay"),
    "RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
    "Rprop": ("lr", "etas", "step_sizes"),
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
}


# Schedules ------------------------------------------------------------------------------------------------------------


class Constant(Section):
    schedule: Literal["constant"]
    base: NonNegative


class InverseSqrt(Section):
    schedule: Literal["inverse_sqrt"]
    base: NonNegative


class Staircase(Section):
    schedule: Literal["staircase"]
    base: NonNegative
    factor: Positive = 0.1
    every: Count = 500


class Geometric(Section):
    schedule: Literal["geometric"]
    base: NonNegative
    factor: Positive = 0.995


class Warmup(Section):
    schedule: Literal["warmup"]
    rate: Rate
    rounds: Count = 100
    start: NonNegative | None = None


class Scaled(Section):
    schedule: Literal["scaled"]
    base: NonNegative
    cohort: Count
    reference: Count = 50
    rule: Literal["sqrt", "linear"] = "sqrt"
    warmup_rounds: Seed = 0
    warmup_from: Literal["zero", "base"] = "zero"


class WithinRound(Section):
    schedule: Literal["within_round"]
    rate: Rate
    warmup: Share = 0.06


ScheduleSection: TypeAlias = Constant | InverseSqrt | Staircase | Geometric | Warmup | Scaled | WithinRound
_RATE = Expected("a number of at least 0, or a table such as { schedule = 'geometric', base = 0.1, factor = 0.995 }")
Rate: TypeAlias = Annotated[
    Annotated[float, Field(ge=0), _RATE, Tag("number")]
    | Annotated[Annotated[ScheduleSection, Field(discriminator="schedule")], Tag("table")],
    Discriminator(lambda value: "table" if isinstance(value, dict | BaseModel) else "number"),
    Described(_RATE.text),
]
Warmup.model_rebuild()  # their own rates may be schedules too
WithinRound.model_rebuild()


# What leaves a client, and what wraps or replaces the server's step ---------------------------------------------------


def _switch(value: Any) -> Any:
    """`true` stands for the table with all its defaults, `false` for its absence."""
    if isinstance(value, bool):
        return {} if value else None
    return value


class AdaptiveClip(Section):
    quantile: Share = 0.8
    initial: Positive = 1.0
    lr: NonNegative = 0.2


class Zeroing(Section):
    quantile: Share = 0.98
    initial: Positive = 10.0
    lr: NonNegative = math.log(10.0)
    multiplier: NonNegative = 2.0
    offset: NonNegative = 1.0


class Glad(Section):
    beta: Share = 0.9
    gamma: Unbounded = 0.02
    grouping: Literal["group", "universal"] = "group"


class PrivacySection(Section):
    noise_multiplier: Positive
    delta: Annotated[float, Field(gt=0, lt=1), Expected("a number above 0 and below 1")]
    count_noise: Positive | None = None
    seeded_noise: Annotated[bool, Expected("true or false")] = False


class TorchServer(Section):
    """A torch optimizer in the server slot; the keys beside `torch` are its own options."""

    model_config = ConfigDict(extra="allow")

    torch: Annotated[str, Expected(f"the name of a torch optimizer: {', '.join(TORCH_OPTIMIZERS)}")]

    @classmethod
    def known_keys(cls, value: dict[str, Any]) -> list[str]:
        return ["torch", *TORCH_OPTIMIZERS.get(str(value.get("torch")), value)]

    @model_validator(mode="after")
    def _known_optimizer(self) -> Self:
        if self.torch not in TORCH_OPTIMIZERS:
            context = {"key": "torch", "got": self.torch, "allowed": list(TORCH_OPTIMIZERS)}
            raise PydanticCustomError("choice", "unknown optimizer", context)
        for key, value in self.options().items():
            parts = value if isinstance(value, list) else [value]
            if not all(isinstance(part, int | float) and math.isfinite(part) for part in parts):
                raise mistake("a number, true or false, or a list of numbers", key, value)
            if key == "lr" and not (isinstance(value, int | float) and value >= 0):
                raise mistake("a number of at least 0", key, value)
        return self

    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


# Algorithms -----------------------------------------------------------------------------------------------------------


class AlgorithmSection(Section):
    """What every `[[algorithms]]` table may have, whatever its name."""

    name: str
    label: Text | None = None
    weighting: Literal["by_examples", "uniform"] = "by_examples"
    clip: Positive | None = None
    adaptive_clip: Annotated[AdaptiveClip | None, BeforeValidator(_switch)] = None
    zeroing: Annotated[Zeroing | None, BeforeValidator(_switch)] = None
    glad: Annotated[Glad | None, BeforeValidator(_switch)] = None
    privacy: PrivacySection | None = None
    combine: AnyRule | None = None  # in the place of the algorithm's own

    @model_validator(mode="after")
    def _one_clip(self) -> Self:
        if self.clip is not None and self.adaptive_clip is not None:
            raise mistake("none beside adaptive_clip", "clip", self.clip)
        return self

    @model_validator(mode="after")
    def _private(self) -> Self:
        if self.privacy is None:
            return self
        if self.clip is None and self.adaptive_clip is None:
            raise mistake("a clip norm beside privacy, or adaptive_clip", "clip")
        if self.weighting != "uniform":
            raise mistake("'uniform' beside privacy: all clients count alike", "weighting", self.weighting)
        if self.zeroing is not None:
            raise mistake("none beside privacy: its threshold would have no noise", "zeroing", self.zeroing)
        return self

    def title(self) -> str:
        """What tables and pictures call it."""
        name = self.name if self.combine is None else f"{self.name}, {self.combine.rule}"
        name = f"private({name})" if self.privacy else name
        return self.label or (f"fedglad({name})" if self.glad else name)


class Trained(AlgorithmSection):
    """Clients that take steps of their own: everything but FedSGD."""

    client_lr: Rate
    client_optimizer: Literal["sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "yogi"] = "sgd"
    client_momentum: Decay | None = None  # 0.9 where the optimizer's name asks for momentum
    client_weight_decay: NonNegative = 0.0
    client_clip_norm: Positive | None = None

    @model_validator(mode="after")
    def _momentum_fits(self) -> Self:
        if self.client_momentum and self.client_optimizer not in ("sgd", "momentum", "nesterov"):
            expected = f"none with client_optimizer = {self.client_optimizer!r}"
            raise mistake(expected, "client_momentum", self.client_momentum)
        return self


class Served(Trained):
    """A server with a learning rate."""

    server_lr: Rate = 1.0


class Replaceable(AlgorithmSection):
    """A server that is a learning rate and nothing else: a torch optimizer may take its place."""

    server_lr: Rate = 1.0
    server: TorchServer | None = None

    @model_validator(mode="after")
    def _one_server(self) -> Self:
        if self.server is not None and self.server_lr != 1.0:
            raise mistake("none beside server, which has its own lr", "server_lr", self.server_lr)
        return self


class Adaptive(Served):
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: NonNegative = 1e-3
    bias_correction: Literal["none", "keras", "torch"] = "none"
    initial_accumulator: Accumulator | None = None


Accumulator: TypeAlias = Annotated[
    Annotated[float, Field(ge=0)] | Literal["estimate"], Expected("a number of at least 0, or 'estimate'")
]


class FedSGD(Replaceable):
    name: Literal["fedsgd"]


class FedAvg(Trained, Replaceable):
    name: Literal["fedavg"]


class FedAvgM(Served):
    name: Literal["fedavgm"]
    momentum: Decay = 0.9
    variant: Literal["heavyball", "nesterov", "ema"] = "heavyball"


class FedAdagrad(Served):
    name: Literal["fedadagrad"]
    tau: NonNegative = 1e-3
    initial_accumulator: Accumulator | None = None
    beta1: Decay = 0.0


class FedAdam(Adaptive):
    name: Literal["fedadam"]


class FedYogi(Adaptive):
    name: Literal["fedyogi"]


class FedLARS(Served):
    name: Literal["fedlars"]
    beta: Decay = 0.9
    eps: NonNegative = 1e-3


class FedLamb(Served):
    name: Literal["fedlamb"]
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    eps: NonNegative = 1e-3


class NormalizedFedAvg(Served):
    name: Literal["normalized_fedavg"]


class FedProx(Trained, Replaceable):
    name: Literal["fedprox"]
    mu: NonNegative


class Scaffold(Trained, Replaceable):
    name: Literal["scaffold"]
    option: Literal["I", "II", "gradmean"] = "II"
    weighting: Literal["by_examples", "uniform"] = "uniform"


class FedNova(Trained, Replaceable):
    name: Literal["fednova"]


class FedDyn(Trained):
    name: Literal["feddyn"]
    alpha: Positive
    weighting: Literal["by_examples", "uniform"] = "uniform"


class FedAdp(Trained, Replaceable):
    name: Literal["fedadp"]
    alpha: Number = 5.0
    smoothing: Literal["count", "round"] = "count"


class Central(Trained):
    """Nothing is uploaded, so nothing is clipped on the way, and nobody can agree or differ."""

    name: Literal["central"]

    @model_validator(mode="after")
    def _no_federation(self) -> Self:
        for key in ("clip", "adaptive_clip", "zeroing", "glad", "combine"):
            if getattr(self, key) is not None:
                raise mistake("none with name = 'central', which has no updates", key, getattr(self, key))
        return self


AnyAlgorithm: TypeAlias = Annotated[
    FedSGD
    | FedAvg
    | FedAvgM
    | FedAdagrad
    | FedAdam
    | FedYogi
    | FedLARS
    | FedLamb
    | NormalizedFedAvg
    | FedProx
    | Scaffold
    | FedNova
    | FedDyn
    | FedAdp
    | Central,
    Field(discriminator="name"),
]

ALGORITHMS = by_name(AnyAlgorithm, "name")
SCHEDULES = by_name(ScheduleSection, "schedule")
