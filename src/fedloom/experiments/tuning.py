"""Run a tune file: every point of the grids, as few programs as they fit in, and say which is best.

A run is finished when its directory has a summary, whether it came to its end, was pruned, or diverged: started again
in the same folder, only the others are run.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from rich.console import Console

from fedloom import lock
from fedloom.documents import left_behind
from fedloom.errors import FedloomError
from fedloom.experiments.runner import say
from fedloom.experiments.schema import Experiment
from fedloom.experiments.selection import Rule
from fedloom.experiments.tune_file import Point, Tuned, TuneFile
from fedloom.interruption import import_torch
from fedloom.rundir import write_whole

if TYPE_CHECKING:
    from fedloom.callbacks import Callback
    from fedloom.data.catalog import Shelf

FILE, POINTS = "tune.toml", "points"


@dataclass(frozen=True)
class Outcome:
    """What one run of a point came to."""

    seed: int
    directory: Path
    rounds: list[dict[str, Any]]
    diverged: str | None = None


@dataclass(frozen=True)
class Tried:
    """What a point came to with all its seeds."""

    point: Point
    runs: list[Outcome]
    pruned: bool = False

    @property
    def diverged(self) -> str | None:
        return next((run.diverged for run in self.runs if run.diverged), None)

    def scores(self, rule: Rule) -> list[float]:
        """One for every seed; none where a seed has none."""
        if self.diverged or self.pruned:
            return []
        found = [rule.score(run.rounds, self.point.experiment.rounds) for run in self.runs]
        return [] if None in found else [score for score in found if score is not None]

    def score(self, rule: Rule) -> float | None:
        scores = self.scores(rule)
        return statistics.fmean(scores) if scores else None


@dataclass(frozen=True)
class Run:
    """One seed of a point, on its way."""

    point: Point
    seed: int
    directory: Path
    watch: Callback | None = None

    @property
    def experiment(self) -> Experiment:
        return self.point.experiment.model_copy(update={"seeds": [self.seed]})


@dataclass
class Workshop:
    """Where points are run: the folder, the data that was loaded for them, and who is told."""

    file: TuneFile
    out: Path
    data_folder: Path | None
    console: Console
    shelf: Shelf

    def check_folder(self) -> None:
        """A folder that holds anything but an earlier start of a tuning is refused."""
        if self.out.exists() and not self.out.is_dir():
            raise FedloomError(f"{self.out}: expected a directory for the tuning, got a file: choose another")
        held = {entry.name for entry in self.out.iterdir()} if self.out.exists() else set()
        held = {name for name in held if not name.startswith(".")}  # what a killed start left, or a file manager
        if held and FILE not in held:
            raise FedloomError(
                f"{self.out}: expected a directory of its own, got one with {min(held)!r} in it: choose another"
            )

    def try_points(self, points: Sequence[Point], watches: Mapping[int, Callback] | None = None) -> list[Tried]:
        """All points with all their seeds; what finished before is read. `watches` sees a point's rounds, by place."""
        from fedloom.experiments.stacks import stacks

        runs = [
            Run(point, seed, self.out / POINTS / point.folder / f"seed{seed}", (watches or {}).get(place))
            for place, point in enumerate(points)
            for seed in point.experiment.seeds
        ]
        done = {run.directory: found for run in runs if (found := self._finished(run)) is not None}
        # not before what is there was found to have the same settings
        write_whole(self.out / FILE, tomli_w.dumps(self.file.written.table))
        if done:
            say(self.console, f"{len(done)} of {len(runs)} runs are finished already")
        for group in stacks([run for run in runs if run.directory not in done], self.file.tune.together):
            done |= self._together(group)
        tried = []
        for point in points:
            own = [done[run.directory] for run in runs if run.point is point]
            short = any(len(run.rounds) < point.experiment.rounds and not run.diverged for run in own)
            tried.append(Tried(point, own, pruned=short))
        return tried

    def _finished(self, run: Run) -> Outcome | None:
        from fedloom.experiments.stacks import finished

        if not finished(run.experiment, run.directory):
            return None
        summary, rounds = left_behind(run.directory)
        return Outcome(run.seed, run.directory, rounds, summary.get("diverged"))

    def _together(self, group: Sequence[Run]) -> dict[Path, Outcome]:
        from fedloom.experiments.stacks import StackRun, run_stack

        count = f"{len(group)} runs as one program" if len(group) > 1 else "1 run"
        labels = ", ".join(dict.fromkeys(run.point.label for run in group))
        say(self.console, f"{count}: {labels}, {group[0].experiment.rounds} rounds")
        stack = [StackRun(run.experiment, run.directory, run.watch, run.watch is not None) for run in group]
        progress = self.console.is_terminal and not self.console.quiet
        histories = run_stack(stack, self.shelf, self.data_folder, progress)
        told = [None if history.diverged is None else str(history.diverged) for history in histories]
        return {
            run.directory: Outcome(run.seed, run.directory, history.rounds, diverged)
            for run, history, diverged in zip(group, histories, told, strict=True)
        }

    def measured(self, experiment: Experiment) -> set[str]:
        """The measures that a run's records will have."""
        from fedloom.evaluation import names
        from fedloom.experiments.build import build_federation, build_task, check_device

        check_device(experiment.device)
        data = build_federation(experiment, self.data_folder, self.shelf)
        task = build_task(experiment.model, data, self.data_folder)
        in_training = {f"train_{name}" for name in ("loss", *task.metrics)}
        return in_training | names(experiment.evaluate_on, task.metrics)


def tune(
    file: TuneFile, out: Path, data_folder: Path | None = None, quiet: bool = False, console: Console | None = None
) -> dict[str, Tried | None]:
    """Try what the file asks for, leave tables, pictures and `best.toml` under `out`; the best point by algorithm."""
    import_torch()
    from fedloom.data.catalog import Shelf
    from fedloom.experiments import tune_report

    console = Console(quiet=True) if quiet else console or Console()
    workshop = Workshop(file, out, data_folder, console, Shelf())
    workshop.check_folder()
    algorithms = file.algorithms()
    if file.tune.search is not None:
        from fedloom.experiments.search import require_optuna

        require_optuna()
    rule = Rule.of(file.tune, workshop.measured(next(algorithms[0].points()).experiment))
    with lock.alone(out):
        tried = _try(file, algorithms, rule, workshop)
    best = {algorithm.label: _best(tried[algorithm.label], rule) for algorithm in algorithms}
    outcome = tune_report.Findings(file, algorithms, tried, best, rule)
    tune_report.show(outcome, out, console)
    return best


def _try(file: TuneFile, algorithms: Sequence[Tuned], rule: Rule, workshop: Workshop) -> dict[str, list[Tried]]:
    if file.tune.search is not None:
        from fedloom.experiments.search import search

        return {algorithm.label: search(algorithm, file.tune.search, rule, workshop) for algorithm in algorithms}
    points = {algorithm.label: list(algorithm.points()) for algorithm in algorithms}
    found = iter(workshop.try_points([point for own in points.values() for point in own]))
    return {label: [next(found) for _ in own] for label, own in points.items()}


def _best(tried: Sequence[Tried], rule: Rule) -> Tried | None:
    place = rule.best([each.score(rule) for each in tried])
    return None if place is None else tried[place]
