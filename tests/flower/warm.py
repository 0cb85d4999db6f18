"""Has everything imported that a ClientApp needs, and forks a child for each call of `flwr-clientapp`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

import small_federations  # noqa: F401
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

import fedloom.flower
import fedloom.simulation  # noqa: F401


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
    with link.makefile("rb") as asked:
        sys.argv, environment = json.load(asked)
    os.environ.clear()
    os.environ.update(environment)
    try:
        flwr_clientapp()
    finally:
        os._exit(0)  # without taking torch apart, which takes longer than the training


if __name__ == "__main__":
    serve(sys.argv[1])
