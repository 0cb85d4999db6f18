"""Has everything imported that Flower's commands need, and forks a child for each call of one of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import small_federations  # noqa: F401
from flwr.cli.app import app as flwr
from flwr.superlink.cli import flwr_serverapp
from flwr.supernode.cli import flwr_clientapp

import fedloom.flower  # noqa: F401

COMMANDS = {"flwr": flwr, "flwr-serverapp": flwr_serverapp, "flwr-clientapp": flwr_clientapp}


def serve(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that ended need no burial
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(64)
        while True:
            link, _ = door.accept()
            if not os.fork():
                door.close()
                answer(link)
            link.close()


def answer(link: socket.socket) -> None:
    """In the child: be the process that was asked for, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for own, theirs in zip((1, 2), socket.recv_fds(link, 1, 2)[1], strict=True):
        os.dup2(theirs, own)
    with link.makefile("rb") as asked:
        sys.argv, folder, environment = json.load(asked)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    code = 1
    try:
        COMMANDS[Path(sys.argv[0]).name]()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        link.sendall(bytes([code % 256]))
        os._exit(code)  # without taking torch apart, which takes longer than the training


if __name__ == "__main__":
    serve(sys.argv[1])
