"""100,000 damaged files: every reader says what is wrong in one line, or reads the file; nothing else comes out.

    python benchmarks/fuzz/fuzz.py [COUNT] [--out FILE]

Each reader gets the same share. Its files are damaged and read in a process of its own, whose memory is limited: a
length that a header only claims must not be allocated, and a library that ends the process is seen.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve()
TESTS = HERE.parents[2] / "tests"
MEMORY = 4 << 30
"""Addresses that a process may take; the libraries alone reserve about half of it."""


def one(name: str, count: int) -> None:
    """Fuzz one reader, in this process, and print what became of its files."""
    sys.path[:0] = [str(TESTS), str(TESTS / "data")]
    import fuzzing

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    make = next(make for make in fuzzing.MADE if make.__name__ == name)
    with tempfile.TemporaryDirectory() as folder:
        seen = fuzzing.fuzz(make, Path(folder), count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"read": seen.read, "refused": seen.refused, "failures": seen.failures, "peak_mib": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=HERE.with_name("result.json"))
    parser.add_argument("--reader")
    given = parser.parse_args()
    if given.reader:
        one(given.reader, given.count)
        return
    sys.path[:0] = [str(TESTS), str(TESTS / "data")]
    import fuzzing

    names = [make.__name__ for make in fuzzing.MADE]
    share = -(-given.count // len(names))
    found, began = {}, time.perf_counter()
    for name in names:
        command = [sys.executable, str(HERE), str(share), "--reader", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        crashed = {"read": 0, "refused": 0, "failures": [f"exit code {done.returncode}: {done.stderr[-300:]}"]}
        found[name] = json.loads(done.stdout) if done.returncode == 0 else crashed
        print(f"{name}: {found[name]}", flush=True)
    result = {
        "inputs": sum(each["read"] + each["refused"] + len(each["failures"]) for each in found.values()),
        "failures": sum(len(each["failures"]) for each in found.values()),
        "seconds": round(time.perf_counter() - began),
        "python": platform.python_version(),
        "readers": found,
    }
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(bool(result["failures"]))


if __name__ == "__main__":
    main()
