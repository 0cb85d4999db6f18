"""Seconds a round against the number of processes: `python benchmarks/ranks/ranks.py --workload W1 --ranks 1 2 4`.

Each is started by `torchrun` with one thread a rank, trains the same rounds, and must end with the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="W1", help="of `fedloom bench`")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        train(asked.workload, asked.rounds, asked.device)
        return
    print("ranks  s/round  speed-up  same bits")
    alone: dict[str, str | float] = {}
    for ranks in asked.ranks:
        found = launch(ranks, asked.workload, asked.rounds, asked.device)
        alone = alone or found
        gain = float(alone["seconds"]) / float(found["seconds"])
        same = "yes" if found["bits"] == alone["bits"] else "no"
        print(f"{ranks:5d}  {found['seconds']:7.3f}  {gain:7.2f}x  {same:>9}", flush=True)


def launch(ranks: int, workload: str, rounds: int, device: str) -> dict[str, str | float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(Path(__file__).resolve()), "--workload", workload, "--rounds", str(rounds), "--device", device]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, str | float] = json.loads(done.stdout.splitlines()[-1])
    return found


def train(workload: str, rounds: int, device: str) -> None:
    """One rank's part; the first prints the median of all rounds but the first, and a digest of the model."""
    import fedloom as fl
    from fedloom.bench.workloads import WORKLOADS

    chosen = WORKLOADS[workload]
    history = fl.simulate(
        chosen.task(), chosen.data(), chosen.algorithm(), rounds=rounds + 1, device=device, **chosen.settings()
    )
    if os.environ["RANK"] != "0":
        return
    digest = hashlib.sha256()
    for leaf in history.params.values():
        digest.update(leaf.cpu().numpy().tobytes())
    seconds = statistics.median(record["seconds"] for record in history.rounds[1:])
    print(json.dumps({"seconds": seconds, "bits": digest.hexdigest()}), flush=True)


if __name__ == "__main__":
    main()
