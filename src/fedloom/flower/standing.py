"""Where a deployment stands between rounds, in a form that a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedloom import checkpoint
from fedloom.differences import difference
from fedloom.errors import FedloomError
from fedloom.resumption import Found
from fedloom.types import Params, PartState, State


@dataclass(frozen=True)
class Standing:
    """The global model and all that the server knows; what clients remember lies on their devices."""

    params: Params
    state: State
    sampling: PartState
    round: int = 0
    admitted: dict[int, int] = field(default_factory=dict)  # where clients remember: client -> its last round
    lost: dict[int, str] = field(default_factory=dict)  # client -> leaf, of those that became non-finite by training

    def to_dict(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "params": self.params,
            "state": checkpoint.state_to_dict(self.state),
            "sampler": self.sampling,
            "admitted": {str(client): round for client, round in sorted(self.admitted.items())},
            "lost": {str(client): leaf for client, leaf in self.lost.items()},
        }

    def restored(self, found: Found) -> Standing:
        """Where the run that was found stands; this one, before the first round, says which model is expected."""
        if found.state is None:
            return self
        value = found.value
        if "admitted" not in value:
            raise FedloomError(
                f"{found.state}: expected the state of a deployment, got a simulation's: choose another run_dir"
            )
        if wrong := difference(_shapes(self.params), _shapes(value["params"])):
            leaf, expected, got = wrong
            raise FedloomError(
                f"{found.state}, {leaf!r}: expected shape {expected}, as in the task's model, got {got}: "
                "give the task it was begun with, or choose another run_dir"
            )
        admitted = {int(client): round for client, round in value["admitted"].items()}
        lost = {int(client): leaf for client, leaf in value.get("lost", {}).items()}
        state = checkpoint.state_from_dict(value["state"])
        return Standing(value["params"], state, value["sampler"], value["round"], admitted, lost)


def _shapes(leaves: Params) -> dict[str, Any]:
    return {name: tuple(leaf.shape) for name, leaf in leaves.items()}
