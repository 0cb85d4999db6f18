"""The ClientApp: a node has the rows of the one writer that its `partition-id` names, and no others leave the disk."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedloom.flower import client_app
from flower_mnist import read

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    plan = read(str(context.run_config["experiment"]))

    def rows(context: Context) -> tuple[Any, Any]:
        own = plan.data.rows(int(context.node_config["partition-id"]))
        return plan.data.x[own], plan.data.y[own]

    return client_app(plan.task, rows, plan.algorithm)(message, context)
