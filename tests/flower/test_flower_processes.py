"""Through Flower's own processes on loopback: a SuperLink, three SuperNodes, a ServerApp, ClientApps.

The last test kills a SuperNode: none may come after it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom import checkpoint

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedloom[flower]'")
pytestmark = pytest.mark.slow

from processes import HERE, Federation, wait_for  # noqa: E402

sys.path.insert(0, str(HERE / "deployed"))
from deployed_app.federation import ALGORITHMS, DATA, OPTIONS, TASK  # noqa: E402


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.superlink()
        for partition in range(3):
            made.supernode(f"node-{partition}", partition)
        yield made
    finally:
        made.close()


def run(federation: Federation, case: str, out: Path) -> str:
    """Start a run; its number."""
    config = f'case="{case}" out="{out}"'
    started = federation.flwr("run", HERE / "deployed", "--run-config", config, "--format", "json")
    assert started.returncode == 0, started.stdout + started.stderr
    number: str = json.loads(started.stdout)["run-id"]
    return number


def by_node(federation: Federation, directory: Path) -> fl.FederatedData:
    """The data with its clients in the order of the table of nodes."""
    table = json.loads((directory / "nodes.json").read_text())["nodes"]
    partitions = {
        node: partition for node in table for partition in range(3) if federation.says(f"node-{partition}", node)
    }
    order = sorted(table, key=table.__getitem__)
    return fl.federate(DATA.x, DATA.y, [DATA.rows(partitions[node]) for node in order])


def apart(directory: Path, history: Any) -> float:
    """The largest difference between the deployed model and the simulated one."""
    saved = checkpoint.load(sorted((directory / "checkpoints").iterdir())[-1])["params"]
    return max(float((saved[name].double() - leaf).abs().max()) for name, leaf in history.params.items())


def simulated(federation: Federation, directory: Path, name: str, **options: Any) -> Any:
    data = by_node(federation, directory)
    return fl.simulate(TASK, data, ALGORITHMS[name](), rounds=5, executor="loop", **OPTIONS | options)


def test_all_algorithms_end_where_a_simulation_ends(federation: Federation, tmp_path: Path) -> None:
    run(federation, "equal", tmp_path)
    done = [tmp_path / name / "summary.json" for name in ALGORITHMS]
    wait_for("fifteen runs of five rounds", lambda: all(path.exists() for path in done), 900, federation)
    torch.set_num_threads(1)
    distances = {name: apart(tmp_path / name, simulated(federation, tmp_path / name, name)) for name in ALGORITHMS}
    assert len(distances) == 15
    assert max(distances.values()) < 1e-6, distances


def test_a_server_that_was_killed_goes_on_from_the_last_round(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "kill-server").touch()
    run(federation, "restart", tmp_path)
    wait_for("the server's end", lambda: not (tmp_path / "kill-server").exists(), 300, federation)
    assert len((tmp_path / "scaffold" / "metrics.jsonl").read_text().splitlines()) == 2
    run(federation, "restart", tmp_path)
    wait_for("the rest of the run", (tmp_path / "scaffold" / "summary.json").exists, 300, federation)
    assert apart(tmp_path / "scaffold", simulated(federation, tmp_path / "scaffold", "scaffold")) < 1e-6
    lines = (tmp_path / "scaffold" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2, 3, 4]


def test_a_round_completes_without_the_node_that_fails(federation: Federation, tmp_path: Path) -> None:
    """One sends NaN in round 0, one is silent in round 1, one loses its SuperNode in round 2, for good."""
    number = run(federation, "faults", tmp_path)
    wait_for("the node that is to be killed", (tmp_path / "kill").exists, 300, federation)
    federation.kill("node-2")
    metrics = tmp_path / "fedavg" / "metrics.jsonl"

    def records() -> list[dict[str, Any]]:
        return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []

    wait_for("three rounds", lambda: len(records()) >= 3, 300, federation)
    assert [record["admitted"] for record in records()[:3]] == [2, 2, 2]
    told = federation.flwr("log", number, "--show").stdout
    assert re.search(r"node \d+ \(client \d\), round 0: non-finite value in update '.*': refused", told), told
    assert len(re.findall(r"node \d+ \(client \d\), round [12]: no reply in time: refused", told)) == 2, told
