"""One experiment, read by both sides: the server takes all of it, a client its own rows."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context

from fedloom.flower.experiment import Plan, plan


def read(context: Context) -> Plan:
    """The TOML file of this folder that the run's settings name, as `fedloom run` would read it."""
    return plan(Path(__file__).parent / str(context.run_config["experiment"]))
