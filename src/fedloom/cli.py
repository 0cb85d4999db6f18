"""The command line. Nothing heavy is imported before the request is known to be right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fedloom import __version__
from fedloom.data import commands as data_commands
from fedloom.errors import FedloomError, choose, existing_folder
from fedloom.exits import INTERRUPTED, answered
from fedloom.experiments import commands

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


for each in (commands.new, commands.run, commands.resume, commands.reproduce, commands.tune):
    app.command()(each)


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
    existing_folder("--data", data)
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
    with answered():
        if arguments and not arguments[0].startswith("-") and arguments[0] not in command.commands:
            raise choose("command", arguments[0], command.commands)
        try:
            code = command.main(arguments, prog_name="fedloom", standalone_mode=False)
        except typer.Abort:
            code = INTERRUPTED
        if code == INTERRUPTED:  # what typer makes of an interrupt
            raise KeyboardInterrupt
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
