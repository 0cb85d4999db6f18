"""The four workloads: sizes, synthetic data, initial parameters, cohorts. All of it a function of fixed seeds.

Only numpy is needed, so that every peer's environment can read this file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
Data = tuple[np.ndarray, np.ndarray]

HOME = Path(os.environ.get("FEDLOOM_PEERS", "~/.cache/fedloom-peers")).expanduser()
"""Where environments, data and results are, never inside the repository."""


@dataclass(frozen=True)
class Workload:
    """In a round each of `cohort_size` clients goes once through its `examples`, in batches of `batch`, in order."""

    name: str
    model: str
    population: int
    examples: int
    cohort_size: int
    batch: int
    lr: float
    rounds: int
    """How many are timed unless asked otherwise; the first is reported apart."""
    checked_steps: int
    """How many local steps are compared: float32 rounding is amplified step by step, most of all by the CNN."""
    dropout: bool = True

    def cohort(self, round: int) -> list[int]:
        """The clients of a round, the same for every peer."""
        drawn = np.random.default_rng([11, round]).choice(self.population, self.cohort_size, replace=False)
        return [int(client) for client in drawn]

    def checked(self) -> Workload:
        """The same without chance, and with as many steps as float32 can be compared over."""
        return replace(self, dropout=False, examples=self.checked_steps * self.batch)

    def initial(self) -> Arrays:
        """The first model: zero for the regression, else uniform within 1 / sqrt(fan in)."""
        rng = np.random.default_rng(7)
        arrays, fan = {}, 1
        for name, shape in SHAPES[self.model].items():
            if len(shape) > 1:
                fan = int(np.prod(shape[1:]))  # a bias has its kernel's
            bound = np.float32(np.sqrt(256 if self.model == "lstm" else fan))
            drawn = rng.uniform(-1, 1, shape).astype(np.float32) / bound
            arrays[name] = np.zeros_like(drawn) if self.model == "regression" else drawn
        return arrays

    def load(self, folder: Path) -> Data:
        """(clients, examples, ...) features and targets; made on first use."""
        made = make(self.model, folder)
        x, y = (np.load(path, mmap_mode="r")[: self.population, : self.examples] for path in made)
        return np.array(x), np.array(y)


_SIZES = {
    # model, population, examples, cohort_size, batch, lr, rounds, checked_steps
    "W1": ("cnn", 100, 200, 10, 20, 0.1, 5, 1),
    "W2": ("regression", 1000, 100, 100, 10, 0.1, 10, 10),
    "W3": ("lstm", 100, 20, 10, 4, 0.5, 6, 5),
    "W4": ("cnn", 400, 200, 100, 20, 0.1, 2, 1),
}
WORKLOADS = {name: Workload(name, *sizes) for name, sizes in _SIZES.items()}

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "cnn": {
        "conv1.weight": (32, 1, 3, 3),
        "conv1.bias": (32,),
        "conv2.weight": (64, 32, 3, 3),
        "conv2.bias": (64,),
        "hidden.weight": (128, 9216),
        "hidden.bias": (128,),
        "out.weight": (62, 128),
        "out.bias": (62,),
    },
    "regression": {"out.weight": (10, 784), "out.bias": (10,)},
    "lstm": {
        "embedding.weight": (90, 8),
        "lstm.weight_ih_l0": (1024, 8),
        "lstm.weight_hh_l0": (1024, 256),
        "lstm.bias_ih_l0": (1024,),
        "lstm.bias_hh_l0": (1024,),
        "lstm.weight_ih_l1": (1024, 256),
        "lstm.weight_hh_l1": (1024, 256),
        "lstm.bias_ih_l1": (1024,),
        "lstm.bias_hh_l1": (1024,),
        "out.weight": (90, 256),
        "out.bias": (90,),
    },
}
"""Parameters by PyTorch's names and in its layout; gates in its order: input, forget, cell, output."""


def make(model: str, folder: Path) -> tuple[Path, Path]:
    """The files of a model's data, which are written the first time."""
    paths = folder / f"{model}-x.npy", folder / f"{model}-y.npy"
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        for path, array in zip(paths, _MAKERS[model](), strict=True):
            aside = path.with_suffix(f".{os.getpid()}.npy")
            np.save(aside, array)
            aside.replace(path)  # whole or not at all, whoever else is making it
    return paths


def _images() -> Data:
    """400 clients x 200 images: one of 62 prototypes, half hidden by noise."""
    rng = np.random.default_rng(1)
    prototypes = rng.random((62, 28, 28), np.float32)
    y = rng.integers(0, 62, (400, 200)).astype(np.int64)
    x = np.empty((400, 200, 1, 28, 28), np.float32)
    for client in range(400):
        x[client, :, 0] = 0.5 * prototypes[y[client]] + 0.5 * rng.random((200, 28, 28), np.float32)
    return x, y


def _vectors() -> Data:
    """1000 clients x 100 vectors of 784 numbers, ten classes."""
    rng = np.random.default_rng(2)
    prototypes = rng.random((10, 784), np.float32)
    y = rng.integers(0, 10, (1000, 100)).astype(np.int64)
    x = 0.3 * prototypes[y] + 0.7 * rng.random((1000, 100, 784), np.float32)
    return x.astype(np.float32), y


def _texts() -> Data:
    """100 clients x 20 texts of 80 characters from a Markov chain; the target is the text one character on."""
    rng = np.random.default_rng(3)
    edges = rng.dirichlet(np.full(90, 0.05), 90).cumsum(1)
    texts = np.zeros((100, 20, 81), np.int64)
    texts[..., 0] = rng.integers(0, 90, (100, 20))
    for position in range(1, 81):
        drawn = rng.random((100, 20, 1))
        texts[..., position] = np.minimum((edges[texts[..., position - 1]] < drawn).sum(-1), 89)
    return texts[..., :-1], texts[..., 1:]


_MAKERS: dict[str, Callable[[], Data]] = {"cnn": _images, "regression": _vectors, "lstm": _texts}
