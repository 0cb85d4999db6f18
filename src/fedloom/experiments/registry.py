"""What comes with the package: experiments, and the papers' tables and figures as studies, named by their files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError, choose, cut
from fedloom.experiments.schema import text_of
from fedloom.experiments.study_file import is_study
from fedloom.toml_text import parse

TEMPLATE = "template.toml"
NOT_EXPERIMENTS = ("published.toml", "conflicts.toml", TEMPLATE)
"""Files of numbers and words that stand beside the studies, and what `fedloom new` writes."""


LONGEST = 4096
"""Letters of a path."""


def experiments() -> dict[str, Traversable]:
    """The built-in experiments and studies by id, sorted, figure 2 before figure 10.

    >>> "quickstart" in experiments()
    True
    """
    found = {file.name.removesuffix(".toml"): file for file in _toml_files(files("fedloom.experiments"))}
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


def studies() -> dict[str, Traversable]:
    """Those of them that are a paper's table or figure."""
    return {name: file for name, file in experiments().items() if is_study(contents(file))}


def find(id_or_path: str) -> Path | Traversable:
    """The file of a built-in experiment or study, or the file at a path."""
    if len(id_or_path) > LONGEST or "\0" in id_or_path:
        raise FedloomError(
            f"{cut(id_or_path)!r}: expected an experiment's id or a TOML file, got no name a file can have"
        )
    path = Path(id_or_path)
    if path.is_file():
        return path
    if path.is_dir():
        raise FedloomError(f"{id_or_path}: expected an experiment's id or a TOML file, got a folder")
    if path.suffix == ".toml" or path.name != id_or_path:
        raise FedloomError(f"{id_or_path}: expected an experiment file, got nothing there")
    known = experiments()
    if id_or_path not in known:
        got = str(choose("", id_or_path, known)).rpartition("; got ")[2]  # there are too many to list in a line
        raise FedloomError(
            f"experiment: expected an id that fedloom list shows, or a file that ends in .toml; got {got}"
        )
    return known[id_or_path]


def find_study(id_or_path: str) -> Path | Traversable:
    """The file of a study."""
    file = find(id_or_path)
    if not is_study(parse(file.name, text_of(file))):
        raise FedloomError(
            f"{id_or_path}: expected a study of a paper's table or figure, got an experiment: "
            f"fedloom run {id_or_path} runs it"
        )
    return file


def contents(file: Path | Traversable) -> dict[str, Any]:
    """A file's table; nothing where it is no TOML, which whoever reads it properly will say."""
    try:
        return parse(file.name, text_of(file))
    except FedloomError:
        return {}


def titles() -> dict[str, str]:
    """What each built-in experiment is about."""
    return {name: str(contents(file).get("title", "")) for name, file in experiments().items()}


def _natural(name: str) -> list[tuple[int, str]]:
    """
    >>> sorted(["fig10", "fig2"], key=_natural)
    ['fig2', 'fig10']
    """
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _toml_files(folder: Traversable) -> Iterator[Traversable]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _toml_files(entry)
        elif entry.name.endswith(".toml") and entry.name not in NOT_EXPERIMENTS:
            yield entry
