"""Going on with an experiment that was interrupted: what it was, and which of its runs are finished."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from fedloom.differences import difference
from fedloom.documents import read_toml
from fedloom.errors import Damaged, FedloomError, choose
from fedloom.experiments.schema import Experiment, RunSpec, read
from fedloom.rundir import APART, CONFIG, SETTLED, SUMMARY, check_free


def begun(directory: Path) -> Experiment:
    """The experiment whose directory this is."""
    if not directory.is_dir():
        got = "a file" if directory.exists() else "nothing there"
        raise FedloomError(f"{directory}: expected a run directory, or one that holds several; got {got}")
    path = directory / CONFIG
    if not path.is_file():
        from fedloom.experiments.tuning import FILE

        if (directory / FILE).is_file():
            got = f"a tuning: the same fedloom tune --out {directory}"
            raise Damaged(f"{directory}: expected an experiment's run, got {got} goes on")
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


def check_allowed(keys: Collection[str]) -> None:
    """An error unless every key is one in which a run can differ from when it began, or lies beneath one."""
    known = {*Experiment.model_fields, *APART}
    for key in keys:
        if key.partition(".")[0] not in known:
            raise choose("--allow", key, known)


def as_begun(run: RunSpec, directory: Path, device: str | None, allowed: Collection[str]) -> RunSpec:
    """One run of an experiment with what was resolved when it began, if it did.

    Settings that are not those of the experiment above it are refused, unless they are allowed: then those above hold.
    A finished run was made with its own.
    """
    check_free(directory, resume=True, finished=True)
    wanted = run.experiment
    if (directory / CONFIG).is_file():
        own, finished = begun(directory), (directory / SUMMARY).exists()
        but = SETTLED if finished else (*SETTLED, *allowed)
        found = difference(own.to_mapping(), wanted.to_mapping(), but=but)
        if found is not None:
            key, expected, got = found
            instead = f"remove its {SUMMARY}, to go on from its last state" if finished else "allow it"
            raise Damaged(
                f"{directory}, {key}: expected {expected!r} as when it began, got {got!r} in {CONFIG} above: "
                f"put it back, or {instead} with --allow {key}"
            )
        settled = {name: getattr(own, name) for name in SETTLED if name not in allowed}
        wanted = wanted.model_copy(update=settled)
    return replace(run, experiment=wanted if device is None else wanted.model_copy(update={"device": device}))
