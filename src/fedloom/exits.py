"""How the program ends: one line on stderr, and the exit code that belongs to it."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from fedloom.errors import Damaged, Diverged, FedloomError
from fedloom.interruption import SIGNALS, heard
from fedloom.launched import by_torchrun

MISTAKE, DAMAGED, DIVERGED, INTERRUPTED = 2, 3, 4, 130


@contextmanager
def answered() -> Iterator[None]:
    """A mistake ends the program with its line and its code, and a warning is one line."""
    try:
        with _one_line_warnings():
            yield
    except Diverged as error:
        fail(str(error), DIVERGED)
    except Damaged as error:
        fail(str(error), DAMAGED)
    except FedloomError as error:
        fail(str(error), MISTAKE)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
    except MemoryError as error:
        fail(f"memory: expected enough of it, got none left: {error or 'ask for less'}", MISTAKE)
    except OSError as error:
        fail(_refused(error), MISTAKE)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # the exceptions of click, which typer brings under one name or another
        context = getattr(error, "ctx", None)
        hint = f" (try: {context.command_path} --help)" if context else ""
        fail(error.format_message() + hint, getattr(error, "exit_code", MISTAKE))


@contextmanager
def interruptible(out: Path, goes_on: str) -> Iterator[None]:
    """SIGINT and SIGTERM end the command with what the interrupted says of itself, and the exit code for it.

    What says nothing, such as a picture that is being drawn, is told by what `out` holds, and by how that `goes_on`;
    so is a disk that refuses, such as a full one.
    """
    try:
        with nullcontext() if by_torchrun() else heard():  # torchrun has signals of its own
            yield
    except KeyboardInterrupt as stop:
        fail(str(stop) or f"interrupted{_kept(out, goes_on) or ' before the first round'}", INTERRUPTED)
    except OSError as error:
        kept = _kept(out, f"put that right, then {goes_on}")
        fail(f"{_refused(error)}{kept}", MISTAKE)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Warnings as lines on stderr, each once, without the place in the source that raised them."""
    told: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        line = " ".join(str(message).split())
        if line not in told:
            print(f"fedloom: {line}", file=sys.stderr)
        told.add(line)

    before, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = before


def _refused(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _kept(out: Path, goes_on: str) -> str:
    from fedloom.rundir import METRICS

    return f"; what ran is kept in {out}: {goes_on}" if any(out.rglob(METRICS)) else ""


def fail(message: str, code: int) -> NoReturn:
    print(f"fedloom: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def unheard() -> None:
    """From here on the process does nothing but end: a signal would only change its exit code."""
    for number in () if by_torchrun() else SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # An interrupt that left an exec() is remembered until the next one, and Python would end itself by SIGINT whatever
    # the exit code. A constant is enough to forget it; nothing from outside is evaluated.
    eval("None")
