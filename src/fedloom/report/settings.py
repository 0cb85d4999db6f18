"""Settings laid out flat, what differs between runs, and what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.rundir import MACHINE

Flat = dict[str, str]
"""A value as text by its key's path."""

NAMES = {"name", "title", "algorithm.label"}
"""What a run is called does not make it another run."""
SEEDS = {"seeds", "seed", "sampling_seed", "data.seed"}
ABSENT = "–"


def flat(config: Mapping[str, Any]) -> Flat:
    """Every value as TOML writes it, by the path of its key; the only algorithm's keys go by `algorithm`.

    >>> flat({"rounds": 5, "data": {"alpha": 0.1}, "algorithms": [{"name": "fedavg", "glad": True}]})
    {'rounds': '5', 'data.alpha': '0.1', 'algorithm.name': 'fedavg', 'algorithm.glad': 'true'}
    """
    found: Flat = {}

    def visit(path: tuple[str, ...], value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for key, part in value.items():
                visit((*path, str(key)), part)
        elif isinstance(value, list) and value and all(isinstance(part, Mapping) for part in value):
            only = len(value) == 1 and path == ("algorithms",)
            for index, part in enumerate(value):
                visit(("algorithm",) if only else (*path, str(index)), part)
        else:
            found[".".join(path)] = shown(value)

    visit((), config)
    return found


def shown(value: Any) -> str:
    """A value as a reader of TOML knows it, strings without quotes.

    >>> shown([0.1, True, "a"]), shown(1e-05)
    ('[0.1, true, a]', '1e-05')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {shown(part)}" for key, part in value.items()) + "}"
    return str(value)


def merged(settings: Sequence[Flat]) -> Flat:
    """One table of several runs' settings: where they differ, as seeds do, all the values.

    >>> merged([{"seed": "0", "rounds": "5"}, {"seed": "1", "rounds": "5"}])
    {'seed': '0, 1', 'rounds': '5'}
    """
    keys = dict.fromkeys(key for each in settings for key in each)
    return {key: ", ".join(dict.fromkeys(each.get(key, ABSENT) for each in settings)) for key in keys}


def signature(settings: Flat) -> tuple[tuple[str, str], ...]:
    """What makes a run the same experiment as another: all but its names, its seeds and its machine."""
    return tuple(sorted((key, value) for key, value in settings.items() if key not in NAMES | SEEDS | MACHINE))


def differing(settings: Sequence[Flat]) -> list[str]:
    """The keys that do not have the same value everywhere, in the order in which they come."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({each.get(key, ABSENT) for each in settings}) > 1]


def ordered(keys: Sequence[str], settings: Sequence[Flat]) -> list[str]:
    """The keys in one order for all these settings, of which each algorithm writes its own.

    Of an algorithm its name comes first, then its client rate.

    >>> tables = [{"alpha": "1", "algorithm.server_lr": "1", "algorithm.client_lr": "2"}, {"algorithm.client_lr": "1"}]
    >>> ordered(["algorithm.server_lr", "algorithm.client_lr", "alpha"], tables)
    ['alpha', 'algorithm.client_lr', 'algorithm.server_lr']
    """
    places = {key: place for place, key in enumerate(dict.fromkeys(key for each in settings for key in each))}
    tables: dict[str, int] = {}
    for key, place in places.items():
        tables.setdefault(key.partition(".")[0], place)

    def place_of(key: str) -> tuple[int, int, int]:
        parts = key.split(".")
        first = 0 if parts[-1] == "name" else 1 if "client_lr" in parts else 2
        return tables[parts[0]], first, places[key]

    return sorted(keys, key=place_of)


def common(settings: Sequence[Flat]) -> Flat:
    """The keys that have the same value everywhere.

    >>> common([{"rounds": "5", "lr": "1"}, {"rounds": "5", "lr": "2"}])
    {'rounds': '5'}
    """
    changing = set(differing(settings))
    return {key: value for key, value in (settings[0] if settings else {}).items() if key not in changing}
