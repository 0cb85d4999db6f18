"""The run loop: choose a cohort, train a stack of clients, turn their updates into one pseudo-gradient, step.

Of stacked runs the cohorts train as one, and each server takes its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import zip_longest

import torch

from fedloom.cadence import Cadence
from fedloom.errors import Diverged, OutOfMemory
from fedloom.executors.auto import Choice
from fedloom.executors.job import Job, Part, cut
from fedloom.interruption import Interrupted, check, noted
from fedloom.server_graphs import beside, join
from fedloom.trial import Round, Trial


def drive(trials: Sequence[Trial], job: Job, choice: Choice, cadence: Cadence) -> None:
    """All rounds of all trials, in step; their states are written after the same rounds."""
    launched = trials[0].setup.ranks.launched
    kept = any(trial.records.directory is not None for trial in trials)

    def alone(trial: Trial, t: int) -> None:
        _round([trial], t, job, choice, trusting=False)

    def settle(trial: Trial, ahead: int) -> None:
        try:
            while len(trial.pending) > ahead:
                trial.settle(alone)
        except Diverged as error:
            trial.history.diverged, trial.over = error, True

    with noted() if kept and not launched else nullcontext():
        try:
            for t in range(trials[0].setup.rounds):
                live = [trial for trial in trials if not trial.over and trial.start <= t]
                if not live:
                    continue
                _round(live, t, job, choice)
                due = kept and (launched or cadence.due())
                for trial in live:
                    settle(trial, 1 if trial.ahead and not due else 0)
                if due:
                    with cadence.writing():
                        for trial in live:
                            trial.keep()
            for trial in trials:
                settle(trial, 0)
            check()
            for trial in trials:
                trial.keep()  # before any of them is finished
        except Interrupted:
            for trial in trials:
                trial.leave()
            raise


def _round(live: Sequence[Trial], t: int, job: Job, choice: Choice, trusting: bool = True) -> None:
    """Round t of the trials; what the servers find no memory for is done again with half as many clients at a time."""
    left = list(live)
    while left:
        try:
            _together(left, t, job, choice, trusting)
            return
        except torch.OutOfMemoryError as error:
            said = f"round {t}: the servers' part does not fit the device's memory: {error}"
            cause = error.with_traceback(None)  # which would keep what is to be given back
        left = [trial for trial in left if not (trial.pending and trial.pending[-1].t == t)]
        # a round that is charged for is not begun twice, nor one that other ranks are in
        final = any(trial.setup.ledger is not None or trial.setup.ranks.world > 1 for trial in left)
        if left and (final or not choice.halve()):
            fewer = "chunk" if final and choice.executor == "vectorized" and choice.chunk > 1 else "cohort"
            raise OutOfMemory(f"{said}; pass a smaller {fewer}, or run fewer at once") from cause


def _together(live: Sequence[Trial], t: int, job: Job, choice: Choice, trusting: bool) -> None:
    """Round t of the trials: their cohorts train as one."""
    job.functional.module.train()
    begun: dict[int, tuple[Trial, Round]] = {}
    parts: list[list[Part]] = []
    for trial in live:
        round, assignment = trial.begin(t, trusting and trial.ahead)
        begun[id(assignment)] = trial, round
        parts.append(cut(job, assignment, round.drawn.clients, trial.setup.ranks))
    for trained in choice.run(job, _stacks(job, parts)):
        check()
        trial, round = begun[id(trained.part.assignment)]
        trial.take(round, trained)
    try:
        for trial, round in begun.values():
            with beside(trial.setup.shortcut):
                trial.close(round)
    finally:
        for trial in live:
            join(trial.setup.shortcut)


def _stacks(job: Job, parts: Sequence[Sequence[Part]]) -> Iterator[list[Part]]:
    """Parts of all trials that train at once: the first of each together, then the second, as many as fit.

    Trials whose servers are in the same round, that is: some may have had one without enough reports.
    """
    for abreast in zip_longest(*parts):
        stack: list[Part] = []
        for part in sorted((each for each in abreast if each is not None), key=_server_round):
            full = sum(len(each.clients) for each in stack) + len(part.clients) > job.chunk
            if stack and (full or _server_round(stack[0]) != _server_round(part)):
                yield stack
                stack = []
            stack.append(part)
        if stack:
            yield stack


def _server_round(part: Part) -> int:
    return part.assignment.server_round
