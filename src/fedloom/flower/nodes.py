"""Which of Flower's nodes is which client, kept in the run's directory."""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from flwr.serverapp import Grid

from fedloom.documents import read_json
from fedloom.errors import Damaged, FedloomError
from fedloom.rundir import write_json

NODES = "nodes.json"

_log = logging.getLogger("flwr")
_LOOK_AGAIN = 1.0
"""Seconds between looks at which nodes are there, while too few are."""


@dataclass
class Nodes:
    """Node ids -> clients; `run` tells the devices which run their memories belong to."""

    population: int
    path: Path | None = None
    clients: dict[int, int] = field(default_factory=dict)
    run: str = field(default_factory=lambda: secrets.token_hex(8))

    @staticmethod
    def of(population: int, folder: Path | None) -> Nodes:
        """Those of the run in `folder`; before its first round nobody is numbered."""
        path = None if folder is None else folder / NODES
        if path is None or not path.exists():
            return Nodes(population, path)
        told = read_json(path)
        try:
            clients = {int(node): int(client) for node, client in told["nodes"].items()}
            return Nodes(population, path, clients, told["run"])
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise Damaged(f"{path}: expected the table of a run's nodes, got something else") from None

    def present(self, grid: Grid, timeout: float) -> dict[int, int]:
        """Client -> node, of those connected; waits for the whole population once, later `timeout` s for somebody."""
        waiting, began = False, time.monotonic()
        while True:
            online = sorted(grid.get_node_ids())
            if not self.clients and len(online) >= self.population:
                self._number(online)
            present = {self.clients[node]: node for node in online if node in self.clients}
            if present:
                return present
            if self.clients and time.monotonic() - began >= timeout:
                raise FedloomError(
                    f"nodes: expected one of the run's {self.population} within {timeout:g} s, got {len(online)} others"
                    ": connect them; one without node authentication comes back under another id, for a new run"
                )
            if not waiting:
                _log.info("Waiting for nodes: %s", self._told(len(online)))
                waiting = True
            time.sleep(_LOOK_AGAIN)

    def _told(self, online: int) -> str:
        if not self.clients:
            return f"{online} of {self.population} are connected"
        return f"0 of the run's {self.population} are connected, and {online} others, who are nobody's client"

    def _number(self, online: list[int]) -> None:
        self.clients = {node: client for client, node in enumerate(online[: self.population])}
        if self.path is not None:
            table = {str(node): client for node, client in self.clients.items()}
            write_json(self.path, {"run": self.run, "nodes": table})
