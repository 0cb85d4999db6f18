"""The tables of an experiment file, one small model each: what a key may be, in words that an error can repeat.

Nothing here imports torch: a typing mistake is answered before anything heavy is loaded. Names, types and defaults
follow `fedloom.algorithms`, `fedloom.schedule`, `fedloom.data` and `fedloom.models`; tests hold them together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedloom.data.releases import RELEASES

DATASETS = {name: release.about for name, release in RELEASES.items()}

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


def mistake(expected: str, key: str | None = None, got: Any = None) -> PydanticCustomError:
    """The error of a value that is not what was expected; `key` names a key inside the table it is raised for."""
    context: dict[str, Any] = {"expected": expected}
    if key is not None:
        context |= {"key": key, "got": got}
    return PydanticCustomError("expected", "expected {expected}", context)


@dataclass(frozen=True)
class Described:
    """Says in words what a value may be, for when it is missing."""

    text: str


@dataclass(frozen=True)
class Expected(Described):
    """Says in words what a value may be, whichever way it is not."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
            try:
                return inner(value)
            except ValidationError:
                raise mistake(self.text) from None

        return core_schema.no_info_wrap_validator_function(check, handler(source))


class Section(BaseModel):
    """A table whose keys are all known."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_and_complete(cls, value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise mistake("a table")
        known = cls.known_keys(value)
        for key in value:
            if key not in known:
                raise PydanticCustomError("unknown_key", "unknown key", {"key": str(key), "allowed": known})
        for key, field in cls.model_fields.items():
            if field.is_required() and key not in value:
                texts = (part.text for part in field.metadata if isinstance(part, Described))
                raise mistake(next(texts, "a value"), key)
        return value

    @classmethod
    def known_keys(cls, value: dict[str, Any]) -> list[str]:
        return list(cls.model_fields)


Count = Annotated[int, Field(ge=1), Expected("a whole number of at least 1")]
Seed = Annotated[int, Field(ge=0), Expected("a whole number of at least 0")]
Number = Annotated[float, Expected("a number")]
Positive = Annotated[float, Field(gt=0), Expected("a number above 0")]
NonNegative = Annotated[float, Field(ge=0), Expected("a number of at least 0")]
Unbounded = Annotated[float, Field(ge=0, allow_inf_nan=True), Expected("a number of at least 0, or inf")]
Share = Annotated[float, Field(ge=0, le=1), Expected("a number in [0, 1]")]
Decay = Annotated[float, Field(ge=0, lt=1), Expected("a number in [0, 1)")]
Text = Annotated[str, Field(min_length=1), Expected("some text")]


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
            if not all(isinstance(part, int | float) for part in (value if isinstance(value, list) else [value])):
                raise mistake("a number, true or false, or a list of numbers", key, value)
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

    @model_validator(mode="after")
    def _one_clip(self) -> Self:
        if self.clip is not None and self.adaptive_clip is not None:
            raise mistake("none beside adaptive_clip", "clip", self.clip)
        return self

    def title(self) -> str:
        """What tables and pictures call it."""
        return self.label or (f"fedglad({self.name})" if self.glad else self.name)


class Trained(AlgorithmSection):
    """Clients that take steps of their own: everything but FedSGD."""

    client_lr: Rate
    client_optimizer: Literal["sgd", "momentum", "nesterov", "adam", "adamw", "adagrad"] = "sgd"
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
    | FedAdp,
    Field(discriminator="name"),
]


# Data -----------------------------------------------------------------------------------------------------------------


class DataSection(Section):
    """A data set and how it is dealt to clients; the keys beside these are the partitioner's and the data set's own."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Expected(f"the name of a data set: {', '.join(DATASETS)}")]
    partition: str
    clients: Count | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _known_data(self) -> Self:
        if self.name not in DATASETS:
            context = {"key": "name", "got": self.name, "allowed": list(DATASETS)}
            raise PydanticCustomError("choice", "unknown data set", context)
        return self

    @classmethod
    def known_keys(cls, value: dict[str, Any]) -> list[str]:
        release = RELEASES.get(str(value.get("name")))
        return [*cls.model_fields, *(release.options if release else ())]

    def options(self) -> dict[str, Any]:
        """The partitioner's own options, and the data set's."""
        return self.model_dump(exclude={"name", "partition", "clients", "seed"}, exclude_none=True)


class Dealt(DataSection):
    """A partition into a number of clients that must be told."""

    clients: Count


class IID(Dealt):
    partition: Literal["iid"]


class Natural(DataSection):
    partition: Literal["natural"]


class Dirichlet(Dealt):
    partition: Literal["dirichlet"]
    alpha: Unbounded
    concentration: Literal["alpha*p", "alpha"] = "alpha*p"
    prior: Annotated[
        Literal["uniform", "frequency"] | list[Annotated[float, Field(ge=0)]],
        Expected("'uniform', 'frequency', or a list of numbers, one per class"),
    ] = "uniform"


class DirichletFedNLP(Dealt):
    partition: Literal["dirichlet_fednlp"]
    alpha: Positive


class Pachinko(Dealt):
    partition: Literal["pachinko"]
    per_client: Count
    alpha: Positive = 0.1
    beta: Positive = 10.0


class ClassMix(DataSection):
    partition: Literal["class_mix"]
    iid: Seed = 3
    skewed: Seed = 7
    classes: Count = 1
    per_client: Count = 600
    case: Literal[1, 2] | None = None


class Shards(Dealt):
    partition: Literal["shards"]
    shards_per_client: Count = 2


class Blocks(Dealt):
    partition: Literal["blocks"]
    blocks_per_client: Count = 1


AnyData: TypeAlias = Annotated[
    IID | Natural | Dirichlet | DirichletFedNLP | Pachinko | ClassMix | Shards | Blocks,
    Field(discriminator="partition"),
    Described("a [data] table with name, partition and clients"),
]


# Models ---------------------------------------------------------------------------------------------------------------


class ModelSection(Section):
    """A model; the sizes of its input and output are the data's."""

    name: str

    def options(self) -> dict[str, Any]:
        """The keywords of its constructor."""
        return self.model_dump(exclude={"name"}, exclude_none=True)


class Logistic(ModelSection):
    name: Literal["logistic"]


class MLP(ModelSection):
    name: Literal["mlp"]
    hidden: Annotated[list[Count], Expected("a list of whole numbers, one per hidden layer, such as [200, 200]")] = (
        Field(default=[200, 200])
    )


class Autoencoder(ModelSection):
    name: Literal["autoencoder"]
    bottleneck: Literal["linear", "sigmoid"] = "linear"


class TagPredictor(ModelSection):
    name: Literal["tag_predictor"]
    words: Count = 10_000
    tags: Count = 500


class EmnistCNN(ModelSection):
    name: Literal["emnist_cnn"]
    init: Literal["keras", "torch"] = "keras"


class MnistCNN(ModelSection):
    name: Literal["mnist_cnn"]
    init: Literal["keras", "torch"] = "keras"


class Cifar10CNN(ModelSection):
    name: Literal["cifar10_cnn"]
    size: Count = 24
    norm: Literal["lrn", "batch"] = "lrn"


class ResNet18GN(ModelSection):
    name: Literal["resnet18_gn"]
    variant: Literal["tff", "standard"] = "tff"
    groups: Annotated[Literal[1, 2, 4, 8, 16, 32, 64], Expected("a divisor of 64")] = 2


class ResNet56(ModelSection):
    name: Literal["resnet56"]
    variant: Literal["fedml", "he"] = "fedml"


class ShakespeareLSTM(ModelSection):
    name: Literal["shakespeare_lstm"]
    vocabulary: Count = 90


class StackOverflowLSTM(ModelSection):
    name: Literal["stackoverflow_lstm"]
    vocabulary: Count = 10_004


class BiLSTM(ModelSection):
    name: Literal["bilstm"]
    embedding: Annotated[int, Field(ge=1), Expected("the number of words, a whole number of at least 1")]


class Bert(ModelSection):
    name: Literal["bert"]
    source: Annotated[
        Annotated[str, Field(min_length=1)] | dict[str, Any],
        Expected("a folder, or a configuration such as { model_type = 'distilbert', n_layers = 2 }"),
    ]


AnyModel: TypeAlias = Annotated[
    Logistic
    | MLP
    | Autoencoder
    | TagPredictor
    | EmnistCNN
    | MnistCNN
    | Cifar10CNN
    | ResNet18GN
    | ResNet56
    | ShakespeareLSTM
    | StackOverflowLSTM
    | BiLSTM
    | Bert,
    Field(discriminator="name"),
    Described("a [model] table with name"),
]


def _by_name(union: Any, key: str) -> dict[str, type[Section]]:
    members = get_args(get_args(union)[0]) if hasattr(union, "__metadata__") else get_args(union)
    return {get_args(member.model_fields[key].annotation)[0]: member for member in members}


ALGORITHMS = _by_name(AnyAlgorithm, "name")
PARTITIONS = _by_name(AnyData, "partition")
MODELS = _by_name(AnyModel, "name")
SCHEDULES = _by_name(ScheduleSection, "schedule")
