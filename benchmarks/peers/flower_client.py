"""Flower's client: a module of its own, since an actor imports it and then keeps what it holds between clients."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
import torch_models
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from workloads import WORKLOADS, Workload

app = ClientApp()


@lru_cache(1)
def _ready(name: str, checked: bool, folder: str) -> tuple[Workload, nn.Module, Tensor, Tensor]:
    """An actor makes its model and reads its data once."""
    torch.set_num_threads(1)
    workload = WORKLOADS[name].checked() if checked else WORKLOADS[name]
    return workload, torch_models.model(workload), *torch_models.tensors(workload, Path(folder))


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    config = message.content["config"]
    workload, model, x, y = _ready(config["workload"], config["checked"], config["data"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), workload.lr)
    client = config["client"]
    for batch, target in zip(x[client].split(workload.batch), y[client].split(workload.batch), strict=True):
        optimizer.zero_grad()
        torch_models.loss(model(batch), target).backward()
        optimizer.step()
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x[client])})}
    return Message(content=RecordDict(reply), reply_to=message)
