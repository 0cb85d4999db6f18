"""`fedloom data`: what is there, fetch it, check it, draw it. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from fedloom.data import places
from fedloom.data.releases import RELEASES, Download
from fedloom.errors import FedloomError, choose, cut, existing_folder
from fedloom.toml_text import value_of

app = typer.Typer(name="data", add_completion=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set's name, such as mnist.")]
Folder = Annotated[Path | None, typer.Option("--data", help="Where data sets are; $FEDLOOM_DATA unless given.")]


_GIVEN_BY = {"name": "NAME", "folder": "--data"} | {
    key: f"--{key}" for key in ("partition", "clients", "alpha", "seed")
}
"""What `--set` does not set, because the command line has a place for it."""


@app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Data sets: what is there, fetch them, check them, draw how they are dealt to clients.

    \b
    fedloom data list
    fedloom data get mnist
    fedloom data check mnist
    fedloom data show mnist --partition dirichlet --clients 100 --alpha 0.1 --out mix.png
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(name="list")
def list_(
    data: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Every data set: whether its files are here, and where.

    \b
    fedloom data list
    """
    folder = places.data_folder(existing_folder("--data", data))
    rows = {name: _state(name, folder) for name in sorted(RELEASES)}
    if as_json:
        shown = {name: {"about": RELEASES[name].about, **row} for name, row in rows.items()}
        typer.echo(json.dumps({"folder": str(folder), "datasets": shown}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, row in rows.items():
        state = "embedded" if row["layout"] == "embedded" else "here" if row["layout"] else "not here"
        where = f"{row['path']} ({row['layout']})" if row["path"] else f"fedloom data get {name}"
        about = RELEASES[name].about if state == "embedded" else f"{RELEASES[name].about}\n{where}"
        table.add_row(Text(f"  {name}"), Text(state, style="green" if row["layout"] else "yellow"), Text(about))
    console = Console(highlight=False)
    console.print(Text(f"data sets in {folder}", style="bold"), soft_wrap=True)
    console.print(table)


def _state(name: str, folder: Path) -> dict[str, str | None]:
    if not RELEASES[name].layouts:
        return {"layout": "embedded", "path": None}
    try:
        layout, found = places.locate(name, folder)
    except FedloomError:
        return {"layout": None, "path": None}
    return {"layout": layout, "path": str(next(iter(found.values()))[0].parent)}


@app.command()
def get(
    name: Name,
    data: Folder = None,
    base: Annotated[str, typer.Option("--from", help="Another address that has the same files.")] = "",
) -> None:
    """Fetch a data set from its authors' address and check it; an interrupted download goes on where it stopped.

    \b
    fedloom data get mnist
    fedloom data get mnist --data ~/data --from http://127.0.0.1:8000
    """
    release = RELEASES[_known(name)]
    folder = places.data_folder(data)
    state = _state(name, folder)
    if state["layout"]:
        typer.echo(f"{name}: is here already" + (f", in {state['path']}" if state["path"] else ""))
        return
    from fedloom.data.fetch import Unreachable

    for download in release.downloads:
        wanted = download.members.values() or [download.path]
        if all((folder / path).is_file() for path in wanted):
            continue
        try:
            _fetch_with_bar(download, folder, base)
        except Unreachable as error:
            files = ", ".join(path for one in release.downloads for path in one.members.values() or [one.path])
            raise FedloomError(f"{error}; or put {files} in {folder} by hand") from None
        if download.checksum is None:
            typer.echo(f"{download.path}: no checksum is known for it: kept as it came")
    typer.echo(f"{name}: is here now, in {folder}")


def _fetch_with_bar(download: Download, folder: Path, base: str) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from fedloom.data.fetch import fetch

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(download.path.rpartition("/")[2], total=None)
        fetch(download, folder, lambda done, total: bar.update(task, completed=done, total=total), base)


@app.command()
def check(name: Name, data: Folder = None) -> None:
    """Compare a data set's files with their checksums, decode them, and count.

    \b
    fedloom data check mnist
    """
    _known(name)
    folder = None if data is None else existing_folder("--data", data)
    if not RELEASES[name].layouts:
        typer.echo(f"{name}: embedded, nothing to check")
    else:
        layout, found = places.locate(name, folder)
        from fedloom.data.decoded import check as check_sums

        for path, digest in check_sums(name, layout, found).items():
            known = next(file.checksum for file in RELEASES[name].layouts[layout] if file.path == path)
            said = "found" if known is None else "compared after decoding" if known == "decoded" else "as released"
            typer.echo(f"{path}: {said}, sha256 {digest}")
    from fedloom.data.catalog import load

    options: dict[str, Any] = {"folder": folder} if RELEASES[name].layouts and folder is not None else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said above
        read = load(name, **options)
    from fedloom.data.federated import count

    tested = 0 if read.test is None else count(read.test[0])
    classes = f", {read.classes} classes" if read.classes else ""
    natural = f", {read.population:,} clients" if RELEASES[name].partition == "natural" else ""
    typer.echo(f"{name}: {count(read.x):,} to train on, {tested:,} to test{classes}{natural}")


@app.command()
def show(
    name: Name,
    partition: Annotated[str | None, typer.Option(help="iid, dirichlet, shards, natural, ...")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients.")] = None,
    alpha: Annotated[float | None, typer.Option(help="The Dirichlet's concentration.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, another partition.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another option, such as per_client=100.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the picture; NAME-partition.png unless given.")
    ] = None,
    data: Folder = None,
) -> None:
    """Draw how a data set is dealt to clients, and measure how far they are from the population.

    \b
    fedloom data show digits --partition dirichlet --clients 20 --alpha 0.1
    fedloom data show cifar100 --partition pachinko --clients 500 --set per_client=100 --out pachinko.png
    """
    _known(name)
    options = dict(_setting(text) for text in settings or [])
    options |= {"alpha": alpha} if alpha is not None else {}
    if data is not None and RELEASES[name].layouts:
        options["folder"] = existing_folder("--data", data)
    if out is not None and not out.parent.is_dir():
        raise FedloomError(f"--out: expected a folder that exists, got {str(out.parent)!r}")
    from fedloom.data.catalog import load
    from fedloom.data.skew import label_counts, label_skew
    from fedloom.report.partition_plot import partition_picture

    dealt = load(name, partition, clients, seed, **options)
    sizes = dealt.examples
    typer.echo(f"{dealt.population:,} clients of {int(sizes.min()):,} to {int(sizes.max()):,} examples")
    if dealt.classes is not None:
        for measure, value in label_skew(label_counts(dealt)).summary().items():
            typer.echo(f"mean {measure}: {value:.4f}")
    kind = partition or RELEASES[name].partition
    told = {"alpha": alpha, **{key: value for key, value in options.items() if key not in ("alpha", "folder")}}
    title = ", ".join([name, kind, *(f"{key} {value}" for key, value in told.items() if value is not None)])
    path = out or Path(f"{name}-{kind}.png")
    partition_picture(dealt, path, title)
    typer.echo(f"picture: {path}")


def _known(name: str) -> str:
    if name not in RELEASES:
        raise choose("data set", name, RELEASES)
    return name


def _setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE, the value as TOML has it, or else a string."""
    key, sign, value = text.partition("=")
    if not sign or not key.isidentifier():
        raise FedloomError(f"--set: expected KEY=VALUE, got {cut(repr(text))}")
    if key in _GIVEN_BY:
        raise FedloomError(
            f"--set: expected an option that has no place of its own, got {key!r}: give {_GIVEN_BY[key]}"
        )
    return key, value_of(key, value)
