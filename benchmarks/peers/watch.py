"""Running a command on a quiet machine, and what it and the rest of the machine used meanwhile. Linux only: /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
QUIET = 0.15
"""Cores that others may use without disturbing."""


@dataclass(frozen=True)
class Outcome:
    """What a command left: its output, its exit code, and its peak memory and other processes' cores until it spoke."""

    output: str
    code: int
    memory_mb: float
    others: float


def wait_until_quiet(patience: float = 30.0) -> float:
    """Waits until the machine has been idle for two seconds, at most `patience` seconds; the cores last seen busy."""
    until = time.monotonic() + patience
    while True:
        before = _busy()
        time.sleep(2)
        cores = (_busy() - before) / 2
        if cores < QUIET or time.monotonic() > until:
            return cores


def run(command: Sequence[str], env: dict[str, str], cores: int | None, spoken: str, limit: float) -> Outcome:
    """The command on so many cores, watched until a line begins with `spoken`, stopped after `limit` seconds."""
    pinned = None if cores is None else set(sorted(os.sched_getaffinity(0))[:cores])
    began, busy = time.monotonic(), _busy()
    process = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=None if pinned is None else lambda: os.sched_setaffinity(0, pinned),
    )
    lines: list[str] = []
    said = threading.Event()

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith(spoken):
                said.set()
        said.set()

    reader = threading.Thread(target=read)
    reader.start()
    memory, own, others = 0.0, {}, 0.0
    while not said.wait(0.5):
        tree = _tree(process.pid)
        memory = max(memory, sum(map(_memory_mb, tree)))
        own |= tree  # what has ended counts too
        others = (_busy() - busy - sum(own.values())) / (time.monotonic() - began)
        if time.monotonic() - began > limit:
            os.killpg(process.pid, signal.SIGKILL)
            lines.append(f"stopped after {limit:.0f} s\n")
            break
    try:
        process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    reader.join(10)  # what the process started may outlive it for a moment
    return Outcome("".join(lines), process.wait(), memory, max(0.0, others))


def _busy() -> float:
    """Seconds that the machine's cores have worked, or were kept from working by other machines on the same host."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, _read("/proc/stat").split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


def _tree(root: int) -> dict[int, float]:
    """The CPU seconds of a process and of each of its descendants that is alive."""
    seconds: dict[int, float] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _read(entry / "stat")):
            fields = stat.rsplit(")", 1)[1].split()
            seconds[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICK
            children[int(fields[1])].append(int(entry.name))
    found, todo = {}, [root]
    while todo:
        pid = todo.pop()
        if pid in seconds:
            found[pid] = seconds[pid]
        todo += children[pid]
    return found


def _memory_mb(pid: int) -> float:
    """The process's memory, its share of what is shared (PSS)."""
    lines = (line.split() for line in _read(f"/proc/{pid}/smaps_rollup").splitlines())
    return sum(int(words[1]) for words in lines if words[0] == "Pss:") / 1024


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # the process has ended
        return ""
