"""Many runs as one program, for studies and tunings: what shares a stack, what is done already, where each goes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fedloom.accounting import LEDGER
from fedloom.callbacks import Callback
from fedloom.data.catalog import Shelf, options_of
from fedloom.differences import difference
from fedloom.documents import left_behind, read_records
from fedloom.errors import Changed, Damaged, Diverged, FedloomError, Unlike
from fedloom.evaluation import names
from fedloom.experiments import build
from fedloom.experiments.adoption import NOT_THE_NUMBERS, complete
from fedloom.experiments.measures import Outcome
from fedloom.experiments.runner import threads
from fedloom.experiments.schema import Experiment
from fedloom.experiments.study import StudyRun
from fedloom.history import History
from fedloom.preparation import client_work
from fedloom.resumption import newest
from fedloom.rundir import CHECKPOINTS, CONFIG, METRICS, SUMMARY, RunDirectory
from fedloom.simulation import ALIKE, RUNNING, simulate_trials

MOST = 32
"""Runs in one stack: their models, optimizer states and batches share the device's memory."""

DENSE = ("logistic", "mlp", "autoencoder", "tag_predictor")
"""Models that a CPU trains faster stacked. The others it trains one after another, so each run is soon on disk."""

_SHARED = (*ALIKE, "validation", *(name for name in RUNNING if name in Experiment.model_fields), "threads")
"""What all runs of a stack have alike."""

TIMED, LONG = 3, 2.0
"""Rounds that are timed for an estimate, after one that is not; fewer where that takes more than so many seconds."""


class Planned(Protocol):
    """Whatever has an experiment of one algorithm and one seed."""

    @property
    def experiment(self) -> Experiment: ...


P = TypeVar("P", bound=Planned)


@dataclass(frozen=True)
class StackRun:
    """A run on its way: where it goes, and who is told of every round and may end it."""

    experiment: Experiment
    folder: Path
    watch: Callback | None = None
    afresh: bool = False  # its watch has to see every round: where it was begun it begins again


def stacks(runs: Iterable[P], most: int = MOST) -> list[list[P]]:
    """The runs in groups that `simulate_trials` takes at once, one data set after another."""
    groups: dict[str, list[P]] = {}
    for run in runs:
        groups.setdefault(stack_key(run.experiment), []).append(run)
    found: list[list[P]] = []
    for group in groups.values():
        largest = most if _stacks_well(group[0].experiment) else 1
        size = -(-len(group) // -(-len(group) // largest))  # even: a short stack takes nearly as long as a full one
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return sorted(found, key=lambda stack: stack[0].experiment.data.name)


def stack_key(experiment: Experiment) -> str:
    """What runs of one stack share: the rows, the model, the shape of the work, the clients up to their rate."""
    own = options_of(experiment.data.name)
    rows = {name: value for name, value in experiment.data.options().items() if name in own}
    work = client_work(build.build_algorithm(experiment.algorithms[0]))
    shape = {name: getattr(experiment, name) for name in _SHARED}
    return repr((experiment.data.name, sorted(rows.items()), experiment.model.model_dump(), shape, work))


def _stacks_well(experiment: Experiment) -> bool:
    on_cpu = experiment.device in (None, "cpu")
    return experiment.executor != "loop" and (not on_cpu or experiment.model.name in DENSE)


def train(
    stack: Sequence[StudyRun],
    out: Path,
    shelf: Shelf,
    data_folder: Path | None,
    watch: Callable[[StudyRun, Mapping[str, Any]], None],
) -> None:
    """Run a stack of a study, which keeps figures and not models."""
    run_stack([StackRun(run.experiment, out / run.slug, _callback(run, watch)) for run in stack], shelf, data_folder)
    for run in stack:
        shutil.rmtree(out / run.slug / CHECKPOINTS, ignore_errors=True)


def run_stack(
    stack: Sequence[StackRun], shelf: Shelf, data_folder: Path | None, progress: bool = False
) -> list[History]:
    """Run a stack; every run leaves its directory, those that diverge as well. Runs that were begun go on."""
    trials: list[dict[str, Any]] = []
    for run in stack:
        if run.afresh and run.folder.exists():
            if (run.folder / LEDGER).exists():
                raise Damaged(
                    f"{run.folder}: expected a new run, got one begun whose privacy is spent: choose another --out"
                )
            shutil.rmtree(run.folder)
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        callbacks = [] if run.watch is None else [run.watch]
        trials.append(_trial(run.experiment, shelf, data_folder) | {"callbacks": callbacks, "run_dir": run.folder})
    try:
        with threads(stack[0].experiment.threads):
            histories = _simulate(stack[0].experiment, trials, data_folder, progress)
    except Changed as error:  # there is no --allow here: a table must not mix what was made differently
        anew = "" if (error.directory / LEDGER).exists() else "remove that folder to begin it again, "
        raise Damaged(f"{error.directory}, {error.what}: put it back, {anew}or choose another --out") from None
    for run, history in zip(stack, histories, strict=True):
        if history.diverged is not None:
            _keep_diverged(run, history, history.diverged)
    return histories


def seconds_per_round(run: StudyRun, shelf: Shelf, data_folder: Path | None) -> float:
    """A round's time on this machine, from a few rounds of the run that leave nothing behind."""
    short = run.experiment.model_copy(update={"rounds": 1 + min(TIMED, run.experiment.rounds)})
    timed: list[float] = []

    def enough(record: Mapping[str, Any]) -> bool:
        timed.extend([record["seconds"]] if record["round"] else [])
        return sum(timed) > LONG

    trial = _trial(short, shelf, data_folder) | {"callbacks": [enough]}
    with threads(short.threads):
        _simulate(short, [trial], data_folder)
    return sorted(timed)[len(timed) // 2] if timed else 0.0


def _trial(experiment: Experiment, shelf: Shelf, data_folder: Path | None) -> dict[str, Any]:
    data = build.build_federation(experiment, data_folder, shelf)
    algorithm = build.build_algorithm(experiment.algorithms[0])
    return {"data": data, "algorithm": algorithm, **build.build_options(experiment, data)}


def _simulate(
    experiment: Experiment, trials: Sequence[dict[str, Any]], data_folder: Path | None, progress: bool = False
) -> list[History]:
    shared = {name: trials[0][name] for name in (*RUNNING, *ALIKE) if name in trials[0]}
    own = [{name: value for name, value in trial.items() if name not in shared} for trial in trials]
    task = build.build_task(experiment.model, trials[0]["data"], data_folder)
    going_on: dict[str, Any] = {"resume": True, "allow": NOT_THE_NUMBERS, "progress": progress}
    try:
        return simulate_trials(task, trials[0]["data"], own, **shared, **going_on)
    except Unlike:  # a frozen part drawn with the seed, say, or labels flipped for other clients
        alone = [simulate_trials(task, each["data"], [each], **shared, **going_on) for each in own]
        return [history for histories in alone for history in histories]


def _callback(run: StudyRun, watch: Callable[[StudyRun, Mapping[str, Any]], None]) -> Callable[[dict[str, Any]], bool]:
    def each(record: dict[str, Any]) -> bool:
        watch(run, record)
        return run.experiment.arrived(record)

    return each


def _keep_diverged(run: StackRun, history: History, error: Diverged) -> None:
    """A run that diverged is a result: its summary says so."""
    RunDirectory(run.folder, resume=True).summary(
        {
            "seed": run.experiment.seeds[0],
            "rounds": len(history.rounds),
            "final": history.rounds[-1] if history.rounds else {},
            "seconds": history.seconds,
            "resolved": history.resolved,
            "data_fingerprint": newest(run.folder).notes.get("data_fingerprint"),
            "diverged": str(error),
        }
    )


# What is there already ------------------------------------------------------------------------------------------------


def finished(experiment: Experiment, folder: Path) -> bool:
    """Whether the run is done. One with other settings in its place is an error that names the first that differs."""
    config = folder / CONFIG
    if config.exists():
        there = complete(config)
        if (found := difference(experiment.to_mapping(), there, but=NOT_THE_NUMBERS)) is not None:
            key, expected, got = found
            raise FedloomError(
                f"{folder}, {key}: expected {expected!r}, got a run with {got!r}: choose another --out, or remove it"
            )
    elif folder.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir()):  # a killed one's lock
        raise FedloomError(f"{folder}: expected a run, got a folder without {CONFIG}: choose another --out")
    return (folder / SUMMARY).exists()


def rounds_left(experiment: Experiment, folder: Path) -> int:
    """The rounds that a run which is not finished has to go: all, or what its newest state leaves."""
    found = newest(folder)
    return 0 if found.value.get("over") else experiment.rounds - found.round


def outcome(run: StudyRun, out: Path) -> Outcome:
    """What a finished run left."""
    summary, records = left_behind(out / run.slug)
    resolved = summary.get("resolved")
    device = str(resolved.get("device", "cpu")) if isinstance(resolved, dict) else "cpu"
    return Outcome(records, run.target, summary.get("diverged"), device)


def so_far(run: StudyRun, out: Path) -> tuple[Outcome, int | None] | None:
    """What a run has left that was begun, and up to which round that is tested; None for one that is over."""
    if finished(run.experiment, out / run.slug):
        return outcome(run, out), None
    records = read_records(out / run.slug / METRICS)
    if not records:
        return None
    left = Outcome(records, run.target, None, run.experiment.device or "cpu")
    if run.experiment.arrived(records[-1]):
        return left, None  # it is over, and waits for those it is stacked with
    losses = names(run.experiment.evaluate_on, [])
    tested = [record["round"] + 1 for record in records if any(record.get(name) is not None for name in losses)]
    return left, max(tested, default=0)
