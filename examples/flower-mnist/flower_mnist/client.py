"""The ClientApp: a node has the rows of the one writer that its `partition-id` names, and no others leave the disk."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedloom.flower import client_app
from flower_mnist import read

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    plan, writer = read(context), int(context.node_config["partition-id"])
    return client_app(plan.task, lambda context: plan.rows(writer), plan.algorithm)(message, context)
