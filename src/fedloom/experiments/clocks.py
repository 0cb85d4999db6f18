"""The clock of a run that was trained with another one, or with none: told afterwards, where nobody waited for it.

How slow clients are decides how long a round takes, and nothing else, unless somebody is too late: runs that differ in
it alone are one training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedloom.asking import Asking
from fedloom.batches import Batching
from fedloom.data.catalog import Shelf
from fedloom.experiments import build
from fedloom.experiments.schema import Experiment
from fedloom.experiments.study import StudyRun
from fedloom.faults import Faults
from fedloom.sampling import as_sampler

SECONDS = "simulated_seconds"


def told_afterwards(experiment: Experiment) -> bool:
    """Whether who takes part in a round is known without its training, and the clock has no part in it."""
    pooled = any(part.name == "central" for part in experiment.algorithms)
    secret = any(part.privacy for part in experiment.algorithms)
    return not (experiment.system.waits or pooled or secret or as_sampler(experiment.sampler).observes)


def twins(runs: Iterable[StudyRun]) -> list[list[StudyRun]]:
    """The runs, those together of which any can be told from any other: they differ in their clock alone."""
    found: dict[str, list[StudyRun]] = {}
    for run in runs:
        settings = run.experiment.to_mapping()
        alike = {name: value for name, value in settings.items() if name not in ("name", "title")}
        if told_afterwards(run.experiment):
            alike["system"] = {name: value for name, value in alike["system"].items() if name != "straggling"}
        else:
            alike["slug"] = run.slug
        found.setdefault(repr(alike), []).append(run)
    return list(found.values())


def timed(
    records: Iterable[Mapping[str, Any]], wanted: Experiment, data_folder: Path | None, shelf: Shelf
) -> Iterator[dict[str, Any]]:
    """A run's rounds with the clock of the experiment that is wanted; where that has none the data are not read."""
    if wanted.system.straggling is None:
        yield from ({name: value for name, value in record.items() if name != SECONDS} for record in records)
        return
    data = build.build_federation(wanted, data_folder, shelf)
    options = build.build_options(wanted, data)
    seed = options["seed"] if options["sampling_seed"] is None else options["sampling_seed"]
    asking = Asking(
        data,
        Batching(*(options[name] for name in ("epochs", "steps", "batch_size", "drop_last"))),
        options["cohort"],
        seed,
        as_sampler(options["sampler"]),
        options["system"],
        Faults(options["faults"], seed, data.population),
        whole=build.build_algorithm(wanted.algorithms[0]).work.name == "full_gradient",
    )
    state = asking.sampler.init(data.population)
    for record in records:
        yield {**record, SECONDS: asking.ask(record["round"], state).reports.seconds}
