"""Numbers on their way from the device to the host: one transfer, awaited only when somebody reads them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Readings:
    """Tensors by name, as float64 on the host once `read` is called."""

    def __init__(self, values: Mapping[str, Tensor | float]) -> None:
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor) and value.is_cuda}
        self._here = {name: value for name, value in values.items() if name not in tensors}
        self._shapes = {name: value.shape for name, value in tensors.items()}
        self._order = list(values)
        self._found: dict[str, Tensor] | None = None
        self._arrived: torch.cuda.Event | None = None
        if tensors:
            flat = torch.cat([value.detach().to(torch.float64).flatten() for value in tensors.values()])
            self._host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
            self._host.copy_(flat, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> dict[str, Tensor]:
        """The values, in the order they were given; waits for the device where it has to."""
        if self._found is not None:
            return self._found
        if self._arrived is not None:
            self._arrived.synchronize()
        found: dict[str, Tensor] = {}
        start = 0
        for name, shape in self._shapes.items():
            found[name] = self._host[start : start + shape.numel()].reshape(shape)
            start += shape.numel()
        for name, value in self._here.items():
            found[name] = torch.as_tensor(value, dtype=torch.float64)
        self._found = {name: found[name] for name in self._order}
        return self._found


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; a copy from the host to a GPU does not wait for what the GPU is doing."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
