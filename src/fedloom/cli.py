"""The command line. Nothing heavy is imported before the request is known to be right."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fedloom import __version__, lock
from fedloom.data import commands as data_commands
from fedloom.errors import Damaged, Diverged, FedloomError, choose
from fedloom.launched import by_torchrun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.resources.abc import Traversable

    from fedloom.experiments.schema import Experiment
    from fedloom.experiments.study import Study

MISTAKE, DAMAGED, DIVERGED, INTERRUPTED = 2, 3, 4, 130

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key, such as rounds=20; an empty value takes it out."),
]
Executor = Annotated[str | None, typer.Option(help="auto, loop or vectorized.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:0, mps, ...")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="The same bits from run to run on a GPU too.")]
Data = Annotated[Path | None, typer.Option(help="Where data sets are looked for.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

app = typer.Typer(
    name="fedloom",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_commands.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedloom {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated learning on clients whose data differ.

    \b
    fedloom run quickstart                     five algorithms on digits, a table and a picture
    fedloom run quickstart --set rounds=20     the same with a key changed
    fedloom new my                             writes my.toml, an experiment of your own to edit
    fedloom run my.toml --out runs/mine        runs it
    fedloom reproduce fedadp-table1            a paper's table, measured beside published
    fedloom tune my.toml                       the best learning rates for it
    fedloom resume runs/quickstart             goes on where it stopped
    fedloom report runs/quickstart             a page that compares the runs
    fedloom list                               what there is to name in one
    fedloom bench                              how fast this machine is
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The experiment's name; the file is NAME.toml.")],
) -> None:
    """Write an experiment file to edit: complete, with a remark on every setting; it runs as it is.

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


@app.command()
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
    from fedloom.experiments.study import is_study, read_study

    overrides = _overrides(settings, deterministic, executor=executor, device=device)
    file = find(experiment)
    if is_study(contents(file)):
        if seeded_noise:
            raise FedloomError("--seeded-noise: expected an experiment with privacy, got a study")
        _reproduce(read_study(file, overrides), file, out, data, quiet)
        return
    wanted = read(file, overrides)
    if seeded_noise:
        wanted = wanted.with_seeded_noise()
    _check_folder("--data", data)
    if out is None and by_torchrun():
        raise FedloomError("--out: expected a folder that all ranks agree on, got none: name one")
    _run(wanted, _free(wanted.name) if out is None else out, data, quiet)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory, or one that holds several.")],
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="KEY", help="Go on although this differs from when it began, such as rounds."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:0, mps, ...; as before unless given.")] = None,
    data: Data = None,
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
    _check_folder("--data", data)
    _run(wanted, directory, data, quiet, resume=True, device=device, allow=allow or ())


def _run(wanted: Experiment, out: Path, data: Path | None, quiet: bool, **going_on: Any) -> None:
    with _interruptible():
        from fedloom.experiments.runner import run_experiment

        run_experiment(wanted, out, data, quiet, **going_on)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM end the command with what the interrupted says of itself, and the exit code for it."""
    from fedloom.interruption import heard

    try:
        with nullcontext() if by_torchrun() else heard():  # torchrun has signals of its own
            yield
    except KeyboardInterrupt as stop:
        _fail(str(stop) or "interrupted before the first round", INTERRUPTED)


@app.command()
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
        str | None, typer.Option(help="smoke (minutes on two cores), short, or full, which it is unless given.")
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
        list[Path] | None, typer.Option(metavar="FOLDER", help="Take runs with the same settings from there.")
    ] = None,
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
    """
    from fedloom.experiments.registry import find_study
    from fedloom.experiments.study import read_study

    overrides = _overrides(settings, deterministic, device=device)
    file = find_study(study)
    _reproduce(read_study(file, overrides, scale, only or ()), file, out, data, quiet, reuse or ())


def _reproduce(
    wanted: Study,
    file: Path | Traversable,
    out: Path | None,
    data: Path | None,
    quiet: bool,
    reuse: Sequence[Path] = (),
) -> None:
    from fedloom.experiments.study import runs

    if wanted.facts is None:
        runs(wanted)  # a mistake in a cell is told before anything heavy is loaded
    _check_folder("--data", data)
    for folder in reuse:
        _check_folder("--reuse", folder)
    if by_torchrun():
        raise FedloomError("reproduce: expected a single process, got a rank of several: start it without torchrun")
    with _interruptible():
        from fedloom.experiments.reproduce import reproduce as run_study

        run_study(wanted, out or Path("runs") / f"{wanted.id}-{wanted.scale}", file, data, quiet, reuse=reuse)


def _overrides(settings: list[str] | None, deterministic: bool, **given: str | None) -> list[str]:
    """What `--set` and the options that stand for a key set."""
    named = [f"{key}={value}" for key, value in given.items() if value is not None]
    return [*(settings or []), *named, *(["deterministic=true"] if deterministic else [])]


def _check_folder(option: str, folder: Path | None) -> None:
    if folder is not None and not folder.is_dir():
        raise FedloomError(f"{option}: expected a folder, got {str(folder)!r}, which is none")


@app.command()
def tune(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An experiment file with a [tune] table.")],
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
    from fedloom.experiments.registry import find
    from fedloom.experiments.tune_file import read_tune

    overrides = _overrides(settings, deterministic, executor=executor, device=device)
    wanted = read_tune(find(file), overrides)
    _check_folder("--data", data)
    if by_torchrun():
        raise FedloomError("tune: expected one process, got several by torchrun: start it without")
    folder = _free(f"{wanted.experiment_table['name']}-tune") if out is None else out
    with _interruptible():
        from fedloom.experiments.tuning import tune as try_all

        try_all(wanted, folder, data, quiet)


@app.command(name="list")
def list_(
    as_json: AsJson = False,
) -> None:
    """What there is: experiments, algorithms, data sets, models.

    \b
    fedloom list
    fedloom list --json
    """
    from fedloom.experiments import listing

    if as_json:
        typer.echo(json.dumps(listing.names(), indent=2))
    else:
        listing.show()


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run directories, or ones that hold several.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write; report.html in the first DIR unless given.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where data sets are looked for, to draw who holds what.")] = None,
) -> None:
    """Compare runs in one HTML page that needs nothing else: curves, tables, settings, who holds what.

    \b
    fedloom report runs/quickstart
    fedloom report runs/mine runs/other --out comparison.html
    """
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise FedloomError(f"--out: expected a file in a folder that exists, got {str(out)!r}")
    _check_folder("--data", data)
    from fedloom.report.page import write_report

    typer.echo(f"report: {write_report(directories, out, data)}")


@app.command()
def bench(
    workloads: Annotated[
        str | None,
        typer.Option(metavar="W1,W2,...", help="What to time; unless given, what this device does in about 2 minutes."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:0, mps, ...; the accelerator unless given.")
    ] = None,
    executor: Annotated[
        list[str] | None, typer.Option(help="auto, loop or vectorized; several, with commas, are compared.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds to time; unless given, as many as there is time for.")
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Beside the peers that are installed (source checkout).")
    ] = False,
    growth: Annotated[
        str | None, typer.Option(metavar="clients|model|population", help="How a round's cost grows with that.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --growth: a folder for its picture.")] = None,
    trials: Annotated[bool, typer.Option("--trials", help="Five seeds as one program, and one by one.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two rounds each: tries everything, measures nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """This machine's speed: whole rounds beside a plain PyTorch loop, as ratios measured in one run.

    \b
    fedloom bench
    fedloom bench --workloads W2,W3 --executor loop,vectorized,auto
    fedloom bench --growth clients --out growth
    fedloom bench --json
    """
    from fedloom.bench.request import Request, executor_names, workload_names

    named, executors = workload_names(workloads), executor_names(executor)
    request = Request(named, executors, device, rounds, quick, peers, trials, growth, out)
    from fedloom.bench.command import run as measure

    measure(request, as_json)


@app.command()
def doctor(
    as_json: AsJson = False,
) -> None:
    """What this machine can do: devices, threads, memory, compiler, optional extras.

    \b
    fedloom doctor
    """
    from fedloom import doctor

    found = doctor.examine()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        doctor.show(found)


def main(arguments: list[str] | None = None) -> NoReturn:
    """The program: a mistake becomes one line on stderr and its exit code."""
    command: Any = typer.main.get_command(app)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments and not arguments[0].startswith("-") and arguments[0] not in command.commands:
            raise choose("command", arguments[0], command.commands)
        code = command.main(arguments, prog_name="fedloom", standalone_mode=False)
    except Diverged as error:
        _fail(str(error), DIVERGED)
    except Damaged as error:
        _fail(str(error), DAMAGED)
    except FedloomError as error:
        _fail(str(error), MISTAKE)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", INTERRUPTED)
    except MemoryError as error:
        _fail(f"memory: expected enough of it, got none left: {error or 'ask for less'}", MISTAKE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", MISTAKE)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # the exceptions of click, which typer brings under one name or another
        context = getattr(error, "ctx", None)
        hint = f" (try: {context.command_path} --help)" if context else ""
        _fail(error.format_message() + hint, getattr(error, "exit_code", MISTAKE))
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    print(f"fedloom: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _free(name: str) -> Path:
    """runs/NAME, or the first of runs/NAME-2, runs/NAME-3, ... that is not there yet."""
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path


if __name__ == "__main__":
    main()
