"""What a whole session does beneath the surface, heard by Python's audit hooks: no unpickling, no network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys

heard = []

def listen(event, arguments):
    if event in ("pickle.find_class", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind"):
        heard.append([event, repr(arguments)[:200]])
    elif event == "socket.connect" and arguments[0].family.name in ("AF_INET", "AF_INET6"):
        heard.append([event, repr(arguments)[:200]])

sys.addaudithook(listen)

from pathlib import Path
import fedloom as fl
from fedloom import checkpoint, cli
from fedloom.rundir import RunDirectory

out = Path(sys.argv[1])
data = fl.load("digits", partition="dirichlet", clients=10, alpha=0.5)
task = fl.Task(lambda: fl.models.Logistic(64, 10))
fl.simulate(task, data, fl.scaffold(0.1), rounds=2, cohort=4, run_dir=out / "run")
saved = sorted((out / "run" / "checkpoints").glob("round-*"))
state = checkpoint.load(saved[-1])
params = next(part for part in (state.get("params"), state) if part)
fl.simulate(task, data, fl.scaffold(0.1), rounds=1, cohort=4, params=dict(params))
for arguments in (
    ["run", "quickstart", "--set", "rounds=2", "--set", "seeds=[0]", "--out", str(out / "quickstart"), "--quiet"],
    ["report", str(out / "run"), str(out / "quickstart")],
):
    try:
        cli.main(arguments)
    except SystemExit as stop:
        assert not stop.code, (arguments, stop.code)
(out / "heard.json").write_text(json.dumps(heard))
"""


def test_a_session_unpickles_nothing_and_opens_no_connection(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "heard.json").read_text()) == []


def test_the_hook_hears_what_it_listens_for(tmp_path: Path) -> None:
    """So that the silence above means something."""
    start, _, _ = SCRIPT.partition("from pathlib")
    acts = "import pickle, socket\npickle.loads(pickle.dumps(slice))\nsocket.socket().connect_ex(('127.0.0.1', 9))\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{start}\n{acts}\nprint(json.dumps([event for event, _ in heard]))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == ["pickle.find_class", "socket.connect"]
