"""What this machine can do: `fedloom doctor`."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fedloom import __version__
from fedloom.report.columns import print_columns


def examine() -> dict[str, Any]:
    """Versions, devices, threads, memory, a compiler, and the optional extras."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    devices = ["cpu"]
    if accelerator is not None:
        devices += [f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())]
    compilers = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
    return {
        "fedloom": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "devices": devices,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 1,
        "memory": _memory(),
        "compiler": next((path for name in compilers if name and (path := shutil.which(name))), None),
        "data": os.environ.get("FEDLOOM_DATA", "FEDLOOM_DATA is not set"),
        "extras": _extras(),
    }


def _memory() -> dict[str, float | None]:
    """What the machine has, or what a container leaves of it."""
    gib = 2**30
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    except (AttributeError, ValueError, OSError):  # not every system tells
        return {"total_gib": None, "available_gib": None}
    limit, used = (_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    if limit is not None and limit < total:
        total, free = limit, min(free, limit - (used or 0))
    return {"total_gib": round(total / gib, 1), "available_gib": round(free / gib, 1)}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such limit, or "max"
        return None


def _extras() -> dict[str, dict[str, Any]]:
    """The optional extras of the package, what of them is missing, and the line that installs them."""
    extras: dict[str, dict[str, Any]] = {}
    for requirement in metadata.requires("fedloom") or []:
        found = re.match(r"([\w.-]+).*extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if found is None:
            continue
        package, extra = found.groups()
        state = extras.setdefault(extra, {"missing": [], "install": f"pip install 'fedloom[{extra}]'"})
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            state["missing"].append(package)
    return extras


def show(found: Mapping[str, Any]) -> None:
    """Print what was found, a line for each thing."""
    shown = {key: ", ".join(value) if isinstance(value, list) else str(value) for key, value in found.items()}
    shown["memory"] = f"{found['memory']['total_gib']} GiB, {found['memory']['available_gib']} GiB of it free"
    shown["compiler"] = found["compiler"] or "none found: torch.compile needs one, such as g++"
    del shown["extras"]
    for extra, state in found["extras"].items():
        missing = ", ".join(state["missing"])
        shown[f"extra {extra}"] = f"missing {missing}: {state['install']}" if missing else "installed"
    print_columns("this machine", shown)
