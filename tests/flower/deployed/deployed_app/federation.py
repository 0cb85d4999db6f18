"""What both apps know, and the test that compares them with a simulation: the task, the data, the algorithms."""

from __future__ import annotations

import torch
from algorithm_table import CONSTRUCTORS, WRAPPED
from small_federations import classification, linear

SIZES = (30, 18, 45)
DATA = classification(SIZES, dtype=torch.float32)
OPTIONS = {"cohort": 2, "batch_size": 8, "epochs": 2, "seed": 3}
ALGORITHMS = {
    name.split("-")[0] if not name.startswith("fedglad") else "fedglad": make
    for name, make in [*reversed(CONSTRUCTORS), WRAPPED[1]]
    if name != "central"
}
"""One of each constructor, the first of its rows in the table; and FedGLAD around FedAvg."""

TASK = linear()
