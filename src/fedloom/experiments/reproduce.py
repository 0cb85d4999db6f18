"""A table or figure of a paper as one command: says what it will do, runs it, prints measured beside published.

Runs that are finished are not run again: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedloom import lock
from fedloom.documents import read_toml
from fedloom.errors import FedloomError
from fedloom.experiments import mistakes
from fedloom.experiments.claims import Verdict, decide
from fedloom.experiments.measures import Outcome
from fedloom.experiments.origins import made
from fedloom.experiments.published import Published, conflicts, match, matched_in, published
from fedloom.experiments.results import Key, Result, kept, key, results
from fedloom.experiments.runner import say
from fedloom.experiments.study import Study, StudyRun, cells, runs
from fedloom.experiments.study_report import beside_published, command, facts_report, report
from fedloom.experiments.study_sections import FULL, picked
from fedloom.experiments.words import counted
from fedloom.interruption import import_torch
from fedloom.rundir import CONFIG, FIGURE, RESULTS, write_json, write_whole

if TYPE_CHECKING:
    from fedloom.data.catalog import Shelf

BESIDE = "numbers stand beside the published ones, and none is called a match"
SHOWN = 6
"""Lines about what a scale sets in some cells alone."""


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
    import_torch()
    again = (out / CONFIG).exists() and (out / CONFIG).read_text(encoding="utf-8") == study.to_toml()
    if so_far:
        from fedloom.experiments.study_runs import begun

        outcomes, rounds, left_out = begun(wanted, out, data_folder)
    _introduce(study, wanted, console, again)
    cut = so_far and rounds < max(run.experiment.rounds for run, _ in outcomes)
    if cut:
        study = study.model_copy(update={"overrides": {**study.overrides, "rounds": rounds}})
    began, line = time.perf_counter(), command(study, file)
    if so_far:
        of = f"{len(outcomes):,} of {len(wanted):,} runs"
        say(console, f"so far: {rounds:,} rounds of {of}{f': {BESIDE}' if cut else ''}")
        for words in left_out:
            say(console, words)
    else:
        from fedloom.experiments.build import check_device
        from fedloom.experiments.stacks import outcome
        from fedloom.experiments.study_runs import run_all

        for device in {run.experiment.device for run in wanted}:
            check_device(device)
        with lock.alone(out):
            run_all(study, wanted, out, data_folder, console, reuse, line)
        outcomes = [(run, outcome(run, out)) for run in wanted]
    found = results(study, outcomes)
    verdicts = decide(study, found)
    beside = match(found, numbers)
    if part := sum(not result.whole for result in found):
        of = f"{part:,} of {len(found):,} numbers"
        say(console, f"not compared, and in no claim, for want of seeds or of choices searched: {of}")
    _print(study, found, beside, verdicts, console)
    told = report(study, found, beside, verdicts, outcomes, line)
    how = made(out)  # where and when it was trained, not where it is told
    if not so_far and (trained := how.pop("command", line)) != line:
        how["trained_by"] = [*how.get("trained_by", []), trained]
    told |= {"seconds": time.perf_counter() - began} | how | {"command": line}
    write_json(out / RESULTS, told)
    _draw(study, outcomes, found, beside, out, console)
    say(console, f"results: {out / RESULTS}")
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


def _introduce(study: Study, wanted: Sequence[StudyRun], console: Console, again: bool = False) -> None:
    """What this is, what its scale changes, how much there is to run, which readings of the paper concern that.

    Those are told once: not where the same was asked for before.
    """
    say(console, f"{study.id}: {study.title}", "bold")
    say(console, study.paper)
    for words in scale_words(study) if study.facts is None or study.scale != FULL else ():
        say(console, words)
    if study.facts is None:
        rounds = sum(run.experiment.rounds for run in wanted)
        count = len({key(run.cell) for run in wanted})
        ran = f"{counted(len(wanted), 'run')} in {counted(count, 'cell')}"
        say(console, f"{ran}, at most {counted(rounds, 'round')} in all")
    if study.stand_ins is not None:
        say(console, f"stand-in, not the paper's own: {study.stand_ins}")
    experiments = [run.experiment for run in wanted]
    doubts = [each for each in conflicts(study.conflicts) if study.facts is not None or each.concerns(experiments)]
    if again:
        say(console, "notes and readings of the paper: as when it began")
        return
    for note in study.notes:
        say(console, f"note: {note}")
    for doubt in doubts:
        say(console, f"{doubt.id}, in doubt: {doubt.conflict}; here: {doubt.reading}")


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
            kept, all_cells = (len(list(cells(each))) for each in (study, study.at(FULL)))
            changes = [*([f"{kept:,} of {all_cells:,} cells"] if kept < all_cells else []), *changes]
        if changes:
            words.append(f"against the paper: {', '.join(changes)}")
        there = list(cells(study))
        own = [each for each in scale.where if each.set and any(picked(cell, each.cell) for cell in there)]
        words += [f"and for {each.words}: {', '.join(_pairs(each.set))}" for each in own[:SHOWN]]
        if (more := len(own) - SHOWN) > 0:
            words.append(f"and so on for {more} more, all in {CONFIG}")
    if study.asked:
        chosen = [f"{axis} {' or '.join(names)}" for axis, names in study.asked.items()]
        words.append(f"asked for by --only: {', '.join(chosen)}")
    if study.overrides:
        words.append(f"changed by --set: {', '.join(_pairs(study.overrides))}")
    if not study.compared:
        words.append(f"not the paper's setting: {BESIDE}")
    return words


def _pairs(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {mistakes.shown(value)}" for name, value in settings.items()]


# What came of it ------------------------------------------------------------------------------------------------------


def _print(
    study: Study,
    found: Sequence[Result],
    beside: Mapping[Key, Published],
    verdicts: Sequence[Verdict],
    console: Console,
) -> None:
    from fedloom.experiments.study_table import print_table, study_table

    if found:
        console.print()
        print_table(console, study_table(study, found, beside, console))
    if beside and study.compared:
        answers = [matched_in(study, result, number) for result, number in beside_published(found, beside)]
        decided = [answer for answer in answers if answer is not None]
        say(console, f"matched: {sum(decided)} of {len(decided)} published numbers")
    _print_verdicts(study, verdicts, console)


def _print_verdicts(study: Study, verdicts: Sequence[Verdict], console: Console) -> None:
    if verdicts and not study.compared:
        say(console, "what the paper says, as it comes out at a setting that is not the paper's:")
    for verdict in verdicts:
        style = {True: "green", False: "red", None: ""}[verdict.holds] if study.compared else ""
        say(console, verdict.words(), style)


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
    from fedloom.experiments.study_plots import study_figure

    curves = [(cell, shown) for cell, _, shown in kept(study, outcomes)]
    if study_figure(study, curves, found, beside, out / FIGURE):
        say(console, f"figure: {out / FIGURE}")


# Tables that train nothing --------------------------------------------------------------------------------------------


def _tell_facts(
    study: Study, numbers: Sequence[Published], out: Path, data_folder: Path | None, console: Console, line: str
) -> dict[str, Any]:
    from fedloom.data.catalog import Shelf
    from fedloom.experiments.facts import as_results, facts
    from fedloom.experiments.facts_table import facts_table, why_not
    from fedloom.experiments.study_table import print_table

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
        say(console, words)
    verdicts = decide(study, as_results(found))
    _print_verdicts(study, verdicts, console)
    if study.facts == "partition":
        _draw_partitions(study, out, data_folder, shelf, console)
    told = facts_report(study, found, beside, verdicts, line) | {"seconds": time.perf_counter() - began}
    write_json(out / RESULTS, told)
    say(console, f"results: {out / RESULTS}")
    return told


def _draw_partitions(study: Study, out: Path, data_folder: Path | None, shelf: Shelf, console: Console) -> None:
    from fedloom.experiments.facts import partitions
    from fedloom.report.partition_plot import partition_panels

    there = partitions(study, data_folder, shelf)
    if there:
        partition_panels(there, out / FIGURE, study.headline)
        say(console, f"figure: {out / FIGURE}")
