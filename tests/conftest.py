"""Settings every test shares: modules beside the tests can be imported, and hypothesis repeats itself."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# tests run side by side, one thread each; what they start inherits it
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Only where tests are run: the process that hands them out has its workers wait, and imports neither."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return

    import torch
    from hypothesis import HealthCheck, settings

    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background: what is tested is Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # pytest listens to every logger that keeps its records to itself: torch would write down each tensor it traces
    logging.getLogger("torch.__trace").propagate = True
    settings.register_profile(
        "fedloom",
        deadline=None,  # the first call of a kernel is slow
        derandomize=True,
        database=None,
        max_examples=40,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("fedloom")
    gc.disable()  # while modules and tests are collected, of which nothing is thrown away


def pytest_collection_finish() -> None:
    gc.freeze()  # nor is it looked through again
    gc.enable()


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture, half of a small run's time, is made and left as an empty file: for tests of what else there is."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: Path(path).touch())
