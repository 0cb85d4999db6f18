"""Through Flower's own processes on loopback, over TLS: a SuperLink, SuperNodes with keys, ServerApps, ClientApps.

One federation serves all tests, and its runs go on at the same time: most of a run's time is waiting. The last test
kills a SuperNode: none may come after it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom import checkpoint

pytest.importorskip("flwr", "1.41", reason="needs flwr 1.41, whose commands it starts: pip install 'fedloom[flower]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl and ssh-keygen"
    ),
]

from processes import HERE, Federation, wait_for  # noqa: E402

sys.path.insert(0, str(HERE / "deployed"))
from deployed_app.federation import ALGORITHMS, DATA, EQUAL, OPTIONS, TASK  # noqa: E402

EXAMPLE = HERE.parents[1] / "examples" / "flower-mnist"
CONNECTED = "SuperNode ID:"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink on which three keys of four are registered, their nodes, and three runs that have been started."""
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        for name, nodes in (("ours", "4"), ("others", "0")):
            (made.folder / name).mkdir()
            script = [EXAMPLE / "make-keys.sh", "127.0.0.1", nodes]
            subprocess.run(script, cwd=made.folder / name, check=True, capture_output=True)
        keys = made.folder / "ours" / "keys"
        certificates = ("ca-cert", "ca.crt"), ("cert", "server.crt"), ("key", "server.key")
        made.superlink("--enable-supernode-auth", *(f"--ssl-{name}file={keys / file}" for name, file in certificates))
        for node in range(3):
            registered = made.flwr("supernode", "register", keys / f"node-{node}.pub", connection=trusting(made))
            assert registered.returncode == 0, registered.stdout + registered.stderr
            joins(made, f"node-{node}", node, f"node-{node}")
        (made.folder / "killed").mkdir()
        (made.folder / "killed" / "kill-server").touch()
        run(made, "killed", "restart")
        run(made, "equal", "equal")
        run(made, "example", app=small_example(made.folder / "app"))
        yield made
    finally:
        made.close()


def trusting(federation: Federation, whose: str = "ours") -> str:
    return f'root-certificates = "{federation.folder / whose / "keys" / "ca.crt"}"'


def joins(federation: Federation, name: str, partition: int, key: str, authority: str = "ours") -> None:
    """A SuperNode with that key pair of ours, trusting that authority."""
    federation.supernode(
        *(name, partition, f"--root-certificates={federation.folder / authority / 'keys' / 'ca.crt'}"),
        *(f"--auth-supernode-private-key={federation.folder / 'ours' / 'keys' / key}", "--max-retries=1"),
    )


def run(federation: Federation, out: str, case: str | None = None, app: Path = HERE / "deployed") -> str:
    """Start a run, whose number this is."""
    config = f'out="{federation.folder / out}"' + (f' case="{case}"' if case else "")
    command = ("run", app, "--run-config", config, "--format", "json")
    started = federation.flwr(*command, connection=trusting(federation))
    assert started.returncode == 0, started.stdout + started.stderr
    number: str = json.loads(started.stdout)["run-id"]
    return number


def small_example(app: Path) -> Path:
    """The example with two rounds."""
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("keys", "runs"))
    winner = app / "flower_mnist" / "digits.toml"
    winner.write_text(winner.read_text().replace("rounds = 20", "rounds = 2"))
    return app


def records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def apart(federation: Federation, directory: Path, name: str) -> float:
    """The largest difference between the deployed model and the simulated one, whose clients are in nodes' order."""
    table = json.loads((directory / "nodes.json").read_text())["nodes"]
    partitions = {node: place for node in table for place in range(3) if federation.says(f"node-{place}", node)}
    order = [DATA.rows(partitions[node]) for node in sorted(table, key=table.__getitem__)]
    data = fl.federate(DATA.x, DATA.y, order)
    history = fl.simulate(TASK, data, ALGORITHMS[name](), rounds=5, executor="loop", **OPTIONS)
    saved = checkpoint.load(sorted((directory / "checkpoints").iterdir())[-1])["params"]
    return max(float((saved[leaf].double() - value).abs().max()) for leaf, value in history.params.items())


def test_nodes_that_cannot_prove_themselves_are_refused(federation: Federation) -> None:
    joins(federation, "stranger", 0, "node-3")
    joins(federation, "wrong-authority", 0, "node-0", authority="others")
    federation.supernode("plain-text", 0, "--insecure", "--max-retries=1")
    for name in ("stranger", "wrong-authority", "plain-text"):
        process = federation.running[name]
        wait_for(f"the end of {name}", lambda process=process: process.poll() is not None, 120, federation)
        assert process.returncode != 0
        assert not federation.says(name, CONNECTED)
    assert federation.says("wrong-authority", "certificate verify failed")
    plain = federation.flwr("run", EXAMPLE, connection="insecure = true")  # whoever starts a run must speak TLS too
    assert plain.returncode != 0


def test_a_server_that_was_killed_goes_on_from_the_last_round(federation: Federation) -> None:
    killed, directory = federation.folder / "killed", federation.folder / "killed" / "scaffold"
    wait_for("the server's end", lambda: not (killed / "kill-server").exists(), 200, federation)
    assert len(records(directory)) == 2
    run(federation, "killed", "restart")
    wait_for("the rest of the run", (directory / "summary.json").exists, 200, federation)
    assert apart(federation, directory, "scaffold") < 1e-6
    assert [record["round"] for record in records(directory)] == [0, 1, 2, 3, 4]


def test_the_example_runs_to_its_end(federation: Federation) -> None:
    directory = federation.folder / "example"
    wait_for("two rounds", (directory / "summary.json").exists, 200, federation)
    assert [record["admitted"] for record in records(directory)] == [3, 3]
    assert all(0 < record["test_accuracy"] <= 1 for record in records(directory))


def test_all_algorithms_end_where_a_simulation_ends(federation: Federation) -> None:
    """SCAFFOLD is the one whose server was killed."""
    folders = {name: federation.folder / "equal" / name for name in EQUAL}
    done = [folder / "summary.json" for folder in folders.values()]
    wait_for("fourteen runs of five rounds", lambda: all(path.exists() for path in done), 300, federation)
    torch.set_num_threads(1)
    distances = {name: apart(federation, folder, name) for name, folder in folders.items()}
    assert len(distances) == 14
    assert max(distances.values()) < 1e-6, distances


def test_a_round_ends_without_the_nodes_that_fail(federation: Federation) -> None:
    """One sends NaN in round 0; in round 1 one is silent, and another's SuperNode is killed."""
    directory = federation.folder / "faults"
    number = run(federation, "faults", "faults")
    wait_for("the node that is to be killed", (directory / "silent-2").exists, 120, federation)
    federation.kill("node-2")
    wait_for("the end of the run", (directory / "fedavg" / "summary.json").exists, 120, federation)
    assert [record["admitted"] for record in records(directory / "fedavg")] == [2, 1]

    def refused(t: int, why: str) -> int:
        told = federation.flwr("log", number, "--show", connection=trusting(federation)).stdout
        return len(re.findall(rf"node \d+ \(client \d\), round {t}: {why}: refused", told))

    # Flower sends a run's log to the SuperLink every few seconds
    wait_for("a line for both", lambda: refused(1, "no reply in time") == 2, 60, federation)
    assert refused(0, "non-finite value in update '.*'") == 1
