"""The runs of a study: what is there already, what is trained, what is told from another's training, how far it is."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.console import Console
from rich.progress import Progress

from fedloom.data import places
from fedloom.data.catalog import Shelf
from fedloom.data.releases import RELEASES
from fedloom.errors import FedloomError
from fedloom.experiments import stacks
from fedloom.experiments.adoption import adopt
from fedloom.experiments.build import check_named_files
from fedloom.experiments.clocks import timed, twins
from fedloom.experiments.measures import Outcome
from fedloom.experiments.origins import remember
from fedloom.experiments.runner import rounds_bar, say
from fedloom.experiments.study import Study, StudyRun, runs
from fedloom.experiments.words import counted, only_words
from fedloom.rundir import CONFIG, SUMMARY, write_whole

QUIET = 60.0
"""Seconds without a word where there is no bar to look at."""
SOON = 2.0
"""Seconds after which somebody who waits is told how far it is."""


def run_all(
    study: Study,
    wanted: Sequence[StudyRun],
    out: Path,
    data_folder: Path | None,
    console: Console,
    reuse: Sequence[Path],
    line: str,
) -> None:
    """All runs that are not finished, stack by stack; an interrupt says how far it came."""
    missing = unfinished(wanted, out)
    write_whole(out / CONFIG, study.to_toml())  # not before what is there was found to have the same settings
    if taken := adopt(missing, out, reuse, data_folder):
        say(console, f"{taken:,} runs taken from {', '.join(str(folder) for folder in reuse)}")
        missing = unfinished(missing, out)
    if done := len(wanted) - len(missing):
        say(console, f"{done:,} of {len(wanted):,} runs are finished and not run again")
    if not missing:
        return
    _check_files(study, wanted, missing, data_folder)
    groups = trainings(wanted, out)
    trained = [run for run, *_ in groups]
    if clocks := len(missing) - len(unfinished(trained, out)):
        few = "1 run differs" if clocks == 1 else f"{clocks:,} runs differ"
        say(console, f"{few} from others in the clock alone, told from their training")
    way = _OnTheWay(wanted, out, {run.slug: others for run, *others in groups}, data_folder, console, line)
    try:
        for run in trained:
            way.tell(run)
        way.train(unfinished(trained, out))
        way.train(unfinished(wanted, out))  # what could not be told after all
    except KeyboardInterrupt:
        over = f"{_over(wanted, out)} of {len(wanted)} runs"  # of the last stack some may be over
        raise KeyboardInterrupt(f"interrupted with {over} finished, kept in {out}: the same command goes on") from None


def _check_files(
    study: Study, wanted: Sequence[StudyRun], missing: Sequence[StudyRun], data_folder: Path | None
) -> None:
    """An error, before hours of training, where the files of some cells are not here: with what can be run without."""
    lacking = _lacking(missing, data_folder)
    if not lacking:
        return
    hints = [f"without it: --only {shlex.quote(part)}" for part in _without(study, wanted, lacking)]
    others = {name: study.at(name).model_copy(update={"asked": {}}) for name in study.scales}
    scales = [name for name, each in others.items() if each.stand_ins and _all_here(each, data_folder)]
    hints += [f"with what is here, some of it standing in: --scale {' or '.join(scales)}"] if scales else []
    raise FedloomError("; ".join([str(next(iter(lacking.values()))), *hints]))


def _all_here(study: Study, data_folder: Path | None) -> bool:
    """Whether the files of all its runs are here; a scale that a `--set` does not fit cannot be run."""
    with suppress(FedloomError):
        return not _lacking(runs(study), data_folder)
    return False


def _lacking(some: Iterable[StudyRun], data_folder: Path | None) -> dict[str, FedloomError]:
    """The runs whose files, the data's or the model's, are not here, and what is said of that."""
    found: dict[str, FedloomError] = {}
    known: dict[str, FedloomError | None] = {}
    for run in some:
        data = run.experiment.data
        layout = data.options().get("layout")
        place = repr((data.name, layout, data.options().get("vocabulary"), run.experiment.model))
        if place not in known:
            known[place] = None
            try:
                if RELEASES[data.name].layouts:
                    places.locate(data.name, data_folder, layout)
                check_named_files(run.experiment, data_folder)
            except FedloomError as error:
                known[place] = error
        if (said := known[place]) is not None:
            found[run.slug] = said
    return found


def _without(study: Study, wanted: Sequence[StudyRun], lacking: Collection[str]) -> list[str]:
    """The axis whose values tell the runs apart that lack files, with the others' values; none where no axis does."""
    for axis in (each.name for each in study.shown):
        gone = {run.cell[axis] for run in wanted if run.slug in lacking}
        there = dict.fromkeys(run.cell[axis] for run in wanted if run.slug not in lacking)
        if there and not gone & there.keys():
            return [only_words(axis, there)]
    return []


def unfinished(some: Iterable[StudyRun], out: Path) -> list[StudyRun]:
    return [run for run in some if not stacks.finished(run.experiment, out / run.slug)]


def _over(some: Iterable[StudyRun], out: Path) -> int:
    return sum((out / run.slug / SUMMARY).exists() for run in some)


def trainings(wanted: Sequence[StudyRun], out: Path) -> list[list[StudyRun]]:
    """The runs, those together that are one training: the first has least to go, and the others are told from it."""

    def to_go(run: StudyRun) -> int:
        folder = out / run.slug
        return -1 if stacks.finished(run.experiment, folder) else stacks.rounds_left(run.experiment, folder)

    return [sorted(alike, key=to_go) for alike in twins(wanted)]


@dataclass
class _OnTheWay:
    """A study's runs while they are trained, and those that are told from each."""

    wanted: Sequence[StudyRun]
    out: Path
    others: Mapping[str, Sequence[StudyRun]]
    data_folder: Path | None
    console: Console
    line: str
    shelf: Shelf = field(default_factory=Shelf)
    since: float = field(default_factory=time.perf_counter)  # the seconds before are written down
    told: float = field(default_factory=time.perf_counter)  # when somebody without a terminal last heard of it

    def tell(self, trained: StudyRun) -> None:
        """What differs from the run in its clock alone, once it is there."""
        waiting = unfinished(self.others.get(trained.slug, ()), self.out)
        if waiting:
            adopt(waiting, self.out, [self.out / trained.slug], self.data_folder, self.shelf)

    def train(self, missing: Sequence[StudyRun]) -> None:
        """Stack by stack, and what is told from each."""
        if not missing:
            return
        pile, name = stacks.stacks(missing), ""
        left = {run.slug: stacks.rounds_left(run.experiment, self.out / run.slug) for run in missing}
        total, through = sum(left.values()), 0
        with rounds_bar(self.console, total) as bar:
            expected = self._estimate(missing, left, bar)
            told = began = time.perf_counter()
            for stack in pile:
                if stack[0].experiment.data.name != name:  # one data set in memory at a time
                    self.shelf, name = Shelf(), stack[0].experiment.data.name
                    bar.update(bar.task_ids[0], description=f"loading {name}")
                self._run(stack, bar)
                through += sum(left[run.slug] for run in stack)
                bar.update(bar.task_ids[0], completed=through)
                now = time.perf_counter()
                if (
                    not self.console.is_terminal
                    and 0 < through < total
                    and now - told > max(SOON, 0.02 * (now - began))
                ):
                    told = self.told = now
                    to_go = (now - began) * _ahead(stack, pile, expected)
                    so_far = (
                        f"{_over(self.wanted, self.out):,} of {len(self.wanted):,} runs after {duration(now - began)}"
                    )
                    say(self.console, f"{so_far}, {duration(to_go)} to go")

    def _estimate(self, missing: Sequence[StudyRun], left: Mapping[str, int], bar: Progress) -> Mapping[str, float]:
        if self.console.quiet:
            return left  # as if all rounds took as long
        bar.update(bar.task_ids[0], description="timing a few rounds")
        if not self.console.is_terminal:
            say(self.console, "timing a few rounds of each kind of run")
        expected = estimate(missing, left, self.data_folder)
        guess = duration(sum(expected.values()))
        say(self.console, f"estimated time on this machine: {guess} (from a few rounds of each kind of run)")
        return expected

    def _run(self, stack: Sequence[StudyRun], bar: Progress) -> None:
        def watch(run: StudyRun, record: Mapping[str, Any]) -> None:
            if time.perf_counter() - self.since > SOON:
                self._spent(run)
            accuracy = record.get("test_accuracy")
            shown = "" if accuracy is None else f"  {accuracy:.1%}"
            waiting.append(run)
            if run is stack[0] or len(waiting) >= len(stack):  # a stack's runs come together: a rate is told of rounds
                bar.update(bar.task_ids[0], advance=len(waiting), description=f"{shorten(run.label, 50)}{shown}")
                waiting.clear()
            now = time.perf_counter()
            if not self.console.is_terminal and now - self.told > QUIET:
                self.told = now
                of = f"{record['round'] + 1:,} of at most {run.experiment.rounds:,} rounds"
                say(self.console, f"{shorten(run.label, 50)}: {of}{shown}")

        waiting: list[StudyRun] = []
        self.since = time.perf_counter()
        self._spent(stack[0])  # what a kill leaves has its origin too, and its seconds up to a few
        try:
            stacks.train(stack, self.out, self.shelf, self.data_folder, watch)
        finally:
            self._spent(stack[0])
        for run in stack:
            self.tell(run)

    def _spent(self, run: StudyRun) -> None:
        self.since, begun = time.perf_counter(), self.since
        remember(self.out, self.line, run.experiment.device, begun)


def begun(
    wanted: Sequence[StudyRun], out: Path, data_folder: Path | None
) -> tuple[list[tuple[StudyRun, Outcome]], int, list[str]]:
    """What the runs that were begun have come to, up to a test that all of them share, and how many rounds that is.

    What differs in its clock alone is told from the one of them that came furthest; where the data for that are not
    here it is left out, as what has not come to a test: the last of the three says so.
    """
    there: dict[str, tuple[Outcome, int | None]] = {}
    for run in wanted:
        if (has := stacks.so_far(run, out)) is not None:
            there[run.slug] = has
    if not there:
        raise FedloomError(f"{out}: expected a study that was begun, got none: leave out --so-far")

    def reached(run: StudyRun) -> float:
        rounds = there[run.slug][1]
        return math.inf if rounds is None else rounds

    groups = [alike for alike in twins(wanted) if any(run.slug in there for run in alike)]
    furthest = [max((run for run in alike if run.slug in there), key=reached) for alike in groups]
    tested = [(alike, first) for alike, first in zip(groups, furthest, strict=True) if reached(first)]
    if not tested:
        raise FedloomError(f"{out}: expected a test of one of the runs that were begun, got none yet")
    most = max(run.experiment.rounds for _, run in tested)
    rounds = int(min(most, *(reached(first) for _, first in tested)))
    left_out = []
    if untested := len(furthest) - len(tested):
        left_out.append(f"left out, begun and not yet tested: {counted(untested, 'run')}")
    found: dict[str, Outcome] = {}
    shelf, lacking = Shelf(), ""
    for alike, first in tested:
        for run in alike:
            own = run.slug in there and reached(run) >= rounds
            left, _ = there[run.slug if own else first.slug]
            records = left.rounds[:rounds]
            try:
                told = records if own else list(timed(records, run.experiment, data_folder, shelf))
            except FedloomError as error:
                lacking = f"what differs from others in its clock alone is left out: {error}"
            else:
                diverged = left.diverged if len(left.rounds) < rounds else None  # afterwards, if at all
                found[run.slug] = replace(left, rounds=told, target=run.target, diverged=diverged)
    left_out += [lacking] if lacking else []
    return [(run, found[run.slug]) for run in wanted if run.slug in found], rounds, left_out


def estimate(missing: Sequence[StudyRun], left: Mapping[str, int], data_folder: Path | None) -> dict[str, float]:
    """Seconds for the rounds that are `left` of each run: a few of each kind of run are timed.

    It takes runs one by one, which a stack is faster than, and all their rounds, where a run may end early.
    """
    kinds: dict[str, list[StudyRun]] = {}
    for run in missing:
        if left[run.slug]:
            kinds.setdefault(_kind(run), []).append(run)
    expected, shelf = dict.fromkeys(left, 0.0), Shelf()
    for same in sorted(kinds.values(), key=lambda same: same[0].experiment.data.name):
        seconds = stacks.seconds_per_round(same[0], shelf, data_folder)
        expected |= {run.slug: left[run.slug] * seconds for run in same}
    return expected


def _ahead(last: Sequence[StudyRun], pile: Sequence[Sequence[StudyRun]], expected: Mapping[str, float]) -> float:
    """What is to be done after that stack, over what is done with it, by the time that runs were expected to take."""
    at = next(place for place, stack in enumerate(pile) if stack is last) + 1
    behind, ahead = (sum(expected[run.slug] for stack in part for run in stack) for part in (pile[:at], pile[at:]))
    return ahead / behind if behind else 0.0


def _kind(run: StudyRun) -> str:
    """Runs that cost the same, nearly: the partition, the rates and the server's side matter little."""
    alike = ("cohort", "epochs", "steps", "batch_size", "eval_every", "device", "dtype", "executor", "threads")
    experiment = run.experiment
    return repr((experiment.data.name, experiment.model, [getattr(experiment, name) for name in alike]))


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(600), duration(7200)
    ('about 42 s', 'about 10 min', 'about 2.0 h')
    """
    if seconds < 100:
        return f"about {max(1, round(seconds))} s"
    return f"about {seconds / 60:.0f} min" if seconds < 6000 else f"about {seconds / 3600:.1f} h"
