"""Timing whole rounds: ours through `fl.simulate`, the plain loop beside it, the peak of memory of each."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import platform
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import fedloom as fl
from fedloom import random
from fedloom.bench.plain import PlainLoop
from fedloom.bench.workloads import ON_A_CPU, SEED, WORKLOADS, Workload
from fedloom.errors import OutOfMemory

BUDGET = 90.0
"""Seconds of measured rounds, all workloads together; starting, compiling and warming up come on top."""
CLOSE = 1.2
"""`auto` is right when what it chose takes at most this many times as long as the fastest."""

SPARE = 4
"""More rounds than a run can be ahead of its records."""

Tell = Callable[[str], None]
Precision = list[tuple[Any, str, Any]]


@dataclass(frozen=True)
class Effort:
    """How long to measure: `rounds` when given, else as many as fit `budget` seconds, at least two."""

    budget: float = BUDGET
    rounds: int | None = None
    warm: int = 2  # rounds before the measured ones, the first among them
    most: int = 200

    @staticmethod
    def of(device: torch.device, rounds: int | None = None, quick: bool = False) -> Effort:
        if quick:
            return Effort(rounds=rounds or 2, warm=1)
        if device.type == "cpu":
            return Effort(rounds=rounds)
        return Effort(rounds=rounds, warm=3, most=1000)  # compiled twice where sizes vary, then captured

    def share(self, parts: int) -> Effort:
        return replace(self, budget=self.budget / parts)

    def fitting(self, seconds: float) -> int:
        """How many rounds of this length to measure.

        >>> Effort(budget=10.0).fitting(1.5), Effort(budget=10.0).fitting(60.0), Effort(rounds=7).fitting(60.0)
        (6, 2, 7)
        """
        return self.rounds or min(self.most, max(2, int(self.budget / max(seconds, 1e-9))))


@dataclass(frozen=True)
class Timing:
    """Seconds of one round, in `seconds`, and how it came about."""

    seconds: float
    rounds: int
    median_seconds: float
    wall_seconds: float  # the whole stretch of measured rounds, divided by their number
    first_seconds: float
    start_seconds: float  # before the first round
    memory_mib: float | None


class _Clock:
    """A callback that notes when rounds end, decides after the warm-up how many to measure, and ends the run.

    On an accelerator the next round is under way when a round's record is there, and waiting for each would hide what
    running ahead gains: it waits in the warm-up and at the end, and the stretch between is what counts. Both times it
    waits for what has been begun, as far ahead at the end as at the start: hence the rounds the run has to spare.
    """

    def __init__(self, effort: Effort, device: torch.device) -> None:
        self.effort, self.device = effort, device
        self.rounds, self.left = 0, math.inf
        self.marks: list[float] = []
        self.first = self.start = math.nan
        self.precision: Precision = []
        self.began = self.warmed = time.perf_counter()

    def __call__(self, record: dict[str, Any]) -> bool:
        self.rounds += 1
        if self.rounds <= self.effort.warm:
            self._warm(record, time.perf_counter())
            return False
        self.left -= 1
        if self.left == 0:
            synchronize(self.device)
        self.marks.append(time.perf_counter())
        return self.left <= 0

    def _warm(self, record: dict[str, Any], told: float) -> None:
        synchronize(self.device)
        now = time.perf_counter()
        if self.rounds == 1:
            seconds = float(record.get("seconds") or 0.0)
            self.first, self.start = seconds + now - told, max(0.0, told - seconds - self.began)
        if self.rounds == self.effort.warm:
            self.left = self.effort.fitting(self.first if self.rounds == 1 else now - self.warmed)
            self.precision = precision()
            self.marks = [now]
        self.warmed = now

    def timing(self, memory: float | None, waited: bool) -> Timing:
        """The median where every round was waited for; else the stretch, divided by the rounds in it."""
        rounds = len(self.marks) - 1
        median = statistics.median(end - start for start, end in pairwise(self.marks))
        wall = (self.marks[-1] - self.marks[0]) / rounds
        return Timing(median if waited else wall, rounds, median, wall, self.first, self.start, memory)


def measure_ours(
    workload: Workload, data: fl.FederatedData, executor: str, device: torch.device, effort: Effort
) -> tuple[dict[str, Any], Precision]:
    """The executor's timing and what it was resolved to; and the precision of float32 that it ran with."""
    asked: dict[str, Any] = {"asked": executor}
    with _peak(device) as peak, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot run as asked is in `why`
        clock = _Clock(effort, device)
        try:
            history = fl.simulate(
                workload.task(),
                data,
                workload.algorithm(),
                rounds=effort.warm + (effort.rounds or effort.most) + SPARE,
                executor=executor,
                device=device,
                callbacks=[peak.look_at_children, clock],
                **workload.settings(),
            )
        except (OutOfMemory, torch.OutOfMemoryError):  # in a round, or where the data are put
            nothing = dict.fromkeys(Timing.__dataclass_fields__)
            return {**asked, "executor": None, "chunk": None, "why": "out of memory", **nothing}, []
    resolved = {key: history.resolved.get(key) for key in ("executor", "chunk", "why", "program", "program_seconds")}
    return {**asked, **resolved, **asdict(clock.timing(peak.mib(), waited=device.type == "cpu"))}, clock.precision


def measure_plain(workload: Workload, data: fl.FederatedData, device: torch.device, effort: Effort) -> Timing | None:
    """The plain loop's timing, every round waited for; None where the device's memory is too small even for it."""
    with _peak(device) as peak, random.generator_kept():
        torch.manual_seed(SEED)
        clock = _Clock(effort, device)
        done = False
        try:
            loop = PlainLoop(
                workload.model(), data, workload.cohort, workload.batch_size, workload.client_lr, device=device
            )
            while not done:
                began = time.perf_counter()
                loop.round()
                synchronize(device)
                done = clock({"seconds": time.perf_counter() - began})
        except torch.OutOfMemoryError:
            return None
    return clock.timing(peak.mib(), waited=True)


def bench(
    workloads: Sequence[str] | None = None,
    executors: Sequence[str] = ("auto",),
    device: torch.device | None = None,
    rounds: int | None = None,
    quick: bool = False,
    tell: Tell = lambda stage: None,
    done: Callable[[dict[str, Any]], None] = lambda workload: None,
) -> dict[str, Any]:
    """Every workload by every executor and by the plain loop, with the ratios; `report` says what the keys mean.

    `done` is told of each workload when it has been measured.
    """
    device = device or default_device()
    if workloads is None:
        workloads = tuple(WORKLOADS) if device.type == "cuda" else ON_A_CPU
    effort = Effort.of(device, rounds, quick).share(len(workloads) * (1 + len(executors)))
    found = []
    for name in workloads:
        workload = WORKLOADS[name]
        if quick:  # nobody beside the cohort: a population's rows take longer to make than to train on
            workload = replace(workload, population=workload.cohort)
        found.append(_compare(workload, executors, device, effort, tell))
        done(found[-1])
    return {**machine(device), "quick": quick, "workloads": found}


def _compare(
    workload: Workload, executors: Sequence[str], device: torch.device, effort: Effort, tell: Tell
) -> dict[str, Any]:
    tell(f"{workload.name}: making the data")
    data = workload.data().to(device)
    ours, settled = [], Precision()
    for executor in executors:
        tell(f"{workload.name}: fedloom, {executor}")
        measured, used = measure_ours(workload, data, executor, device, effort)
        ours.append(measured)
        settled = settled or used
    tell(f"{workload.name}: the plain loop")
    with same_precision(settled):  # it compiles nothing: two rounds are warm enough
        plain = measure_plain(workload, data, device, replace(effort, warm=min(effort.warm, 2)))
    for measured in ours:
        measured["ratio"] = plain.seconds / measured["seconds"] if plain and measured["seconds"] else None
    model = workload.model()
    return {
        "workload": workload.name,
        "about": workload.about,
        "parameters": sum(leaf.numel() for leaf in model.parameters() if leaf.requires_grad),
        "population": workload.population,
        "cohort": workload.cohort,
        "steps": workload.steps,
        "batch_size": workload.batch_size,
        "plain": asdict(plain) if plain else None,
        "ours": ours,
        "auto": _judge_auto(workload, data, ours, device) if len(executors) > 1 else None,
    }


def _judge_auto(
    workload: Workload, data: fl.FederatedData, ours: Sequence[dict[str, Any]], device: torch.device
) -> dict[str, Any] | None:
    """What `auto` chose, the fastest of those measured, and whether the choice is as fast (None: not measured)."""
    timed = [measured for measured in ours if measured["seconds"] is not None]
    if not timed:
        return None
    auto = next((measured for measured in ours if measured["asked"] == "auto"), None)
    if auto is None:  # one round tells what it chooses
        run = fl.simulate(workload.task(), data, workload.algorithm(), rounds=1, device=device, **workload.settings())
        chosen = run.resolved.get("executor")
        auto = next((measured for measured in timed if measured["executor"] == chosen), None)
    else:
        chosen = auto["executor"]
    fastest = min(timed, key=lambda measured: measured["seconds"])
    close = None if auto is None or auto["seconds"] is None else auto["seconds"] <= CLOSE * fastest["seconds"]
    return {"chose": chosen, "fastest": fastest["executor"], "within_20_percent": close}


def default_device() -> torch.device:
    """The accelerator where there is one."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def machine(device: torch.device) -> dict[str, Any]:
    """What was measured with what."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {
        "fedloom": fl.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(device),
        "device_name": name,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 1,
    }


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def precision() -> Precision:
    """How float32 products are computed on CUDA (TF32 or not), as (where, attribute, value)."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(cudnn, "conv"):
        return [(place, "fp32_precision", place.fp32_precision) for place in (matmul, cudnn.conv, cudnn.rnn)]
    return [(place, "allow_tf32", place.allow_tf32) for place in (matmul, cudnn)]  # torch 2.8


@contextmanager
def same_precision(wanted: Precision) -> Iterator[None]:
    """Inside, float32 products are computed as `wanted`, which `precision` told of another place."""
    before = precision()
    try:
        _set(wanted)
        yield
    finally:
        _set(before)


def _set(wanted: Precision) -> None:
    for place, attribute, value in wanted:
        if getattr(place, attribute) != value:
            setattr(place, attribute, value)


class _Peak:
    """The most memory in use inside a block: on CUDA the device's, else this process's and its children's."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.children = device, 0.0
        self.inside: float | None = None

    def look_at_children(self, record: dict[str, Any]) -> None:
        """A callback: what worker processes have used is known only while they live."""
        if record["round"] == 0 and self.device.type != "cuda":
            self.children = sum(_kib(process) or 0.0 for process in _children()) / 1024

    def mib(self) -> float | None:
        return None if self.inside is None else round(self.inside + self.children, 1)


@contextmanager
def _peak(device: torch.device) -> Iterator[_Peak]:
    gc.collect()
    peak = _Peak(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError, AttributeError):  # what was freed goes back, or it would count for what comes next
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):  # Linux forgets the peak; elsewhere it is the whole process's so far
            Path("/proc/self/clear_refs").write_text("5")
    yield peak
    if device.type == "cuda":
        peak.inside = torch.cuda.max_memory_allocated(device) / 2**20
    else:
        kib = _kib(Path("/proc/self")) or _resident_kib()
        peak.inside = None if kib is None else kib / 1024


def _kib(process: Path) -> float | None:
    """A process's peak of resident memory."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", (process / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return float(found[1]) if found else None


def _children() -> list[Path]:
    own, found = os.getpid(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == own:
                found.append(process)
    return found


def _resident_kib() -> float | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform == "darwin" else float(peak)
