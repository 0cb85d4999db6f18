"""fedloom itself: `fl.simulate` with its defaults, no metrics and no evaluation."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch_models
from runner import CORES, Clock, options, run
from torch import Tensor
from torch.nn import functional as F
from workloads import Arrays, Workload

import fedloom as fl
from fedloom.batches import Batching, plan

SEED = 0


def loss(scores: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, one value per example."""
    losses = F.cross_entropy(scores.flatten(0, -2), y.flatten(), reduction="none")
    return losses.reshape(len(y), -1).mean(1)


def in_order(data: fl.FederatedData, workload: Workload) -> fl.FederatedData:
    """The same data, rows moved within each client so that round 0's permutation brings them into order again."""
    clients = torch.tensor(workload.cohort(0))
    drawn = plan(data, clients, Batching(batch_size=workload.batch), SEED, round=0).index.flatten(1)
    owned = torch.stack([data.rows(int(client)) for client in clients])
    x, y = data.x.clone(), data.y.clone()
    x[drawn], y[drawn] = data.x[owned], data.y[owned]
    return replace(data, x=x, y=y)


def main() -> None:
    given = options(__doc__, devices=("cpu", "cuda"))
    if given.device == "cpu":
        torch.set_num_threads(CORES)

    def train(workload: Workload, rounds: int, clock: Clock) -> Arrays:
        x, y = (leaf.flatten(0, 1) for leaf in torch_models.tensors(workload, given.data))
        data = fl.federate(x, y, list(torch.arange(len(x)).split(workload.examples)))
        if not workload.dropout:
            data = in_order(data, workload)
        history = fl.simulate(
            fl.Task(model=lambda: torch_models.model(workload), loss=loss, metrics={}),
            data,
            fl.fedavg(client_lr=workload.lr),
            rounds=rounds,
            cohort=workload.cohort_size,
            sampler=fl.sampling.forced("uniform", {t: workload.cohort(t) for t in range(rounds)}),
            batch_size=workload.batch,
            seed=SEED,
            device=given.device,
            precision="high" if workload.dropout else "highest",  # on a GPU
            compile=None if given.device == "cpu" else True,  # the few rounds of a check would not pay for it
            callbacks=[lambda record: clock.add(record["seconds"])],
        )
        clock.how = f"executor {history.resolved['executor']}"
        return {name: leaf.cpu().numpy() for name, leaf in history.params.items()}

    run(given, f"fedloom {fl.__version__}", "", train)


if __name__ == "__main__":
    main()
