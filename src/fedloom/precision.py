"""How exactly a GPU multiplies matrices in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("high", "highest", "bfloat16")
"""Of training on a GPU: matrix products in TensorFloat-32 or float32, or forward and backward in bfloat16."""


@contextmanager
def tensor_float(wanted: bool) -> Iterator[None]:
    """Matrix products of float32 in TensorFloat-32, or not; as before afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if wanted else "highest")
    torch.backends.cudnn.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
