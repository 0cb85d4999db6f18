"""SIGINT (Ctrl-C) and SIGTERM: while rounds run they are noted, and the run leaves where its state is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal came; whoever ran has left in order."""


class _Noted:
    """What the handler and the rounds share."""

    noting = False
    came = False


def check() -> None:
    """Raise `Interrupted` if a signal was noted: called between a round's chunks, and those of an evaluation."""
    if _Noted.came:
        raise Interrupted


@contextmanager
def heard() -> Iterator[None]:
    """Both signals raise `KeyboardInterrupt` inside, even where SIGINT was ignored at the start.

    A shell without job control starts its background jobs with SIGINT ignored. Ours may hear it: it loses nothing.
    """
    with _handled(SIGNALS):
        yield


@contextmanager
def noted() -> Iterator[None]:
    """A first signal inside is noted, for `check` to raise; a second one raises at once.

    Handlers of one's own stay in place, and so does a SIGINT that is ignored.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    with _handled([number for number, handler in usual.items() if signal.getsignal(number) == handler]):
        _Noted.noting, _Noted.came = True, False
        try:
            yield
            check()  # it came too late to be seen by the rounds
        finally:
            _Noted.noting = _Noted.came = False


def import_torch() -> None:
    """Import torch, and NumPy with it; a signal that comes meanwhile is raised afterwards.

    Broken off in the middle they swallow it, or leave modules that cannot be imported again.
    """
    with noted():
        import torch  # noqa: F401


@contextmanager
def _handled(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        numbers = ()  # only the main thread may have handlers
    before = {number: signal.signal(number, _note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _note(number: int, frame: FrameType | None) -> None:
    if _Noted.noting and not _Noted.came:
        _Noted.came = True
        return
    raise KeyboardInterrupt
