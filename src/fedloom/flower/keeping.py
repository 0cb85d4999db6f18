"""A deployment's run directory: the table of nodes, and the state after every round, to go on from."""

from __future__ import annotations

import json
import platform
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from fedloom import __version__, checkpoint
from fedloom.errors import FedloomError
from fedloom.rundir import CONFIG, RunDirectory, write_json
from fedloom.types import Params, PartState, State

NODES = "nodes.json"


@dataclass
class Standing:
    """Where a run stands between rounds."""

    params: Params
    state: State
    sampling: PartState
    round: int = 0
    admitted: dict[int, int] = field(default_factory=dict)  # client -> the last round its reply was admitted in


@dataclass
class Nodes:
    """Which of Flower's nodes is which client; `run` tells the devices which run their memories belong to."""

    clients: dict[int, int] = field(default_factory=dict)
    run: str = field(default_factory=lambda: secrets.token_hex(8))


class Keeping:
    """Writes a run down; without a directory nothing is written."""

    def __init__(self, path: str | PathLike[str] | None, config: Mapping[str, Any]) -> None:
        self.nodes = Nodes()
        self.directory: RunDirectory | None = None
        if path is None:
            return
        begun = Path(path) / CONFIG
        if begun.exists():
            _compare(begun, config)
        self.directory = RunDirectory(path, resume=begun.exists())
        table = self.directory.path / NODES
        if table.exists():
            read = json.loads(table.read_text(encoding="utf-8"))
            self.nodes = Nodes({int(node): client for node, client in read["nodes"].items()}, read["run"])
        if not begun.exists():
            self.directory.config(config)

    def write_nodes(self) -> None:
        if self.directory is not None:
            table = {str(node): client for node, client in sorted(self.nodes.clients.items())}
            write_json(self.directory.path / NODES, {"run": self.nodes.run, "nodes": table})

    def restore(self, start: Standing, remembers: bool) -> tuple[Standing, list[dict[str, Any]]]:
        """The last state in the directory, or `start`, and the rounds before it.

        `remembers`: clients of this algorithm keep rows.
        """
        if self.directory is None:
            return start, []
        saved = self.directory.saved()
        value = checkpoint.load(saved[-1]) if saved else None
        if value is None:
            return start, self.directory.rewind(0)
        state = checkpoint.state_from_dict(value["state"])
        if state.population != start.state.population:
            expected, got = start.state.population, state.population
            raise FedloomError(f"{saved[-1]}: expected a population of {expected}, got {got}: choose another run_dir")
        if remembers and value["rows"]:
            raise FedloomError(
                f"{saved[-1]}: expected clients that keep their memory on their devices, got a simulation's: "
                "choose another run_dir"
            )
        admitted = {int(client): round for client, round in value.get("admitted", {}).items()}
        now = Standing(value["params"], state, value["sampler"], value["round"], admitted)
        return now, self.directory.rewind(now.round)

    def record(self, row: Mapping[str, Any], now: Standing) -> None:
        """A round is over: its line, and the state after it, in the form that a simulation's has."""
        if self.directory is None:
            return
        self.directory.record(row)
        self.directory.checkpoint(
            now.round,
            {
                "round": now.round,
                "params": now.params,
                "state": checkpoint.state_to_dict(now.state),
                "rows": {},
                "sampler": now.sampling,
                "processed": 0.0,
                "lost": {},
                "admitted": {str(client): round for client, round in sorted(now.admitted.items())},
            },
        )
        self.directory.keep_last(2)

    def finish(self, seed: int, rounds: list[dict[str, Any]], seconds: float) -> None:
        if self.directory is not None:
            self.directory.summary(
                {
                    "seed": seed,
                    "rounds": len(rounds),
                    "final": rounds[-1] if rounds else {},
                    "seconds": seconds,
                    "resolved": {"executor": "flower"},
                    "versions": {
                        "fedloom": __version__,
                        "torch": torch.__version__,
                        "python": platform.python_version(),
                    },
                }
            )


def _compare(path: Path, config: Mapping[str, Any]) -> None:
    """An error where the run that was begun there had other settings."""
    before = tomllib.loads(path.read_text(encoding="utf-8"))
    for name, value in config.items():
        if name in before and type(before[name]) is type(value) and before[name] != value:
            raise FedloomError(
                f"{path}, {name}: expected {before[name]!r}, which the run was begun with, got {value!r}: "
                "go on with the same settings, or choose another run_dir"
            )
