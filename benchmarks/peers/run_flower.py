"""Flower: its simulation engine, with an actor on each core."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=str(Path(__file__).parent))

import flower_client
import torch_models
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.simulation import run_simulation
from runner import CORES, Clock, options, run
from workloads import Arrays, Workload


class Timed(FedAvg):
    """FedAvg with the cohorts that all peers take, which tells the clock when a round begins and ends."""

    def __init__(self, workload: Workload, clock: Clock, data: Path) -> None:
        super().__init__(
            fraction_train=workload.cohort_size / workload.population,
            fraction_evaluate=0.0,
            min_available_nodes=workload.population,
        )
        self.workload, self.clock, self.data = workload, clock, data

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.clock.begin()
        workload = self.workload
        nodes, _ = sample_nodes(grid, workload.population, workload.cohort_size)
        shared = {"workload": workload.name, "checked": not workload.dropout, "data": str(self.data)}
        return [
            Message(
                content=RecordDict({"arrays": arrays, "config": ConfigRecord({**shared, "client": client})}),
                message_type="train",
                dst_node_id=node,
            )
            for node, client in zip(nodes, workload.cohort(server_round - 1), strict=True)
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"round {server_round}: a client failed: {reply.error.reason}")
        aggregated = super().aggregate_train(server_round, replies)
        self.clock.end()
        return aggregated


def main() -> None:
    given = options(__doc__)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        def train(workload: Workload, rounds: int, clock: Clock) -> Arrays:
            start = ArrayRecord(torch_models.model(workload).state_dict())
            outcome = Timed(workload, clock, given.data).start(grid=grid, initial_arrays=start, num_rounds=rounds)
            return {name: leaf.numpy() for name, leaf in outcome.arrays.to_torch_state_dict().items()}

        run(given, f"flwr {version('flwr')}", f"{CORES} actors", train)

    run_simulation(
        server_app=app,
        client_app=flower_client.app,
        num_supernodes=given.workload.population,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": CORES, "log_to_driver": False},
        },
    )


if __name__ == "__main__":
    main()
