"""What `torchrun` tells a process through its environment; without it, a process is the first and only one."""

from __future__ import annotations

import os


def by_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def first_rank() -> bool:
    """Whether this process writes and prints."""
    return not by_torchrun() or os.environ["RANK"] == "0"


def restart() -> bool:
    """Whether all processes were started again because one of them died."""
    return by_torchrun() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
