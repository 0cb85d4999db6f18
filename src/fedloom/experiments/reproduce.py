"""A table or figure of a paper as one command: says what it will do, runs it, prints measured beside published.

Runs that are finished are not run again: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources.abc import Traversable
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fedloom import lock
from fedloom.documents import read_toml
from fedloom.errors import FedloomError
from fedloom.experiments import mistakes
from fedloom.experiments.claims import Verdict, decide
from fedloom.experiments.measures import Outcome
from fedloom.experiments.origins import made, remember
from fedloom.experiments.published import Published, conflicts, match, matched, published
from fedloom.experiments.results import Key, Result, kept, key, results
from fedloom.experiments.runner import rounds_bar
from fedloom.experiments.study import Study, StudyRun, cells, runs
from fedloom.experiments.study_report import beside_published, command, facts_report, report
from fedloom.experiments.study_sections import FULL
from fedloom.rundir import CONFIG, FIGURE, RESULTS, SUMMARY, write_json, write_whole

if TYPE_CHECKING:
    from fedloom.data.catalog import Shelf

SOON = 2.0
"""Seconds after which somebody who waits is told how far it is."""


def reproduce(
    study: Study,
    out: Path,
    file: Path | Traversable | None = None,
    data_folder: Path | None = None,
    quiet: bool = False,
    console: Console | None = None,
    reuse: Sequence[Path] = (),
    so_far: bool = False,
) -> dict[str, Any]:
    """Run what is not finished of the study under `out`, print it beside the paper's numbers; returns results.json.

    `file` is where the study was read from: published numbers may stand beside it. `reuse`: folders of other studies,
    whose runs are taken where the training is the same. `so_far`: run nothing, tell what is there.
    """
    console = Console(quiet=True) if quiet else console or Console()
    numbers = published(study, file)  # its mistakes are told before hours of training
    if study.facts is not None:
        return _tell_facts(study, numbers, out, data_folder, console, command(study, file))
    wanted = runs(study)
    _check_folder(study, out)
    if so_far:
        study, outcomes = _cut_short(study, wanted, out, data_folder)
    _introduce(study, wanted, console)
    began, line = time.perf_counter(), command(study, file)
    if so_far:
        _say(console)(f"so far: {study.overrides['rounds']:,} rounds of {len(outcomes):,} of {len(wanted):,} runs")
    else:
        from fedloom.experiments.build import check_device  # torch from here on
        from fedloom.experiments.stacks import outcome

        for device in {run.experiment.device for run in wanted}:
            check_device(device)
        with lock.alone(out):
            _run(study, wanted, out, data_folder, console, reuse, line)
        outcomes = [(run, outcome(run, out)) for run in wanted]
    found = results(study, outcomes)
    verdicts = decide(study, found)
    beside = match(found, numbers)
    _print(study, found, beside, verdicts, console)
    _draw(study, outcomes, found, beside, out, console)
    told = report(study, found, beside, verdicts, outcomes, line)
    how = made(out)  # where and when it was trained, not where it is told
    told |= {"seconds": time.perf_counter() - began} | how | ({"command": line} if so_far else {})
    write_json(out / RESULTS, told)
    console.print(f"results: {out / RESULTS}", highlight=False, markup=False, soft_wrap=True)
    return told


# Before it starts -----------------------------------------------------------------------------------------------------


def _check_folder(study: Study, out: Path) -> None:
    """An error unless the folder is new, or holds runs of the same study."""
    if out.exists() and not out.is_dir():
        raise FedloomError(f"{out}: expected a folder for the study's runs, got a file: choose another --out")
    held = {entry.name for entry in out.iterdir() if not entry.name.startswith(".")} if out.exists() else set()
    if held:
        there = read_toml(out / CONFIG) if CONFIG in held else {}
        if there.get("id") != study.id:
            got = f"that of {there['id']!r}" if "id" in there else f"one with {min(held)!r} in it"
            raise FedloomError(f"{out}: expected a new folder or one of {study.id!r}, got {got}: choose another --out")


def _introduce(study: Study, wanted: Sequence[StudyRun], console: Console) -> None:
    """What this is, what its scale changes, how much there is to run, which readings of the paper apply."""
    say = _say(console)
    say(f"{study.id}: {study.title}", "bold")
    say(study.paper)
    for words in scale_words(study) if study.facts is None or study.scale != FULL else ():
        say(words)
    if study.facts is None:
        rounds = sum(run.experiment.rounds for run in wanted)
        count = len({key(run.cell) for run in wanted})
        say(f"{len(wanted):,} runs in {count:,} cells, at most {rounds:,} rounds in all")
    if study.stand_ins is not None:
        say(f"stand-in, not the paper's own: {study.stand_ins}")
    for note in study.notes:
        say(f"note: {note}")
    for each in conflicts(study.conflicts):
        say(f"{each.id}: {shorten(each.reading, 120)} (in doubt: {shorten(each.conflict, 150)})")


def _any(names: Sequence[str]) -> str:
    return " or ".join(names)


def scale_words(study: Study) -> list[str]:
    """What is run against what the paper ran."""
    words = []
    if study.scale == FULL:
        words.append("scale full: as in the paper, as far as it says")
    else:
        scale = study.scales[study.scale]
        words.append(f"scale {study.scale}: {scale.says}")
        changes = _pairs(scale.set)
        if study.facts is None:
            changes = [f"{len(list(cells(study)))} of {len(list(cells(study.at(FULL))))} cells", *changes]
        if changes:
            words.append(f"against the paper: {', '.join(changes)}")
    if study.asked:
        chosen = [f"{axis} {_any(names)}" for axis, names in study.asked.items()]
        words.append(f"asked for by --only: {', '.join(chosen)}")
    if study.overrides:
        words.append(f"changed by --set: {', '.join(_pairs(study.overrides))}")
    if not study.compared:
        words.append("not the paper's setting: numbers stand beside the published ones, and none is called a match")
    return words


def _pairs(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {mistakes.shown(value)}" for name, value in settings.items()]


def _say(console: Console) -> Any:
    def say(words: str, style: str = "") -> None:
        console.print(Text(words, style=style), soft_wrap=True)

    return say


# The runs -------------------------------------------------------------------------------------------------------------


def _cut_short(
    study: Study, wanted: Sequence[StudyRun], out: Path, data_folder: Path | None
) -> tuple[Study, list[tuple[StudyRun, Outcome]]]:
    """The study with as many rounds as all runs that were begun have, and what those came to."""
    from fedloom.data.catalog import Shelf
    from fedloom.experiments.adoption import twins
    from fedloom.experiments.clocks import timed
    from fedloom.experiments.stacks import so_far

    begun, rounds = so_far(wanted, out)
    found, shelf = {run.slug: outcome for run, outcome in begun}, Shelf()
    for alike in twins(wanted):
        for left in [found[run.slug] for run in alike if run.slug in found][:1]:
            for run in (run for run in alike if run.slug not in found):
                found[run.slug] = replace(left, rounds=list(timed(left.rounds, run.experiment, data_folder, shelf)))
    outcomes = [(run, found[run.slug]) for run in wanted if run.slug in found]
    return study.model_copy(update={"overrides": {**study.overrides, "rounds": rounds}}), outcomes


def _run(
    study: Study,
    wanted: Sequence[StudyRun],
    out: Path,
    data_folder: Path | None,
    console: Console,
    reuse: Sequence[Path],
    line: str,
) -> None:
    """All runs that are not finished, stack by stack; an interrupt says how far it came."""
    from fedloom.data.catalog import Shelf
    from fedloom.experiments.adoption import adopt, twins
    from fedloom.experiments.stacks import finished, rounds_left, stacks, train

    def unfinished(runs: Sequence[StudyRun]) -> list[StudyRun]:
        return [run for run in runs if not finished(run.experiment, out / run.slug)]

    missing = unfinished(wanted)
    write_whole(out / CONFIG, study.to_toml())  # not before what is there was found to have the same settings
    if taken := adopt(missing, out, reuse, data_folder):
        _say(console)(f"{taken:,} runs taken from {', '.join(str(folder) for folder in reuse)}")
        missing = unfinished(missing)
    done = len(wanted) - len(missing)
    if done:
        _say(console)(f"{done:,} of {len(wanted):,} runs are finished and not run again")
    if not missing:
        return
    shelf, name = Shelf(), ""
    waiting = {run.slug for run in missing}
    others: dict[str, list[StudyRun]] = {}  # by the run from whose training they are told
    for alike in twins(wanted):
        first, *rest = sorted(alike, key=lambda run: run.slug in waiting)  # a finished one, if there is one
        others[first.slug] = [run for run in rest if run.slug in waiting]

    def tell(trained: StudyRun) -> int:
        alike = others[trained.slug]
        return adopt(alike, out, [out / trained.slug], data_folder, shelf) if alike else 0

    if clocks := sum(map(len, others.values())):
        _say(console)(f"{clocks:,} runs differ from others in their clock alone, and are told from their training")
    done += sum(tell(run) for run in wanted if run.slug in others and run.slug not in waiting)
    missing = [run for run in missing if run.slug in others]
    pile = stacks(missing)
    left = {run.slug: rounds_left(run.experiment, out / run.slug) for run in missing}
    total = sum(left.values())
    told = since = time.perf_counter()
    try:
        with rounds_bar(console, total) as bar:
            task = bar.task_ids[0]
            expected: Mapping[str, float] = left  # as if all rounds took as long
            if not console.quiet:
                bar.update(task, description="timing a few rounds")
                expected = estimate(missing, left, data_folder)
                guess = duration(sum(expected.values()))
                _say(console)(f"estimated time on this machine: {guess} (from a few rounds of each kind of run)")

            def spent(run: StudyRun) -> None:
                nonlocal since
                since, begun = time.perf_counter(), since
                remember(out, line, run.experiment.device, begun)

            def watch(run: StudyRun, record: Mapping[str, Any]) -> None:
                if time.perf_counter() - since > SOON:
                    spent(run)
                accuracy = record.get("test_accuracy")
                shown = "" if accuracy is None else f"  {accuracy:.1%}"
                bar.update(task, advance=1, description=f"{shorten(run.label, 50)}{shown}")

            through, began = 0, time.perf_counter()
            for stack in pile:
                if stack[0].experiment.data.name != name:  # one data set in memory at a time
                    shelf, name = Shelf(), stack[0].experiment.data.name
                    bar.update(task, description=f"loading {name}")
                since = time.perf_counter()
                spent(stack[0])  # what a kill leaves has its origin too, and its seconds up to a few
                try:
                    train(stack, out, shelf, data_folder, watch)
                finally:
                    spent(stack[0])
                done += len(stack) + sum(map(tell, stack))
                through += sum(left[run.slug] for run in stack)
                bar.update(task, completed=through)
                now = time.perf_counter()
                if not console.is_terminal and 0 < through < total and now - told > max(SOON, 0.02 * (now - began)):
                    told = now
                    to_go = (now - began) * _ahead(stack, pile, expected)
                    words = f"{done:,} of {len(wanted):,} runs after {duration(now - began)}, {duration(to_go)} to go"
                    _say(console)(words)
    except KeyboardInterrupt:
        done = sum((out / run.slug / SUMMARY).exists() for run in wanted)  # of the last stack some may be over
        raise KeyboardInterrupt(
            f"interrupted with {done} of {len(wanted)} runs finished, kept in {out}: the same command goes on"
        ) from None


def estimate(missing: Sequence[StudyRun], left: Mapping[str, int], data_folder: Path | None) -> dict[str, float]:
    """Seconds for the rounds that are `left` of each run: a few of each kind of run are timed.

    It takes runs one by one, which a stack is faster than, and all their rounds, where a run may end early.
    """
    from fedloom.data.catalog import Shelf
    from fedloom.experiments.stacks import seconds_per_round

    kinds: dict[str, list[StudyRun]] = {}
    for run in missing:
        if left[run.slug]:
            kinds.setdefault(_kind(run), []).append(run)
    expected, shelf = dict.fromkeys(left, 0.0), Shelf()
    for same in sorted(kinds.values(), key=lambda same: same[0].experiment.data.name):
        seconds = seconds_per_round(same[0], shelf, data_folder)
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


# What came of it ------------------------------------------------------------------------------------------------------


def _print(
    study: Study,
    found: Sequence[Result],
    beside: Mapping[Key, Published],
    verdicts: Sequence[Verdict],
    console: Console,
) -> None:
    from fedloom.report.study_table import print_table, study_table

    if found:
        console.print()
        print_table(console, study_table(study, found, beside, console))
    if beside and study.compared:
        answers = [
            matched(result.measure, result.measured, number)
            for result, number in beside_published(found, beside)
            if study.compares(result.cell)
        ]
        decided = [answer for answer in answers if answer is not None]
        _say(console)(f"matched: {sum(decided)} of {len(decided)} published numbers")
    _print_verdicts(verdicts, console)


def _print_verdicts(verdicts: Sequence[Verdict], console: Console) -> None:
    for verdict in verdicts:
        style = {True: "green", False: "red", None: ""}[verdict.holds]
        _say(console)(verdict.words(), style)


def _draw(
    study: Study,
    outcomes: Sequence[tuple[StudyRun, Outcome]],
    found: Sequence[Result],
    beside: Mapping[Key, Published],
    out: Path,
    console: Console,
) -> None:
    if study.figure is None:
        return
    from fedloom.report.study_plots import study_figure

    curves = [(cell, shown) for cell, _, shown in kept(study, outcomes)]
    if study_figure(study, curves, found, beside, out / FIGURE):
        console.print(f"figure: {out / FIGURE}", highlight=False, markup=False, soft_wrap=True)


# Tables that train nothing --------------------------------------------------------------------------------------------


def _tell_facts(
    study: Study, numbers: Sequence[Published], out: Path, data_folder: Path | None, console: Console, line: str
) -> dict[str, Any]:
    from fedloom.data.catalog import Shelf
    from fedloom.experiments.facts import as_results, facts
    from fedloom.report.facts_table import facts_table, why_not
    from fedloom.report.study_table import print_table

    _check_folder(study, out)
    _introduce(study, [], console)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / CONFIG, study.to_toml())
    began = time.perf_counter()
    shelf = Shelf()
    found = facts(study, data_folder, shelf)
    beside = {key(each.place): each for each in numbers}
    if found:
        console.print()
        print_table(console, facts_table(found, beside, study.compared))
    for words in why_not(found):
        _say(console)(words)
    verdicts = decide(study, as_results(found))
    _print_verdicts(verdicts, console)
    if study.facts == "partition":
        _draw_partitions(study, out, data_folder, shelf, console)
    told = facts_report(study, found, beside, verdicts, line) | {"seconds": time.perf_counter() - began}
    write_json(out / RESULTS, told)
    console.print(f"results: {out / RESULTS}", highlight=False, markup=False, soft_wrap=True)
    return told


def _draw_partitions(study: Study, out: Path, data_folder: Path | None, shelf: Shelf, console: Console) -> None:
    from fedloom.experiments.facts import partitions
    from fedloom.report.partition_plot import partition_panels

    there = partitions(study, data_folder, shelf)
    if there:
        partition_panels(there, out / FIGURE, study.title)
        console.print(f"figure: {out / FIGURE}", highlight=False, markup=False, soft_wrap=True)
