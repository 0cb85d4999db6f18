"""What a device remembers between rounds (SCAFFOLD's c_k, FedDyn's q_k), on its own disk.

A row is made before the client knows whether its reply is admitted. So it is kept beside the one it was made from,
under the number of its round, and the next order says which of the two counts. A server that goes on from its last
saved round asks for the older one; where that state is damaged, for the one before, so three rows are kept.
"""

from __future__ import annotations

from pathlib import Path

from fedloom import checkpoint, durable
from fedloom.data.places import user_cache
from fedloom.errors import FedloomError
from fedloom.flower.wire import Order
from fedloom.memory import RowStore
from fedloom.types import Params


class DeviceRows:
    """The rows of one client in one run, in `folder` or the user's cache."""

    def __init__(self, folder: Path | None, order: Order) -> None:
        root = user_cache() / "clients" if folder is None else folder
        self.path, self.order = root / order.run / f"client-{order.client:06d}", order

    def _round(self, round: int) -> Path:
        return self.path / f"round-{round:06d}"

    def store(self) -> RowStore:
        """The row to begin from; none before the client was first admitted."""
        if self.order.remembered < 0:
            return RowStore()
        kept = self._round(self.order.remembered)
        if not kept.exists():
            raise FedloomError(
                f"client {self.order.client}, round {self.order.round}: expected what it remembers of round "
                f"{self.order.remembered} in {kept}, got nothing: restore the folder, or start a new run"
            )
        return RowStore({self.order.client: checkpoint.load(kept)})

    def keep(self, row: Params) -> None:
        """Write the round's row; only it, the one it was made from, and the one before that stay.

        A row of the same round is there where a server goes on: its reply was never admitted.
        """
        durable.sweep(self.path)
        made_from = self._round(self.order.remembered)
        older = [old for old in self.path.glob("round-*") if _number(old) < self.order.remembered]
        stay = {made_from, *sorted(older, key=_number)[-1:]}
        for old in self.path.glob("round-*"):
            if old not in stay:
                durable.remove_folder(old)
        checkpoint.save(self._round(self.order.round), row)


def _number(row: Path) -> int:
    return int(row.name.removeprefix("round-"))
