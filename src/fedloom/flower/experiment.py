"""An experiment file as both apps read it: what was tuned in simulation is deployed unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from fedloom.algorithm import Algorithm
from fedloom.data.federated import FederatedData
from fedloom.errors import FedloomError
from fedloom.experiments import build
from fedloom.experiments.schema import Experiment, SystemSection, read
from fedloom.task import Task

ROUND = ("cohort", "epochs", "steps", "batch_size", "drop_last", "seed", "sampling_seed", "sampler", "min_reports")
"""What of an experiment says how a round goes, under the names that `simulate` and `FlowerStrategy` share."""


@dataclass(frozen=True)
class Plan:
    """An experiment's parts; `options` are keywords of `FlowerStrategy`."""

    algorithm: Algorithm
    task: Task
    data: FederatedData
    rounds: int
    options: dict[str, Any]

    def rows(self, client: int) -> FederatedData:
        """One client's rows of the simulation, for a node that stands in for it."""
        own = self.data.rows(client)
        return replace(self.data, indices=own, offsets=torch.tensor([0, len(own)]), client_test=None)


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
    data = build.build_federation(experiment)
    options = build.build_options(experiment, data)
    return Plan(
        build.build_algorithm(experiment.algorithms[0]),
        build.build_task(experiment.model, data),
        data,
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
        ("dtype", experiment.dtype != "float32", "'float32'", repr(experiment.dtype), "leave it out"),
    )
    for key, refused, expected, got, advice in objections:
        if refused:
            raise FedloomError(f"{where}, {key}: expected {expected}, got {got}: {advice}")
