"""Strategies, one or all, each with a run directory of its own."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from deployed_app.federation import ALGORITHMS, OPTIONS, TASK
from fedloom.flower import FlowerStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    case, out = context.run_config["case"], Path(str(context.run_config["out"]))

    def start(name: str, cohort: int = 2, **options: float) -> None:
        strategy = Strategy(ALGORITHMS[name](), TASK, population=3, run_dir=out / name, **OPTIONS | {"cohort": cohort})
        strategy.start(grid, num_rounds=5, train_config=ConfigRecord({"algorithm": name}), **options)

    if case == "equal":
        with ThreadPoolExecutor(len(ALGORITHMS)) as pool:
            for running in [pool.submit(start, name) for name in ALGORITHMS]:
                running.result()
    elif case == "restart":
        start("scaffold")
    else:
        start("fedavg", cohort=3, timeout=20)


class Strategy(FlowerStrategy):
    """One that is killed, once, when the third round's replies are there: in the case that is marked so."""

    def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
        replies, marked = list(replies), Path(str(self.run_dir)).parent / "kill-server"
        if self.now.round == 2 and marked.exists():
            marked.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().aggregate_train(server_round, replies)
