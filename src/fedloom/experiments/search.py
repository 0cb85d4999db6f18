"""A search beyond grids: optuna proposes settings a few at a time, each few run as one program.

The same seed and the same scores give the same proposals, so a search that was interrupted goes on by proposing again
what has been run already.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedloom.errors import FedloomError
from fedloom.experiments.selection import Rule
from fedloom.experiments.tune_file import Axis, SearchSection, Tuned
from fedloom.experiments.tuning import Tried, Workshop

if TYPE_CHECKING:
    import optuna

    from fedloom.callbacks import Callback


def require_optuna() -> None:
    if find_spec("optuna") is None:
        raise FedloomError(
            "tune.search: expected optuna to be installed, got none: pip install 'fedloom[tune]', or take "
            "[tune.search] out to try the grid"
        )


def search(algorithm: Tuned, settings: SearchSection, rule: Rule, workshop: Workshop) -> list[Tried]:
    """Ranges of decades are searched continuously, lists by choice; a run worse than the median of others is pruned.

    None is before a fifth of its rounds: the first ones say little of the last.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {key: _distribution(key, axis) for key, axis in algorithm.axes.items()}
    study = _study(settings, rule.lower)
    tried: list[Tried] = []
    while len(tried) < settings.trials:
        trials = [study.ask(space) for _ in range(min(settings.at_once, settings.trials - len(tried)))]
        points = [
            algorithm.point({key: _tidy(value) for key, value in trial.params.items()}, f"trial{trial.number:03d}")
            for trial in trials
        ]
        alone = all(len(point.experiment.seeds) == 1 for point in points)
        firsts = [math.ceil(point.experiment.rounds / 5) if settings.prune else None for point in points]
        both = zip(trials, firsts, strict=True)
        watches = {place: _watch(trial, rule.metric, first) for place, (trial, first) in enumerate(both) if alone}
        found = workshop.try_points(points, watches)
        for trial, each in zip(trials, found, strict=True):
            _tell(study, trial, each, rule)
        tried += found
    return tried


def _study(settings: SearchSection, lower: bool) -> optuna.Study:
    import optuna

    return optuna.create_study(
        direction="minimize" if lower else "maximize",
        sampler=optuna.samplers.TPESampler(seed=settings.seed),
        pruner=optuna.pruners.MedianPruner() if settings.prune else optuna.pruners.NopPruner(),
    )


def _distribution(key: str, axis: Axis) -> Any:
    import optuna

    if axis.span is not None:
        return optuna.distributions.FloatDistribution(*axis.span, log=True)
    if not all(isinstance(value, bool | int | float | str) for value in axis.values):
        raise FedloomError(f"tune.search, {key}: expected numbers, words, true or false to choose among")
    return optuna.distributions.CategoricalDistribution(axis.values)


def _tidy(value: Any) -> Any:
    """Six digits of a rate are plenty, and can be read."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _watch(trial: optuna.Trial, metric: str, first: int | None) -> Callback:
    """Tell the study how a run is going, and the run, after the `first` rounds, whether it is worth going on."""

    def watch(record: dict[str, Any]) -> bool:
        value = record.get(metric)
        if value is None or not math.isfinite(value):
            return False
        trial.report(value, record["round"])
        return first is not None and record["round"] + 1 >= first and trial.should_prune()

    return watch


def _tell(study: optuna.Study, trial: optuna.Trial, tried: Tried, rule: Rule) -> None:
    import optuna

    told = study.get_trials(deepcopy=False)[trial.number].intermediate_values
    for record in tried.runs[0].rounds if len(tried.runs) == 1 else ():  # what was read was watched by nobody
        value = record.get(rule.metric)
        if record["round"] not in told and value is not None and math.isfinite(value):
            trial.report(value, record["round"])
    score = tried.score(rule)
    if not tried.pruned and score is not None:
        study.tell(trial, score)
        return
    state = optuna.trial.TrialState.PRUNED if tried.pruned else optuna.trial.TrialState.FAIL
    study.tell(trial, state=state)
