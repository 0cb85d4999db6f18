"""Dropout's masks as an operator: one kernel on a GPU, which a compiler leaves whole.

Written out, the hash's whole numbers are folded into a compiler's own index arithmetic, which overflows where dropout's
result is written in another order than its input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedloom import random
from fedloom.lowering import triton_parts
from fedloom.lowering.operators import flat, leading, operator


def keep_mask(key: Tensor, site: int, shape: torch.Size, drop: float) -> Tensor:
    """`random.keep_mask` in the form that suits the key's device."""
    if not key.is_cuda:
        return random.keep_mask(key, site, shape, drop)
    mask: Tensor = torch.ops.fedloom.keep_mask(key, site, shape, drop)
    return mask


def _empty(key: Tensor, site: int, shape: Any, drop: float) -> Tensor:
    return key.new_empty((*leading(key, 0), *shape), dtype=torch.bool)


@operator(
    "fedloom::keep_mask", "(Tensor key, SymInt site, SymInt[] shape, float drop) -> Tensor", batched=1, fake=_empty
)
def _keep_mask(key: Tensor, site: int, shape: Any, drop: float) -> Tensor:
    lead, (key,) = flat(0, key)
    size = torch.Size(shape)
    if key.is_cuda and triton_parts.available() and 0 < drop < 1:
        from fedloom.kernels import kept

        masks = kept(key.contiguous(), random.offset(site), size.numel(), random.least_kept(drop))
    else:
        masks = torch.stack([random.keep_mask(each, site, size, drop) for each in key])
    return masks.reshape(*lead, *size)
