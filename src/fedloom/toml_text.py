"""TOML within bounds: no file and no `--set` takes more than a moment to refuse, and a value out of range has a path.

The parser of the standard library has no limits of its own: it recurses as deep as brackets go, takes time quadratic in
a key's dots, reads numbers of any length and makes infinity of 1e400.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from fedloom.errors import FedloomError, cut

BYTES = 1 << 20
"""Of a file: the longest of ours has 20,000."""
LETTERS = 10_000
"""Of one text or key."""
DEPTH = 32
"""Tables and lists within each other."""
WHOLE = 2**63
"""TOML's whole numbers have 64 bits."""

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
_MANY_DOTS = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_PART}){{{DEPTH}}}", re.MULTILINE)


class _Overflown(float):
    """What no double can hold; as a number it is infinite."""

    written: str


def parse(name: str, text: str) -> dict[str, Any]:
    """The table that a file holds; `name` is what an error calls it."""
    where = name or "experiment"
    if len(text) > BYTES:
        raise FedloomError(f"{where}: expected a file of at most {BYTES:,} bytes, got {len(text):,}")
    try:
        table = _loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedloomError(f"{where}: expected TOML, got a mistake in it: {cut(error)}") from None
    except (RecursionError, ValueError) as error:
        raise FedloomError(f"{where}: {_beyond(error)}") from None
    for path, wrong in _beyond_bounds(table, ()):
        raise FedloomError(f"{where}: {_dotted(path)}: {wrong}")
    return table


def value_of(key: str, text: str) -> Any:
    """What `--set KEY=TEXT` means: a TOML value, or the text itself where it is none."""
    try:
        table = _loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        table = {"value": text}
    except (RecursionError, ValueError) as error:
        raise FedloomError(f"--set {cut(key)}: {_beyond(error)}") from None
    value = table["value"] if len(table) == 1 else text
    for path, wrong in _beyond_bounds(value, ()):
        raise FedloomError(f"--set {_dotted((cut(key), *path))}: {wrong}")
    return value


def _loads(text: str) -> dict[str, Any]:
    if _MANY_DOTS.search(text):
        raise RecursionError
    return tomllib.loads(text, parse_float=_number)


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value) and "inf" not in text:
        value = _Overflown(value)
        value.written = text
    return value


def _beyond(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"expected tables and lists at most {DEPTH} deep, got deeper ones"
    return f"expected whole numbers of 64 bits, got a longer one: {cut(error)}"


def _beyond_bounds(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The values that are out of bounds: where, and what was expected."""
    if len(path) > DEPTH:
        yield path[:3], f"expected tables and lists at most {DEPTH} deep, got deeper ones"
    elif isinstance(value, dict):
        for key, part in value.items():
            if len(key) > LETTERS:
                yield (*path, key), f"expected a key of at most {LETTERS:,} letters, got {len(key):,}"
            yield from _beyond_bounds(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _beyond_bounds(part, (*path, index))
    elif isinstance(value, str) and len(value) > LETTERS:
        yield path, f"expected a text of at most {LETTERS:,} letters, got {len(value):,}"
    elif isinstance(value, int) and not -WHOLE <= value < WHOLE:
        yield path, f"expected a whole number from -2^63 to 2^63 - 1, got {cut(value)}"
    elif isinstance(value, _Overflown):
        yield path, f"expected a number between -1.8e308 and 1.8e308, got {cut(value.written)}"


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(cut(part) for part in path)
