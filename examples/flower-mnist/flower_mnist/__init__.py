"""One experiment, read by both sides: the server takes all of it, a client its own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import fedloom as fl
from fedloom.experiments import build, schema

ROUND = ("cohort", "epochs", "steps", "batch_size", "drop_last", "seed", "sampling_seed", "sampler")
"""What of an experiment says how a round goes, under the names that `simulate` and `FlowerStrategy` share."""


class Plan(NamedTuple):
    """An experiment's parts."""

    algorithm: fl.Algorithm
    task: fl.Task
    data: fl.FederatedData
    rounds: int
    options: dict[str, Any]


def read(name: str) -> Plan:
    """The experiment in a TOML file of this folder, as `fedloom run` would read it."""
    experiment = schema.read(Path(__file__).parent / name)
    data = build.build_federation(experiment)
    options = build.build_options(experiment, data)
    return Plan(
        build.build_algorithm(experiment.algorithms[0]),
        build.build_task(experiment.model, data),
        data,
        experiment.rounds,
        {name: options[name] for name in ROUND},
    )
