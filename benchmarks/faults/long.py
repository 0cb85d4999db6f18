"""What ten thousand tiny rounds leave behind: `python benchmarks/faults/long.py --rounds 10000`.

Memory, open files and the size of the run's directory, after a tenth of the rounds and at the end. What must grow is
told beside it: the metrics file, and the same records in `history.rounds`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import fedloom as fl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fedloom-long-") as folder:
        found = run(Path(folder) / "run", asked.rounds)
    command = shlex.join(["python", "benchmarks/faults/long.py", *sys.argv[1:]])
    found = {"command": command, "date": f"{datetime.now(UTC):%Y-%m-%d}", **found}
    print(text := json.dumps(found, indent=2))
    if asked.out is not None:
        asked.out.write_text(text + "\n")


def run(folder: Path, rounds: int) -> dict[str, Any]:
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    data = fl.federate(x, y, [range(start, start + 4) for start in range(0, 40, 4)])
    task = fl.Task(model=lambda: torch.nn.Linear(4, 2))
    found: dict[str, Any] = {}

    def watch(record: dict[str, Any]) -> None:
        if record["round"] + 1 in (rounds // 10, rounds - 1):
            found[f"after {record['round'] + 1} rounds"] = measure(folder)

    fl.simulate(
        task,
        data,
        fl.fedavg(client_lr=0.1),
        rounds=rounds,
        cohort=1,
        steps=1,
        executor="loop",
        callbacks=[watch],
        run_dir=folder,
    )
    return found


def measure(folder: Path) -> dict[str, int]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    metrics = (folder / "metrics.jsonl").stat().st_size
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        "memory_kib": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "open_files": len(list(Path("/proc/self/fd").iterdir())),
        "files": len(files),
        "states": len(list((folder / "checkpoints").iterdir())),
        "kib_without_metrics": (sum(path.stat().st_size for path in files) - metrics) // 1024,
        "metrics_kib": metrics // 1024,
    }


if __name__ == "__main__":
    main()
