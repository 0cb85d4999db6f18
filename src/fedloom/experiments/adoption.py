"""Runs of other studies that come to the same numbers: taken, not made again.

Testing a model does not change its training. A run that was tested more often, or on more, is therefore as good as one
with the tests that are wanted: it is copied without the others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedloom.documents import read_json, read_records, read_toml
from fedloom.errors import FedloomError
from fedloom.evaluation import PREFIXES
from fedloom.experiments.origins import take_over
from fedloom.experiments.schema import Experiment, read
from fedloom.experiments.study import StudyRun
from fedloom.rundir import CHECKPOINTS, CONFIG, METRICS, SUMMARY, write_json, write_whole

NOT_THE_NUMBERS = {"name", "title", "executor", "chunk", "device", "threads", "compile", "deterministic"}
"""Settings that another machine may have otherwise: a run made there is not made again."""

_TESTS = {"eval_every", "evaluate_on"}

Found = dict[str, list[tuple[dict[str, Any], Path]]]


def adopt(runs: Iterable[StudyRun], out: Path, others: Iterable[Path]) -> int:
    """Copy finished runs with the same training, and all tests, out of other studies' folders; returns how many."""
    there = _finished(others)
    count = 0
    for run in runs:
        wanted, folder = run.experiment.to_mapping(), out / run.slug
        able = [(had, source) for had, source in there.get(_training(wanted), []) if _covers(had, wanted)]
        able.sort(key=lambda each: _tests(each[0]) != _tests(wanted))  # one that was tested just so is copied as it is
        if not able or able[0][1].resolve() == folder.resolve():
            continue
        had, source = able[0]
        aside = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(aside, ignore_errors=True)  # left by a kill
        shutil.copytree(source, aside)
        if _tests(had) != _tests(wanted):
            _reduce(aside, run.experiment)
        shutil.rmtree(folder, ignore_errors=True)  # begun and not finished
        take_over(out, source)
        aside.rename(folder)
        count += 1
    return count


def _finished(folders: Iterable[Path]) -> Found:
    """The finished runs in the folders, by their training; what a kill left half copied is hidden, and none."""
    found: Found = {}
    for folder in folders:
        for config in sorted(folder.rglob(CONFIG)):
            hidden = any(part.startswith(".") for part in config.relative_to(folder).parts)
            if (config.parent / SUMMARY).exists() and not hidden:
                settings = complete(config)
                found.setdefault(_training(settings), []).append((settings, config.parent))
    return found


def complete(config: Path) -> dict[str, Any]:
    """A run's settings with every default, those too that came after it was made; as they are where it is no run's."""
    try:
        return read(config).to_mapping()
    except FedloomError:
        return read_toml(config)


def _training(settings: Mapping[str, Any]) -> str:
    """Equal for runs whose training is the same."""
    kept = {name: value for name, value in settings.items() if name not in NOT_THE_NUMBERS | _TESTS}
    return json.dumps(kept, sort_keys=True)


def _tests(settings: Mapping[str, Any]) -> tuple[int | None, list[str]]:
    return settings.get("eval_every"), settings.get("evaluate_on", [])


def _covers(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether all tests that are wanted were made. A run that stops at a target stops by its tests: they must agree."""
    (often, places), (rarely, asked) = _tests(had), _tests(wanted)
    if often is None or rarely is None or wanted.get("target") is not None:
        return (often, places) == (rarely, asked)
    return rarely % often == 0 and set(asked) <= set(places)


def _reduce(folder: Path, experiment: Experiment) -> None:
    """Leave out of a run's folder what the experiment would not have tested; its states are another run's."""
    assert experiment.eval_every is not None
    records = read_records(folder / METRICS, notes=True)
    for record in records:
        tested = (record["round"] + 1) % experiment.eval_every == 0 or record["round"] + 1 == experiment.rounds
        places = experiment.evaluate_on if tested else ()
        unwanted = tuple(prefix for place, prefix in PREFIXES.items() if place not in places)
        for name in [name for name in record if name.startswith(unwanted)]:
            del record[name]
    write_whole(folder / METRICS, "".join(f"{json.dumps(record)}\n" for record in records))
    summary = read_json(folder / SUMMARY)
    write_json(folder / SUMMARY, summary | {"final": records[-1] if records else {}})
    asked = {name: value for name, value in experiment.to_mapping().items() if name in _TESTS}
    write_whole(folder / CONFIG, tomli_w.dumps(read_toml(folder / CONFIG) | asked))
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
