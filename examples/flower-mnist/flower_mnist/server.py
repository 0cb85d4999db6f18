"""The ServerApp: the experiment's algorithm as a strategy. Started again, it goes on after the last round."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedloom.flower import FlowerStrategy
from flower_mnist import read

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, plan = context.run_config, read(context)
    strategy = FlowerStrategy(
        plan.algorithm,
        plan.task,
        population=int(config["population"]),
        test=plan.data.test,
        run_dir=str(config["out"]),
        **plan.options,
    )
    strategy.start(grid, num_rounds=plan.rounds, timeout=float(config["timeout"]))
