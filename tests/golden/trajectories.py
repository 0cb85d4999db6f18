"""Five rounds of every algorithm, as numbers: what they were when the file beside this one was written.

    python tests/golden/trajectories.py          # writes trajectories.json anew

That is done when an algorithm is added, or when one is meant to compute something else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from algorithm_table import COMPOSED, CONSTRUCTORS, SETTINGS, Row
from small_federations import classification

import fedloom as fl

FILE = Path(__file__).with_name("trajectories.json")
ROUNDS = 5
NUMBERS = ("train_loss", "test_loss", "mean_update_norm", "pseudo_gradient_norm")
ROWS: list[Row] = [
    *CONSTRUCTORS,
    *SETTINGS,
    *COMPOSED,
    ("fedglad", lambda: fl.fedglad(fl.fedavg(client_lr=0.1), gamma=0.5)),
    (
        "fedglad-universal",
        lambda: fl.fedglad(fl.fedadam(client_lr=0.1, server_lr=0.1), gamma=0.5, grouping="universal"),
    ),
]
"""Every algorithm, with its settings; FedGLAD around two of them."""


class TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 5), torch.nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def trajectory(make: Any) -> dict[str, Any]:
    """Of each round the losses and norms; after the last, the norm and two entries of every leaf; in float64."""
    history = fl.simulate(
        *(fl.Task(TwoLayers), classification([5, 8, 3, 9, 7, 4]), make(), ROUNDS, 4),
        epochs=2,
        batch_size=4,
        seed=11,
        executor="loop",
        dtype=torch.float64,
        eval_every=1,
    )
    rounds = {name: [record[name] for record in history.rounds] for name in NUMBERS}
    leaves = {
        name: [float(leaf.norm()), float(leaf.flatten()[0]), float(leaf.flatten()[-1])]
        for name, leaf in history.params.items()
    }
    return {**rounds, **leaves}


def main() -> None:
    torch.set_num_threads(1)
    lines = [f"{json.dumps(name)}: {json.dumps(trajectory(make))}" for name, make in ROWS]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
