"""Cross-entropy in operations that `vmap` stacks itself.

It takes torch's own apart in Python at every call, and imports a package for symbolic algebra to do so, over a second.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """`F.cross_entropy` of each example or position with a class; None for any other, in a program, and on a GPU.

    There a compiler has torch's own as one kernel, and the gradient of picking a class would be a sum in any order.
    """
    whole = reduction != "none" or size_average is not None or reduce is not None
    classes = not target.is_floating_point() and input.dim() == target.dim() + 1 and input.dim() > 1
    if whole or weight is not None or label_smoothing or not classes or not input.is_cpu or is_in_torch_dispatch_mode():
        return None
    counted = target != ignore_index
    picked = input.log_softmax(1).gather(1, torch.where(counted, target, 0).unsqueeze(1)).squeeze(1)
    return torch.where(counted, -picked, 0.0)
