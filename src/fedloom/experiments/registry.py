"""The experiments that come with the package: every TOML file in this folder or below it, named by its stem."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fedloom.errors import FedloomError, choose


def experiments() -> dict[str, Traversable]:
    """The built-in experiments by id, sorted.

    >>> "quickstart" in experiments()
    True
    """
    found = {file.name.removesuffix(".toml"): file for file in _toml_files(files("fedloom.experiments"))}
    return dict(sorted(found.items()))


def find(id_or_path: str) -> Path | Traversable:
    """The file of a built-in experiment, or the file at a path."""
    path = Path(id_or_path)
    if path.is_file():
        return path
    if path.is_dir():
        raise FedloomError(f"{id_or_path}: expected an experiment's id or a TOML file, got a folder")
    if path.suffix == ".toml" or path.name != id_or_path:
        raise FedloomError(f"{id_or_path}: expected an experiment file, got nothing there")
    known = experiments()
    if id_or_path not in known:
        raise FedloomError(f"{choose('experiment', id_or_path, known)} (a file's name ends in .toml)")
    return known[id_or_path]


def titles() -> dict[str, str]:
    """What each built-in experiment is about."""
    return {name: str(tomllib.loads(file.read_text()).get("title", "")) for name, file in experiments().items()}


def _toml_files(folder: Traversable) -> Iterator[Traversable]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _toml_files(entry)
        elif entry.name.endswith(".toml"):
            yield entry
