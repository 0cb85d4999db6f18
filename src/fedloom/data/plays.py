"""Shakespeare by speaking role: the Moby edition's plays, and LEAF's JSON files (Caldas et al. 2018).

In a play of the Moby edition a speech is `SPEAKER<TAB>line`, its further lines begin with a tab, and stage directions
stand in brackets; headings (`ACT I`, `SCENE I<TAB>A street`) and the list of persons before the first of them are no
speeches, and poems have none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.data.bounded import damaged, read_limited, reading
from fedloom.errors import cut

_LARGEST = 1 << 31
_BEGINNING = re.compile(r"^(ACT|SCENE)\b", re.MULTILINE)
_DIRECTION = re.compile(r"\[[^\]\[]*\]")
_HEADING = re.compile(r"(ACT|SCENE)\b")
LEAST = 2  # lines a role must have to be a client


@dataclass(frozen=True)
class Lines:
    """A role and what it says, in the order of the play."""

    role: str
    lines: list[str]


def read_plays(paths: Sequence[Path], least: int = LEAST) -> list[Lines]:
    """The roles of all plays that have at least `least` lines, a line being one speech."""
    roles: list[Lines] = []
    for path in sorted(paths):
        with reading(path, "a play"):
            text = read_limited(path, 1 << 26).decode("utf-8")
        said = speeches(text)
        roles += [Lines(f"{path.stem}/{role}", lines) for role, lines in said.items() if len(lines) >= least]
    if not roles:
        raise damaged(paths[0], f"plays with speeches, {least} a role at least", "none")
    return roles


def speeches(text: str) -> dict[str, list[str]]:
    r"""Every role's speeches, one string each, in a play of the Moby edition.

    >>> speeches("ACT I\n\nHAMLET\tTo be, or not\n\tto be: [Aside]\n\nAll\tAmen.\n")
    {'HAMLET': ['To be, or not\nto be:'], 'All': ['Amen.']}
    """
    begin = _BEGINNING.search(text)
    said: dict[str, list[list[str]]] = {}
    speech: list[str] | None = None
    for line in _DIRECTION.sub("", text[begin.start() :] if begin else "").splitlines():
        speaker, tab, rest = line.partition("\t")
        if tab and speaker.strip():
            heading = _HEADING.match(speaker)
            speech = None if heading else []
            if speech is not None:
                said.setdefault(speaker.strip(), []).append(speech)
        elif line.strip() and not tab:
            speech = None
        if speech is not None and rest.strip():
            speech.append(rest.strip())
    whole = {role: ["\n".join(speech) for speech in found if speech] for role, found in said.items()}
    return {role: lines for role, lines in whole.items() if lines}


def read_leaf(paths: Sequence[Path], length: int = 80) -> list[tuple[str, list[str], list[str]]]:
    """The users of LEAF's JSON files: windows of `length` characters, and the character that follows each."""
    users: dict[str, tuple[str, list[str], list[str]]] = {}
    for path in sorted(paths):
        with reading(path, "a LEAF file"):
            content = json.loads(read_limited(path, _LARGEST).decode("utf-8"))
        for user, x, y in _leaf_users(path, content):
            for row, (window, following) in enumerate(zip(x, y, strict=True)):
                if not (isinstance(window, str) and len(window) == length):
                    raise damaged(path, f"{length} characters as x[{row}] of {user!r}", repr(window)[:60])
                if not (isinstance(following, str) and len(following) == 1):
                    raise damaged(path, f"one character as y[{row}] of {user!r}", repr(following)[:60])
            if user in users:
                raise damaged(path, f"user {user!r} once", "it twice")
            users[user] = (user, x, y)
    return list(users.values())


def _leaf_users(path: Path, content: Any) -> list[tuple[str, list[Any], list[Any]]]:
    if not isinstance(content, dict) or not {"users", "user_data"} <= set(content):
        raise damaged(path, "an object with users and user_data", type(content).__name__)
    users, data = content["users"], content["user_data"]
    if not isinstance(users, list) or not isinstance(data, dict) or not users:
        raise damaged(path, "a list of users and an object user_data", f"{type(users).__name__}, {type(data).__name__}")
    found = []
    for user in users:  # what num_samples says of them is older than LEAF's split into training and test data
        rows = data.get(user) if isinstance(user, str) else None
        x, y = (rows.get("x"), rows.get("y")) if isinstance(rows, dict) else (None, None)
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            shown = f"{len(x)} and {len(y)}" if isinstance(x, list) and isinstance(y, list) else "none"
            raise damaged(path, f"lists x and y of equal length for user {cut(repr(user))}", shown)
        found.append((user, x, y))
    return found
