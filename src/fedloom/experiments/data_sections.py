"""The [data] table: a data set and its partition, one small model per partitioner.

Nothing here imports torch: a typing mistake is answered before anything heavy is loaded. Names, types and defaults
follow `fedloom.data`; tests hold them together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fedloom.data.releases import RELEASES
from fedloom.experiments.section import (
    Count,
    Described,
    Expected,
    Positive,
    Section,
    Seed,
    Unbounded,
    by_name,
)

DATASETS = {name: release.about for name, release in RELEASES.items()}


class DataSection(Section):
    """A data set and how it is dealt to clients; the keys beside these are the partitioner's and the data set's own."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Expected(f"the name of a data set: {', '.join(DATASETS)}")]
    partition: str
    clients: Count | None = None
    seed: Seed = 0
    weights: Literal["examples", "tokens"] = "examples"

    @model_validator(mode="after")
    def _known_data(self) -> Self:
        if self.name not in DATASETS:
            context = {"key": "name", "got": self.name, "allowed": list(DATASETS)}
            raise PydanticCustomError("choice", "unknown data set", context)
        return self

    @classmethod
    def known_keys(cls, value: dict[str, Any]) -> list[str]:
        release = RELEASES.get(str(value.get("name")))
        return [*cls.model_fields, *(release.options if release else value)]  # which data set is the first mistake

    def options(self) -> dict[str, Any]:
        """The partitioner's own options, and the data set's."""
        return self.model_dump(exclude={"name", "partition", "clients", "seed", "weights"}, exclude_none=True)


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
    classes: Annotated[
        Count | list[Count], Expected("a whole number of at least 1, or a list of them, one for each skewed client")
    ] = 1
    per_client: Count = 600
    case: Literal[1, 2] | None = None
    repeat: Annotated[bool, Expected("true or false")] = True


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

PARTITIONS = by_name(AnyData, "partition")
