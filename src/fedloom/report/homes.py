"""The folder that a run belongs to: of a study it says which cell the run is, of a tuning what the run came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.documents import is_number, read_json
from fedloom.errors import Damaged, FedloomError
from fedloom.experiments.study import Study, cells
from fedloom.experiments.study_file import read_study
from fedloom.experiments.study_sections import Cell
from fedloom.experiments.tune_report import NUMBERS
from fedloom.experiments.tuning import FILE, POINTS
from fedloom.rundir import CONFIG


@dataclass(frozen=True)
class Judged:
    """What a tuning says of a run: the metric that decided, over how many last rounds, and what the run came to."""

    metric: str
    last: int | None  # None: over all rounds
    score: float | None
    best: bool = False
    pruned: bool = False


@dataclass(frozen=True)
class Told:
    """What the folder says of one of its runs; `place` is where it stands among the others."""

    folder: Path | None = None
    place: int = 0
    cell: Cell = field(default_factory=dict)
    judged: Judged | None = None


class Homes:
    """What the folders of studies and tunings say of their runs, each folder read once."""

    def __init__(self) -> None:
        self._cells: dict[Path, dict[str, tuple[int, Cell]]] = {}
        self._tunings: dict[Path, dict[Path, tuple[int, Judged]]] = {}

    def told(self, folder: Path, title: object) -> Told:
        """Of the run in that folder, whose settings have that title; a run that is at home nowhere has nothing told."""
        way = folder.resolve()
        above = way.parents
        if len(above) > 3 and above[2].name == POINTS and (above[3] / FILE).is_file():
            if above[3] not in self._tunings:
                self._tunings[above[3]] = _judgements(above[3])
            known = self._tunings[above[3]]
            place, judged = known.get(way, (len(known), None))
            return Told(above[3], place, judged=judged)
        if len(above) > 1:
            if above[1] not in self._cells:
                self._cells[above[1]] = _titles(above[1])
            if isinstance(title, str) and title in self._cells[above[1]]:
                place, cell = self._cells[above[1]][title]
                return Told(above[1], place, cell)
        return Told()


def plan(folder: Path) -> Study | None:
    """The study as its folder's settings have it; None where they are no study's, or one's that is no longer read."""
    path = folder / CONFIG
    try:
        return read_study(path) if path.is_file() else None
    except FedloomError:
        return None


def _titles(folder: Path) -> dict[str, tuple[int, Cell]]:
    """The study's cells by the title that their runs have, with their places; asked for or not, all may be there."""
    study = plan(folder)
    if study is None:
        return {}
    every = cells(study.model_copy(update={"asked": {}}))
    return {", ".join(cell.values()): (place, cell) for place, cell in enumerate(every)}


def _judgements(folder: Path) -> dict[Path, tuple[int, Judged]]:
    """What is said of each run, the best first; nothing before the tuning came to its end."""
    path = folder / NUMBERS
    if not path.is_file():
        return {}
    content = read_json(path)
    try:
        sign = 1.0 if content["lower_is_better"] else -1.0
        points = sorted(content["points"], key=lambda point: _last_if_none(point["score"], sign))
        return {
            folder / directory: (place, _judged(content, point, directory))
            for place, point in enumerate(points)
            for directory in point["directories"]
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Damaged(
            f"{path}: expected the numbers of a tuning, got others: `fedloom tune` with the same --out writes them"
        ) from None


def _last_if_none(score: float | None, sign: float) -> tuple[bool, float]:
    return score is None, sign * (score or 0.0)


def _judged(content: Mapping[str, Any], point: Mapping[str, Any], directory: str) -> Judged:
    score, last = point["scores"].get(Path(directory).name.removeprefix("seed")), content["rounds_averaged"]
    return Judged(
        str(content["metric"]),
        last if last is None else int(last),
        score if is_number(score) else None,
        bool(point["best"]),
        bool(point["pruned"]),
    )
