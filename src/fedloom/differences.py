"""Where two settings differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def difference(expected: Any, got: Any, but: Collection[str] = (), path: str = "") -> tuple[str, Any, Any] | None:
    """The first key that has another value, and both values; keys in `but`, and what is beneath them, may differ.

    >>> difference({"rounds": 2, "data": {"alpha": 1}}, {"rounds": 3, "data": {"alpha": 2}}, but=["rounds"])
    ('data.alpha', 1, 2)
    """
    but = (but,) if isinstance(but, str) else but  # a string is a collection of its letters
    if path in but:
        return None
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        keys = [(key, expected.get(key), got.get(key)) for key in dict.fromkeys([*expected, *got])]
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        keys = [(place, *pair) for place, pair in enumerate(zip(expected, got, strict=True))]
    else:
        return None if expected == got else (path, expected, got)
    for key, one, other in keys:
        if found := difference(one, other, but, f"{path}.{key}" if path else str(key)):
            return found
    return None
