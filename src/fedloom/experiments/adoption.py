"""Runs of other studies that come to the same numbers: taken, not made again.

Looking at a run does not change its training, nor does what comes after. One that was tested more often, or on more,
that went on where the wanted one ends (after fewer rounds, or at its target), or whose clients had a clock that nobody
waited for, is therefore as good as one that was looked at as is wanted: it is copied without the rest, and need not be
finished. `alignment` is another thing: with it, rows are added otherwise.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedloom.documents import read_json, read_records, read_toml
from fedloom.errors import Damaged, FedloomError
from fedloom.evaluation import PREFIXES
from fedloom.experiments.origins import take_over
from fedloom.experiments.schema import Experiment, read
from fedloom.experiments.study import StudyRun
from fedloom.rundir import CHECKPOINTS, CONFIG, METRICS, SUMMARY, write_json, write_whole

NOT_THE_NUMBERS = {"name", "title", "executor", "chunk", "device", "threads", "compile", "deterministic"}
"""Settings that another machine may have otherwise: a run made there is not made again."""

_LOOKS = {"eval_every", "evaluate_on", "rounds", "target", "straggling"}
"""Settings that say what is recorded of a run, and when that is enough; `straggling` where no cohort goes by it."""


@dataclass(frozen=True)
class Run:
    """A run of another study: its settings, where it is, the rounds it has, and whether it has all of them."""

    settings: dict[str, Any]
    folder: Path
    rounds: int
    finished: bool


def adopt(runs: Iterable[StudyRun], out: Path, others: Iterable[Path]) -> int:
    """Copy runs with the same training, and all that is wanted of it, from other studies' folders; returns how many."""
    there = _begun(others)
    count = 0
    for run in runs:
        wanted, folder = run.experiment.to_mapping(), out / run.slug
        able = [had for had in there.get(_training(wanted), []) if _covers(had, wanted)]
        able.sort(key=lambda had: _reduced(had, wanted))  # one that is just so is copied as it is
        if not able or able[0].folder.resolve() == folder.resolve():
            continue
        had = able[0]
        aside = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(aside, ignore_errors=True)  # left by a kill
        shutil.copytree(had.folder, aside)
        if _reduced(had, wanted):
            _reduce(aside, run.experiment, had)
        shutil.rmtree(folder, ignore_errors=True)  # begun and not finished
        take_over(out, had.folder)
        aside.rename(folder)
        count += 1
    return count


def _begun(folders: Iterable[Path]) -> dict[str, list[Run]]:
    """The runs in the folders, by their training; what a kill left half copied is hidden, and none."""
    found: dict[str, list[Run]] = {}
    for folder in folders:
        for config in sorted(folder.rglob(CONFIG)):
            hidden = any(part.startswith(".") for part in config.relative_to(folder).parts)
            if hidden or not (config.parent / METRICS).exists():  # a study's own settings lie above its runs'
                continue
            settings, finished = complete(config), (config.parent / SUMMARY).exists()
            rounds = settings.get("rounds", 0) if finished else _rounds(config.parent)
            found.setdefault(_training(settings), []).append(Run(settings, config.parent, rounds, finished))
    return found


def _rounds(folder: Path) -> int:
    """Those that an unfinished run has; of one that is damaged nothing is taken."""
    try:
        return len(read_records(folder / METRICS))
    except Damaged:
        return 0


def complete(config: Path) -> dict[str, Any]:
    """A run's settings with every default, those too that came after it was made; as they are where it is no run's."""
    try:
        return read(config).to_mapping()
    except FedloomError:
        return read_toml(config)


def _training(settings: Mapping[str, Any]) -> str:
    """Equal for runs whose training is the same, as far as both go. What privacy costs is said of all rounds."""
    kept = {name: value for name, value in settings.items() if name not in NOT_THE_NUMBERS | _LOOKS}
    if "straggling" in _looks(settings):
        kept["system"] = {name: value for name, value in settings["system"].items() if name != "straggling"}
    if any("privacy" in algorithm for algorithm in settings.get("algorithms", [])):
        kept["rounds"] = settings.get("rounds")
    return json.dumps(kept, sort_keys=True)


def _looks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """How a run is looked at: what is not given is None."""
    looks = {name: settings.get(name) for name in _LOOKS - {"straggling"}}
    system = settings.get("system", {})
    if system.get("deadline") is None and system.get("over_selection", 1.0) == 1.0:
        looks["straggling"] = system.get("straggling")
    return looks


def _covers(had: Run, wanted: Mapping[str, Any]) -> bool:
    """Whether all that is wanted was recorded. A run that stopped at a target did so by its tests: they must agree."""
    has, wants = _looks(had.settings), _looks(wanted)
    if wants.get("straggling") not in (None, has.get("straggling")):
        return False
    often, rarely = has["eval_every"], wants["eval_every"]
    if often is None or rarely is None or has["target"] is not None:
        return had.finished and all(has[name] == wants[name] for name in _LOOKS - {"straggling"})
    last = wants["rounds"] == has["rounds"] or wants["rounds"] % often == 0  # is tested
    within = had.rounds >= wants["rounds"] and last and rarely % often == 0
    return within and set(wants["evaluate_on"]) <= set(has["evaluate_on"])


def _reduced(had: Run, wanted: Mapping[str, Any]) -> bool:
    return not had.finished or _looks(had.settings) != _looks(wanted)


def _reduce(folder: Path, experiment: Experiment, had: Run) -> None:
    """Leave out of a run's folder what the experiment would not have recorded; its states are another run's."""
    wanted, every = experiment.to_mapping(), experiment.eval_every
    untimed = ["simulated_seconds"] if _looks(wanted).get("straggling", 0.0) is None else []
    summary = (
        read_json(folder / SUMMARY) if had.finished else {"resolved": {"device": had.settings.get("device", "cpu")}}
    )
    records: list[dict[str, Any]] = []
    for record in read_records(folder / METRICS, notes=had.finished):
        round = record["round"] + 1
        tested = every is None or round % every == 0 or round == experiment.rounds
        places = experiment.evaluate_on if tested else ()
        untested = [prefix for place, prefix in PREFIXES.items() if place not in places]
        for name in [name for name in record if name.startswith((*untested, *untimed))]:
            del record[name]
        records.append(record)
        if round == experiment.rounds or arrived(experiment, record):
            summary.pop("diverged", None)  # which came later
            break
    write_whole(folder / METRICS, "".join(f"{json.dumps(record)}\n" for record in records))
    left = {"final": records[-1], "rounds": len(records)} if records else {"final": {}}
    write_json(folder / SUMMARY, summary | left)
    rest = {name: value for name, value in read_toml(folder / CONFIG).items() if name not in {*_LOOKS, "system"}}
    asked = {name: value for name, value in wanted.items() if name in {*_LOOKS, "system"}}
    write_whole(folder / CONFIG, tomli_w.dumps(rest | asked))
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def arrived(experiment: Experiment, record: Mapping[str, Any]) -> bool:
    """Whether a run ends with this round, at its target."""
    target, accuracy = experiment.target, record.get("test_accuracy")
    return target is not None and accuracy is not None and accuracy >= target
