"""Data: which rows there are, which client owns which of them, and where they come from.

Names are imported when they are first used: the tables of files and checksums can be read without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedloom.data.catalog import datasets as datasets
    from fedloom.data.catalog import load as load
    from fedloom.data.federated import Features as Features
    from fedloom.data.federated import FederatedData as FederatedData
    from fedloom.data.federated import federate as federate

_HOME = {
    "datasets": "catalog",
    "load": "catalog",
    "Features": "federated",
    "FederatedData": "federated",
    "federate": "federated",
}
__all__ = ["Features", "FederatedData", "datasets", "federate", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedloom.data' has no attribute {name!r}")
    return getattr(import_module(f"fedloom.data.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
