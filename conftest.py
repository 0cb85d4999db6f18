"""What pytest does not import: a process of its own, and where an optional package is missing what needs it."""

from __future__ import annotations

from importlib.util import find_spec

_FLOWER = ["src/fedloom/flower/*", "tests/flower/one_room.py", "tests/flower/deployed/*"]
collect_ignore_glob = ["tests/flower/warm.py", *([] if find_spec("flwr") else _FLOWER)]
