"""What pytest leaves out where an optional package is missing."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["src/fedloom/flower/*"]
