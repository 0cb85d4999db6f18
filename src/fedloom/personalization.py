"""What each client gains by training the global model a little further on its own data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom import tree
from fedloom.algorithm import Algorithm
from fedloom.batches import Batching
from fedloom.data.federated import FederatedData
from fedloom.errors import FedloomError
from fedloom.evaluation import per_example
from fedloom.executors.auto import resolve
from fedloom.executors.job import Assignment, Job, cut
from fedloom.functional import Functional, floating_dtype
from fedloom.memory import RowStore
from fedloom.task import Task
from fedloom.types import Params


@dataclass(frozen=True)
class Personalized:
    """Per client, in ascending order: a metric of the global model on its test rows, and after fine-tuning."""

    clients: Tensor
    before: dict[str, Tensor]
    after: dict[str, Tensor]


def personalize(
    task: Task,
    data: FederatedData,
    params: Params,
    algorithm: Algorithm,
    *,
    clients: Tensor | None = None,
    buffers: Params | None = None,
    epochs: int = 1,
    steps: int | None = None,
    batch_size: int | None = 20,
    seed: int = 0,
    executor: str = "auto",
    drop_last: bool = False,
) -> Personalized:
    """Fine-tune `params` on each client with the algorithm's client optimizer and test it on that client's test rows.

    Clients without test rows of their own give NaN; the global model is left as it is.
    """
    if data.test is None or data.client_test is None:
        raise FedloomError(
            "personalize: expected data with per-client test rows, got none: pass federate(client_test=...)"
        )
    batching = Batching(epochs, steps, batch_size, drop_last)
    device, dtype = data.indices.device, floating_dtype(params)
    functional = Functional.of(task, seed, device, dtype).starting_from({**params, **(buffers or {})})
    functional = replace(functional, augment=data.augment)
    params, buffers = functional.params, functional.buffers
    if algorithm.work.name == "full_gradient":
        raise FedloomError(f"personalize: expected an algorithm whose clients train, got {algorithm.name}")
    data = data.to(device, dtype)
    assert data.test is not None and data.client_test is not None
    x, y = data.test
    index, offsets = data.client_test
    if data.test_strangers or len(offsets) - 1 != data.population:
        got = f"{len(offsets) - 1} clients of their own"
        raise FedloomError(f"personalize: expected test rows of the {data.population} clients, got those of {got}")
    chosen = (torch.arange(data.population) if clients is None else clients.cpu()).sort().values
    if len(chosen) and not 0 <= int(chosen[0]) <= int(chosen[-1]) < data.population:
        got = ", ".join(str(client) for client in chosen.tolist() if not 0 <= client < data.population)
        raise FedloomError(f"personalize clients: expected ids in 0..{data.population - 1}, got {got}")
    job = Job(functional, algorithm, data, batching)
    job, choice = resolve(job, executor, None, len(chosen))
    rates = algorithm.client_rates
    assignment = Assignment(seed, 0, 0, data, params, buffers, tree.zeros_like(params), RowStore(), rates)
    names = ("loss", *task.metrics)
    place = {client: at for at, client in enumerate(chosen.tolist())}
    before = {name: torch.full((len(chosen),), torch.nan, dtype=torch.float64) for name in names}
    after = {name: value.clone() for name, value in before.items()}

    def measure(into: dict[str, Tensor], client: int, model: Params, statistics: Params) -> None:
        rows = index[offsets[client] : offsets[client + 1]]
        if len(rows):
            values = per_example(functional, model, statistics, x, y, task.metrics, rows)
            for name, value in values.items():
                into[name][place[client]] = float(value[0].sum() / value[1].sum())

    for client in chosen.tolist():
        measure(before, client, params, buffers)
    functional.module.train()
    for part in choice.run(job, ([part] for part in cut(job, assignment, chosen))):
        updates, own = part.cohort.updates, part.cohort.buffers or {}
        for at, client in enumerate(part.cohort.clients.tolist()):
            tuned = {name: leaf - updates[name][at] for name, leaf in params.items()}
            measure(after, client, tuned, {name: rows[at] for name, rows in own.items()})
        functional.module.train()
    return Personalized(chosen, before, after)
