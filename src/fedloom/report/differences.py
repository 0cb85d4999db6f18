"""The settings of the series: a table of what differs, and what they share."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.report import settings
from fedloom.report.markup import Cell, definitions, table, tag, text
from fedloom.report.series import Series

NAME = "algorithm.name"
COLUMNS = 8
"""As many series stand beside each other; more are rows."""
OWNERS = 3
"""A setting that more algorithms than this have is nothing of their own."""


def differences(series: Sequence[Series]) -> str:
    """A table of the settings that are not the same in all series; those that are, folded away."""
    tables = [each.settings for each in series]
    keys = [key for key in settings.ordered(settings.differing(tables), tables) if key not in settings.NAMES]
    parts = []
    if len(keys) >= len(series) <= COLUMNS:
        parts.append(_beside(series, keys))
    elif keys:
        parts.append(_below(series, keys))
    elif len(series) > 1:
        parts.append(tag("p", "No setting differs between the series.", class_="note"))
    shared = settings.common(tables)
    if shared:
        told = f"{len(shared)} settings that {'all series share' if len(series) > 1 else 'the runs have'}"
        parts.append(tag("details", tag("summary", text(told)) + definitions(shared, "settings")))
    return "\n".join(parts)


def _beside(series: Sequence[Series], keys: Sequence[str]) -> str:
    """A row per setting, a column per series: however many settings there are, all can be seen."""
    rows = [[Cell(key, kind="key"), *(_value(each, key) for each in series)] for key in keys]
    return table(["setting", *(Cell(each.label, look=each.look) for each in series)], rows, kind="settings")


def _below(series: Sequence[Series], keys: Sequence[str]) -> str:
    """A row per series, a column per setting, first those with the most values.

    What all series of some algorithms have, and no others, is no column: it is said once.
    """
    tables = [each.settings for each in series]
    own = {key: names for key in keys if key != NAME and (names := _owners(tables, key))}
    values = {key: len({each[key] for each in tables if key in each}) for key in keys}
    kept = sorted((key for key in keys if key not in own), key=lambda key: -values[key])
    rows = [[Cell(each.label, look=each.look), *(_value(each, key) for key in kept)] for each in series]
    notes = []
    for names in dict.fromkeys(own.values()):
        told = "; ".join(f"{key} {value}" for key in own if own[key] == names for value in _values(tables, key))
        notes.append(tag("p", text(f"Only {_listed(names)}: {told}."), class_="note"))
    return "".join(notes) + (
        table(["series", *(Cell(key, kind="key") for key in kept)], rows, kind="settings") if kept else ""
    )


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["fedadam"]), _listed(["fedadam", "fedlamb", "fedyogi"])
    ('fedadam', 'fedadam, fedlamb and fedyogi')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _values(tables: Sequence[settings.Flat], key: str) -> list[str]:
    return list(dict.fromkeys(each[key] for each in tables if key in each))


def _owners(tables: Sequence[settings.Flat], key: str) -> tuple[str, ...]:
    """The algorithms whose series all have the setting, with one value, when no others have it; else none."""
    having = {name for each in tables if key in each and (name := each.get(NAME))}
    whole = all((key in each) == (each.get(NAME) in having) for each in tables)
    own = whole and len(having) <= OWNERS and len(_values(tables, key)) == 1
    return tuple(sorted(having)) if own else ()


def _value(each: Series, key: str) -> Cell:
    found = each.settings.get(key)
    return Cell(settings.ABSENT, kind="soft") if found is None else Cell(found)
