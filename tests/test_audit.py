"""What a whole session does beneath the surface, heard by Python's audit hooks: no unpickling, no network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys

heard = []

def listen(event, arguments):
    if event in ("pickle.find_class", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind"):
        heard.append([event, repr(arguments)[:200]])
    elif event == "socket.connect" and arguments[0].family.name in ("AF_INET", "AF_INET6"):
        heard.append([event, repr(arguments)[:200]])

sys.addaudithook(listen)

import shutil
from pathlib import Path
from fedloom import cli

def program(*arguments):
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        assert not stop.code, (arguments, stop.code)

out = Path(sys.argv[1])
run = out / "run"
one = "algorithms=[{ name = 'scaffold', client_lr = 0.1 }]"
program("run", "quickstart", "--set", "rounds=3", "--set", "seeds=[0]", "--set", one, "--out", run, "--quiet")
(run / "summary.json").unlink()
shutil.rmtree(run / "checkpoints" / "round-000003")
program("resume", run, "--quiet")
assert (run / "checkpoints" / "round-000003").is_dir()
program("report", run)
(out / "heard.json").write_text(json.dumps(heard))
"""


@pytest.mark.slow
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
