"""The example as its README runs it: keys made by its script, TLS and node authentication on, `flwr run .`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedloom[flower]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl and ssh-keygen"
    ),
]

from processes import HERE, Federation, wait_for  # noqa: E402

EXAMPLE = HERE.parents[1] / "examples" / "flower-mnist"
CONNECTED = "SuperNode ID:"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink with TLS on which three keys of four are registered."""
    folder = tmp_path_factory.mktemp("secured")
    for name in ("ours", "others"):
        (folder / name).mkdir()
        subprocess.run([EXAMPLE / "make-keys.sh", "127.0.0.1", "4"], cwd=folder / name, check=True, capture_output=True)
    keys = folder / "ours" / "keys"
    made = Federation(folder)
    try:
        certificates = ("ca-cert", "ca.crt"), ("cert", "server.crt"), ("key", "server.key")
        made.superlink(
            "--enable-supernode-auth",
            security=tuple(f"--ssl-{option}file={keys / file}" for option, file in certificates),
        )
        for node in range(3):
            registered = made.flwr("supernode", "register", keys / f"node-{node}.pub", connection=trusting(folder))
            assert registered.returncode == 0, registered.stdout + registered.stderr
        yield made
    finally:
        made.close()


def trusting(folder: Path, whose: str = "ours") -> str:
    return f'root-certificates = "{folder / whose / "keys" / "ca.crt"}"'


def joins(federation: Federation, name: str, partition: int, key: str, authority: str = "ours") -> None:
    """A SuperNode with that key pair of ours, trusting that authority."""
    keys = federation.folder / "ours" / "keys"
    security = (
        f"--root-certificates={federation.folder / authority / 'keys' / 'ca.crt'}",
        f"--auth-supernode-private-key={keys / key}",
    )
    federation.supernode(name, partition, "--max-retries=1", security=security)


def refused(federation: Federation, name: str) -> None:
    wait_for(f"the end of {name}", lambda: federation.running[name].poll() is not None, 120, federation)
    assert federation.running[name].returncode != 0
    assert not federation.says(name, CONNECTED)


def test_nodes_that_cannot_prove_themselves_are_refused(secured: Federation) -> None:
    joins(secured, "stranger", 0, "node-3")
    joins(secured, "wrong-authority", 0, "node-0", authority="others")
    secured.supernode("plain-text", 0, "--max-retries=1", security=("--insecure",))
    for name in ("stranger", "wrong-authority", "plain-text"):
        refused(secured, name)
    assert secured.says("wrong-authority", "certificate verify failed")
    plain = secured.flwr("run", EXAMPLE)  # whoever starts a run must speak TLS too
    assert plain.returncode != 0


def test_the_example_runs_to_its_end(secured: Federation, tmp_path: Path) -> None:
    for node in range(3):
        joins(secured, f"node-{node}", node, f"node-{node}")
    app = tmp_path / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("keys", "runs"))
    winner = app / "flower_mnist" / "digits.toml"
    winner.write_text(winner.read_text().replace("rounds = 20", "rounds = 2"))
    out = tmp_path / "run"
    started = secured.flwr("run", app, "--run-config", f'out="{out}"', connection=trusting(secured.folder))
    assert started.returncode == 0, started.stdout + started.stderr
    wait_for("two rounds", (out / "summary.json").exists, 300, secured)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [record["admitted"] for record in records] == [3, 3]
    assert all(0 < record["test_accuracy"] <= 1 for record in records)
