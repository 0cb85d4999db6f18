"""An experiment file as both apps read it: what was tuned in simulation is deployed unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from fedloom.algorithm import Algorithm
from fedloom.data.federated import FederatedData, federate
from fedloom.errors import FedloomError
from fedloom.experiments import build
from fedloom.experiments.schema import Experiment, SystemSection, read
from fedloom.models import MODELS
from fedloom.task import Task


@dataclass(frozen=True)
class Plan:
    """An experiment's parts; `options` are keywords of `FlowerStrategy`.

    The simulation's data are loaded once somebody asks for them: for rows, or for a `task` whose model takes its sizes
    from them. A node with rows of its own takes `task_for` those.
    """

    experiment: Experiment
    algorithm: Algorithm
    rounds: int
    options: dict[str, Any]

    @cached_property
    def data(self) -> FederatedData:
        return build.build_federation(self.experiment)

    @cached_property
    def task(self) -> Task:
        return self.task_for(self.data if MODELS[self.experiment.model.name].sizes else _UNREAD)

    def task_for(self, data: FederatedData) -> Task:
        """The task with as many inputs and classes as `data` have, in place of the simulation's."""
        return build.build_task(self.experiment.model, data)

    def rows(self, client: int) -> FederatedData:
        """One client's rows of the simulation, for a node that stands in for it."""
        own = self.data.rows(client)
        return replace(self.data, indices=own, offsets=torch.tensor([0, len(own)]), client_test=None)


ROUND = ("cohort", "epochs", "steps", "batch_size", "drop_last", "seed", "sampling_seed", "sampler", "min_reports")
"""What of an experiment says how a round goes, under the names that `simulate` and `FlowerStrategy` share."""

_UNREAD = federate(torch.zeros(1, 1), torch.zeros(1), [range(1)])
"""In place of the simulation's rows where nothing looks at them."""


def plan(path: str | PathLike[str]) -> Plan:
    """What a TOML file says of one run, its data those of the simulation: a node takes its own rows instead.

    How a simulation is computed (executor, device, threads, how often it is evaluated) does not matter here. What only
    a simulation can do is refused.

    >>> from fedloom.experiments.registry import find
    >>> plan(find("quickstart"))
    Traceback (most recent call last):
        ...
    fedloom.errors.FedloomError: quickstart.toml, algorithms: expected one to deploy, got 5: keep the best
    """
    experiment = read(Path(path))
    _check(Path(path).name, experiment)
    options = build.build_options(experiment, _UNREAD)  # rows are for forced cohorts, which were refused
    return Plan(
        experiment,
        build.build_algorithm(experiment.algorithms[0]),
        experiment.rounds,
        {name: options[name] for name in ROUND},
    )


def _check(where: str, experiment: Experiment) -> None:
    simulated = "only a simulation has them"
    objections = (
        ("algorithms", len(experiment.algorithms) > 1, "one to deploy", len(experiment.algorithms), "keep the best"),
        ("seeds", len(experiment.seeds) > 1, "one to deploy", len(experiment.seeds), "keep one"),
        ("faults", bool(experiment.faults), "none", len(experiment.faults or ()), simulated),
        ("forced", bool(experiment.forced), "no such rounds", len(experiment.forced), simulated),
        ("system", experiment.system != SystemSection(), "the defaults", "others", simulated),
        ("data.weights", experiment.data.weights != "examples", "'examples'", repr(experiment.data.weights), simulated),
        ("target", experiment.target is not None, "none", experiment.target, "a deployment runs for all its rounds"),
        ("precision", experiment.precision == "bfloat16", "'high'", repr(experiment.precision), "leave it out"),
        ("dtype", experiment.dtype != "float32", "'float32'", repr(experiment.dtype), "leave it out"),
    )
    for key, refused, expected, got, advice in objections:
        if refused:
            raise FedloomError(f"{where}, {key}: expected {expected}, got {got}: {advice}")
