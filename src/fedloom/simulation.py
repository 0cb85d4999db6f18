"""Runs, alone or stacked: what is asked for is checked and put in its place, and they go through their rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields, replace
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from fedloom import capacity, random
from fedloom.algorithm import Algorithm
from fedloom.cadence import Cadence
from fedloom.callbacks import Callback, begin
from fedloom.data.federated import FederatedData
from fedloom.determinism import deterministic as repeatable
from fedloom.errors import FedloomError, choose
from fedloom.executors.auto import Choice, resolve
from fedloom.executors.crew import operations_on
from fedloom.executors.job import Job
from fedloom.faults import Fault
from fedloom.history import History
from fedloom.precision import PRECISIONS, tensor_float
from fedloom.preparation import Place, check_stackable, prepared, settings
from fedloom.private_setup import with_ledger
from fedloom.progress import rounds_bar
from fedloom.ranks import Ranks, current, local_device
from fedloom.records import Records
from fedloom.resumption import newest
from fedloom.rounds import drive
from fedloom.rundir import CONFIG, enter
from fedloom.sampling import Sampler, cohort_size
from fedloom.server_graphs import ServerGraphs, servers
from fedloom.system import System
from fedloom.task import Task
from fedloom.trial import Setup, Trial
from fedloom.types import Params


def simulate(
    task: Task,
    data: FederatedData,
    algorithm: Algorithm,
    rounds: int = 10,
    cohort: int | float | Callable[[int], int] = 10,
    epochs: int = 1,
    steps: int | None = None,
    batch_size: int | None = 20,
    seed: int = 0,
    sampling_seed: int | None = None,
    sampler: str | Sampler = "uniform",
    executor: str = "auto",
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    eval_every: int | None = None,
    params: Params | None = None,
    callbacks: Sequence[Callback] = (),
    run_dir: str | PathLike[str] | None = None,
    progress: bool = False,
    *,
    drop_last: bool = False,
    chunk: int | None = None,
    compile: bool | None = None,
    precision: str = "high",
    deterministic: bool = False,
    system: System | None = None,
    evaluate_on: Sequence[str] = ("test",),
    alignment: bool = False,
    faults: Fault | Sequence[Fault] = (),
    min_reports: int = 1,
    config: Mapping[str, Any] | None = None,
    resume: bool = False,
    allow: Collection[str] = (),
) -> History:
    """Train `task` over the clients of `data` with `algorithm`.

    A round draws `cohort` clients (a number, a fraction as a float, or a function of the round); each works for
    `epochs` passes over its rows, or for `steps` batches. The same seed gives the same bits. `params` starts from
    another model. A callback that returns True ends the run. `system` lets clients be away, drop out or be late,
    `faults` lets them break or attack. With fewer than `min_reports` admitted a round is void and changes nothing.
    `deterministic` keeps to operations that give the same bits every time on a GPU too.

    Evaluation is on the `"test"` set, the whole `"train"` set, each of the `"clients"`' own test rows, or the clients
    held out for `"validation"`, every `eval_every` rounds and after the last; by default so rarely that it costs about
    a tenth of the training.
    `alignment` measures each update against the mean: angles, distances, and the divergence of client gradients; and,
    where rows have labels, the cosine between the cohort's and everybody's.

    In `run_dir` the state is written now and then, at the end and on SIGINT or SIGTERM; `resume` goes on from it to the
    same bits. Other settings, data or versions than it was made with are refused, unless `allow` names the key.

    >>> import fedloom as fl
    >>> data = fl.load("digits", partition="iid", clients=10)
    >>> task = fl.Task(model=lambda: fl.models.Logistic(64, 10))
    >>> history = fl.simulate(task, data, fl.fedavg(client_lr=0.1), rounds=2, cohort=5)
    >>> [record["round"] for record in history.rounds]
    [0, 1]
    """
    given = dict(locals())
    [history] = _run([given], _How(**{name: given.pop(name) for name in RUNNING}))
    if history.diverged is not None:
        raise history.diverged
    return history


def simulate_trials(
    task: Task,
    data: FederatedData,
    trials: Sequence[Mapping[str, Any]],
    *,
    executor: str = "auto",
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    chunk: int | None = None,
    compile: bool | None = None,
    precision: str = "high",
    deterministic: bool = False,
    progress: bool = False,
    resume: bool = False,
    allow: Collection[str] = (),
    **shared: Any,
) -> list[History]:
    """Several runs of `simulate` as one program: seeds, learning rates, server optimizers.

    A trial is a dict of what is its own: `algorithm`, `seed`, `sampling_seed`, `sampler`, `cohort`, `params`, `system`,
    `faults`, `min_reports`, `callbacks`, `run_dir`, or `data` with another partition of the same rows. Everything else
    is `shared`. Clients of all trials train in one stack, so the clients' optimizers may differ in their learning rates
    alone, and what does not train is the same in all. A trial that diverges ends there, which its `history.diverged`
    says; the others go on. With `resume` trials go on from the last states in their `run_dir`, which all of a stack
    write after the same rounds.

    >>> import fedloom as fl
    >>> data = fl.load("digits", partition="iid", clients=10)
    >>> task = fl.Task(model=lambda: fl.models.Logistic(64, 10))
    >>> trials = [{"algorithm": fl.fedavg(client_lr=rate)} for rate in (0.01, 0.1)]
    >>> [len(history.rounds) for history in fl.simulate_trials(task, data, trials, rounds=2, cohort=5)]
    [2, 2]
    """
    defaults = {
        name: parameter.default
        for name, parameter in signature(simulate).parameters.items()
        if parameter.default is not parameter.empty
    }
    for name in RUNNING:
        del defaults[name]
    trials = list(trials)
    known = {*defaults, "algorithm", "data"}
    for name in (*shared, *(name for trial in trials for name in trial)):
        if name not in known:
            raise choose("simulate_trials", name, known)
    if not trials:
        raise FedloomError("simulate_trials: expected at least one trial, got none")
    alike = {name: value for name, value in {**defaults, **shared}.items() if name in ALIKE}
    for number, trial in enumerate(trials):
        for name, value in alike.items():
            if name in trial and trial[name] != value:
                raise FedloomError(
                    f"simulate_trials trial {number}: {name} must be the same in all: expected {value!r}, got "
                    f"{trial[name]!r}; pass it once, beside the trials"
                )
        if "algorithm" not in {**shared, **trial}:
            raise FedloomError(f"simulate_trials trial {number}: expected an algorithm, got none")
    given = [{"task": task, "data": data, **defaults, **shared, **trial} for trial in trials]
    places = [Path(each["run_dir"]).resolve() for each in given if each["run_dir"] is not None]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise FedloomError(f"simulate_trials run_dir: expected a folder for each trial, got {place} twice")
    how = _How(executor, device, dtype, chunk, compile, precision, deterministic, progress, resume, allow)
    return _run(given, how)


@dataclass(frozen=True)
class _How:
    """How stacked runs are run: together, or not at all."""

    executor: str = "auto"
    device: str | torch.device | None = None
    dtype: torch.dtype | None = None
    chunk: int | None = None
    compile: bool | None = None
    precision: str = "high"
    deterministic: bool = False
    progress: bool = False
    resume: bool = False
    allow: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise choose("precision", self.precision, PRECISIONS)
        if self.deterministic and self.compile:
            raise FedloomError(
                "compile: expected none beside deterministic, got True: a compiler chooses between kernels by the clock"
            )

    @property
    def compiled(self) -> bool | None:
        """A compiler's kernels are chosen by the clock, on a GPU."""
        return False if self.deterministic and str(self.device).startswith("cuda") else self.compile


RUNNING = tuple(field.name for field in fields(_How))

ALIKE = ("rounds", "epochs", "steps", "batch_size", "drop_last")
"""What stacked runs share, beside the model and the data: the shape of the work."""


def _run(runs: Sequence[dict[str, Any]], how: _How) -> list[History]:
    target = local_device(_device(how.device))
    with repeatable(how.deterministic), torch.cuda.device(target) if target.type == "cuda" else nullcontext():
        return _run_all(runs, how, target)


def _run_all(runs: Sequence[dict[str, Any]], how: _How, target: torch.device) -> list[History]:
    ranks = current(target)
    resume = how.resume or ranks.restarted
    place = Place(target, how.dtype)
    setups = [prepared(given, place) for given in runs]
    check_stackable(setups)
    first = setups[0]
    size = sum(
        max(cohort_size(setup.cohort, setup.data.population, t, setup.asking.most) for t in (0, setup.rounds - 1))
        for setup in setups
    )
    job = Job(first.functional, first.algorithm, first.trained_on, first.batching)
    if how.precision == "bfloat16":
        job = replace(job, functional=job.functional.computing_in(torch.bfloat16))
    shortcuts: Sequence[ServerGraphs | None] = [None] * len(runs)
    if target.type == "cuda" and ranks.world == 1:
        shortcuts = servers(len(runs))
    trials: list[Trial] = []
    cadence = Cadence()
    with (
        tensor_float(target.type == "cuda" and how.precision != "highest"),
        rounds_bar(first.rounds * len(runs), how.progress and ranks.first) as shown,
        ExitStack() as entered,
    ):
        job, choice = resolve(job, how.executor, how.chunk, size, first.rounds, how.compiled, ranks)
        choice.forgets += [shortcut.forget for shortcut in shortcuts if shortcut is not None]
        _check_memory(setups, size, job, choice, target)
        for setup, given, shortcut in zip(setups, runs, shortcuts, strict=True):
            setup = replace(setup, draws=job.draws, callbacks=(shown, *setup.callbacks), ranks=ranks, shortcut=shortcut)
            history = History(
                constants=setup.functional.constants,
                names=setup.functional.names,
                resolved={**_resolved(job, choice, target, how.precision, ranks), **setup.recorded},
            )
            if given["run_dir"] is not None and ranks.first:
                entered.enter_context(enter(Path(given["run_dir"]), resume=resume, finished=resume and len(runs) > 1))
            trials.append(_trial(setup, history, given, resume, how.allow, len(runs) > 1))
            begin(setup.callbacks, history.resolved)
        with random.generator_kept(job.draws), operations_on(choice.threads.aside):
            drive(trials, job, choice, cadence)
        for trial in trials:
            trial.history.resolved |= choice.notes
        return [trial.history if trial.history.diverged else trial.finish() for trial in trials]


def _check_memory(setups: Sequence[Setup], size: int, job: Job, choice: Choice, target: torch.device) -> None:
    """An error before the first round unless it fits; a GPU's stack is halved until it does, down to one client."""
    estimate = choice.memory if target.type == "cpu" else choice.memory // max(1, min(choice.chunk, size))
    keeping = [setup for setup in setups if setup.algorithm.memory is not None]
    rows = sum(capacity.rows_kept(setup.data.population, size // len(setups), setup.rounds) for setup in keeping)
    leaves = job.functional.params.values()
    row_bytes = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
    capacity.check_training(estimate, rows, row_bytes, target)


def _trial(
    setup: Setup,
    history: History,
    given: Mapping[str, Any],
    resume: bool,
    allow: Collection[str],
    stacked: bool,
) -> Trial:
    """A run at its beginning, or where it was: when it was interrupted, or a rank died and all were started again."""
    ranks, path = setup.ranks, given["run_dir"]
    own, config = path if ranks.first else None, given["config"]
    if config is None and own is not None:
        config = settings(given, setup)
    setup = with_ledger(setup, own)
    found = newest(Path(path)) if resume and path is not None and (Path(path) / CONFIG).exists() else None
    # of a stack some may be finished when the others are not
    again = stacked and found is not None and found.state is not None
    frozen = setup.functional.frozen
    records = Records(own, config or {}, history, setup.data.fingerprint, frozen, setup.seed, found, allow, again)
    ahead = next(iter(setup.functional.params.values())).is_cuda and ranks.world == 1 and not ranks.launched
    trial = Trial(setup, history, records, ahead=ahead)
    if found is not None:
        trial.restore(found)
    return trial


def _resolved(job: Job, choice: Choice, target: torch.device, precision: str, ranks: Ranks) -> dict[str, Any]:
    return {
        "executor": choice.executor,
        "ranks": ranks.world,
        "chunk": choice.chunk,
        "why": choice.why,
        "device": str(target),
        "dtype": str(next(iter(job.functional.params.values())).dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "workers": choice.workers,
        "program": choice.program,
        "precision": precision,
        "memory_mib": round((choice.memory + job.data.nbytes) / 2**20),  # an estimate
    }


def _device(device: str | torch.device | None) -> torch.device:
    """The device asked for; one that is not there is an error, not a surprise in the first round."""
    try:
        found = torch.device(device or "cpu")
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise FedloomError(f"device: expected one this machine has, got {device!r}: {error}") from error
    return found
