"""Data: which rows there are, which client owns which of them, and where they come from."""

from __future__ import annotations

from fedloom.data.catalog import datasets, load
from fedloom.data.federated import Features, FederatedData, federate

__all__ = ["Features", "FederatedData", "datasets", "federate", "load"]
