"""The processes that share a run: under `torchrun` several, otherwise this one alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """Which process this is, of how many; every exchange between them goes through `gather`."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def gather(self, own: Tensor) -> list[Tensor]:
        """Every rank's tensor, in the order of ranks; they may differ in the length of their first axis."""
        if self.world == 1:
            return [own]
        from torch import distributed

        lengths = [torch.zeros(1, dtype=torch.int64, device=own.device) for _ in range(self.world)]
        distributed.all_gather(lengths, torch.tensor([len(own)], device=own.device))
        longest = max(int(length) for length in lengths)
        padded = own.new_zeros(longest, *own.shape[1:])
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        distributed.all_gather(parts, padded)
        return [part[: int(length)] for part, length in zip(parts, lengths, strict=True)]

    def gather_json(self, own: Any) -> list[Any]:
        """Every rank's plain value (numbers, strings, lists, dicts); as text, since unpickling trusts the sender."""
        if self.world == 1:
            return [own]
        text = torch.tensor(list(json.dumps(own).encode()), dtype=torch.uint8, device=self.device)
        return [json.loads(bytes(part.tolist()).decode()) for part in self.gather(text)]


ALONE = Ranks()
