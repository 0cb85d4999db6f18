"""Run an experiment: every algorithm with every seed, a directory for each, a table and a picture at the end."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedloom import lock
from fedloom.documents import left_behind, read_records
from fedloom.ends import ENDS, final
from fedloom.errors import Diverged, FedloomError
from fedloom.experiments.resume import as_begun, check_allowed
from fedloom.experiments.schema import Experiment, RunSpec
from fedloom.interruption import import_torch
from fedloom.launched import first_rank, restart
from fedloom.rundir import METRICS, SUMMARY, RunDirectory, check_free, write_json
from fedloom.trackers import check_tracker, following
from fedloom.versions import versions

if TYPE_CHECKING:
    from fedloom.algorithm import Algorithm
    from fedloom.callbacks import Callback
    from fedloom.data.federated import FederatedData
    from fedloom.task import Task

PICTURE = "curves.png"

Trail = Callable[[RunSpec], AbstractContextManager[list["Callback"]]]


@dataclass(frozen=True)
class RunResult:
    """What one run came to."""

    label: str
    seed: int
    directory: Path
    rounds: list[dict[str, Any]]
    seconds: float
    diverged: Diverged | None = None

    def final(self, metric: str) -> float | None:
        """What it came to at the end; None where the metric was never measured, or the run diverged."""
        return None if self.diverged is not None else final(self._values(metric))

    def rounds_to(self, target: float) -> int | None:
        """The rounds until the test accuracy was that high; None where it never was."""
        there = (record["round"] + 1 for record in self.rounds if (record.get("test_accuracy") or 0.0) >= target)
        return next(there, None)

    def best(self, metric: str) -> float | None:
        """The largest value of any round."""
        return max(self._values(metric), default=None)

    def _values(self, metric: str) -> list[float]:
        return [record[metric] for record in self.rounds if record.get(metric) is not None]

    def figures(self) -> dict[str, Any]:
        """The run in a line of the summary."""
        last = self.rounds[-1] if self.rounds else {}
        spent = {"epsilon": last["epsilon"]} if "epsilon" in last else {}
        return {
            "label": self.label,
            "seed": self.seed,
            "directory": self.directory.name,
            "rounds": len(self.rounds),
            "test_accuracy": self.final("test_accuracy"),
            "best_test_accuracy": self.best("test_accuracy"),
            "test_loss": self.final("test_loss"),
            "seconds": self.seconds,
            "diverged": None if self.diverged is None else str(self.diverged),
            **spent,
        }


def run_experiment(
    experiment: Experiment,
    out: Path,
    data_folder: Path | None = None,
    quiet: bool = False,
    console: Console | None = None,
    resume: bool = False,
    device: str | None = None,
    allow: Collection[str] = (),
    track: str | None = None,
) -> list[RunResult]:
    """Run everything the experiment asks for, and leave it under `out`.

    A single run has `out` for its directory; of several, each has one beneath it. A run that diverges does not keep the
    others from running: the error is raised at the end. An interrupt keeps what there is and says how far it came.
    With `resume` what is finished stays and the rest goes on, on another `device` if one is given; what else differs
    from when it began is refused, unless `allow` names it. `track` is the tracker that follows every run.
    """
    first, going_on = first_rank(), restart() or resume
    console = Console(quiet=True) if quiet or not first else console or Console()
    runs = experiment.runs()
    check_allowed(allow)
    lock.check(out)
    if first and not going_on:
        check_free(out)

    import_torch()
    from fedloom.experiments import build

    build.check_device(device or experiment.device)
    if track is not None:
        check_tracker(track)
    algorithms = [build.build_algorithm(run.algorithm) for run in runs]
    with lock.alone(out) if first else nullcontext():
        if first and not going_on:
            RunDirectory(out).config((runs[0].experiment if len(runs) == 1 else experiment).to_mapping())
        folders = [out if len(runs) == 1 else out / run.slug for run in runs]
        if going_on:
            allow = (*allow, *(["device"] if device else []))
            runs = [as_begun(run, folder, device, allow) for run, folder in zip(runs, folders, strict=True)]
        data = build.build_federation(experiment, data_folder)
        task = build.build_task(experiment.model, data, data_folder)
        results: list[RunResult] = []
        try:
            each = list(zip(runs, algorithms, folders, strict=True))
            _each(each, task, data, results, console, going_on, allow, _trail(track, out, experiment))
        except KeyboardInterrupt as stop:
            if first:
                _summarise(out, experiment, results, complete=False)
            raise KeyboardInterrupt(
                f"{stop}, with {len(results)} of {len(runs)} runs finished; "
                f"what ran is kept in {out}: fedloom resume goes on"
            ) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise FedloomError(
                f"{where}{error.strerror or error}; the last state is kept in {out}: put that right, "
                "then fedloom resume goes on"
            ) from error
        if first:
            _summarise(out, experiment, results, complete=True)
            console.print(summary_table(results, experiment.target))
            say(console, ENDS)
            _picture(results, data, out / PICTURE, experiment.title, console)
    say(console, f"runs: {out}")
    if track == "tensorboard":
        say(console, f"tensorboard --logdir {_events(out)}")
    for result in results:
        if result.diverged is not None:
            raise result.diverged
    return results


def _trail(track: str | None, out: Path, experiment: Experiment) -> Trail:
    """For each run, who follows it in a tracker; nobody unless one is asked for."""

    @contextmanager
    def trail(run: RunSpec) -> Iterator[list[Callback]]:
        if track is None:
            yield []
            return
        from fedloom.report.settings import flat

        settings, name = flat(run.experiment.to_mapping()), f"{run.label}, seed {run.seed}"
        with following(track, _events(out) / run.slug, experiment.name, name, settings) as follower:
            yield [follower]

    return trail


def _events(out: Path) -> Path:
    """Beside the runs, not among them."""
    return out.with_name(f"{out.name}-events")


def _each(
    runs: Sequence[tuple[RunSpec, Algorithm, Path]],
    task: Task,
    data: FederatedData,
    results: list[RunResult],
    console: Console,
    going_on: bool,
    allow: Collection[str],
    trail: Trail,
) -> None:
    """One run after the other; `results` has those that are finished."""
    told: set[str] = set()

    def tell(choice: str) -> None:
        if choice not in told:
            told.add(choice)
            say(console, choice)

    total = sum(run.experiment.rounds for run, _, _ in runs)
    done = 0
    with rounds_bar(console, total) as bar:
        for run, algorithm, folder in runs:
            rounds = run.experiment.rounds
            if going_on and (folder / SUMMARY).exists():
                results.append(_finished(run, folder))
            else:
                try:
                    with trail(run) as followers:
                        watchers: list[Callback] = [_Watch(run, bar, tell), *followers]
                        results.append(_one(run, algorithm, task, data, folder, bar, watchers, going_on, allow))
                except KeyboardInterrupt:
                    came = f"after {len(read_records(folder / METRICS))} of {rounds} rounds"
                    raise KeyboardInterrupt(f"interrupted in {run.slug} {came}") from None
            done += rounds
            bar.update(bar.task_ids[0], completed=done)


def _finished(run: RunSpec, folder: Path) -> RunResult:
    """A run that was over before everything was started again."""
    instead = f"remove {folder / SUMMARY}, then fedloom resume goes on from the last sound state"
    summary, records = left_behind(folder, instead)
    return RunResult(run.label, run.seed, folder, records, summary.get("seconds", 0.0))


class _Watch:
    """Sees a run begin and every round of it; ends it once the target is reached."""

    def __init__(self, run: RunSpec, bar: Progress, tell: Callable[[str], None]) -> None:
        self.run, self.bar, self.tell = run, bar, tell

    def begin(self, got: Mapping[str, Any]) -> None:
        threads = f"{got['threads']} thread{'s' if got['threads'] != 1 else ''}"
        stack = f" {got['chunk']} at a time" if got["executor"] == "vectorized" else ""
        how = f"{got['device']}, {got['dtype']}, {threads}, about {got['memory_mib']:,} MiB"
        self.tell(f"executor: {got['executor']}{stack}, {how}: {got['why']}")
        if "resumed" in got:
            self._resumed(got["resumed"]["round"], got["resumed"]["passed_over"])
        if (privacy := self.run.algorithm.privacy) is not None and privacy.seeded_noise:
            self.tell("privacy: the noise is seeded, for a test: it protects nobody, and epsilon is void")

    def _resumed(self, round: int, passed_over: Sequence[str]) -> None:
        self.bar.update(self.bar.task_ids[0], advance=round)
        self.tell(f"{self.run.slug}: {round} rounds are kept, {self.run.experiment.rounds - round} to go")
        for why in passed_over:  # told to those who asked for quiet as well
            print(f"fedloom: {why}: passed over, going on after round {round}", file=sys.stderr)

    def __call__(self, record: dict[str, Any]) -> bool:
        accuracy = record.get("test_accuracy")
        shown = "" if accuracy is None else f"  {accuracy:.1%}"
        if "epsilon" in record:
            self._tell_epsilon(record)
        self.bar.update(self.bar.task_ids[0], advance=1, description=f"{self.run.label}, seed {self.run.seed}{shown}")
        return self.run.experiment.arrived(record)

    def _tell_epsilon(self, record: Mapping[str, Any]) -> None:
        privacy = self.run.algorithm.privacy
        assert privacy is not None
        spent = "void" if privacy.seeded_noise else f"{record['epsilon']:.4g} at delta {privacy.delta:g}"
        self.tell(f"{self.run.label}, seed {self.run.seed}, round {record['round'] + 1}: epsilon {spent}")


def _one(
    run: RunSpec,
    algorithm: Algorithm,
    task: Task,
    data: FederatedData,
    folder: Path,
    bar: Progress,
    watchers: Sequence[Callback],
    resume: bool,
    allow: Collection[str],
) -> RunResult:
    """One run, and who sees its rounds."""
    from fedloom.experiments import build
    from fedloom.simulation import simulate

    experiment = run.experiment
    bar.update(bar.task_ids[0], description=f"{run.label}, seed {run.seed}")
    try:
        with threads(experiment.threads):
            history = simulate(
                task,
                data,
                algorithm,
                callbacks=watchers,
                run_dir=folder,
                resume=resume,
                allow=allow,
                **build.build_options(experiment, data),
            )
    except Diverged as error:
        rounds = read_records(folder / METRICS)
        return RunResult(run.label, run.seed, folder, rounds, sum(record["seconds"] for record in rounds), error)
    return RunResult(run.label, run.seed, folder, history.rounds, history.seconds)


def summary_table(results: Sequence[RunResult], target: float | None = None) -> Table:
    """The algorithms, best first: final accuracy over the seeds, the best round, the loss, the time.

    With a target the best is who needs the fewest rounds to it.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("algorithm", no_wrap=True)
    to_target = [] if target is None else [f"rounds to {target:.4g}"]
    for heading in (*to_target, "test accuracy %", "best %", "test loss", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = []
    for label in dict.fromkeys(result.label for result in results):
        runs = [result for result in results if result.label == label]
        accuracy = [value for run in runs if (value := run.final("test_accuracy")) is not None]
        best = [value for run in runs if (value := run.best("test_accuracy")) is not None]
        loss = [value for run in runs if (value := run.final("test_loss")) is not None]
        diverged = sum(run.diverged is not None for run in runs)
        needed = [] if target is None else [run.rounds_to(target) for run in runs]
        arrived = [rounds for rounds in needed if rounds is not None]
        part = f" in {len(arrived)} of {len(runs)}" if 0 < len(arrived) < len(runs) else ""
        cells = (
            *([] if target is None else [f"{statistics.fmean(arrived):.1f}{part}" if arrived else "-"]),
            _mean_and_spread(accuracy) + (f" ({diverged} of {len(runs)} diverged)" if diverged else ""),
            f"{100 * statistics.fmean(best):.2f}" if best else "-",
            f"{statistics.fmean(loss):.4f}" if loss else "-",
            f"{statistics.fmean(run.seconds for run in runs):.1f}",
        )
        late = statistics.median([math.inf if rounds is None else rounds for rounds in needed]) if needed else 0.0
        high = -statistics.fmean(accuracy) if accuracy else 1.0
        order = (late, high, statistics.fmean(loss) if loss else math.inf)
        rows.append((order, label, cells))
    for _, label, cells in sorted(rows):
        table.add_row(label, *cells)
    return table


def _mean_and_spread(values: list[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread}"


def _summarise(out: Path, experiment: Experiment, results: Sequence[RunResult], complete: bool) -> None:
    """The figures of all runs, at the top; a single run has its own summary there."""
    if len(experiment.algorithms) * len(experiment.seeds) == 1:
        return
    figures = {
        "experiment": experiment.name,
        "complete": complete,
        "runs": [result.figures() for result in results],
        "seconds": sum(result.seconds for result in results),
        "versions": versions(),
    }
    write_json(out / SUMMARY, figures)


def _picture(
    results: Sequence[RunResult], data: FederatedData, path: Path, title: str | None, console: Console
) -> None:
    curves: dict[str, list[list[dict[str, Any]]]] = {}
    for result in results:
        if result.rounds:
            curves.setdefault(result.label, []).append(result.rounds)
    if not curves:
        return
    from fedloom.report.plots import learning_curves_and_mix

    learning_curves_and_mix(curves, data, path, title)
    say(console, f"picture: {path}")


def say(console: Console, words: str, style: str = "") -> None:
    """A line, as long as it is."""
    console.print(Text(words, style=style), soft_wrap=True)


@contextmanager
def rounds_bar(console: Console, total: int) -> Iterator[Progress]:
    """One bar over all rounds of all runs, where there is a terminal to draw it on."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal or console.quiet) as bar:
        bar.add_task("starting", total=total)
        yield bar


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
