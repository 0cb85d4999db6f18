"""The same algorithm on real devices, through Flower: a strategy for its ServerApp, and a ClientApp.

Flower brings the links, TLS and the authentication of nodes; every rule of a round stays in `Algorithm`.
"""

from __future__ import annotations

from importlib.util import find_spec

from fedloom.errors import FedloomError

if find_spec("flwr") is None:
    raise FedloomError("fedloom.flower: expected flwr>=1.26, got none: pip install 'fedloom[flower]'")

from fedloom.flower.client import client_app as client_app
from fedloom.flower.experiment import plan as plan
from fedloom.flower.strategy import FlowerStrategy as FlowerStrategy

__all__ = ["FlowerStrategy", "client_app", "plan"]
