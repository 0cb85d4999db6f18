"""Settings every test shares: modules beside the tests can be imported, and hypothesis repeats itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# tests run side by side, one thread each; what they start inherits it
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

settings.register_profile(
    "fedloom",
    deadline=None,  # the first call of a kernel is slow
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedloom")


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's picture, half of a small run's time, is an empty file: for tests of what else a run leaves."""
    from fedloom.report import plots

    monkeypatch.setattr(plots, "write_png", lambda figure, path: Path(path).touch())
