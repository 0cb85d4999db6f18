"""What lies under `results/` is what the studies' files say today: conflicts, published numbers, matches, claims."""

from __future__ import annotations

import json
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedloom.experiments.claims import decide
from fedloom.experiments.measures import Measured
from fedloom.experiments.published import match, published
from fedloom.experiments.registry import find_study
from fedloom.experiments.results import Result, key
from fedloom.experiments.study import Study, runs
from fedloom.experiments.study_file import read_study
from fedloom.experiments.study_report import report

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in ROOT.glob("results/*/results.json"))
sys.path.insert(0, str(ROOT / "results"))

import summarise  # noqa: E402


def kept(folder: Path) -> tuple[dict[str, Any], Study, Path | None]:
    """The report, and the study as its command has it."""
    report = json.loads((folder / "results.json").read_text())
    own = folder / "study.toml"
    file = own if own.is_file() else None
    words = shlex.split(report["command"])
    changed, asked = ([value for flag, value in pairwise(words) if flag == name] for name in ("--set", "--only"))
    return report, read_study(file or find_study(report["id"]), changed, report["scale"], asked), file


def found(report: dict[str, Any], study: Study) -> list[Result]:
    measures = {measure.name: measure for measure in study.counted}
    results = []
    for each in report["measured"]:
        measure, values = measures[each["measure"]], tuple(each["values"])
        never = values.count(None) if measure.kind in ("rounds_to", "total_to") else 0
        measured = Measured(values, best=each["best"], diverged=each["diverged"], never=never)
        results.append(Result(each["cell"], measure, measured, each.get("chosen", {}), each.get("whole", True)))
    return results


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_is_kept_is_what_would_be_told_now(folder: Path) -> None:
    kept_report, study, file = kept(folder)
    numbers = published(study, file)
    if study.facts is not None:
        beside = {key(each.place): each for each in numbers}
        assert all(beside[key(each["cell"])].value == each["value"] for each in kept_report["published"])
        assert [claim["text"] for claim in kept_report["claims"]] == [claim.text for claim in study.claims]
        return
    results = found(kept_report, study)
    told = report(study, results, match(results, numbers), decide(study, results), [], kept_report["command"])
    names = ("id", "title", "paper", "scale", "only", "compared", "stand_in", "conflicts", "measured", "published")
    assert {name: kept_report[name] for name in names} == {name: told[name] for name in names}
    assert kept_report["claims"] == told["claims"]
    assert kept_report["runs"] <= len(runs(study))  # fewer where it was told of an unfinished study


def test_the_page_of_results_is_what_lies_there() -> None:
    assert summarise.PAGE.read_text(encoding="utf-8") == summarise.page(summarise.kept()), "python results/summarise.py"
