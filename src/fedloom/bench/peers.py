"""Other libraries on the same workloads: the scripts are in a source checkout, beside the package, not in the wheel."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError

PLACE = Path("benchmarks") / "peers" / "compare.py"
WORKLOADS = ("W1", "W2", "W3", "W4")
"""Those that every peer can do."""


def script(checkout: Path | None = None) -> Path:
    """Where the comparison is; an error with what to do where it is not."""
    checkout = checkout or Path(__file__).resolve().parents[3]
    path = checkout / PLACE
    if not path.is_file():
        raise FedloomError(
            f"--peers: expected {PLACE} in a source checkout, got nothing at {path}: "
            "clone the repository and run `pip install -e .` in it"
        )
    return path


def measure(
    workloads: Sequence[str],
    rounds: int | None = None,
    device: str = "cpu",
    quick: bool = False,
    tell: Callable[[str], None] = lambda stage: None,
    path: Path | None = None,
) -> list[dict[str, Any]]:
    """What the script's `measure` says of every peer that is installed, on those of the workloads that peers have."""
    path = path or script()
    spec = importlib.util.spec_from_file_location("fedloom_peers_compare", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
        known = [name for name in workloads if name in WORKLOADS]
        count = rounds or (2 if quick else None)
        found: list[dict[str, Any]] = module.measure(known, None, count, device=device, wait=not quick, say=tell)
    finally:
        sys.path.remove(str(path.parent))
    return found
