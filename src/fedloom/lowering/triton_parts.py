"""What all Triton kernels have in common: whether there are any, how they are compiled, how their work is cut.

Nothing of it is needed: without Triton or a CUDA device other forms are used. No atomics: every run has the same bits.
With TRITON_INTERPRET=1 in the environment Triton interprets its kernels on a CPU, slowly; so they are tested there.
"""

# Triton's decorators and its language are untyped, and a kernel is not Python that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

from inspect import signature
from typing import NamedTuple

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # another platform, or a build of torch for the CPU
    triton = tl = None


def available() -> bool:
    """Whether Triton is installed."""
    return triton is not None


def jit(kernel):
    """Compiled for each set of constants and strides, but not anew for sizes, whose divisors say nothing.

    What an address is computed from has to be a stride or a constant, or else it is not known to be aligned.
    """
    if triton is None:
        return kernel
    counts = ("rows", "image", "images", "width", "share", "clients", "splits")
    sizes = (*counts, "H", "W", "QH", "QW", "C", "OUT", "RUN", "B")
    free = [name for name, each in signature(kernel).parameters.items() if each.annotation is each.empty]
    return triton.jit(kernel, do_not_specialize=[name for name in sizes if name in free])


class Tiles(NamedTuple):
    """The tile of the result one program computes, the depth of one step of its sum, and how it is run."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3
    splits: int = 0  # of the sum; 0: as many as fill the device


def precision(dtype: torch.dtype) -> str:
    """How float32 is multiplied: as torch's matrix products are set to."""
    exact = dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return "ieee" if exact else "tf32"


def power(size: int, least: int, most: int) -> int:
    """The power of two at or above `size`, within bounds."""
    return max(least, min(most, 1 << max(size - 1, 0).bit_length()))


def processors(x: Tensor) -> int:
    """Of the device that x is on."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
