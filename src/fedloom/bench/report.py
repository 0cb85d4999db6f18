"""What was measured, as aligned tables. The JSON is the measurement itself:

`fedloom`, `torch`, `python`, `device`, `device_name`, `threads`, `cores`, `quick`; and `workloads`, a list of
`workload`, `about`, `parameters`, `population`, `cohort`, `steps` (null where clients differ), `batch_size`;
`plain`, the plain loop's timing;
`ours`, for every executor `asked` for: the `executor` that ran, `chunk`, `why`, its `program` and the `program_seconds`
it took to make, a timing, and `ratio`, the plain loop's seconds over ours;
`auto`, where executors were compared: what it `chose`, the `fastest`, whether the choice is `within_20_percent` of it.

A timing: `seconds` of one round (on a CPU and for the plain loop the median; on an accelerator, where rounds may run
ahead of their records, the stretch of all measured rounds divided by their number), `rounds` measured,
`median_seconds`, `wall_seconds`, `first_seconds` (compiling included; on an accelerator with the round that was begun
behind it), `start_seconds` (before the first round) and `memory_mib`: the most allocated on a CUDA device, elsewhere
the most resident in this process and its workers.

Of a growth: `growth`, `axis`, `about`, and `points`, a list of `at`, `seconds`, `plain_seconds`, `ratio`, `executor`,
`memory_mib`, `plain_memory_mib`. With peers: `peers`, as `benchmarks/peers` has them. Of trials: `trials`, a list of
`workload`, `trials` (of what kind), `stacked_seconds` and `one_after_the_other_seconds` of a round of all of them, and
`share`, the first over the second; the same of whole runs of so many `rounds`, starting included, in
`stacked_run_seconds`, `one_after_the_other_run_seconds` and `run_share`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedloom.bench.measure import Tell

NARROWEST = 130
"""Characters a table may need; a pipe or a narrow terminal gets them all the same, rather than words cut short."""


def console() -> Console:
    return Console(highlight=False, width=max(Console().width, NARROWEST))


@contextmanager
def stages() -> Iterator[Tell]:
    """A line on stderr that says what is being measured, where a person can see it.

    It is written when a stage begins and not refreshed: a thread that draws would be measured too.
    """
    shown = sys.stderr.isatty()

    def write(text: str) -> None:
        if shown:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    try:
        yield write
    finally:
        write("")


def print_bench(found: Mapping[str, Any], console: Console) -> None:
    """Ours beside the plain loop: a row per workload and executor."""
    head = ("", "", "plain loop", "fedloom", "ratio", "executor", "first round", "memory")
    rows, reasons = [], []
    for workload in found["workloads"]:
        name, plain = workload["workload"], workload["plain"]
        for ours in workload["ours"]:
            ratio = "-" if ours["ratio"] is None else f"{ours['ratio']:.2f} x"
            first, memory = seconds(ours["first_seconds"]), mebibytes(ours["memory_mib"])
            before = seconds(plain and plain["seconds"])
            rows.append(
                (name, workload["about"], before, seconds(ours["seconds"]), ratio, _executor(ours), first, memory)
            )
            if ours["executor"] != ours["asked"]:
                reasons.append(f"{name}: {_executor(ours)}: {ours['why']}")
        if workload["auto"] is not None:
            reasons.append(f"{name}: {_auto(workload['auto'])}")
    _print_machine(found, console)
    _print_table(console, head, rows, left=(0, 1, 5))
    for reason in dict.fromkeys(reasons):
        console.print(Text(reason), soft_wrap=True)


def print_growth(found: Mapping[str, Any], console: Console) -> None:
    """A row per size; the last column says by how much time and size differ from the row above."""
    head = (found["axis"], "plain loop", "fedloom", "ratio", "executor", "memory", "time grows, size grows")
    rows, before = [], None
    for point in found["points"]:
        grown = ""
        if before is not None and point["seconds"] and before["seconds"]:
            grown = f"{point['seconds'] / before['seconds']:.1f} x, {point['at'] / before['at']:.3g} x"
        ratio = "-" if point["ratio"] is None else f"{point['ratio']:.2f} x"
        plain, ours, memory = seconds(point["plain_seconds"]), seconds(point["seconds"]), point["memory_mib"]
        rows.append((f"{point['at']:,}", plain, ours, ratio, point["executor"] or "-", mebibytes(memory), grown))
        before = point
    _print_machine(found, console)
    console.print(Text(found["about"]), soft_wrap=True)
    _print_table(console, head, rows, left=(4,))


def print_peers(peers: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A row per workload and peer, in processes of their own; the ratio is to fedloom in one of its own."""
    head = ("", "peer", "version", "run as", "a round", "of fedloom's", "start-up", "memory", "trains the same")
    rows = []
    for peer in peers:
        same = "failed" if peer.get("failed") else "yes" if peer.get("same") else "no"
        ratio = "-" if peer.get("ratio") is None else f"{peer['ratio']:.2f} x"
        names = [str(peer.get(key) or "-") for key in ("workload", "peer", "what", "how")]
        memory = "-" if peer.get("memory_mb") is None else f"{peer['memory_mb']:,.0f} MB"
        rows.append((*names, seconds(peer.get("seconds")), ratio, seconds(peer.get("startup")), memory, same))
    console.print()
    _print_table(console, head, rows, left=(0, 1, 2, 3))


def print_trials(found: Mapping[str, Any], console: Console) -> None:
    """A row per kind of trials: a round of all of them, then whole runs."""
    head = ("", "trials", "a round: apart", "stacked", "share", "whole runs of", "apart", "stacked", "share")
    rows = []
    for each in found["trials"]:
        taken = seconds(each["one_after_the_other_seconds"]), seconds(each["stacked_seconds"])
        whole = seconds(each["one_after_the_other_run_seconds"]), seconds(each["stacked_run_seconds"])
        share = "-" if each["share"] is None else f"{each['share']:.2f}"
        rounds = f"{each['rounds']} rounds"
        rows.append((each["workload"], each["trials"], *taken, share, rounds, *whole, f"{each['run_share']:.2f}"))
    _print_machine(found, console)
    _print_table(console, head, rows, left=(0, 1))


def tell_trials(found: Mapping[str, Any]) -> None:
    """As `tell_workload`, of trials."""
    stacked, apart = (seconds(found[f"{way}_run_seconds"]) for way in ("stacked", "one_after_the_other"))
    share = f"{found['run_share']:.2f} of the time"
    _tell(f"{found['workload']} {found['trials']}: stacked {stacked}, one after the other {apart}, {share}")


def tell_workload(found: Mapping[str, Any]) -> None:
    """A line on stderr as soon as a workload has been measured: the table comes when all have."""
    plain = found["plain"]
    for ours in found["ours"]:
        ratio = "" if ours["ratio"] is None else f", {ours['ratio']:.2f} x"
        took = f"{seconds(ours['seconds'])}, plain loop {seconds(plain and plain['seconds'])}{ratio}"
        _tell(f"{found['workload']} {_executor(ours)}: {took}")


def _tell(line: str) -> None:
    shown = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{shown}{line}", file=sys.stderr, flush=True)


def seconds(value: float | None) -> str:
    """Three figures, in milliseconds up to ten seconds.

    >>> seconds(0.01234), seconds(1.5), seconds(75.31), seconds(None)
    ('12.3 ms', '1,500 ms', '75.3 s', '-')
    """
    if value is None:
        return "-"
    if value >= 10:
        return f"{value:,.1f} s"
    milliseconds = value * 1000
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def mebibytes(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} MiB"


def _executor(ours: Mapping[str, Any]) -> str:
    ran, asked = ours["executor"], ours["asked"]
    return str(asked) if ran in (asked, None) else f"{asked}: {ran}"


def _auto(auto: Mapping[str, Any]) -> str:
    chose, fastest, close = auto["chose"], auto["fastest"], auto["within_20_percent"]
    if close is None:
        return f"auto chose {chose}, which was not measured; the fastest measured is {fastest}"
    if chose == fastest:
        return f"auto chose {chose}, the fastest"
    return f"auto chose {chose}, {'within' if close else 'not within'} 20 % of the fastest, {fastest}"


def _print_machine(found: Mapping[str, Any], console: Console) -> None:
    told = f"{found['device']}: {found['device_name']}, threads: {found['threads']}, cores: {found['cores']}"
    quick = "; quick: no figures to go by" if found["quick"] else ""
    console.print(Text(f"{told}; torch {found['torch']}, fedloom {found['fedloom']}{quick}"), soft_wrap=True)


def _print_table(
    console: Console, head: Sequence[str], rows: Iterable[Sequence[str]], left: Iterable[int] = ()
) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    aligned = set(left)
    for place, title in enumerate(head):
        table.add_column(title, justify="left" if place in aligned else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
