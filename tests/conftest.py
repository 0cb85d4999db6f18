"""Settings every test shares: modules beside the tests can be imported, and hypothesis repeats itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
