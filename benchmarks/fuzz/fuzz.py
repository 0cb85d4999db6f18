"""100,000 damaged files: every reader says what is wrong in one line, or reads the file; nothing else comes out.

    python benchmarks/fuzz/fuzz.py [COUNT] [--out FILE]

Each reader gets the same share. Files are damaged and read in a process whose memory is limited: a length that a header
only claims must not be allocated, and a library that ends the process is seen.
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
from typing import Any

HERE = Path(__file__).resolve()
TESTS = HERE.parents[2] / "tests"
MEMORY = 4 << 30
"""Addresses that a process may take; the libraries alone reserve about half of it."""


def readers() -> list[Any]:
    sys.path[:0] = [str(TESTS), str(TESTS / "data")]
    import fuzzing

    return list(fuzzing.MADE)


def work(share: int) -> None:
    """Fuzz every reader, in this process; a line for each says what became of its files."""
    import fuzzing

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for make in readers():
        with tempfile.TemporaryDirectory() as folder:
            seen = fuzzing.fuzz(make, Path(folder), share)
        found = {"read": seen.read, "refused": seen.refused, "failures": seen.failures}
        print(json.dumps([make.__name__, found]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=HERE.with_name("result.json"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = [make.__name__ for make in readers()]
    share = -(-given.count // len(names))
    if given.work:
        work(share)
        return
    began = time.perf_counter()
    command = [sys.executable, str(HERE), str(given.count), "--work"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    if len(found) < len(names):
        crashed = f"the process ended with exit code {done.returncode}"
        found[names[len(found)]] = {"read": 0, "refused": 0, "failures": [crashed]}
    failures = sum(len(each["failures"]) for each in found.values())
    result = {
        "inputs": sum(each["read"] + each["refused"] + len(each["failures"]) for each in found.values()),
        "failures": failures,
        "seconds": round(time.perf_counter() - began),
        "python": platform.python_version(),
        "readers": found,
    }
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{result['inputs']:,} damaged files of {len(found)} kinds, {failures} failures")
    sys.exit(failures > 0 or len(found) < len(names))


if __name__ == "__main__":
    main()
