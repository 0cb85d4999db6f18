"""What lies under `results/` is what the studies' files say today: conflicts, published numbers, matches, claims."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fedloom.experiments.claims import decide
from fedloom.experiments.measures import Measured
from fedloom.experiments.published import matched, published
from fedloom.experiments.registry import find_study
from fedloom.experiments.results import Result, key
from fedloom.experiments.study import Study, read_study
from fedloom.experiments.study_report import claims_report

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in ROOT.glob("results/*/results.json"))
sys.path.insert(0, str(ROOT / "results"))

import summarise  # noqa: E402


def kept(folder: Path) -> tuple[dict[str, Any], Study, Path | None]:
    report = json.loads((folder / "results.json").read_text())
    own = folder / "study.toml"
    file = own if own.is_file() else None
    return report, read_study(file or find_study(report["id"])).at(report["scale"]), file


def found(report: dict[str, Any], study: Study) -> list[Result]:
    measures = {measure.name: measure for measure in study.counted}
    results = []
    for each in report["measured"]:
        measure, values = measures[each["measure"]], tuple(each["values"])
        never = values.count(None) if measure.kind in ("rounds_to", "total_to") else 0
        measured = Measured(values, best=each["best"], diverged=each["diverged"], never=never)
        results.append(Result(each["cell"], measure, measured))
    return results


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_is_kept_is_what_would_be_told_now(folder: Path) -> None:
    report, study, file = kept(folder)
    assert (report["id"], report["conflicts"]) == (study.id, study.conflicts)
    assert [claim["text"] for claim in report["claims"]] == [claim.text for claim in study.claims]
    numbers = {key(each.place): each for each in published(study, file)}
    assert all(numbers[key(each["cell"])].value == each["value"] for each in report["published"])
    if study.facts is None:
        there = {key(result.cell): result for result in found(report, study)}
        assert claims_report(decide(study, list(there.values()))) == report["claims"]
        assert there.keys() & numbers.keys() == {key(each["cell"]) for each in report["published"]}
        for each in report["published"]:
            result = there[key(each["cell"])]
            assert each["matched"] in (None, matched(result.measure, result.measured, numbers[key(each["cell"])]))


def test_the_page_of_results_is_what_lies_there() -> None:
    assert summarise.PAGE.read_text(encoding="utf-8") == summarise.page(summarise.kept()), "python results/summarise.py"
