"""Writes docs/algorithms/: `python docs/tools/algorithm_pages.py`. A test tells when that has to be done again.

Rules and remarks stand in algorithms.toml beside this file; signatures come from the code, disagreements from
conflicts.toml, measured and published numbers from results/ and the studies.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedloom import algorithms
from fedloom.experiments.registry import studies
from fedloom.experiments.study import Study, cells, settings
from fedloom.experiments.study_file import read_study

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "results"))

import summarise  # noqa: E402

OUT = ROOT / "docs" / "algorithms"
WIDE = 80
SYMBOLS = "x is the global model, g = Σ_k p_k (x − y_k) the pseudo-gradient, S the cohort, N the number of clients."
HEAD = "<!-- Written by docs/tools/algorithm_pages.py. -->\n"


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    told = tomllib.loads((HERE / "algorithms.toml").read_text(encoding="utf-8"))
    return {"index.md": _index(told), **{f"{name}.md": _page(name, about) for name, about in told.items()}}


def _index(told: dict[str, Any]) -> str:
    lines = ["# Algorithms", "", "| | constructor | paper | measured here |", "|---|---|---|---|"]
    for name, about in told.items():
        paper = f"[{about['paper']}]({about['url']})" if "paper" in about else "none"
        measured = ", ".join(f"[{result['id']}](../results.md#{result['folder']})" for result, _ in _measured(name))
        lines.append(f"| [{about['title']}]({name}.md) | `fl.{name}` | {paper} | {measured or 'not run'} |")
    return "\n".join([*lines, "", "A few words on [which to choose](../howto/choose-a-server-optimizer.md).", "", HEAD])


def _page(name: str, about: dict[str, Any]) -> str:
    lines = [f"# {about['title']}", ""]
    if "paper" in about:
        lines += [f"{about['paper']}. [{about['url'].removeprefix('https://')}]({about['url']})", ""]
    lines += ["## The rule", "", "```", about["rule"].strip("\n"), "```", ""]
    if name != "central":
        lines += [SYMBOLS, ""]
    lines += [line for note in about["notes"] for line in (note, "")]
    lines += ["## How to call it", "", "```python", _signature(name), "```", "", *_options(name)]
    lines += [
        "From the command line, on embedded data:",
        "",
        "```",
        _command(name, about["settings"], about.get("also", [])),
        "```",
        "",
    ]
    lines += [*_conflicts(about["conflicts"]), "## Measured against published", "", *_results(name), HEAD]
    return "\n".join(lines)


def _signature(name: str) -> str:
    signature = inspect.signature(getattr(algorithms, name))
    shown = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in signature.parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    line = f"fl.{name}{inspect.Signature(shown)}".replace("'", '"')
    return line if len(line) <= WIDE else line.replace("(", "(\n    ", 1).replace(", *,", ",\n    *,")[:-1] + ",\n)"


def _options(name: str) -> list[str]:
    takes = inspect.signature(getattr(algorithms, name)).parameters
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values()):
        return []
    named = ", ".join(f"`{option}`" for option in algorithms.Options.__annotations__)
    return [f"And what all take: {named}. Rates are numbers or `fl.schedule.*`.", ""]


def _command(name: str, given: str, also: list[str]) -> str:
    table = given if given.startswith("name") else f'name = "{name}", {given}'
    first = " ".join(f"--set '{each}'" for each in ["seeds=[0]", *also])
    return f"fedloom run quickstart {first} \\\n  --set 'algorithms=[{{{table}}}]'"


def _conflicts(ids: list[str]) -> list[str]:
    known = tomllib.loads((files("fedloom.experiments") / "conflicts.toml").read_text(encoding="utf-8"))
    if not ids:
        return []
    lines = [
        "## Where papers and code disagree",
        "",
        "| | the paper | code and later texts | here |",
        "|---|---|---|---|",
    ]
    for each in ids:
        row = [known[each].get(key, "") for key in ("conflict", "code", "reading")]
        lines.append(f"| {each} | " + " | ".join(_cell(text) for text in row) + " |")
    return [*lines, ""]


def _cell(text: str) -> str:
    """Words of a table of ours as a cell of a Markdown table.

    >>> print(_cell("r = ||x|| and n_k, key 'tau_0'"))
    r = \\|\\|x\\|\\| and n\\_k, key `tau_0`
    """
    *rest, last = re.split(r"'([\w-]+)'", text)
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return "".join(f"{_plain(words)}`{code}`" for words, code in pairs) + _plain(last)


def _plain(words: str) -> str:
    return re.sub(r"([|*_<])", r"\\\1", words)


def _results(name: str) -> list[str]:
    lines: list[str] = []
    done = set()
    for result, measured in _measured(name):
        done.add(result["id"])
        own = {**result, "measured": measured}
        lines += [f"[{result['title']}](../results.md#{result['folder']}) ({result['paper']}):", ""]
        if result.get("stand_in"):
            lines += [f"A stand-in, not the paper's own: {result['stand_in']}.", ""]
        lines += [*summarise._table(own), "", f"    {result['command']}", ""]
        if (ROOT / "results" / result["folder"] / "figure.png").exists():
            lines += [f"![{result['title']}](../../results/{result['folder']}/figure.png)", ""]
    left = [f"`{study.id}`" for study in _trained() if study.id not in done and name in _names(study)]
    if left:
        lines += [f"Not run: {', '.join(left)} (`fedloom reproduce ID`).", ""]
    return lines or ["Not run, and not in any of the tables and figures that `fedloom reproduce` knows.", ""]


@cache
def _trained() -> list[Study]:
    found = [read_study(file) for file in studies().values()]
    return [study for study in found if study.facts is None]


def _measured(name: str) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Results that have cells of the algorithm, and these cells."""
    for result, named in _results_by_algorithm():
        own = [each for each, names in named if name in names]
        if own:
            yield result, own


@cache
def _results_by_algorithm() -> list[tuple[dict[str, Any], list[tuple[dict[str, Any], set[str]]]]]:
    """Every result, and its cells with the algorithms they were trained with."""
    used = _used()
    return [
        (result, [(each, _names_in(each, used[result["id"]])) for each in result["measured"]])
        for result in summarise.kept()
        if result["id"] in used
    ]


def _names_in(measured: dict[str, Any], used: list[tuple[dict[str, str], set[str]]]) -> set[str]:
    return set().union(*(names for cell, names in used if _in(measured, cell)))


def _in(measured: dict[str, Any], cell: dict[str, str]) -> bool:
    return all(measured["cell"].get(axis, value) == value for axis, value in cell.items())


@cache
def _used() -> dict[str, list[tuple[dict[str, str], set[str]]]]:
    """The cells of every study, and the algorithms they are trained with."""
    return {study.id: [(cell, _algorithm(study, cell)) for cell in cells(study)] for study in _trained()}


def _names(study: Study) -> set[str]:
    return set().union(*(names for _, names in _used()[study.id]))


def _algorithm(study: Study, cell: dict[str, str]) -> set[str]:
    """The algorithm that a cell trains with, and `fedglad` where it is around it."""
    table = dict(study.experiment.get("algorithm", {}))
    for path, value in settings(study, cell).items():
        if path == "algorithm":
            table = dict(value)
        elif path.startswith("algorithm."):
            table[path.removeprefix("algorithm.")] = value
    glad = table.get("glad") or {"gamma": 0}  # with gamma 0 it only measures
    return {table["name"]} | ({"fedglad"} if glad is True or glad.get("gamma") != 0 else set())


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for file, text in pages().items():
        (OUT / file).write_text(text, encoding="utf-8")
    print(f"{OUT}: {len(pages())} pages")
