"""The commands of experiments: write one, run it, go on with it, reproduce a paper's, try settings.

Nothing heavy is imported before the request is known to be right.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom import lock
from fedloom.errors import FedloomError, existing_folder
from fedloom.exits import interruptible
from fedloom.launched import by_torchrun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

    from fedloom.experiments.schema import Experiment
    from fedloom.experiments.study import Study

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key, such as rounds=20; an empty value takes it out."),
]
Executor = Annotated[str | None, typer.Option(help="auto, loop or vectorized.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:0, mps, ...")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="The same bits from run to run on a GPU too.")]
Data = Annotated[Path | None, typer.Option(help="Where data sets are looked for.")]
Track = Annotated[str | None, typer.Option(metavar="TRACKER", help="Follow every run in tensorboard, wandb or mlflow.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The experiment's name; the file is NAME.toml.")],
) -> None:
    """Write an experiment file to edit: it runs as it is, with a remark on every setting.

    \b
    fedloom new my-experiment
    fedloom run my-experiment.toml
    """
    from fedloom.experiments.new import write_new

    path = write_new(name)
    typer.echo(f"written: {path}; edit it, then: fedloom run {path}")


def _ids() -> list[str]:
    """What the shell completes an experiment's id to."""
    from fedloom.experiments.registry import experiments

    return list(experiments())


def run(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="An experiment's id (see `fedloom list`), or a TOML file.",
            autocompletion=_ids,
        ),
    ],
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; runs/NAME unless given.")] = None,
    executor: Executor = None,
    device: Device = None,
    deterministic: Deterministic = False,
    data: Data = None,
    seeded_noise: Annotated[
        bool,
        typer.Option("--seeded-noise", help="For tests of private runs: noise that repeats itself. Epsilon is void."),
    ] = False,
    track: Track = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment: every algorithm with every seed, then a table and a picture.

    \b
    fedloom run quickstart
    fedloom run quickstart --set rounds=20 --set data.alpha=1.0
    fedloom run quickstart --set 'seeds=[0]' --set 'algorithms.*.client_lr=0.05'
    fedloom run my.toml --out runs/mine --executor loop
    """
    if out is not None:
        lock.check(out)
    from fedloom.experiments.registry import contents, find
    from fedloom.experiments.schema import read
    from fedloom.experiments.study_file import is_study, read_study

    overrides = _overrides(settings, deterministic, executor=executor, device=device)
    file = find(experiment)
    if is_study(contents(file)):
        if seeded_noise:
            raise FedloomError("--seeded-noise: expected an experiment with privacy, got a study")
        if track is not None:
            raise FedloomError("--track: expected an experiment, got a study: fedloom report shows its runs")
        _reproduce(read_study(file, overrides), file, out, data, quiet)
        return
    wanted = read(file, overrides)
    if seeded_noise:
        wanted = wanted.with_seeded_noise()
    existing_folder("--data", data)
    if out is None and by_torchrun():
        raise FedloomError("--out: expected a folder that all ranks agree on, got none: name one")
    _run(wanted, _free(wanted.name) if out is None else out, data, quiet, track=track)


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory, or one that holds several.")],
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="KEY", help="Go on although this differs from when it began, such as rounds."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:0, mps, ...; as before unless given.")] = None,
    data: Data = None,
    track: Track = None,
    quiet: Quiet = False,
) -> None:
    """Go on where a run stopped, to the same bits; of several, with all that are not finished.

    \b
    fedloom resume runs/quickstart
    fedloom resume runs/mine --device cuda
    """
    lock.check(directory)
    from fedloom.experiments.resume import begun

    wanted = begun(directory)
    existing_folder("--data", data)
    _run(wanted, directory, data, quiet, resume=True, device=device, allow=allow or (), track=track)


def _run(wanted: Experiment, out: Path, data: Path | None, quiet: bool, **going_on: Any) -> None:
    with interruptible(out, "fedloom resume goes on"):
        from fedloom.experiments.runner import run_experiment

        run_experiment(wanted, out, data, quiet, **going_on)


def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A paper's table or figure (see `fedloom list`), or a study's TOML file.",
            autocompletion=_ids,
        ),
    ],
    scale: Annotated[
        str | None,
        typer.Option(
            help="smoke (minutes on two cores), short, full (unless given), or another that it has, such as digits."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key in every cell, such as experiment.rounds=20."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="AXIS=VALUE,...", help="Only these cells, such as 'data set=MNIST'."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; runs/ID-SCALE unless given.")] = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Take runs with the same training from there."),
    ] = None,
    so_far: Annotated[
        bool, typer.Option("--so-far", help="Run nothing: tell what one that is not finished has come to.")
    ] = False,
    device: Device = None,
    deterministic: Deterministic = False,
    data: Data = None,
    quiet: Quiet = False,
) -> None:
    """Run a paper's table or figure, and print what was measured beside what was published.

    Interrupted, the same command goes on where it was.

    \b
    fedloom reproduce fedadp-table1 --scale smoke
    fedloom reproduce fedadp-table1 --scale short --out runs/table1
    fedloom reproduce fedadp-table1 --device cuda --set 'experiment.seeds=[0]'
    fedloom reproduce glad-table10 --only 'data set=MNIST' --reuse runs/glad-table1-full
    fedloom reproduce fedadp-table1 --so-far
    """
    if out is not None and not so_far:
        lock.check(out)
    from fedloom.experiments.registry import find_study
    from fedloom.experiments.study_file import read_study

    overrides = _overrides(settings, deterministic, device=device)
    file = find_study(study)
    _reproduce(read_study(file, overrides, scale, only or ()), file, out, data, quiet, reuse or (), so_far)


def _reproduce(
    wanted: Study,
    file: Path | Traversable,
    out: Path | None,
    data: Path | None,
    quiet: bool,
    reuse: Sequence[Path] = (),
    so_far: bool = False,
) -> None:
    from fedloom.experiments.study import runs

    folder = out or Path("runs") / f"{wanted.id}-{wanted.scale}"
    if not so_far:  # which may be asked while it runs
        lock.check(folder)
    if wanted.facts is None:
        runs(wanted)  # a mistake in a cell is told before anything heavy is loaded
    existing_folder("--data", data)
    for other in reuse:
        existing_folder("--reuse", other)
    if by_torchrun():
        raise FedloomError("reproduce: expected a single process, got a rank of several: start it without torchrun")
    with interruptible(folder, "the same command goes on"):
        from fedloom.experiments.reproduce import reproduce as run_study

        run_study(wanted, folder, file, data, quiet, reuse=reuse, so_far=so_far)


def tune(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An experiment file with a table named tune.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key, such as rounds=20 or tune.select=last."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; runs/NAME-tune unless given. Named again, it goes on there.")
    ] = None,
    executor: Executor = None,
    device: Device = None,
    deterministic: Deterministic = False,
    data: Data = None,
    quiet: Quiet = False,
) -> None:
    """Try a grid of settings, or search among them; prints and stores the best of each algorithm.

    \b
    fedloom tune my.toml
    fedloom tune my.toml --set tune.select=last --out runs/my-tune
    fedloom run runs/my-tune/best.toml
    """
    if out is not None:
        lock.check(out)
    from fedloom.experiments.registry import find
    from fedloom.experiments.tune_file import read_tune

    overrides = _overrides(settings, deterministic, executor=executor, device=device)
    wanted = read_tune(find(file), overrides)
    existing_folder("--data", data)
    if by_torchrun():
        raise FedloomError("tune: expected one process, got several by torchrun: start it without")
    folder = _free(f"{wanted.experiment_table['name']}-tune") if out is None else out
    with interruptible(folder, f"the same command with --out {folder} goes on"):
        from fedloom.experiments.tuning import tune as try_all

        try_all(wanted, folder, data, quiet)


def _overrides(settings: list[str] | None, deterministic: bool, **given: str | None) -> list[str]:
    """What `--set` and the options that stand for a key set."""
    named = [f"{key}={value}" for key, value in given.items() if value is not None]
    return [*(settings or []), *named, *(["deterministic=true"] if deterministic else [])]


def _free(name: str) -> Path:
    """runs/NAME, or the first of runs/NAME-2, runs/NAME-3, ... that is not there yet."""
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path
