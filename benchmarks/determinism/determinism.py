"""The same seed, the same bits: twenty runs that may differ in everything but their numbers, one hash each.

    python benchmarks/determinism/determinism.py [--runs 20] [--device cuda] [--out FILE]

On a CPU a run is one of 1, 2 and 4 ranks of one thread, has a `PYTHONHASHSEED` of its own and is given its clients in
another order. On a GPU it is one process with `deterministic=True`, started anew each time, that trains the EMNIST CNN
and the Shakespeare LSTM (W1 and W3 of `fedloom bench`) as well; and what that costs is timed: rounds of those two with
it, and without, captured alike and compiled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
RANKS = (1, 2, 4)


def hashes(shuffle: int, device: str) -> dict[str, str]:
    """Three rounds of five algorithms; what each came to as SHA-256 of its parameters' bits."""
    import random

    import torch

    import fedloom as fl
    from fedloom.sampling import Drawn, Sampler, as_sampler

    torch.set_num_threads(1)
    uniform = as_sampler("uniform")

    def draw(*given: Any) -> Drawn:
        """The clients that are drawn, called upon in another order."""
        clients = uniform.draw(*given).clients.tolist()
        random.Random(shuffle).shuffle(clients)
        return Drawn(torch.tensor(clients))

    algorithms = {
        "fedavg": fl.fedavg(0.1),
        "fedadam": fl.fedadam(0.1, server_lr=0.01),
        "fedadp": fl.fedadp(0.1),
        "scaffold": fl.scaffold(0.1),
        "fedglad": fl.fedglad(fl.fedyogi(0.1, server_lr=0.01)),
    }
    data = fl.load("digits", partition="dirichlet", clients=30, alpha=0.3)
    task = fl.Task(lambda: torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)))
    found = {}
    for name, algorithm in algorithms.items():
        history = fl.simulate(
            *(task, data, algorithm, 3, 12),
            sampler=Sampler("shuffled", draw) if device == "cpu" else "uniform",
            device=device,
            deterministic=True,
        )
        found[name] = digest(history)
    return found if device == "cpu" else found | {name: digest(history) for name, history in networks(device)}


def networks(device: str) -> Iterator[tuple[str, Any]]:
    """Three rounds of a convolutional and of a recurrent network."""
    import fedloom as fl
    from fedloom.bench.workloads import WORKLOADS

    for name in ("W1", "W3"):
        workload = WORKLOADS[name]
        run = (workload.task(), workload.data(), workload.algorithm())
        yield name, fl.simulate(*run, rounds=3, device=device, deterministic=True, **workload.settings())


def digest(history: Any) -> str:
    bits = hashlib.sha256()
    for leaf in history.params.values():
        bits.update(leaf.cpu().numpy().tobytes())
    return bits.hexdigest()


def cost() -> dict[str, dict[str, float]]:
    """Milliseconds of a round, the median of twenty after five."""
    import statistics

    import fedloom as fl
    from fedloom.bench.workloads import WORKLOADS

    ways = {
        "deterministic": {"deterministic": True},  # the first of them
        "captured": {"compile": False},
        "compiled": {"compile": True},
    }
    found = {}
    for name in ("W1", "W3"):
        workload = WORKLOADS[name]
        data, found[name] = workload.data(), {}
        for way, options in ways.items():
            seconds: list[float] = []
            fl.simulate(
                *(workload.task(), data, workload.algorithm()),
                rounds=25,
                device="cuda",
                callbacks=[lambda record, seconds=seconds: seconds.append(record["seconds"])],
                **workload.settings(),
                **options,
            )
            found[name][way] = 1000 * statistics.median(seconds[5:])
    return found


def started(number: int, device: str, folder: Path) -> dict[str, str]:
    """One of the runs, in processes of its own."""
    out = folder / f"{number}.json"
    command, ranks = [sys.executable], RANKS[number % len(RANKS)] if device == "cpu" else 1
    if ranks > 1:
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command += [str(HERE), "--one", str(number), "--device", device, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(number)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    found: dict[str, str] = json.loads(out.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=int)
    given = parser.parse_args()
    if given.one is not None:
        found = hashes(given.one, given.device)
        if os.environ.get("RANK", "0") == "0":
            given.out.write_text(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = [started(number, given.device, Path(folder)) for number in range(given.runs)]
    milliseconds = None if given.device == "cpu" else cost()  # before CUDA starts: cuBLAS reads its workspace once
    import torch

    same = sum(run == runs[0] for run in runs)
    result = {
        "same": same,
        "of": len(runs),
        "device": given.device if given.device == "cpu" else torch.cuda.get_device_name(),
        "processor": platform.machine(),
        "torch": torch.__version__,
        "hashes": runs[0],
    } | ({} if milliseconds is None else {"milliseconds": milliseconds})
    out = given.out or HERE.with_name(f"result-{given.device.partition(':')[0]}.json")
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{same} of {len(runs)} the same")
    sys.exit(same < len(runs))


if __name__ == "__main__":
    main()
