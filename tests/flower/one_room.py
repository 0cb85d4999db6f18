"""Flower's grid without its processes: every node's ClientApp is called where the server stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

import fedloom as fl
from fedloom.flower import FlowerStrategy, client_app

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    pass  # an earlier Flower, whose messages do not ask for it
else:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # what Flower tells a ServerApp's process

Answer = Callable[[Message, Context], Message]


class OneRoom(Grid):
    """Node ids -> ClientApps; a node's context lives as long as the room."""

    def __init__(self, apps: dict[int, Answer]) -> None:
        self.apps = apps
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={}) for node in apps
        }
        self.sent: list[list[int]] = []

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        self.sent.append([message.metadata.dst_node_id for message in messages])
        replies = (self._answer(message) for message in reversed(messages))
        return [reply for reply in replies if reply is not None]

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = f"to {node}"
        try:
            return self.apps[node](message, self.contexts[node])
        except TimeoutError:
            return None  # a node that never answers
        except Exception as error:  # what a SuperNode makes of it
            return Message(Error(1, str(error)), reply_to=message)


def rows_of(data: fl.FederatedData, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = data.rows(client)
    return data.x[rows], data.y[rows]


NODES = (907, 11, 340)
"""Ids of three nodes; ascending, the second is client 0, the third client 1, the first client 2."""


def apps(task: fl.Task, data: fl.FederatedData, algorithm: Any, state_dir: Any) -> dict[int, ClientApp]:
    """A fedloom ClientApp on every node, with the rows of the client that its id makes it."""
    numbers = {node: client for client, node in enumerate(sorted(NODES))}
    return {
        node: client_app(task, lambda context, node=node: rows_of(data, numbers[node]), algorithm, state_dir)
        for node in NODES
    }


def deploy(task: fl.Task, room: OneRoom, algorithm: Any, rounds: int = 5, **options: Any) -> FlowerStrategy:
    strategy = FlowerStrategy(algorithm, task, population=len(NODES), **options)
    strategy.start(room, num_rounds=rounds)
    return strategy
