"""The processes that share a run: under `torchrun` several, otherwise this one alone."""

from __future__ import annotations

import atexit
import json
import os
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fedloom import launched


@dataclass(frozen=True)
class Ranks:
    """Which process this is, of how many; every exchange between them goes through it."""

    rank: int = 0
    world: int = 1
    launched: bool = False  # by `torchrun`, be it as the only one
    restarted: bool = False  # after another rank, or this one, died
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

    def broadcast(self, own: Tensor) -> Tensor:
        """The first rank's tensor, on every rank; all have one of its shape."""
        if self.world > 1:
            from torch import distributed

            distributed.broadcast(own, 0)
        return own

    def gather_json(self, own: Any) -> list[Any]:
        """Every rank's plain value (numbers, strings, lists, dicts); as text, since unpickling trusts the sender."""
        if self.world == 1:
            return [own]
        text = torch.tensor(list(json.dumps(own).encode()), dtype=torch.uint8, device=self.device)
        return [json.loads(bytes(part.tolist()).decode()) for part in self.gather(text)]


ALONE = Ranks()


def gather_columns(ranks: Ranks, columns: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    """Every rank's columns, those of lower ranks first; a rank without rows has none of its own."""
    if ranks.world == 1:
        return columns
    described = {
        name: [str(parts[0].dtype).removeprefix("torch."), list(parts[0].shape[1:]), parts[0].device.type]
        for name, parts in columns.items()
        if parts
    }
    everything = {name: kind for kinds in ranks.gather_json(described) for name, kind in kinds.items()}
    gathered = {}
    for name, (dtype, shape, place) in everything.items():
        empty = torch.zeros(0, *shape, dtype=getattr(torch, dtype), device=ranks.device)
        own = torch.cat(columns[name]).to(ranks.device) if columns.get(name) else empty
        gathered[name] = [part if place == ranks.device.type else part.to(place) for part in ranks.gather(own)]
    return gathered


def current(device: torch.device) -> Ranks:
    """This process's place among those that `torchrun` started; alone where it did not."""
    if not launched.by_torchrun():
        return ALONE
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if not distributed.is_initialized():
        # its functions take the group of that moment for a default: imported later, by vmap, they would keep this one
        import_module("torch.distributed.nn.functional")
        store, rank, world = next(rendezvous("env://"))
        # after a restart the store still holds the addresses of those that died
        store = PrefixStore(f"fedloom/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=rank, world_size=world)
        atexit.register(_leave)
    return Ranks(
        distributed.get_rank(),
        distributed.get_world_size(),
        launched=True,
        restarted=launched.restart(),
        device=device,
    )


def _leave() -> None:
    """Before the interpreter ends: the group's threads end with the group, and later would abort the process."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """On a machine with several GPUs each rank has its own, unless one is named."""
    named = ":" in str(device)
    if device.type == "cuda" and not named and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return device
