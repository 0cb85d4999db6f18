"""The Triton kernels, interpreted on the CPU: a GPU's own tests are in `test_stacked_convolution.py` and others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the kernels themselves, in the other tests here")
@pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton, which PyTorch for a CPU lacks")
def test_every_kernel_interpreted_is_what_torch_computes() -> None:
    """In a process of its own: Triton decides when it is imported whether it interprets."""
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("interpreted.py"))]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout)
    assert len(errors) == 145
    assert {name: error for name, error in errors.items() if not error <= 1e-6} == {}
