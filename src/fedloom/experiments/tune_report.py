"""What a tuning leaves: tables, pictures, `tune.json`, and the winner as an experiment."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedloom.errors import AllDiverged, FedloomError
from fedloom.experiments.runner import say
from fedloom.experiments.schema import Experiment
from fedloom.experiments.selection import Rule, edges
from fedloom.experiments.tune_file import Tuned, TuneFile
from fedloom.experiments.words import counted
from fedloom.rundir import write_json, write_whole
from fedloom.versions import versions

if TYPE_CHECKING:
    from fedloom.experiments.tuning import Tried

BEST, NUMBERS = "best.toml", "tune.json"
RATES = ("client_lr", "server_lr")
NAMES = {"client_lr": "client learning rate", "server_lr": "server learning rate"}


@dataclass(frozen=True)
class Findings:
    """Everything that was tried, by the algorithm's label, and what won."""

    file: TuneFile
    algorithms: list[Tuned]
    tried: Mapping[str, list[Tried]]
    best: Mapping[str, Tried | None]
    rule: Rule

    @property
    def percent(self) -> bool:
        return self.rule.metric.endswith(("accuracy", "recall"))

    def edges(self, algorithm: Tuned) -> list[str]:
        """In words, what of the best lies at an edge; in a search nothing does but by chance."""
        best = self.best[algorithm.label]
        return [] if best is None or self.file.tune.search else edges(algorithm.axes, best.point.settings)


def show(findings: Findings, out: Path, console: Console) -> None:
    """Print and store it all."""
    write_json(out / NUMBERS, numbers(findings, out))
    for algorithm in findings.algorithms:
        console.print(_title(findings, algorithm), soft_wrap=True)
        console.print(table(findings, algorithm))
        if at := findings.edges(algorithm):
            say(console, f"{algorithm.label}: the best lies at the edge of the grid, {', '.join(at)}: widen it there")
        draw = _search_plot if findings.file.tune.search else _heat_map
        if (picture := draw(findings, algorithm, out)) is not None:
            say(console, f"picture: {picture}")
    winners = best_experiments(findings)
    for name, experiment in winners.items():
        write_whole(out / name, _about(findings, experiment) + experiment.to_toml())
        say(console, f"best: {out / name}")
    say(console, f"numbers: {out / NUMBERS}")
    if lost := [label for label, best in findings.best.items() if best is None]:
        every = f"tune: every setting of {', '.join(lost)} diverged"
        if all(each.diverged for label in lost for each in findings.tried[label]):
            raise AllDiverged(f"{every}: try lower rates")
        raise FedloomError(f"{every} or came to no {findings.rule.metric}: try lower rates")


def table(findings: Findings, algorithm: Tuned) -> Table:
    """The points of one algorithm in the order they were tried, the best one marked."""
    rule, best = findings.rule, findings.best[algorithm.label]
    seeds = max(len(each.runs) for each in findings.tried[algorithm.label])
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for key in algorithm.axes:
        shown.add_column(key, justify="right", no_wrap=True)
    unit = " %" if findings.percent else ""
    shown.add_column(f"{rule.metric}{unit}", justify="right", no_wrap=True)
    if seeds > 1:
        shown.add_column("±", justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    for each in findings.tried[algorithm.label]:
        scores = each.scores(rule)
        cells = [_shown(each.point.settings[key]) for key in algorithm.axes]
        cells.append(_figure(findings, statistics.fmean(scores)) if scores else "-")
        if seeds > 1:
            cells.append(_figure(findings, statistics.stdev(scores)) if len(scores) > 1 else "-")
        cells.append("best" if each is best else _why_not(each, bool(scores)))
        shown.add_row(*(Text(cell) for cell in cells), style="bold" if each is best else None)
    return shown


def _title(findings: Findings, algorithm: Tuned) -> Text:
    tune, rule = findings.file.tune, findings.rule
    every = rule.last is not None and _rounds(findings) <= rule.last
    over = "all rounds, the climb among them" if every else f"the last {rule.last} rounds"
    how = {
        "validation": f"on {tune.validation:.0%} of the clients, held out; mean of {over}",
        "train_loss": f"mean of the first {tune.first:.0%} of the rounds",
        "last": f"mean of {over}",
    }
    return Text(f"{algorithm.label}: {rule.metric}, {how[rule.select]}", style="bold")


def _rounds(findings: Findings) -> int:
    """The most that a run was to have."""
    return max(each.point.experiment.rounds for own in findings.tried.values() for each in own)


def _about(findings: Findings, experiment: Experiment) -> str:
    """What decided for each algorithm of the file, as a remark at its head."""
    labels = {algorithm.label for algorithm in experiment.algorithms}
    lines = []
    for algorithm in findings.algorithms:
        best = findings.best[algorithm.label]
        if best is not None and algorithm.label in labels and (score := best.score(findings.rule)) is not None:
            figure = f"{_figure(findings, score)}{' %' if findings.percent else ''}"
            tried = f"best of {len(findings.tried[algorithm.label])} settings"
            lines.append(f"# {_title(findings, algorithm)}: {figure}, {tried}\n")
    return "".join(lines)


def _why_not(tried: Tried, scored: bool) -> str:
    if tried.diverged:
        return f"diverged ({tried.diverged.split(',')[0]})"
    if tried.pruned:
        return f"pruned after {counted(max(len(run.rounds) for run in tried.runs), 'round')}"
    return "" if scored else "not finite"


def _figure(findings: Findings, value: float) -> str:
    return f"{100 * value:.2f}" if findings.percent else f"{value:.4f}"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def numbers(findings: Findings, out: Path) -> dict[str, Any]:
    """All of it for other programs."""
    rule = findings.rule
    points = [
        {
            "algorithm": label,
            "settings": each.point.settings,
            "score": each.score(rule),
            "scores": {str(run.seed): score for run, score in zip(each.runs, each.scores(rule), strict=False)},
            "diverged": each.diverged,
            "pruned": each.pruned,
            "best": each is findings.best[label],
            "directories": [str(run.directory.relative_to(out)) for run in each.runs],
        }
        for label, own in findings.tried.items()
        for each in own
    ]
    return {
        "experiment": str(findings.file.experiment_table.get("name")),
        "select": rule.select,
        "metric": rule.metric,
        "rounds_averaged": None if rule.last is None else min(rule.last, _rounds(findings)),
        "lower_is_better": rule.lower,
        "points": points,
        "best": {
            label: None if each is None else {"settings": each.point.settings, "score": each.score(rule)}
            for label, each in findings.best.items()
        },
        "at_the_edge": {algorithm.label: findings.edges(algorithm) for algorithm in findings.algorithms},
        "versions": versions(),
    }


def best_experiments(findings: Findings) -> dict[str, Experiment]:
    """By file name: all winners in one experiment, or one for each where more than the algorithms differ."""
    winners = {
        algorithm: algorithm.complete(best.point.settings)
        for algorithm in findings.algorithms
        if (best := findings.best[algorithm.label]) is not None
    }
    if not winners:
        return {}
    first = next(iter(winners.values()))
    around = [experiment.model_copy(update={"algorithms": first.algorithms}) for experiment in winners.values()]
    if all(each == around[0] for each in around):
        algorithms = [experiment.algorithms[0] for experiment in winners.values()]
        return {BEST: first.model_copy(update={"algorithms": algorithms})}
    return {f"best-{algorithm.slug}.toml": experiment for algorithm, experiment in winners.items()}


def _heat_map(findings: Findings, algorithm: Tuned, out: Path) -> Path | None:
    """Client rate against server rate, at each pair the best over everything else."""
    if not all(rate in algorithm.axes and algorithm.axes[rate].numeric for rate in RATES):
        return None
    from fedloom.report.heatmap import heat_map

    cells: dict[tuple[float, float], float | None] = {}
    for each in findings.tried[algorithm.label]:
        at = tuple(float(each.point.settings[rate]) for rate in RATES)
        scores = [cells.get((at[0], at[1])), each.score(findings.rule)]
        place = findings.rule.best(scores)
        cells[at[0], at[1]] = None if place is None else scores[place]
    best = findings.best[algorithm.label]
    mark = None if best is None else tuple(float(best.point.settings[rate]) for rate in RATES)
    path = out / f"heatmap-{algorithm.slug}.png"
    heat_map(
        cells,
        path,
        title=f"{algorithm.label}: {findings.rule.metric.replace('_', ' ')}",
        best=None if mark is None else (mark[0], mark[1]),
        percent=findings.percent,
        lower=findings.rule.lower,
    )
    return path


def _search_plot(findings: Findings, algorithm: Tuned, out: Path) -> Path | None:
    """The rates that were searched, or else the first two numbers: two with the score as colour, one against it."""
    numeric = [key for key, axis in algorithm.axes.items() if axis.numeric]
    keys = ([rate for rate in RATES if rate in numeric] or numeric)[:2]
    if not keys:
        return None
    from fedloom.report.search_plot import Trial, search_plot

    trials = []
    for each in findings.tried[algorithm.label]:
        why = "diverged" if each.diverged else "pruned" if each.pruned else "not finite"
        trials.append(Trial(tuple(float(each.point.settings[key]) for key in keys), each.score(findings.rule), why))
    best = findings.best[algorithm.label]
    metric = findings.rule.metric.replace("_", " ")
    path = out / f"search-{algorithm.slug}.png"
    search_plot(
        trials,
        path,
        names=[NAMES.get(key, key.replace("_", " ")) for key in keys],
        title=f"{algorithm.label}: {metric}",
        score=metric,
        best=None if best is None else findings.tried[algorithm.label].index(best),
        percent=findings.percent,
        lower=findings.rule.lower,
    )
    return path
