"""A Flower ClientApp that trains as a client of a simulation does: by the loop executor, on the same batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedloom import random
from fedloom.algorithm import Algorithm
from fedloom.data.federated import FederatedData, count, federate, named_leaves
from fedloom.errors import FedloomError
from fedloom.executors.auto import resolve
from fedloom.executors.job import Assignment, Job, Part, Trained
from fedloom.flower.rows import DeviceRows
from fedloom.flower.wire import ARRAYS, SHARED, Order, clients_work, from_arrays, to_reply
from fedloom.functional import Functional
from fedloom.memory import RowStore
from fedloom.preparation import check_kinds
from fedloom.task import Task
from fedloom.types import Params

DataFn = Callable[[Context], Any]
"""The rows of this node: `(x, y)`, or a `FederatedData` of one client where rows are augmented."""


def client_app(
    task: Task, data_fn: DataFn, algorithm: Algorithm, state_dir: str | PathLike[str] | None = None
) -> ClientApp:
    """A ClientApp for `FlowerStrategy`: `data_fn(context)` gives the node's rows, and it trains where they lie.

    `algorithm` is the server's. What a client remembers between rounds is kept in `state_dir`, or in the user's cache.

    >>> import fedloom as fl
    >>> task = fl.Task(model=lambda: fl.models.Logistic(64, 10))
    >>> app = client_app(task, lambda context: (torch.zeros(8, 64), torch.zeros(8).long()), fl.fedavg(client_lr=0.1))
    """
    check_kinds("client_app", task=(task, Task), algorithm=(algorithm, Algorithm))
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content = message.content
        order = Order.read(content)
        if (own := clients_work(algorithm)) != order.work:
            raise FedloomError(
                f"client_app algorithm: expected the server's, whose clients do {order.work}; got {own}: "
                "give both apps the same algorithm"
            )
        rows = DeviceRows(None if state_dir is None else Path(state_dir), order)
        shared = from_arrays(content.array_records[SHARED]) if SHARED in content.array_records else {}
        trained = work(
            task,
            _numbered(data_fn(context), order.client),
            algorithm,
            order,
            from_arrays(content.array_records[ARRAYS]),
            shared,
            rows.store() if algorithm.memory is not None else RowStore(),
        )
        if trained.rows:
            rows.keep({name: leaf[0] for name, leaf in trained.rows.items()})
        return Message(content=to_reply(trained), reply_to=message)

    return app


def work(
    task: Task,
    data: FederatedData,
    algorithm: Algorithm,
    order: Order,
    leaves: Params,
    shared: Params,
    rows: RowStore,
) -> Trained:
    """One client's share of a round, from the global model `leaves`."""
    device = next(leaf.device for _, leaf in named_leaves(data.x))
    functional = Functional.of(task, order.seed, device).starting_from(leaves)
    functional = replace(functional, metrics=task.metrics, augment=data.augment)
    shared = {name: leaf.to(functional.params[name]) for name, leaf in shared.items()}
    rows = RowStore(
        {client: {name: leaf.to(device) for name, leaf in row.items()} for client, row in rows.rows.items()}
    )
    job, choice = resolve(Job(functional, algorithm, data, order.batching), "loop", 1, 1)
    assignment = Assignment(
        order.seed,
        order.round,
        order.server_round,
        data,
        functional.params,
        functional.buffers,
        shared,
        rows,
        algorithm.client_rates,
    )
    functional.module.train()
    with random.generator_kept(job.draws):
        [trained] = choice.run(job, [[Part(assignment, torch.tensor([order.client]))]])
    return trained


def _numbered(given: Any, client: int) -> FederatedData:
    """A node's rows as those of client number `client`: batches are drawn by that number."""
    data = given
    if isinstance(given, tuple) and len(given) == 2:
        x, y = given
        data = federate(x, y, [range(count(y))])
    if not isinstance(data, FederatedData) or data.population != 1:
        got = f"{data.population} clients" if isinstance(data, FederatedData) else type(given).__name__
        raise FedloomError(f"data_fn: expected (x, y), or a FederatedData of one client; got {got}")
    if data.row_weights is not None:  # which a server could not check against what it knows of the node
        raise FedloomError("data_fn: expected a client that is weighed by its examples, got one with row_weights")
    offsets = torch.zeros(client + 2, dtype=torch.int64, device=data.offsets.device)
    offsets[-1] = data.offsets[-1]
    return replace(data, offsets=offsets)
