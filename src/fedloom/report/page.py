"""One page that compares runs: everything in one file, nothing fetched."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedloom import __version__
from fedloom.errors import FedloomError
from fedloom.report import figures, published
from fedloom.report.charts import payload
from fedloom.report.differences import differences
from fedloom.report.markup import definitions, embedded, picture, tag, text
from fedloom.report.palette import DASHES, LINES, PAGE
from fedloom.report.runs import Found, Run, Study, Tuning, alone, read, spent
from fedloom.report.series import Series, assemble
from fedloom.rundir import write_whole

PAGE_NAME = "report.html"
_STROKES = ("none", "8 3", "2 2.5", "9 3 2 3")


def write_report(directories: Sequence[Path], out: Path | None = None, data_folder: Path | None = None) -> Path:
    """Compare the runs in and beneath the directories in one HTML page; returns where it is.

    It goes to `report.html` in the first directory unless told. `data_folder` is where data sets are looked for, to
    draw who holds what.
    """
    found = read(directories)
    path = out if out is not None else directories[0] / PAGE_NAME
    page = render(found, data_folder)
    try:
        write_whole(path, page)
    except OSError as error:
        got = error.strerror or error
        raise FedloomError(f"{path}: expected a place for the page, got {got}: choose another with --out") from None
    return path


def render(found: Found, data_folder: Path | None = None) -> str:
    """The whole page."""
    series = assemble(found.runs)
    content = payload(series, data_folder)
    script = f"{_file('charts.js')}\n{_file('page.js')}"
    sections = [
        _section("summary", "Summary", _summary(series)),
        _section("scores", "What was tried", _tried(found.tunings)),
        _section("published", "Measured beside published", _studies(found.studies)),
        _section("curves", "Learning curves", _curves(content) if content["metrics"] else ""),
        _section("partition", "Who holds what", _PARTITION if content["partitions"] else ""),
        _section("settings", "Settings", differences(series) if series else ""),
        _section("runs", "Runs", _runs(found.runs)),
    ]
    return Template(_file("page.html")).substitute(
        title=text(_title(found)),
        hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        colours=_colours(),
        style=_file("page.css"),
        facts=definitions(_facts(found, series), "facts"),
        sections="\n".join(filter(None, sections)),
        footer=text(f"Written by fedloom {__version__} on {_day(time.time())}."),
        data=embedded(content),
        script=script,
    )


_CONTROLS = """<div class="controls" hidden>
<div class="choices">
<label class="groups">folder <select id="group"></select></label>
<label>x axis <select id="axis"></select></label>
<label>smoothing <select id="smooth"><option value="0">none</option><option value="5">over 5 rounds</option>
<option value="20">over 20 rounds</option><option value="100">over 100 rounds</option></select></label>
<label><input type="checkbox" id="log"> losses and norms on a log scale</label>
</div>
<div id="legend" role="group" aria-label="Series: press to hide or show"></div>
</div>
"""
_NO_SCRIPT = "<noscript><p class='note'>The charts need JavaScript; the tables do not.</p></noscript>"
_BAND = """<p class="note">A line is the mean over seeds; its band goes from the smallest seed to the largest. Point
at a chart, or touch it, to read it; with the keyboard, the arrow keys move through it.</p>"""
_LEARNING = '<div class="charts" id="learning-charts"></div>\n'
_INSIDE = '<h2>Inside the rounds</h2>\n<div class="charts" id="inside-charts"></div>\n'
_ANY = """<div id="any" hidden><h2>Any series</h2>
<label>show <select id="metric"></select></label>
<div class="charts" id="any-charts"></div>
<p class="note" id="any-more" hidden></p></div>"""
_PARTITION = '<div id="partition-maps"></div>'


def _curves(content: Mapping[str, Any]) -> str:
    """Places for the script to draw in; the controls stay in view over all of them."""
    few = f"Of {len(content['series'])} series the best are drawn at first: press the others' buttons to see them."
    note = tag("p", few, class_="note") if content["hidden"] else ""
    return _NO_SCRIPT + _CONTROLS + _BAND + note + _LEARNING + (_INSIDE if content["inside"] else "") + _ANY


def _section(name: str, title: str, inside: str) -> str:
    return tag("section", f"{tag('h2', text(title))}\n{inside}", id=name) if inside else ""


def _summary(series: Sequence[Series]) -> str:
    if not series:
        return ""
    note = figures.meaning(series)
    folders = _by_folder([run for each in series for run in each.runs])
    if not all(alone(group, runs) for group, runs in folders.items()):
        note += " Seconds are a run's own; of runs that were trained as one program, those of the program."
    return figures.summary(series) + figures.divergences(series) + tag("p", text(note), class_="note")


def _studies(studies: Sequence[Study]) -> str:
    """Open where they are few, folded away where they are many."""
    return "\n".join(published.study(each, folded=len(studies) > 3) for each in studies)


def _tried(tunings: Sequence[Tuning]) -> str:
    """A tuning's pictures; of several tunings each under its folder's name."""
    parts = []
    for tuning in tunings:
        name = tuning.path.resolve().name
        pictures = "".join(
            picture(png, f"{name}, {algorithm}: the score of each setting that was tried")
            for algorithm, png in tuning.pictures.items()
        )
        head = tag("h3", text(name)) if len(tunings) > 1 else ""
        parts.append(head + tag("div", pictures, class_="pictures"))
    return "\n".join(parts)


def _runs(runs: Sequence[Run]) -> str:
    lines = [tag("li", f"{tag('code', text(run.path))} {text(run.status)}") for run in runs]
    told = tag("summary", text(f"{len(runs)} director{'y' if len(runs) == 1 else 'ies'}"))
    return tag("details", told + tag("ul", "".join(lines))) if runs else ""


def _title(found: Found) -> str:
    """What all runs are called, or how many experiments there are."""
    if len(found.studies) == 1 and all(run.group == found.studies[0].path.resolve() for run in found.runs):
        return str(found.studies[0].content.get("title") or found.studies[0].name)
    titles = _once(str(run.config.get("title") or run.config.get("name") or run.label) for run in found.runs)
    names = _once(str(run.config.get("name") or run.label) for run in found.runs)
    single = [told[0] for told in (titles, names) if len(told) == 1]
    return single[0] if single else f"{len({run.group for run in found.runs} or found.studies)} experiments compared"


def _facts(found: Found, series: Sequence[Series]) -> dict[str, str]:
    runs = found.runs
    if not runs:
        return {"studies": ", ".join(study.name for study in found.studies)}
    labels = [each.label for each in series]
    compared = "; ".join(labels[:8]) + (f" and {len(labels) - 8} more" if len(labels) > 8 else "")
    ends = [when for run in runs if (when := run.finished) is not None]
    devices = _once(device for run in runs if (device := str(run.config.get("device", ""))))
    facts = {
        "compared": compared,
        "runs": f"{len(runs)}, in {len(series)} series",
        "finished": _span(ends),
        "seconds": _seconds(runs),
        "devices": ", ".join(devices),
        "versions": "; ".join(_once(filter(None, map(_versions, runs)))),
    }
    return {key: value for key, value in facts.items() if value}


def _by_folder(runs: Sequence[Run]) -> dict[Path, list[Run]]:
    found: dict[Path, list[Run]] = {}
    for run in runs:
        found.setdefault(run.group, []).append(run)
    return found


def _seconds(runs: Sequence[Run]) -> str:
    """Of all runs together, where every folder's are known; else of a run."""
    told = [spent(group, mine) for group, mine in _by_folder(runs).items()]
    if None not in told:
        return f"{sum(seconds for seconds in told if seconds is not None):,.0f} in all"
    low, high = (f"{end(run.seconds for run in runs):,.1f}" for end in (min, max))
    return f"{low} for each run" if low == high else f"{low} to {high} for a run"


def _versions(run: Run) -> str:
    told = (run.summary or {}).get("versions")
    return ", ".join(f"{name} {value}" for name, value in told.items()) if isinstance(told, dict) else ""


def _span(moments: Sequence[float]) -> str:
    days = _once(map(_day, (min(moments), max(moments)))) if moments else []
    return " to ".join(days)


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _once(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _colours() -> str:
    """Custom properties for paper and dark, and the classes of lines and their bands."""
    light, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in PAGE.items()) for side in (0, 1))
    rules = [
        f":root{{{light}color-scheme:light}}",
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}color-scheme:dark}}}}",
        f":root[data-theme=dark]{{{dark}color-scheme:dark}}",
        f"@media print{{:root:root:root{{{light}color-scheme:light}}}}",
        *(f".c{index}{{stroke:var(--c{index})}} .b{index}{{fill:var(--c{index})}}" for index in range(len(LINES))),
        *(f".d{index}{{stroke-dasharray:{_STROKES[index]}}}" for index in range(DASHES)),
    ]
    return "\n".join(rules)


def _file(name: str) -> str:
    return files("fedloom.report").joinpath(name).read_text(encoding="utf-8")
