"""A new experiment file to edit, from the template in the package."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from fedloom.errors import FedloomError
from fedloom.experiments.registry import TEMPLATE
from fedloom.experiments.schema import read


def write_new(wanted: str) -> Path:
    """Write `wanted`, or `wanted`.toml, and return where it is. A file that is there already is left alone."""
    path = Path(wanted) if wanted.endswith(".toml") else Path(f"{wanted}.toml")
    template = (files("fedloom.experiments") / TEMPLATE).read_text(encoding="utf-8")
    text = template.replace('"NAME"', json.dumps(path.stem))
    read(text)  # whether the name can be an experiment's
    text = text.replace("NAME.toml", str(path)).replace("runs/NAME", f"runs/{path.stem}")
    if path.exists():
        raise FedloomError(f"{path}: expected a new file, got one that is there already: choose another name")
    if not path.parent.is_dir():
        raise FedloomError(f"{path}: expected a folder that exists, got {str(path.parent)!r}, which does not")
    path.write_text(text, encoding="utf-8")
    return path
