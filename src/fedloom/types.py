"""Every shape that crosses a module boundary: parameters, cohorts, evidence, what a transform is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
"""Named leaves: a model's trainable parameters, or anything of the same shapes."""

PartState: TypeAlias = Any
"""What one slot keeps between rounds: dicts and tuples of tensors, numbers, strings and None."""

Needs: TypeAlias = Literal["meta", "alignment", "rows"]
"""What aggregation must compute, in ascending cost: client numbers alone, each row against the mean, or whatever a rule
measures of the rows, which are kept for it."""


class Rows(Protocol):
    """The admitted clients' updates, to be measured; a rule never sees them."""

    def distances(self, coefficients: Tensor) -> Tensor:
        """||g_k - z|| for every k, z = sum_j c_j g_j, plus (1 - sum_j c_j) v where the rule has a centre v."""

    def pairs(self) -> Tensor:
        """||g_j - g_k||^2, `(K, K)`, taken directly: no cancellation."""


@dataclass(frozen=True)
class Cohort:
    """What a stack of clients sends: one row per client, `updates` being `(K, *shape)` pseudo-gradients x - y_k.

    `examples` are the weights of the average unless `weights` replaces them (tokens, say); the gate compares `examples`
    with the known counts, and takes `weights` on trust. `multiplicity` counts how
    often a client was drawn. `buffers` are the clients' own statistics, `extra` what their memory sends. `rounds` says
    which of the server's rounds (`State.round`) each report is for: one for another round is refused.

    >>> import torch
    >>> Cohort(clients=torch.tensor([4, 7]), examples=torch.tensor([30, 10]), updates={"w": torch.ones(2, 3)}).size
    2
    """

    clients: Tensor
    examples: Tensor
    updates: Params
    steps: Tensor | None = None
    losses: Tensor | None = None
    multiplicity: Tensor | None = None
    weights: Tensor | None = None
    buffers: Params | None = None
    extra: Mapping[str, Params] | None = None
    rounds: Tensor | None = None

    @property
    def size(self) -> int:
        return int(self.clients.shape[0])


@dataclass(frozen=True)
class Evidence:
    """What a weighting rule sees of the admitted clients: numbers per client, never tensors of the model's size."""

    clients: Tensor
    weights: Tensor  # float64: examples, or what replaced them
    multiplicity: Tensor
    round: int
    population: int
    norms: Tensor
    steps: Tensor | None = None
    losses: Tensor | None = None
    dots: Tensor | None = None  # <g_k, mean>, under the alignment plan
    mean_norm: Tensor | None = None
    rows: Rows | None = None  # where they are kept


@dataclass(frozen=True)
class Info:
    """What a transform is told beside the gradient: about the round, on the server; about the step, on a client."""

    round: int
    raw: Params  # the gradient that second moments read: FedGLAD scales the gradient and leaves this
    # on the server
    admitted: int = 1
    population: int = 1
    squares: Params = field(default_factory=dict)  # per leaf: sum_k p_k ||scale_k g_k||^2
    sums: Mapping[str, Params] = field(default_factory=dict)  # over the admitted: of what memories send, of updates
    notes: dict[str, float | Tensor] = field(default_factory=dict)  # what parts add to the report
    # on a client
    step: int | Tensor = 0
    steps: int | Tensor = 1
    rate: Tensor | None = None  # what `schedule` comes to in this round, where a stack has a rate for each client
    schedule: Any = None
    anchor: Params = field(default_factory=dict)  # x^t
    shared: Params = field(default_factory=dict)  # the server's part of a memory
    row: Params = field(default_factory=dict)  # the client's own
    spent: bool = False  # nobody reads the gradient again: a transform that `forgets` may write into it


@dataclass
class ClientReport:
    """What happened to each row of the cohort, in the order the rows were given."""

    ids: Tensor
    admitted: Tensor
    reasons: list[str | None]  # why a row was refused
    weight: Tensor  # p_k; 0 for the refused
    norm: Tensor  # of the update as it was averaged, after clipping
    angle: Tensor | None = None
    distance: Tensor | None = None


class Report(dict[str, float]):
    """A round's numbers; `clients` holds those of each client."""

    clients: ClientReport


@dataclass(frozen=True)
class State:
    """Everything the server keeps between rounds, slot by slot; a void round leaves it as it was."""

    round: int
    population: int
    examples: Tensor | None
    buffers: Params
    server: PartState
    combine: PartState
    upload: PartState
    memory: Params
