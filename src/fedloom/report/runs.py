"""Runs read back from their directories, for comparing them. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedloom.documents import is_number, read_json, read_records, read_toml
from fedloom.errors import Damaged, FedloomError
from fedloom.experiments import study as studies
from fedloom.experiments.origins import made
from fedloom.experiments.tuning import FILE
from fedloom.report.homes import Homes, Told, plan
from fedloom.rundir import CHECKPOINTS, CONFIG, FIGURE, METRICS, RESULTS, SUMMARY

_PICTURES = "heatmap-", "search-"


@dataclass(frozen=True)
class Run:
    """One run as its directory tells it: settings, a record per round, and, once it is finished, a summary."""

    path: Path
    label: str
    config: Mapping[str, Any]
    rounds: list[dict[str, Any]]
    summary: Mapping[str, Any] | None = None
    diverged: str | None = None
    group: Path = Path()
    """The folder it belongs to: that of its study or tuning, or the one that holds it."""
    told: Told = field(default_factory=Told)
    """What the folder of its study or tuning says of it."""

    @cached_property
    def columns(self) -> dict[str, dict[int, float]]:
        """Every metric's numbers by the round, counted from 0."""
        return columns(self.rounds)

    @property
    def seed(self) -> int | None:
        """The seed, where one was recorded."""
        seeds = self.config.get("seeds")
        given = seeds[0] if isinstance(seeds, list) and len(seeds) == 1 else self.config.get("seed")
        told = (self.summary or {}).get("seed", given)
        return told if isinstance(told, int) else None

    @property
    def seconds(self) -> float:
        """How long it took by the clock: what the summary says, else what its rounds add up to."""
        told = (self.summary or {}).get("seconds")
        return told if is_number(told) else sum(self.values("seconds"))

    def values(self, metric: str) -> list[float]:
        """The metric in the rounds that have it."""
        return list(self.columns.get(metric, {}).values())

    @property
    def finished(self) -> float | None:
        """When the last file of it was written, in seconds since 1970."""
        files = [self.path / name for name in (SUMMARY, METRICS, CONFIG)]
        return next((file.stat().st_mtime for file in files if file.exists()), None)

    @property
    def status(self) -> str:
        """Finished, diverged, or how far it came."""
        if self.diverged is not None:
            return "diverged"
        if self.summary is not None:
            return "pruned" if self.told.judged is not None and self.told.judged.pruned else "finished"
        wanted = self.config.get("rounds")
        return f"stopped after {len(self.rounds)}{f' of {wanted}' if isinstance(wanted, int) else ''} rounds"


@dataclass(frozen=True)
class Study:
    """A table or figure that was reproduced: the content of a `results.json`, its picture, a PNG, and its plan."""

    path: Path
    content: Mapping[str, Any]
    figure: bytes | None = None
    plan: studies.Study | None = None

    @property
    def name(self) -> str:
        return str(self.content.get("id") or self.path.resolve().name)


@dataclass(frozen=True)
class Tuning:
    """The folder of a tuning and its pictures, PNGs, by the names of their algorithms."""

    path: Path
    pictures: Mapping[str, bytes]


@dataclass(frozen=True)
class Found:
    """Everything beneath the directories that were named."""

    runs: list[Run] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)
    tunings: list[Tuning] = field(default_factory=list)
    """Those that have heat maps."""


def read(directories: Iterable[Path]) -> Found:
    """The runs and studies in and beneath the directories, each once, in the order of their summaries, else by name.

    A study's runs are in the order of its cells, a tuning's are the best first.
    """
    found = Found()
    seen: set[Path] = set()
    tuned: set[Path] = set()
    homes = Homes()
    for directory in directories:
        if not directory.is_dir():
            got = "a file" if directory.exists() else "nothing there"
            raise FedloomError(f"{directory}: expected a run directory, or one that holds several; got {got}")
        folders = list(_folders(directory))
        holding = [folder for folder in folders if _is_run(folder) or (folder / RESULTS).is_file()]
        if not holding:
            raise Damaged(f"{directory}: expected a run directory, or one that holds several; found no {METRICS} in it")
        runs = []
        for folder in holding:
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            if (folder / RESULTS).is_file():
                found.studies.append(Study(folder, read_json(folder / RESULTS), _figure(folder / FIGURE), plan(folder)))
            if _is_run(folder):
                runs.append(_run(folder, directory, homes))
        new = [folder for folder in folders if folder.resolve() not in tuned]
        tuned.update(folder.resolve() for folder in new)
        found.tunings.extend(filter(None, map(_tuning, new)))
        groups = list(dict.fromkeys(run.group for run in runs))
        found.runs.extend(sorted(runs, key=lambda run: (groups.index(run.group), run.told.place)))
    return found


def alone(group: Path, runs: Sequence[Run]) -> bool:
    """Whether a folder's runs are known to be trained one by one, as an experiment's are: its summary lists them.

    A study's and a tuning's may be trained as one program: each has the seconds of all of it, and nothing says which
    they were. Nor does it of runs from Python.
    """
    if len(runs) == 1:
        return runs[0].told.folder is None
    listed = {entry.get("directory") for entry in _listed(group / SUMMARY)}
    return all(run.path.name in listed for run in runs)


def spent(group: Path, runs: Sequence[Run]) -> float | None:
    """The seconds that a folder's runs took, which a study keeps; None where they are not known."""
    kept = read_json(group / RESULTS) if (group / RESULTS).is_file() else made(group)
    if is_number(seconds := kept.get("seconds")):
        return seconds
    return sum(run.seconds for run in runs) if alone(group, runs) else None


def _figure(path: Path, command: str = "fedloom reproduce") -> bytes | None:
    """The picture, None where there is none."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise Damaged(f"{path}: expected a PNG, got something else: `{command}` draws it again")
    return content


def _tuning(folder: Path) -> Tuning | None:
    """The tuning whose folder it is, None where it is none's, or where it drew nothing."""
    if not (folder / FILE).is_file():
        return None
    pictures = {
        path.stem.removeprefix(kind): content
        for kind in _PICTURES
        for path in sorted(folder.glob(f"{kind}*.png"))
        if (content := _figure(path, "fedloom tune")) is not None
    }
    return Tuning(folder, pictures) if pictures else None


def columns(rounds: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """The records turned on their side, without what is no number.

    >>> columns([{"round": 0, "x": 1.5, "note": "a"}, {"round": 1, "x": None}, {"round": 2, "x": 2.5}])
    {'x': {0: 1.5, 2: 2.5}}
    """
    found: dict[str, dict[int, float]] = {}
    for record in rounds:
        at = record["round"]
        for key, value in record.items():
            if is_number(value) and key != "round":
                found.setdefault(key, {})[at] = value
    return found


def _folders(top: Path) -> Iterator[Path]:
    """The directory and those beneath it, sorted by name; nothing inside a run's own."""
    for here, names, _ in os.walk(top):
        folder = Path(here)
        yield folder
        told = _told_order(folder)
        kept = [] if _is_run(folder) else [name for name in names if not name.startswith(".")]
        names[:] = sorted(kept, key=lambda name: (told.get(name, len(told)), name))


def _told_order(folder: Path) -> dict[str, int]:
    """The order in which a summary of all runs lists them, which is that of the experiment's file."""
    return {str(entry.get("directory")): place for place, entry in enumerate(_listed(folder / SUMMARY))}


def _is_run(folder: Path) -> bool:
    """A run has rounds; one that diverged in its first has at least a state, or a summary of its own."""
    if (folder / METRICS).is_file():
        return True
    summary = folder / SUMMARY
    begun = (folder / CHECKPOINTS).is_dir() or (summary.is_file() and "seed" in read_json(summary))
    return begun and (folder / CONFIG).is_file()


def _run(folder: Path, top: Path, homes: Homes) -> Run:
    config = read_toml(folder / CONFIG)
    summary = read_json(folder / SUMMARY) if (folder / SUMMARY).exists() else None
    rounds = read_records(folder / METRICS, notes=True)
    words = (summary or {}).get("diverged")
    diverged = words if isinstance(words, str) else _diverged(folder)
    told = homes.told(folder, config.get("title"))
    return Run(folder, _label(config, folder), config, rounds, summary, diverged, _group(folder, top, told), told)


def _group(folder: Path, top: Path, told: Told) -> Path:
    """The folder of its study or tuning, or as much of that as was named; else the folder it is in."""
    above = [folder, *folder.parents]
    within = [path.resolve() for path in above[: above.index(top) + 1]]
    homes = (path for path in within if path == told.folder or (path / RESULTS).is_file())
    return next(homes, within[-1] if told.folder and len(within) > 1 else folder.resolve().parent)


def _diverged(folder: Path) -> str | None:
    """What the summary of all runs says of this one."""
    for entry in _listed(folder.parent / SUMMARY):
        if entry.get("directory") == folder.name and isinstance(entry.get("diverged"), str):
            return str(entry["diverged"])
    return None


def _listed(path: Path) -> list[dict[str, Any]]:
    """The runs that a summary of several lists, none where it is no such summary."""
    runs = read_json(path).get("runs") if path.is_file() else None
    return [entry for entry in runs if isinstance(entry, dict)] if isinstance(runs, list) else []


def _label(config: Mapping[str, Any], folder: Path) -> str:
    """The algorithm's label or name; the folder's name, where the settings are not an experiment's."""
    algorithms = config.get("algorithms")
    if isinstance(algorithms, list) and len(algorithms) == 1 and isinstance(algorithms[0], dict):
        label = algorithms[0].get("label") or algorithms[0].get("name")
        if label:
            return str(label)
    return folder.resolve().name
