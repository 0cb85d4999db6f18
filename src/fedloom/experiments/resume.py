"""Going on with an experiment that was interrupted: what it was, and which of its runs are finished."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from fedloom.differences import difference
from fedloom.documents import read_toml
from fedloom.errors import Damaged, FedloomError
from fedloom.experiments.schema import Experiment, RunSpec, read
from fedloom.rundir import CONFIG, SETTLED


def begun(directory: Path) -> Experiment:
    """The experiment whose directory this is."""
    if not directory.is_dir():
        got = "a file" if directory.exists() else "nothing there"
        raise FedloomError(f"{directory}: expected a run directory, or one that holds several; got {got}")
    path = directory / CONFIG
    if not path.is_file():
        raise Damaged(f"{path}: expected the settings of a run, got nothing there: fedloom run begins one")
    table = read_toml(path)
    if "paper" in table:
        raise Damaged(f"{directory}: expected an experiment's run, got a study: the same fedloom reproduce goes on")
    if isinstance(table.get("algorithm"), str):
        deployed = table.get("executor") == "flower"
        got = "a deployment's: the same ServerApp" if deployed else "a script's: simulate(resume=True)"
        raise Damaged(f"{directory}: expected an experiment's run, got {got} goes on")
    try:
        return read(path)
    except FedloomError as error:
        raise Damaged(f"{directory}: {error}") from None


def as_begun(run: RunSpec, directory: Path, device: str | None, allowed: Collection[str]) -> RunSpec:
    """One run of an experiment with what was resolved when it began, if it did.

    Settings that are not those of the experiment above it are refused.
    """
    experiment = begun(directory) if (directory / CONFIG).is_file() else run.experiment
    found = difference(experiment.to_mapping(), run.experiment.to_mapping(), but=(*SETTLED, *allowed))
    if found is not None:
        key, expected, got = found
        raise Damaged(
            f"{directory}, {key}: expected {expected!r} as when it began, got {got!r} in {CONFIG} above: "
            f"put it back, or allow it with --allow {key}"
        )
    return replace(run, experiment=experiment if device is None else experiment.model_copy(update={"device": device}))
