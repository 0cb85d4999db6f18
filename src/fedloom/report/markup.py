"""Small pieces of HTML. Whatever comes from a run is escaped here, and nowhere else."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.report.palette import Look


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, the number it is sorted by, its kind, and the line it is about."""

    text: str
    sort: float | None = None
    kind: str = ""
    look: Look | None = None


def text(value: object) -> str:
    """Any text, so that a page shows it as it is.

    >>> text('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    return html.escape(str(value), quote=True)


def tag(name: str, inside: str, **attributes: str) -> str:
    """An element around HTML; attributes are escaped, and `class_` stands for `class`.

    >>> tag("p", text("1 < 2"), class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items())
    return f"<{name}{given}>{inside}</{name}>"


def table(
    headings: Sequence[Cell | str], rows: Sequence[Sequence[Cell | str]], sortable: bool = False, kind: str = "plain"
) -> str:
    """A table in a box that scrolls by itself; a sortable one has buttons for headings."""
    numeric = [any(_is_numeric(cell) for cell in column) for column in zip(*rows, strict=True)]
    heads = [_heading(each, number, sortable) for each, number in zip(headings, numeric, strict=True)]
    lines = [
        "".join(_cell(each, first=not place, number=numeric[place]) for place, each in enumerate(row)) for row in rows
    ]
    body = "\n".join(tag("tr", line) for line in lines)
    inside = f"<thead>{tag('tr', ''.join(heads))}</thead>\n<tbody>{body}</tbody>"
    return tag("div", tag("table", inside, class_="sortable" if sortable else kind), class_="scroll", tabindex="0")


def _heading(heading: Cell | str, number: bool, sortable: bool) -> str:
    cell = Cell(heading) if isinstance(heading, str) else heading
    inside = tag("button", text(cell.text), type="button") if sortable else _content(cell)
    return tag("th", inside, scope="col", **_kind(cell.kind, number))


def _is_numeric(cell: Cell | str) -> bool:
    return isinstance(cell, Cell) and cell.sort is not None


def _kind(kind: str, number: bool) -> dict[str, str]:
    told = " ".join(filter(None, (kind, "number" if number else "")))
    return {"class_": told} if told else {}


def _cell(cell: Cell | str, first: bool, number: bool) -> str:
    cell = Cell(cell) if isinstance(cell, str) else cell
    attributes = _kind(cell.kind, number) | ({} if cell.sort is None else {"data_sort": repr(cell.sort)})
    return tag("th" if first else "td", _content(cell), **attributes, **({"scope": "row"} if first else {}))


def _content(cell: Cell) -> str:
    """The line it is about and its text; a key may be broken behind a dot or a bar, and is still copied whole."""
    words = text(cell.text)
    if cell.kind == "key":
        words = words.replace(".", ".<wbr>").replace("_", "_<wbr>")
    return words if cell.look is None else swatch(cell.look) + words


def swatch(look: Look) -> str:
    """A piece of a series' line."""
    path = f'<path class="c{look.colour} d{look.dash}" d="M1 5H25"/>'
    return f'<svg class="swatch" viewBox="0 0 26 10" width="26" height="10" aria-hidden="true">{path}</svg>'


def definitions(pairs: Mapping[str, str], kind: str) -> str:
    """Names and what they stand for."""
    return tag("dl", "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in pairs.items()), class_=kind)


def picture(png: bytes, name: str) -> str:
    """Within the page, at the size it was drawn at: on a phone it is moved, not shrunk until nobody can read it."""
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return tag("div", f'<img src="{source}" alt="{text(name)}">', class_="scroll picture", tabindex="0")


def embedded(value: Any) -> str:
    """Strict JSON that no text in it can break out of.

    >>> embedded({"label": "</script>"})
    '{"label":"\\\\u003c/script\\\\u003e"}'
    """
    plain = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        plain = plain.replace(sign, f"\\u{ord(sign):04x}")
    return plain
