"""Links between our own Markdown files: `python docs/tools/links.py` names those that lead nowhere.

Relative links and anchors are looked at, in the Markdown at the top and under docs/; addresses on the network are not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```[^\S\n]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]+`")
HEADING = re.compile(r"^#{1,6} +(?P<title>.+?) *$", re.MULTILINE)


def broken(root: Path) -> list[str]:
    """What leads nowhere, one line each."""
    return [f"{page.relative_to(root)}: {said}" for page in _pages(root) for said in _broken(page)]


def _pages(root: Path) -> Iterator[Path]:
    yield from sorted(root.glob("*.md"))
    yield from sorted((root / "docs").rglob("*.md"))


def _broken(page: Path) -> Iterator[str]:
    text = INLINE.sub("", FENCED.sub("", page.read_text(encoding="utf-8")))
    for link in LINK.finditer(text):
        target = link["target"]
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = page if not file else page.parent / file
        if not found.exists():
            yield f"{target}: no such file"
        elif anchor and found.suffix == ".md" and anchor not in anchors(found.read_text(encoding="utf-8")):
            yield f"{target}: no such heading"


def anchors(text: str) -> set[str]:
    """What can be linked to in a page.

    >>> sorted(anchors("# A page\\n## What `it` says, twice\\n## A page"))
    ['a-page', 'a-page-1', 'what-it-says-twice']
    """
    found: set[str] = set()
    for heading in HEADING.finditer(FENCED.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["title"])
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        taken = sum(anchor == each or re.fullmatch(rf"{re.escape(anchor)}-\d+", each) is not None for each in found)
        found.add(f"{anchor}-{taken}" if anchor in found else anchor)
    return found


if __name__ == "__main__":
    lines = broken(Path(__file__).resolve().parents[2])
    print("\n".join(lines) or "every link leads somewhere")
    sys.exit(bool(lines))
