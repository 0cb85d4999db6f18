"""Where a study's runs were trained, by which command, with what code: kept beside them, and told with the results."""

from __future__ import annotations

import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any

from fedloom.documents import read_json
from fedloom.rundir import write_json
from fedloom.versions import versions

MADE = "made.json"
"""In a study's folder: how its runs were trained, which is not how they are told."""


def made(out: Path) -> dict[str, Any]:
    """How the study was trained: the seconds of all runs, and by what and where the last of them was.

    With runs that were taken from other studies, the seconds, devices and commands of those studies too.
    """
    path = out / MADE
    return read_json(path) if path.exists() else {}


def remember(out: Path, line: str, device: str | None, started: float) -> None:
    """A stack of the study's runs has been trained by that command since `started`."""
    before = made(out)
    now = origin(device or "cpu")
    taken_from = before.get("device") if "trained_by" in before else None
    seconds = before.get("seconds", 0.0) + time.perf_counter() - started
    told = {"command": line, **now, "device": distinct(taken_from, now["device"]), "seconds": seconds}
    write_json(out / MADE, {**before, **told})


def take_over(out: Path, source: Path) -> None:
    """The study in whose folder the run was trained, and what trained that one's, are named beside this one's runs.

    Its seconds are counted whole, and once, however many of its runs are taken.
    """
    found = next((parent / MADE for parent in source.parents if (parent / MADE).exists()), None)
    if found is None or found.parent.resolve() == out.resolve():
        return
    there, here = read_json(found), made(out)
    lines = [*there.get("trained_by", []), *([there["command"]] if "command" in there else [])]
    known = here.get("trained_by", [])
    if set(lines) <= set(known):
        return
    noted = {
        **{name: there.get(name) for name in ("commit", "versions")},
        **here,
        "trained_by": list(dict.fromkeys([*known, *lines])),
        "device": distinct(here.get("device"), there.get("device")),
        "seconds": here.get("seconds", 0.0) + there.get("seconds", 0.0),
    }
    write_json(out / MADE, noted)


def origin(device: str) -> dict[str, Any]:
    """By what code, on which device, with which versions."""
    return {
        "commit": commit(),
        "device": ", ".join(_device_words(each) for each in device.split(", ")),
        "versions": versions(),
    }


def distinct(*devices: str | None) -> str:
    """Several devices in one line, each once.

    >>> distinct("cuda (NVIDIA H200)", None, "cpu, cuda (NVIDIA H200)")
    'cuda (NVIDIA H200), cpu'
    """
    return ", ".join(dict.fromkeys(device for each in devices if each for device in each.split(", ")))


@cache  # of what was imported, and a study asks after every stack
def commit() -> str | None:
    """The commit of the source tree this file is in; None where it is in none, or git is not there."""
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True, check=True, timeout=20)
        told = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip() or None


def _device_words(device: str) -> str:
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return device
