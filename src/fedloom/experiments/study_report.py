"""What results.json says of a study: measured and published numbers, verdicts, and where and how they came about."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedloom.experiments.claims import Verdict
from fedloom.experiments.facts import Fact, same
from fedloom.experiments.measures import Outcome
from fedloom.experiments.origins import origin
from fedloom.experiments.published import Published, matched_in
from fedloom.experiments.registry import experiments
from fedloom.experiments.results import Key, Result, key
from fedloom.experiments.study import Study, StudyRun
from fedloom.experiments.words import difference_words, fact_words, measured_words, only_words, published_words


def report(
    study: Study,
    found: Sequence[Result],
    beside: Mapping[Key, Published],
    verdicts: Sequence[Verdict],
    outcomes: Sequence[tuple[StudyRun, Outcome]],
    line: str,
) -> dict[str, Any]:
    """All of it; `line` is the command that repeats it."""
    devices = sorted({outcome.device for _, outcome in outcomes})
    return {
        **head(study, ", ".join(devices), line),
        "runs": len(outcomes),
        "diverged": sum(outcome.diverged is not None for _, outcome in outcomes),
        "measured": [
            {
                "cell": result.cell,
                "measure": result.measure.name,
                "value": result.measured.value,
                "spread": result.measured.spread,
                "values": list(result.measured.values),
                "best": result.measured.best,
                "diverged": result.measured.diverged,
                "words": measured_words(result.measure, result.measured),
                **({"chosen": result.chosen} if result.chosen else {}),
                **({} if result.whole else {"whole": False}),
            }
            for result in found
        ],
        "published": [
            {
                **number.model_dump(),
                "cell": result.cell,
                "measure": result.measure.name,
                "words": published_words(result.measure, number),
                "difference": ""
                if study.stands_in(result.cell)
                else difference_words(result.measure, result.measured, number),
                "matched": matched_in(study, result, number),
            }
            for result, number in beside_published(found, beside)
        ],
        "claims": claims_report(verdicts),
    }


def facts_report(
    study: Study, found: Sequence[Fact], beside: Mapping[Key, Published], verdicts: Sequence[Verdict], line: str
) -> dict[str, Any]:
    """The same of a table that trains nothing."""
    both = [(fact, beside[key(fact.cell)]) for fact in found if key(fact.cell) in beside]
    return {
        **head(study, "cpu", line),
        "measured": [
            {"cell": fact.cell, "value": fact.value, "words": fact_words(fact.value), "why": fact.why} for fact in found
        ],
        "published": [
            {
                "cell": fact.cell,
                "value": number.value,
                "words": fact_words(number.value),
                "matched": same(fact, number) if study.compared else None,
            }
            for fact, number in both
        ],
        "claims": claims_report(verdicts),
    }


def claims_report(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    return [
        {"text": each.text, "holds": each.holds, "held": each.held, "of": each.of, "detail": each.detail}
        for each in verdicts
    ]


def head(study: Study, device: str, line: str) -> dict[str, Any]:
    return {
        "id": study.id,
        "title": study.title,
        "paper": study.paper,
        "command": line,
        **origin(device),
        "scale": study.scale,
        "only": study.asked,
        "compared": study.compared,
        "stand_in": study.stand_ins,
        "conflicts": study.conflicts,
    }


def command(study: Study, file: Path | Traversable | None = None) -> str:
    """The line that repeats it: by its id, or by its file where that does not come with the package."""
    given = study.id if file is None or file == experiments().get(study.id) else str(file)
    words = ["fedloom", "reproduce", given, "--scale", study.scale]
    for axis, values in study.asked.items():
        words += ["--only", only_words(axis, values)]
    for name, value in study.overrides.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        words += ["--set", f"experiment.{name}={shown}"]
    return shlex.join(words)


def beside_published(found: Sequence[Result], beside: Mapping[Key, Published]) -> list[tuple[Result, Published]]:
    """The results that stand beside a published number, and these."""
    return [(result, beside[key(result.cell)]) for result in found if key(result.cell) in beside]
