"""Measured beside published: the `results.json` of a reproduced table or figure, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.documents import is_number
from fedloom.experiments.study_sections import FULL
from fedloom.experiments.words import cell_words
from fedloom.report import settings
from fedloom.report.figures import slim
from fedloom.report.markup import Cell, definitions, picture, tag, text
from fedloom.report.runs import Study
from fedloom.report.series import telling

Row = Mapping[str, Any]
_FACTS = ("paper", "scale", "stand_in", "command", "commit", "device", "seconds")
_MATCHED = {True: Cell("yes", kind="good"), False: Cell("no", kind="bad"), None: Cell("–")}
_MARKS = {True: ("passed", "good"), False: ("failed", "bad"), None: ("not decided", "soft")}


def study(one: Study, folded: bool = False) -> str:
    """What was run, how it compares, which claims hold, its picture. What a file does not have is left out."""
    content = one.content
    name = ": ".join(str(part) for part in (one.name, content.get("title")) if part)
    own = _bool(content, "compared") is not False
    here = "" if own or content.get("scale") in (None, FULL) else f" at scale {content['scale']}"
    facts = {key.replace("_", "-"): _fact(key, content[key]) for key in _FACTS if content.get(key) is not None}
    parts = [definitions(facts, "facts") if facts else "", "" if own else _not_the_papers(one)]
    rows = compared(_rows(content.get("measured")), _rows(content.get("published")))
    parts.append(_numbers(rows) if rows else tag("p", "It holds no measured or published numbers.", class_="note"))
    claims = _rows(content.get("claims"))
    if claims:
        parts.append("" if own else tag("p", text(f"The paper's claims, as they came out{here}:"), class_="note"))
        parts.append(_claims(claims))
    if one.figure is not None:
        parts.append(picture(one.figure, name))
    verdict = f"{_verdict(claims)}{here}" if claims else ""
    head = tag("summary", f"{tag('b', text(name))} {text(verdict)}")
    inside = head + "\n".join(filter(None, parts))
    return tag("details", inside) if folded else tag("details", inside, open="")


def _not_the_papers(one: Study) -> str:
    """That this was not the paper's setting, and what its scale says it was, where the study's settings are here."""
    name = one.content.get("scale")
    scale = one.plan.scales.get(str(name)) if one.plan is not None else None
    told = ["Not the paper's setting"]
    if name not in (None, FULL):  # at which the command, or what stands in, says what is another
        told += [f", but scale {name}", *([] if scale is None else [f": {scale.says}"])]
    beside = "; numbers stand beside the published ones, and none is called a match"
    told.append(f"{beside if _rows(one.content.get('published')) else ''}.")
    return tag("p", text("".join(told)), class_="note")


def _verdict(claims: Sequence[Row]) -> str:
    """
    >>> _verdict([{"holds": True}, {"holds": False}, {"holds": None}]), _verdict([{"holds": None}])
    ('1 of 2 claims hold, 1 not decided', '1 not decided')
    """
    answers = [_bool(claim, "holds") for claim in claims]
    decided = sum(answer is not None for answer in answers)
    held = [f"{answers.count(True)} of {decided} claims hold"] if decided else []
    return ", ".join([*held, *([f"{len(claims) - decided} not decided"] if decided < len(claims) else [])])


def _bool(row: Row | None, key: str) -> bool | None:
    told = (row or {}).get(key)
    return told if isinstance(told, bool) else None


def compared(measured: Sequence[Row], published: Sequence[Row]) -> list[tuple[Row, Row | None, Row | None]]:
    """(coordinates, measured, published) of every cell that either of them has, the measured ones first.

    >>> rows = compared([{"cell": {"alpha": 1}, "value": 0.9}], [{"cell": {"alpha": 1}, "value": 0.8}])
    >>> [(cell, ours["value"], theirs["value"]) for cell, ours, theirs in rows]
    [({'alpha': '1'}, 0.9, 0.8)]
    """
    ours = {frozenset(_coordinates(row).items()): row for row in measured}
    theirs = {frozenset(_coordinates(row).items()): row for row in published}
    places = {**theirs, **ours}
    return [(_coordinates(places[key]), ours.get(key), theirs.get(key)) for key in dict.fromkeys([*ours, *theirs])]


def _coordinates(row: Row) -> dict[str, str]:
    """Where a number stands, in words: 1 and 1.0 are the same place."""
    cell = row.get("cell")
    named = cell if isinstance(cell, Mapping) else {"cell": cell} if cell is not None else {}
    measure = {"measure": row["measure"]} if row.get("measure") is not None else {}
    told = {**named, **measure}
    return {str(key): f"{value:g}" if is_number(value) else settings.shown(value) for key, value in told.items()}


def _numbers(rows: Sequence[tuple[Row, Row | None, Row | None]]) -> str:
    keys = list(dict.fromkeys(key for cell, _, _ in rows for key in cell))
    told = [key for key in keys if len({cell.get(key) for cell, _, _ in rows}) > 1]
    joined = len(told) > 1  # on a phone they are one column, or the numbers would not be seen
    headings = [Cell("cell", kind="narrow")] if joined else []
    headings += [Cell(key, kind="wide" if joined else "") for key in keys]
    headings += map(Cell, ("measured", "published", "difference", "matched"))
    lines = []
    for cell, ours, theirs in rows:
        name = cell_words(telling(cell, told)) if joined else ""
        coordinates = [Cell(name, kind="narrow")] if joined else []
        coordinates += [Cell(cell.get(key, ""), kind="wide" if joined else "") for key in keys]
        verdict = _MATCHED[_bool(theirs, "matched")]
        lines.append([*coordinates, _value(ours), _value(theirs), _difference(ours, theirs), verdict])
    return slim(headings, lines, keys)


def _value(row: Row | None) -> Cell:
    """In the words that `fedloom reproduce` printed; of an older file in ours."""
    cell = _number((row or {}).get("value"))
    if row and isinstance(words := row.get("words"), str):
        return Cell(words or "–", None if words.startswith("N/A") else cell.sort)
    spread = next((row[key] for key in ("std", "spread") if row and is_number(row.get(key))), None)
    return cell if spread is None or cell.sort is None else Cell(f"{cell.text} ± {shown(spread)}", cell.sort)


def _number(value: Any) -> Cell:
    if is_number(value):
        return Cell(shown(value), float(value))
    return Cell(value if isinstance(value, str) else "–")


def _difference(ours: Row | None, theirs: Row | None) -> Cell:
    measured, told = ((side or {}).get("value") for side in (ours, theirs))
    if not is_number(measured) or not is_number(told):
        return Cell("–")
    gap = round(measured - told, 9)  # 0.82 - 0.8 is not 0.02 to the last bit
    if isinstance(words := (theirs or {}).get("difference"), str):
        return Cell(words.replace("-", "−"), float(gap)) if words else Cell("–")
    return Cell(f"{'+' if gap > 0 else '−' if gap < 0 else '±'}{shown(abs(gap))}", float(gap))


def shown(value: float) -> str:
    """A number with what a table of a paper would print of it.

    >>> shown(0.91234), shown(82.0), shown(1234), shown(0.00012)
    ('0.9123', '82', '1,234', '0.00012')
    """
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.4f}".rstrip("0") if abs(value) >= 0.01 else f"{value:.3g}"


def _claims(claims: Sequence[Row]) -> str:
    lines = []
    for claim in claims:
        said, kind = _MARKS[_bool(claim, "holds")]
        known = "held" in claim and "of" in claim
        counted = (f"in {claim['held']} of {claim['of']} cells" if claim["of"] else "no cell to tell") if known else ""
        detail = settings.shown(claim["detail"]) if claim.get("detail") not in (None, "") else ""
        more = tag("small", text("; ".join(filter(None, (counted, detail)))))
        lines.append(tag("li", f"{tag('b', said, class_=kind)} {text(claim.get('text', ''))} {more}"))
    return tag("ul", "".join(lines), class_="claims")


def _rows(value: Any) -> list[Row]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _fact(key: str, value: Any) -> str:
    return f"{value:,.0f}" if key == "seconds" and is_number(value) else settings.shown(value)
