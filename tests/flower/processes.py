"""A SuperLink and SuperNodes of Flower, as processes on this machine's loopback.

Flower starts a process for every run's ServerApp and for every message's ClientApp, most of whose time would go to
importing torch. Here those are forked from one that has imported it: the commands in `COMMANDS` are found first on the
path and hand their arguments over to `warm.py`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
SHIM = """#!{python} -IS
import json, os, socket, sys, time
with socket.socket(socket.AF_UNIX) as link:
    while link.connect_ex({path!r}):
        time.sleep(0.1)
    socket.send_fds(link, [b"."], [1, 2])
    link.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode())
    link.shutdown(socket.SHUT_WR)
    sys.exit((link.recv(1) or b"\\1")[0])
"""
COMMANDS = ("flwr", "flwr-serverapp", "flwr-clientapp")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Federation:
    """The processes; all of them end with `close`. Their words are in `folder`/*.log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.running = folder, free_port(), dict[str, subprocess.Popen[bytes]]()
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        door = folder / "warm.sock"
        for name in COMMANDS:
            (self.bin / name).write_text(SHIM.format(python=sys.executable, path=str(door)))
            (self.bin / name).chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{self.bin}:{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        }
        self.start("warm", sys.executable, HERE / "warm.py", door)

    def start(self, name: str, *command: Any) -> subprocess.Popen[bytes]:
        home = self.folder / f"home-{name}"
        home.mkdir(exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(part) for part in command],
                env=self.environment | {"FLWR_HOME": str(home)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.running[name]

    def superlink(self, *options: Any) -> None:
        self.start("superlink", BIN / "flower-superlink", "--host=127.0.0.1", f"--port={self.port}", *options)

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_for("the SuperLink", listens, 300, self)

    def supernode(self, name: str, partition: int, *options: Any) -> None:
        self.start(
            *(name, BIN / "flower-supernode", f"--superlink=127.0.0.1:{self.port}", "--host=127.0.0.1"),
            *(f"--port={free_port()}", f"--node-config=partition-id={partition} num-partitions=3", *options),
        )

    def flwr(self, *command: Any, connection: str) -> subprocess.CompletedProcess[str]:
        """A `flwr` command with this SuperLink as its default connection."""
        home = self.folder / "home-flwr"
        home.mkdir(exist_ok=True)
        address = f'address = "127.0.0.1:{self.port}"'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\n{address}\n{connection}\n')
        return subprocess.run(
            [self.bin / "flwr", *(str(part) for part in command)],
            env=self.environment | {"FLWR_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def says(self, name: str, words: str) -> bool:
        return words in (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End everything that was started here, what Flower started in sessions of its own too: by its environment."""
        for process in self.running.values():
            process.kill()
            process.wait()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.folder).encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:  # it has ended, or is somebody else's
                continue


def wait_for(what: str, ready: Callable[[], bool], seconds: float, federation: Federation) -> None:
    """Wait until it is ready; the processes' last words where it is not."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            logs = sorted(federation.folder.glob("*.log"))
            told = "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
            raise AssertionError(f"{what}: not there after {seconds:g} s\n{told}")
        time.sleep(0.2)
