"""The node with partition k trains on client k's rows; in the case of faults each node has its own in its own round."""

from __future__ import annotations

import math
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from deployed_app.federation import ALGORITHMS, DATA, TASK
from fedloom.flower import client_app

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    partition, out = int(context.node_config["partition-id"]), Path(str(context.run_config["out"]))
    if context.run_config["case"] == "faults" and message.content["config"]["server-round"] == partition + 1:
        return fault(partition, message, out)
    algorithm = ALGORITHMS[str(message.content["config"]["algorithm"])]()
    rows = DATA.rows(partition)
    own = client_app(TASK, lambda context: (DATA.x[rows], DATA.y[rows]), algorithm, out / f"device-{partition}")
    return own(message, context)


def fault(partition: int, message: Message, out: Path) -> Message:
    if partition == 1:
        time.sleep(30)  # beyond the round
    if partition == 2:
        (out / "kill").touch()
        time.sleep(60)  # its SuperNode is killed meanwhile
    model = {name: leaf * math.nan for name, leaf in message.content["arrays"].to_torch_state_dict().items()}
    metrics = MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)
