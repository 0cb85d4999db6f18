"""What both apps know, and the test that compares them with a simulation: the task, the data, the algorithms."""

from __future__ import annotations

import torch
from algorithm_table import CONSTRUCTORS, WRAPPED
from small_federations import classification

import fedloom as fl

DATA = classification((14, 10, 20), dtype=torch.float32)
OPTIONS = {"cohort": 2, "batch_size": 8, "epochs": 2, "seed": 3}
ALGORITHMS = {
    name.split("-")[0] if not name.startswith("fedglad") else "fedglad": make
    for name, make in [*reversed(CONSTRUCTORS), WRAPPED[1]]
    if name != "central"
}
"""One of each constructor, the first of its rows in the table; and FedGLAD around FedAvg."""

EQUAL = tuple(name for name in ALGORITHMS if name != "scaffold")
"""Those that one run trains; SCAFFOLD has a run of its own, whose server is killed."""

TASK = fl.Task(model=lambda: torch.nn.Linear(6, 4, bias=False))
"""One leaf: every leaf is two more of Flower's requests at each of a message's stations."""
