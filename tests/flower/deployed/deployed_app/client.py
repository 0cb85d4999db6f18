"""The node with partition k trains on client k's rows, by fedloom's ClientApp or by one that knows nothing of it."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from deployed_app.federation import ALGORITHMS, DATA, TASK
from fedloom.flower import client_app

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    partition, out = int(context.node_config["partition-id"]), Path(str(context.run_config["out"]))
    if context.run_config["case"] == "faults":
        return by_the_book(partition, message, out)
    algorithm = ALGORITHMS[str(message.content["config"]["algorithm"])]()
    rows = DATA.rows(partition)
    own = client_app(TASK, lambda context: (DATA.x[rows], DATA.y[rows]), algorithm, out / f"device-{partition}")
    return own(message, context)


def by_the_book(partition: int, message: Message, out: Path) -> Message:
    """A step of gradient descent. Node 0's first is not finite, and of its second the others never tell."""
    server_round, rows = message.content["config"]["server-round"], DATA.rows(partition)
    if server_round == 2 and partition > 0:
        (out / f"silent-{partition}").touch()
        time.sleep(120)
    model = TASK.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    torch.nn.functional.cross_entropy(model(DATA.x[rows]), DATA.y[rows]).backward()
    rate = math.nan if server_round == 1 and partition == 0 else 0.1
    trained = {"weight": (model.weight - rate * model.weight.grad).detach()}
    metrics = MetricRecord({"num-examples": len(rows)})
    return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=message)
