"""Pages whose code runs. `python docs/tools/pages.py docs/tutorial.md` runs a page and writes down what it prints.

- A `python` block runs in the namespace of those before it; a `bash` block runs in a shell.
- A block with a title, as in `toml title="my.toml"`, is a file of that name instead.
- A `text` block right after one that runs is what that one prints.

All of it happens in a folder of its own. A picture that the page shows and the code saves is kept beside the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```\n', re.MULTILINE | re.DOTALL
)
PRINTED = re.compile(r"\n```text\n(?P<printed>.*?)^```\n", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?")
PICTURE = re.compile(r"!\[[^\]]*\]\((?P<file>[\w.-]+\.png)\)")


@dataclass(frozen=True)
class Ran:
    """A block that ran: what it printed, and where in the page is what it is said to print."""

    line: int
    printed: str
    said: str | None
    place: tuple[int, int] | None


def run(page: Path, folder: Path) -> Iterator[Ran]:
    """Every block of a page in order, inside `folder`."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    for found in FENCE.finditer(text):
        language, title, code = found["language"], found["title"], found["code"]
        if title is not None:
            (folder / title).write_text(code, encoding="utf-8")
        elif language in ("python", "bash"):
            line = text.count("\n", 0, found.start()) + 2
            printed = _python(code, names, page, line, folder) if language == "python" else _bash(code, folder)
            said = PRINTED.match(text, found.end())
            yield Ran(line, printed, said and said["printed"], said and said.span("printed"))


def _python(code: str, names: dict[str, Any], page: Path, line: int, folder: Path) -> str:
    printed = io.StringIO()
    lines = "\n" * (line - 1) + code  # so that a traceback names the page's own line
    with contextlib.redirect_stdout(printed), contextlib.chdir(folder):
        exec(compile(lines, str(page), "exec"), names)
    return printed.getvalue()


def _bash(code: str, folder: Path) -> str:
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": programs, "COLUMNS": "100"}
    done = subprocess.run(["bash", "-euc", code], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{code.strip()}\nended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def shape(printed: str) -> str:
    """What is printed but for the numbers in it, and the spaces that line them up.

    >>> shape("FedAvg:   91.4%")
    'FedAvg: #%'
    """
    return re.sub(r"[ \t]+", " ", NUMBER.sub("#", printed)).strip()


def write(page: Path) -> None:
    """Run a page and put what it prints, and the pictures it saves, in the place of what is there."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for ran in reversed(list(run(page, Path(folder)))):
            if ran.place is not None:
                start, end = ran.place
                text = text[:start] + ran.printed.rstrip() + "\n" + text[end:]
        for picture in PICTURE.finditer(text):
            if (Path(folder) / picture["file"]).exists():
                shutil.copy(Path(folder) / picture["file"], page.parent / picture["file"])
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name))
