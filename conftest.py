"""What pytest does not import where an optional package is missing; tests that need it say so and are skipped."""

from __future__ import annotations

from importlib.util import find_spec

_FLOWER = ["src/fedloom/flower/*", "tests/flower/one_room.py", "tests/flower/warm.py", "tests/flower/deployed/*"]
collect_ignore_glob = [] if find_spec("flwr") else _FLOWER
