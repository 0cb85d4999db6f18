"""Models, each an ordinary `nn.Module`; `MODELS` names them without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedloom.models.dense import MLP as MLP
    from fedloom.models.dense import Logistic as Logistic


@dataclass(frozen=True)
class Entry:
    """Where a model is, the sizes it takes from the data, and its other keywords with their defaults."""

    home: str
    builder: str
    sizes: tuple[str, ...] = ("inputs", "classes")
    options: tuple[tuple[str, Any], ...] = ()
    about: str = ""

    def load(self) -> Any:
        """The class itself; torch is imported now."""
        return getattr(import_module(f"fedloom.models.{self.home}"), self.builder)


MODELS = {
    "logistic": Entry("dense", "Logistic", about="multinomial logistic regression, zero-initialised"),
    "mlp": Entry(
        "dense", "MLP", options=(("hidden", (200, 200)),), about="dense layers with ReLU; McMahan et al.'s 2NN"
    ),
}
_HOME = {entry.builder: entry for entry in MODELS.values()}
__all__ = ["MLP", "MODELS", "Entry", "Logistic"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedloom.models' has no attribute {name!r}")
    globals()[name] = value = _HOME[name].load()
    return value


def __dir__() -> list[str]:
    return __all__
