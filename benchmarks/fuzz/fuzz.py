"""100,000 damaged files: every reader says what is wrong in one line, or reads the file; nothing else comes out.

    python benchmarks/fuzz/fuzz.py [COUNT] [--out FILE]

Each reader gets the same share. Files are damaged and read in a process per reader whose memory and time are limited: a
length that a header only claims must not be allocated, and a library that ends the process, or never ends, is seen.
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


LEAST, EACH = 60.0, 0.02
"""Seconds that a reader's process may take, and more for each of its files."""


def readers() -> list[Any]:
    sys.path[:0] = [str(TESTS), str(TESTS / "data")]
    import fuzzing

    return list(fuzzing.MADE)


def work(name: str, share: int) -> None:
    """Fuzz one reader, in this process; a line says what became of its files."""
    make = next(make for make in readers() if make.__name__ == name)
    import fuzzing

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        seen = fuzzing.fuzz(make, Path(folder), share)
    print(json.dumps({"read": seen.read, "refused": seen.refused, "failures": seen.failures}))


def fuzzed(name: str, share: int) -> dict[str, Any]:
    """What became of a reader's files, in a process of its own."""
    command = [sys.executable, str(HERE), str(share), "--work", name]
    limit = LEAST + share * EACH
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"read": 0, "refused": 0, "failures": [f"the process had not ended after {limit:.0f} s"]}
    if done.returncode:
        return {"read": 0, "refused": 0, "failures": [f"the process ended with exit code {done.returncode}"]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=HERE.with_name("result.json"))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        work(given.work, given.count)
        return
    began = time.perf_counter()
    names = [make.__name__ for make in readers()]
    share = -(-given.count // len(names))
    found = {name: fuzzed(name, share) for name in names}
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
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
