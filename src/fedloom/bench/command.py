"""`fedloom bench`, once the request is known to be right."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from fedloom.bench import peers, report
from fedloom.bench.growth import grow
from fedloom.bench.measure import Effort, Tell, bench, default_device, machine
from fedloom.bench.request import Request
from fedloom.bench.trials import compare_trials
from fedloom.bench.workloads import WORKLOADS
from fedloom.experiments.build import check_device


def run(request: Request, as_json: bool = False) -> None:
    """Measure what was asked for, and print a table or one JSON object."""
    check_device(request.device)
    device = default_device() if request.device is None else torch.device(request.device)
    if request.out is not None:
        request.out.mkdir(parents=True, exist_ok=True)
    with report.stages() as tell:
        found = _measure(request, device, tell)
    console = report.console()
    picture = None if request.out is None else request.out / f"growth-{request.growth}.png"
    if picture is not None:
        from fedloom.bench.picture import growth_picture

        growth_picture(found, picture)
    if as_json:
        json.dump(found, sys.stdout, indent=2)
        print()
    elif request.growth is not None:
        report.print_growth(found, console)
    elif request.trials:
        report.print_trials(found, console)
    else:
        report.print_bench(found, console)
        if request.peers:
            report.print_peers(found["peers"], console)
    if picture is not None and not as_json:
        print(f"picture: {picture}")


def _measure(request: Request, device: torch.device, tell: Tell) -> dict[str, Any]:
    if request.growth is not None:
        return grow(request.growth, request.executors[0], device, request.rounds, request.quick, tell)
    if request.trials:
        names = request.workloads or ("W1",)
        effort = Effort.of(device, request.rounds, request.quick).share(12 * len(names))
        trials = []
        for name in names:
            tell(f"{name}: stacked and apart")
            for found in compare_trials(WORKLOADS[name], request.executors[0], device, effort):
                report.tell_trials(found)
                trials.append(found)
        return {**machine(device), "quick": request.quick, "trials": trials}
    found = bench(
        request.workloads, request.executors, device, request.rounds, request.quick, tell, report.tell_workload
    )
    if request.peers:
        timed = [row["workload"] for row in found["workloads"]]
        found["peers"] = peers.measure(timed, request.rounds, device.type, request.quick, tell)
    return found
