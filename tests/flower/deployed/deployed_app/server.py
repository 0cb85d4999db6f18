"""Strategies, one or all, each with a run directory of its own."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from deployed_app.federation import ALGORITHMS, EQUAL, OPTIONS, TASK
from fedloom.flower import FlowerStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    case, out = context.run_config["case"], Path(str(context.run_config["out"]))

    def made(name: str, **options: int) -> Strategy:
        return Strategy(ALGORITHMS[name](), TASK, population=3, run_dir=out / name, **OPTIONS | options)

    def start(name: str, strategy: Strategy, num_rounds: int = 5, **options: float) -> None:
        strategy.start(grid, num_rounds=num_rounds, train_config=ConfigRecord({"algorithm": name}), **options)

    if case == "equal":  # models are made one after the other: torch has one generator for all threads
        strategies = {name: made(name) for name in EQUAL}
        with ThreadPoolExecutor(len(strategies)) as pool:
            list(pool.map(start, strategies, strategies.values()))
    elif case == "restart":
        start("scaffold", made("scaffold"))
    else:
        start("fedavg", made("fedavg", cohort=3), num_rounds=2, timeout=15)


class Strategy(FlowerStrategy):
    """One that is killed, once, when the third round's replies are there: in the case that is marked so."""

    def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
        replies, marked = list(replies), Path(str(self.run_dir)).parent / "kill-server"
        if self.now.round == 2 and marked.exists():
            marked.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().aggregate_train(server_round, replies)
