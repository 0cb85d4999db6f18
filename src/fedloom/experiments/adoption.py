"""Runs of other studies that come to the same numbers: taken, not made again.

Looking at a run does not change its training, nor does what comes after. One that was tested more often, or on more,
that went on where the wanted one ends (after fewer rounds, or at its target), or whose clients had another clock that
nobody waited for, is therefore as good as one that was looked at as is wanted: it is copied without the rest, and need
not be finished. `alignment` is another thing: with it, rows are added otherwise. Settings say which data were meant,
and not what was in the files: where those are here, the fingerprint of what a run was trained on is compared.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.data.catalog import Shelf
from fedloom.documents import left_behind, read_records, read_toml
from fedloom.errors import Damaged, FedloomError
from fedloom.evaluation import PREFIXES
from fedloom.experiments import build
from fedloom.experiments.clocks import timed, told_afterwards
from fedloom.experiments.origins import take_over
from fedloom.experiments.schema import Experiment, read
from fedloom.experiments.study import StudyRun
from fedloom.resumption import newest
from fedloom.rundir import CHECKPOINTS, CONFIG, MACHINE, METRICS, SUMMARY, write_json, write_whole

NOT_THE_NUMBERS = MACHINE | {"name", "title"}
"""Settings that another machine may have otherwise: a run made there is not made again."""

_TESTS = {"eval_every", "evaluate_on"}
_LENGTH = {"rounds", "target"}

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """A run of another study, and where it is."""

    experiment: Experiment
    folder: Path

    @property
    def finished(self) -> bool:
        return (self.folder / SUMMARY).exists()

    def read(self) -> tuple[dict[str, Any], Records]:
        """Its summary and its rounds; of one that is not finished what there is, and nothing where that is damaged."""
        if self.finished:
            return left_behind(self.folder)
        with suppress(Damaged):
            noted = newest(self.folder).notes
            told = {name: noted[name] for name in ("data_fingerprint", "versions") if name in noted}
            told |= {"seed": self.experiment.seeds[0], "resolved": {"device": self.experiment.device or "cpu"}}
            return told, read_records(self.folder / METRICS)
        return {}, []

    def fingerprint(self) -> str | None:
        """Of the data it was trained on, as far as it says."""
        print = left_behind(self.folder)[0].get("data_fingerprint") if self.finished else None
        return print or newest(self.folder).notes.get("data_fingerprint")


def adopt(
    runs: Iterable[StudyRun],
    out: Path,
    others: Iterable[Path],
    data_folder: Path | None = None,
    shelf: Shelf | None = None,
) -> int:
    """Copy runs with the same training, and all that is wanted of it, from other folders; returns how many.

    Data are read, to the `shelf`, to compare them with what the others were trained on, and for another clock.
    """
    there: dict[str, list[Run]] = {}
    for had in _begun(others):
        there.setdefault(_training(had.experiment), []).append(had)
    files = _Files(data_folder, shelf or Shelf())
    return sum(_take(run, out / run.slug, there.get(_training(run.experiment), []), out, files) for run in runs)


@dataclass(frozen=True)
class _Files:
    """The data as they are here."""

    folder: Path | None
    shelf: Shelf
    known: dict[str, str | None] = field(default_factory=dict)

    def timed(self, records: Records, wanted: Experiment) -> Iterable[dict[str, Any]]:
        return timed(records, wanted, self.folder, self.shelf)

    def are_those_of(self, had: Run, wanted: Experiment) -> bool:
        """Whether the run was trained on what is here now, as far as it says and the files are here."""
        print = had.fingerprint()
        return print is None or self._fingerprint(wanted) in (None, print)

    def _fingerprint(self, wanted: Experiment) -> str | None:
        pooled = build.build_algorithm(wanted.algorithms[0]).work.pooled
        place = repr((wanted.data, wanted.validation, wanted.dtype, pooled))
        if place not in self.known:
            try:
                data = build.build_federation(wanted, self.folder, self.shelf)
            except FedloomError:
                self.known[place] = None
            else:
                self.known[place] = build.fingerprint(data, pooled, wanted.dtype)
        return self.known[place]


def _begun(folders: Iterable[Path]) -> Iterator[Run]:
    """The studies' runs in the folders; what a kill left half copied is hidden, and none."""
    for folder in folders:
        for config in sorted(folder.rglob(CONFIG)):
            hidden = any(part.startswith(".") for part in config.relative_to(folder).parts)
            if not hidden and any(
                (config.parent / name).exists() for name in (METRICS, SUMMARY)
            ):  # or it diverged at once
                with suppress(FedloomError):  # a run of a script's, or of Flower's
                    yield Run(read(config), config.parent)


def _take(run: StudyRun, folder: Path, able: Sequence[Run], out: Path, files: _Files) -> bool:
    """Copy the first of the runs in which all is that is wanted, if there is one; one that is just so before others."""
    wanted = run.experiment

    def other(had: Run) -> bool:
        return _looks(had.experiment) != _looks(wanted) or _clock(had.experiment) != _clock(wanted)

    for had in sorted(able, key=lambda each: not each.finished or other(each)):
        if had.folder.resolve() == folder.resolve():
            continue
        if not _covers(had, wanted):
            continue
        if not had.folder.is_relative_to(out) and not files.are_those_of(had, wanted):
            continue
        summary, records = had.read()
        kept = _cut(records, wanted)
        last = len(kept) == wanted.rounds or any(map(wanted.arrived, kept[-1:]))
        if not last and "diverged" not in summary:
            continue  # it has not come as far
        if last:
            summary.pop("diverged", None)  # it did later, if at all
        if _clock(wanted) != _clock(had.experiment):
            kept = list(files.timed(kept, wanted))
        aside = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(aside, ignore_errors=True)  # left by a kill
        shutil.copytree(had.folder, aside, ignore=shutil.ignore_patterns(CHECKPOINTS, ".*"))
        if len(kept) < len(records) or not had.finished or other(had):
            seconds = sum(record.get("seconds") or 0.0 for record in kept)
            left = {"rounds": len(kept), "final": kept[-1] if kept else {}, "seconds": seconds}
            if records:
                write_whole(aside / METRICS, "".join(f"{json.dumps(record)}\n" for record in kept))
            write_json(aside / SUMMARY, summary | left)
        asked = {name: getattr(wanted, name) for name in (*_TESTS, *_LENGTH, "system", "name", "title")}
        write_whole(aside / CONFIG, had.experiment.model_copy(update=asked).to_toml())
        shutil.rmtree(folder, ignore_errors=True)  # begun and not finished
        take_over(out, had.folder)
        aside.rename(folder)
        return True
    return False


def complete(config: Path) -> dict[str, Any]:
    """A run's settings with every default, those too that came after it was made; as they are where it is no run's."""
    try:
        return read(config).to_mapping()
    except FedloomError:
        return read_toml(config)


def _training(experiment: Experiment) -> str:
    """Equal for runs whose training is the same, as far as both go. What privacy costs is told of a whole run."""
    private = any(part.privacy for part in experiment.algorithms)
    looks = NOT_THE_NUMBERS | _TESTS | (set() if private else _LENGTH)
    kept = {name: value for name, value in experiment.to_mapping().items() if name not in looks}
    if not experiment.system.waits:
        kept["system"].pop("straggling", None)
    return json.dumps(kept, sort_keys=True)


def _looks(experiment: Experiment) -> list[Any]:
    """How a run is looked at, and for how long."""
    return [getattr(experiment, name) for name in sorted(_TESTS | _LENGTH)]


def _clock(experiment: Experiment) -> float | None:
    return experiment.system.straggling


def _covers(had: Run, wanted: Experiment) -> bool:
    """Whether all that is wanted was recorded. A run that stopped at a target did so by its tests: they must agree."""
    has = had.experiment
    if _clock(wanted) not in (None, _clock(has)) and not told_afterwards(wanted):
        return False
    if any(part.privacy for part in has.algorithms) and not had.finished:
        return False  # what it has cost is told at its end
    if has.eval_every is None or wanted.eval_every is None or has.target is not None:
        return had.finished and _looks(has) == _looks(wanted)
    last = wanted.rounds == has.rounds or wanted.rounds % has.eval_every == 0  # is tested
    often = wanted.eval_every % has.eval_every == 0
    return wanted.rounds <= has.rounds and last and often and set(wanted.evaluate_on) <= set(has.evaluate_on)


def _cut(records: Records, wanted: Experiment) -> Records:
    """What the experiment would have recorded of it."""
    kept: Records = []
    for record in records:
        round = record["round"] + 1
        tested = wanted.eval_every is None or round % wanted.eval_every == 0 or round == wanted.rounds
        places = wanted.evaluate_on if tested else ()
        unwanted = tuple(prefix for place, prefix in PREFIXES.items() if place not in places)
        kept.append({name: value for name, value in record.items() if not name.startswith(unwanted)})
        if round == wanted.rounds or wanted.arrived(kept[-1]):
            break
    return kept
