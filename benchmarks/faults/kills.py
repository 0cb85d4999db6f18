"""Kill runs at random moments and resume them until they end: `python benchmarks/faults/kills.py --kills 200`.

A run is killed with SIGKILL, which nobody can hear, resumed with `fedloom resume`, killed again, and so on until it
comes to its end; or, with `--signal TERM`, asked to leave, and how long it then takes is noted. Its last state, its
metrics but for the seconds, and its summary's figures must be those of a run that nobody disturbed. Every child is a
process of its own, forked from this one so that it need not import torch anew.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import signal
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

FAMILIES = {
    "fedavg": ('{ name = "fedavg", client_lr = 0.1 }', "uniform"),
    "fedadam": ('{ name = "fedadam", client_lr = 0.1, server_lr = 0.01 }', "uniform"),
    "scaffold": ('{ name = "scaffold", client_lr = 0.1 }', "uniform"),
    "fedadp": ('{ name = "fedadp", client_lr = 0.1 }', "uniform"),
    "adaptive clipping": ('{ name = "fedavg", client_lr = 0.1, adaptive_clip = { initial = 0.1 } }', "uniform"),
    "attention sampling": ('{ name = "fedavg", client_lr = 0.1 }', "attention"),
}

EXPERIMENT = """
name = "killed"
rounds = {rounds}
cohort = 4
steps = 2
batch_size = 10
sampler = "{sampler}"
data = {{ name = "digits", partition = "dirichlet", clients = 30, alpha = 0.3 }}
model = {{ name = "logistic" }}
algorithms = [{algorithm}]
executor = "loop"
threads = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--signal", choices=("KILL", "TERM", "INT"), default="KILL")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    asked = parser.parse_args()
    preload()
    with tempfile.TemporaryDirectory(prefix="fedloom-kills-") as folder:
        sent = signal.Signals[f"SIG{asked.signal}"]
        found = kill_all(Path(folder), asked.kills, asked.rounds, random.Random(asked.seed), sent)
    command = shlex.join(["python", "benchmarks/faults/kills.py", *sys.argv[1:]])
    found = {"command": command, "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), **found}
    text = json.dumps(found, indent=2)
    print(text)
    if asked.out is not None:
        asked.out.write_text(text + "\n")
    sys.exit(1 if found["differing"] else 0)


def preload() -> None:
    """What children would import; nothing is computed here, so that nothing is shared but code."""
    import matplotlib.pyplot  # noqa: F401

    import fedloom.cli
    import fedloom.experiments.build
    import fedloom.experiments.runner
    import fedloom.simulation  # noqa: F401
    from fedloom.report import plots

    plots.write_png = lambda figure, path: None  # a picture takes longer than the run that is to be killed


def kill_all(
    folder: Path, kills: int, rounds: int, draw: random.Random, sent: signal.Signals = signal.SIGKILL
) -> dict[str, Any]:
    """Runs of all families in turn, each killed until it ends, until there were enough kills."""
    files, expected, longest = {}, {}, {}
    for name, (algorithm, sampler) in FAMILIES.items():
        files[name] = folder / f"{name}.toml"
        files[name].write_text(EXPERIMENT.format(rounds=rounds, algorithm=algorithm, sampler=sampler))
        began = time.monotonic()
        assert wait(start("run", files[name], folder / f"{name}, undisturbed")) == 0, "an undisturbed run failed"
        longest[name] = time.monotonic() - began
        expected[name] = outcome(folder / f"{name}, undisturbed")
    killed = dict.fromkeys(FAMILIES, 0)
    runs, differing, writing, early, leaving = 0, [], 0, 0, []
    while sum(killed.values()) < kills:
        name = list(FAMILIES)[runs % len(FAMILIES)]
        out = folder / f"{name}, {runs}"
        for attempt in count():
            begun = (out / "config.toml").exists()
            child = start("resume", out) if begun else start("run", files[name], out)
            time.sleep(draw.uniform(0, (0.6 + 0.05 * attempt) * longest[name]))  # the machine may be slower by now
            os.kill(child, sent)  # one that has ended waits for us, and does not mind
            began = time.monotonic()
            code = wait(child)
            if code == 0:
                break
            seconds = time.monotonic() - began
            assert code == -sent or (code == 130 and sent != signal.SIGKILL), (
                f"{name}: exit code {code}\n{(folder / 'log').read_text()[-2000:]}"
            )
            if (out / "summary.json").exists():
                break  # it had ended and was drawing its picture
            killed[name] += 1
            if code == 130:  # it heard the signal: the child has begun
                leaving.append(seconds)
            writing += bool(list(out.rglob(".*.new")) + list(out.rglob(".*.old")))
            early += not (out / "metrics.jsonl").exists()
        runs += 1
        if outcome(out) != expected[name]:
            differing.append(name)
        print(
            f"{sum(killed.values())} kills, {runs} runs ended, {len(differing)} differing", file=sys.stderr, flush=True
        )
    found = {"kills": sum(killed.values()), "by_family": killed, "runs": runs, "rounds_per_run": rounds}
    found |= {"while_writing": writing, "before_the_first_round": early, "differing": differing}
    if sent != signal.SIGKILL:
        found["seconds_to_leave"] = {
            "of": len(leaving),
            "median": round(statistics.median(leaving), 3),
            "longest": round(max(leaving), 3),
        }
    return found


def start(command: str, *arguments: Path) -> int:
    """`fedloom COMMAND ...` in a child; its id."""
    child = os.fork()
    if child:
        return child
    from fedloom.cli import main as fedloom

    out = arguments[-1]
    log = os.open(out.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    given = [str(arguments[0]), "--out", str(out)] if command == "run" else [str(out)]
    try:
        fedloom([command, *given, "--quiet"])
    except SystemExit as stop:
        os._exit(stop.code if isinstance(stop.code, int) else 1)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
    os._exit(1)


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome(out: Path) -> list[Any]:
    """All that a run comes to, but for clocks."""
    last = max((out / "checkpoints").iterdir())
    rounds = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    for record in (*rounds, summary["final"]):
        del record["seconds"]
    skeleton = json.loads((last / "state.json").read_text())["skeleton"]
    kept = [summary[key] for key in ("seed", "rounds", "final", "data_fingerprint")]
    hidden = [path.name for path in out.rglob(".*") if path.name != ".lock"]  # debris
    return [last.name, (last / "state.safetensors").read_bytes(), skeleton, rounds, kept, hidden]


def machine() -> str:
    import torch

    return (
        f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}"
    )


if __name__ == "__main__":
    main()
