"""Run a tune file: every point of the grids, as few programs as they fit in, and say which is best.

A run is finished when its directory has a summary, whether it came to its end, was pruned, or diverged: started again
in the same folder, only the others are run.
"""

from __future__ import annotations

import json
import platform
import shutil
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from rich.console import Console

from fedloom import lock
from fedloom.errors import FedloomError
from fedloom.experiments.runner import threads
from fedloom.experiments.schema import Experiment
from fedloom.experiments.selection import Rule
from fedloom.experiments.tune_file import Point, Tuned, TuneFile
from fedloom.rundir import CONFIG, METRICS, SUMMARY, write_json, write_whole

if TYPE_CHECKING:
    from fedloom.algorithm import Algorithm
    from fedloom.callbacks import Callback
    from fedloom.data.federated import FederatedData
    from fedloom.task import Task

FILE, POINTS = "tune.toml", "points"
_PARTS = {"test": "test", "train": "trainset", "validation": "validation"}


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

    out: Path
    data_folder: Path | None
    together: int
    console: Console
    loaded: dict[str, tuple[FederatedData, Task]] = field(default_factory=dict)

    def prepare(self, file: TuneFile) -> None:
        """A folder that holds anything but an earlier start of a tuning is refused."""
        if self.out.exists() and not self.out.is_dir():
            raise FedloomError(f"{self.out}: expected a directory for the tuning, got a file: choose another")
        held = {entry.name for entry in self.out.iterdir()} if self.out.exists() else set()
        if held and FILE not in held:
            raise FedloomError(
                f"{self.out}: expected a directory of its own, got one with {min(held)!r} in it: choose another"
            )
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(self.out / FILE, tomli_w.dumps(file.written.table))

    def try_points(self, points: Sequence[Point], watches: Mapping[int, Callback] | None = None) -> list[Tried]:
        """All points with all their seeds; what finished before is read. `watches` sees a point's rounds, by place."""
        runs = [
            Run(point, seed, self.out / POINTS / point.folder / f"seed{seed}", (watches or {}).get(place))
            for place, point in enumerate(points)
            for seed in point.experiment.seeds
        ]
        done = {run.directory: found for run in runs if (found := self._finished(run)) is not None}
        if done:
            self._say(f"{len(done)} of {len(runs)} runs are finished already")
        for group in self._groups([run for run in runs if run.directory not in done]):
            done |= self._together(group)
        tried = []
        for point in points:
            own = [done[run.directory] for run in runs if run.point is point]
            short = any(len(run.rounds) < point.experiment.rounds and not run.diverged for run in own)
            tried.append(Tried(point, own, pruned=short))
        return tried

    def _finished(self, run: Run) -> Outcome | None:
        folder = run.directory
        if not (folder / SUMMARY).exists():
            if (folder / CONFIG).exists():  # it was interrupted
                shutil.rmtree(folder)
            return None
        with (folder / CONFIG).open("rb") as file:
            before, now = tomllib.load(file), tomllib.loads(run.experiment.to_toml())
        for key in ("executor", "chunk", "device", "dtype", "threads", "title"):  # how, not what
            before.pop(key, None), now.pop(key, None)
        if before != now:
            key = next(key for key in {**before, **now} if before.get(key) != now.get(key))
            raise FedloomError(
                f"{folder}: expected a run with {key} = {now.get(key)!r}, got one with {before.get(key)!r}: choose "
                "another --out, or remove it"
            )
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return Outcome(run.seed, folder, _records(folder), summary.get("diverged"))

    def _groups(self, runs: Sequence[Run]) -> Iterator[list[tuple[Run, Algorithm]]]:
        """Runs that can be one program: alike in everything but seeds, client rates and the server's side."""
        from fedloom.experiments.build import build_algorithm
        from fedloom.simulation import client_work

        alike: dict[tuple[str, str], list[tuple[Run, Algorithm]]] = {}
        for run in runs:
            algorithm = build_algorithm(run.experiment.algorithms[0])
            shared = run.experiment.model_dump(exclude={"algorithms", "seeds"})
            alike.setdefault((json.dumps(shared), client_work(algorithm)), []).append((run, algorithm))
        for group in alike.values():
            size = -(-len(group) // -(-len(group) // self.together))  # even ones
            for start in range(0, len(group), size):
                yield group[start : start + size]

    def _together(self, group: Sequence[tuple[Run, Algorithm]]) -> dict[Path, Outcome]:
        from fedloom.experiments.build import build_options
        from fedloom.simulation import simulate_trials

        experiment = group[0][0].experiment
        data, task = self._load(experiment)
        trials = [
            {
                "algorithm": algorithm,
                "seed": run.seed,
                "run_dir": run.directory,
                "config": run.experiment.to_mapping(),
                "callbacks": [run.watch] if run.watch else [],
            }
            for run, algorithm in group
        ]
        for run, _ in group:
            run.directory.parent.mkdir(parents=True, exist_ok=True)
        count = f"{len(group)} runs as one program" if len(group) > 1 else "1 run"
        self._say(
            f"{count}: {', '.join(dict.fromkeys(run.point.label for run, _ in group))}, {experiment.rounds} rounds"
        )
        settings = build_options(experiment, data)
        for own in ("seed", "config"):
            del settings[own]
        with threads(experiment.threads):
            histories = simulate_trials(
                task,
                data,
                trials,
                **settings,
                progress=self.console.is_terminal and not self.console.quiet,
            )
        done = {}
        for (run, _), history in zip(group, histories, strict=True):
            told = None if history.diverged is None else str(history.diverged)
            if told is not None:  # others write their own
                rounds, seconds = len(history.rounds), history.seconds
                figures = {"seed": run.seed, "rounds": rounds, "seconds": seconds, "diverged": told}
                write_json(run.directory / SUMMARY, figures)
            done[run.directory] = Outcome(run.seed, run.directory, history.rounds, told)
        return done

    def _load(self, experiment: Experiment) -> tuple[FederatedData, Task]:
        from fedloom.experiments.build import build_federation, build_task, check_device

        kind = json.dumps([experiment.data.model_dump(), experiment.validation, experiment.model.model_dump()])
        if kind not in self.loaded:
            check_device(experiment.device)
            data = build_federation(experiment, self.data_folder)
            self.loaded = {kind: (data, build_task(experiment.model, data, self.data_folder))}  # one data set at a time
        return self.loaded[kind]

    def measured(self, experiment: Experiment) -> set[str]:
        """The measures that a run's records will have."""
        _, task = self._load(experiment)
        parts = ["train", *(_PARTS[part] for part in experiment.evaluate_on if part in _PARTS)]
        found = {f"{part}_{name}" for part in parts for name in ("loss", *task.metrics)}
        if "clients" in experiment.evaluate_on:
            cuts = ("p5", "p25", "p50", "p75", "p95", "mean")
            found |= {f"client_{name}/{cut}" for name in ("loss", *task.metrics) for cut in cuts}
        return found

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def tune(
    file: TuneFile, out: Path, data_folder: Path | None = None, quiet: bool = False, console: Console | None = None
) -> dict[str, Tried | None]:
    """Try what the file asks for, leave tables, pictures and `best.toml` under `out`; the best point by algorithm."""
    from fedloom.experiments import tune_report

    console = Console(quiet=True) if quiet else console or Console()
    workshop = Workshop(out, data_folder, file.tune.together, console)
    algorithms = file.algorithms()
    if file.tune.search is not None:
        from fedloom.experiments.search import require_optuna

        require_optuna()
    rule = Rule.of(file.tune, workshop.measured(next(algorithms[0].points()).experiment))
    lock.check(out)
    workshop.prepare(file)
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


def _records(folder: Path) -> list[dict[str, Any]]:
    path = folder / METRICS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("fedloom", "torch")} | {"python": platform.python_version()}
