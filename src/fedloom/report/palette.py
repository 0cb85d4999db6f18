"""Colours that colour-blind readers can tell apart, shared by the pictures and the page."""

from __future__ import annotations

from typing import NamedTuple

LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")  # Okabe and Ito
ON_DARK = ("#3C9DDB", "#EE7733", "#1DBF92", "#DE92BC", "#F0B02E", "#8FD0F5", "#E8E8E8")
"""The same hues for a dark background, lighter so that they stand out from it as much."""
MIX = (  # Paul Tol's muted scheme, neighbours chosen to differ in lightness too
    *("#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677"),
    *("#44AA99", "#882255", "#DDDDDD", "#AA4499", "#999933"),
)
DASHES = 4
"""How many kinds of dashes the page's lines have."""
INK, FAINT = "#222222", "#D8D8D8"

PAGE = {
    "paper": ("#FFFFFF", "#14171B"),
    "panel": ("#F6F7F9", "#1C2127"),
    "ink": (INK, "#E6E8EB"),
    "soft": ("#5A6068", "#A3ABB5"),
    "faint": (FAINT, "#3A424C"),
    "link": ("#00558C", "#6DB7EC"),
    "good": ("#00724F", "#3CCB9C"),
    "bad": ("#B23A00", "#FF9A66"),
    "shade": ("#3C424C73", "#C8D2DE45"),
    "tint": ("#8A94A314", "#A3ABB514"),
    "heat": ("#0B4F86", "#9AD4FF"),
    "heat-none": ("#F1F4F7", "#20262D"),
} | {f"c{index}": pair for index, pair in enumerate(zip(LINES, ON_DARK, strict=True))}
"""The page's colours, on paper and in the dark."""


class Look(NamedTuple):
    """A line's colour and dash, by their numbers."""

    colour: int
    dash: int
