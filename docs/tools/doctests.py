"""Examples in docstrings, which are doctests, shown as code by the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^.+\n?)*", re.MULTILINE)


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda code: f"```pycon\n{code[0].rstrip()}\n```\n", obj.docstring.value)
