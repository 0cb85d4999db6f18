"""Numbers on their way from the device to the host: one transfer, awaited only when somebody reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """Named values in one piece: those on a device as one float64 vector, ready for the journey."""

    names: list[str]
    flat: Tensor | None
    shapes: dict[str, torch.Size]  # of what lies in `flat`, in its order
    here: dict[str, Tensor | float]  # what is on the host already


def pack(values: Mapping[str, Tensor | float]) -> Packed:
    away = {name: value for name, value in values.items() if isinstance(value, Tensor) and value.is_cuda}
    here = {name: value for name, value in values.items() if name not in away}
    flat = torch.cat([value.detach().to(torch.float64).flatten() for value in away.values()]) if away else None
    return Packed(list(values), flat, {name: value.shape for name, value in away.items()}, here)


class Readings:
    """Tensors by name, as float64 on the host once `read` is called."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed
        self._found: dict[str, Tensor] | None = None
        self._arrived: torch.cuda.Event | None = None
        if packed.flat is not None:
            self._host = torch.empty(packed.flat.shape, dtype=packed.flat.dtype, pin_memory=True)
            self._host.copy_(packed.flat, non_blocking=True)
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
        for name, shape in self._packed.shapes.items():
            found[name] = self._host[start : start + shape.numel()].reshape(shape)
            start += shape.numel()
        for name, value in self._packed.here.items():
            found[name] = torch.as_tensor(value, dtype=torch.float64)
        self._found = {name: found[name] for name in self._packed.names}
        return self._found


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; a copy from the host to a GPU does not wait for what the GPU is doing."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
