"""Writes docs/results.md from what lies here: `python results/summarise.py`. What was not run is listed as such."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fedloom.experiments.registry import find_study, studies
from fedloom.experiments.study_file import read_study

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "results.md"
HEAD = """# Measured against published

Every number here was produced by the command above it, or where a section's remarks say so by a study that held its
runs, and lies with its figure in `results/`. `±` is the standard deviation over seeds; a match is what [the page on
experiments](experiments.md#when-a-number-matches) says. This page is written by `python results/summarise.py`.
"""


def kept() -> list[dict[str, Any]]:
    """All results, each with its `folder`: a study that was run in parts has several. Figure 2 is before figure 10."""
    paths = sorted(HERE.glob("*/results.json"), key=lambda path: _counted(path.parent.name))
    return [{"folder": path.parent.name, **json.loads(path.read_text(encoding="utf-8"))} for path in paths]


def _counted(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def page(found: list[dict[str, Any]]) -> str:
    return "\n".join([HEAD, _overview(found), *(_section(each) for each in found), _missing(found)])


def main() -> None:
    found = kept()
    PAGE.write_text(page(found), encoding="utf-8")
    print(f"{PAGE}: {len({each['id'] for each in found} & set(studies()))} of {len(studies())} tables and figures")


def _overview(found: list[dict[str, Any]]) -> str:
    lines = ["| | scale | matched | claims that hold | seconds | device |", "|---|---|---|---|---|---|"]
    for each in found:
        decided = [cell["matched"] for cell in each["published"] if cell.get("matched") is not None]
        claims = [claim["holds"] for claim in each["claims"] if claim["holds"] is not None]
        counts = [f"{sum(yes)} of {len(yes)}" if yes else "" for yes in (decided, claims)]
        name = f"[{each['id']}](#{each['folder']})"
        lines.append(f"| {name} | {_part(each)} | {' | '.join(counts)} | {each['seconds']:,.0f} | {each['device']} |")
    return "\n".join(lines) + "\n"


def _part(result: dict[str, Any]) -> str:
    """The scale, what was asked for of it, and after how many rounds it was told where that is not the scale's.

    >>> command = "fedloom reproduce glad-fig7 --scale short --only epochs=1,5 --set experiment.rounds=86"
    >>> _part({"scale": "short", "only": {"data set": ["CIFAR-10"], "epochs": ["1", "5"]}, "command": command})
    'short, CIFAR-10, epochs 1 or 5, 86 rounds'
    """
    asked = [
        " or ".join(names) if not names[0][0].isdigit() else f"{axis} {' or '.join(names)}"
        for axis, names in result.get("only", {}).items()
    ]
    rounds = [f"{told} rounds" for told in re.findall(r"--set experiment\.rounds=(\d+)", result["command"])[-1:]]
    return ", ".join([result["scale"], *asked, *rounds, *(["stand-in"] if result.get("stand_in") else [])])


def _section(result: dict[str, Any]) -> str:
    folder = f"../results/{result['folder']}"
    lines = [
        f"## {result['folder']}",
        "",
        f"{result['title']} ({result['paper']}).",
        "",
        f"    {result['command']}",
        "",
    ]
    if result.get("trained_by"):
        lines += ["with the runs of", "", *(f"    {line}" for line in result["trained_by"]), ""]
    trained = f", {result['runs']} runs" if "runs" in result else ""
    lines += [f"{result['device']}, {result['seconds']:,.0f} s{trained}, scale {_part(result)}."]
    if result.get("stand_in"):
        lines += ["", f"A stand-in, not the paper's own: {result['stand_in']}."]
    lines += ["", *_table(result), "", *(f"- {_claim(claim)}" for claim in result["claims"])]
    notes = HERE / result["folder"] / "notes.md"
    if notes.exists():
        lines += ["", notes.read_text(encoding="utf-8").strip()]
    if (HERE / result["folder"] / "figure.png").exists():
        lines += ["", f"![{result['title']}]({folder}/figure.png)"]
    return "\n".join([*lines, ""])


def _table(result: dict[str, Any]) -> list[str]:
    published = {_key(cell): cell for cell in result["published"]}
    axes = list(dict.fromkeys(axis for cell in result["measured"] for axis in cell["cell"]))
    several = "measure" not in axes and len({cell.get("measure") for cell in result["measured"]}) > 1
    head = [*axes, *(["measure"] if several else []), "measured", "published", "match"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in result["measured"]:
        paper = published.get(_key(cell))
        match = {True: "yes", False: "no"}.get(paper.get("matched"), "") if paper else ""
        row = [*(cell["cell"].get(axis, "") for axis in axes), *([cell["measure"]] if several else [])]
        shown = [each["words"] if each else "" for each in (cell, paper)]
        lines.append(f"| {' | '.join([*row, *shown, match])} |")
    return lines


def _key(cell: dict[str, Any]) -> str:
    return json.dumps([cell["cell"], cell.get("measure")], sort_keys=True)


def _claim(claim: dict[str, Any]) -> str:
    verdict = {True: "holds", False: "does not hold", None: "not decided"}[claim["holds"]]
    detail = f"; {claim['detail']}" if claim.get("detail") else ""
    counted = f" (in {claim['held']} of {claim['of']} cells{detail})" if claim.get("of") else ""
    return f"{claim['text']}: {verdict}{counted}"


def _missing(found: list[dict[str, Any]]) -> str:
    done = {each["id"] for each in found}
    kinds = {name: read_study(find_study(name)).facts for name in studies() if name not in done}
    told = [name for name, facts in kinds.items() if facts in ("hyperparameters", "none")]
    left = [name for name in kinds if name not in told]
    lines = [
        "## Nothing to measure",
        "",
        "Settings and drawings; `fedloom reproduce` prints ours beside the paper's:",
        _names(told),
    ]
    return "\n".join([*lines, "", "## Not run", "", _names(left), ""])


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) + "."


if __name__ == "__main__":
    main()
