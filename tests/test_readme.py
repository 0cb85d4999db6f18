"""The README's Python runs as it stands, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedloom as fl

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    accuracies = [float(line.split()[-1].rstrip("%")) for line in printed[:3]]
    assert all(accuracy > 15 for accuracy in accuracies)  # better than chance on ten classes
    norm, cosine = (float(value) for value in printed[3].split()[:2])
    assert norm == pytest.approx(0.2549509757, rel=1e-6)  # ||(0.25, -0.05)||
    assert cosine == pytest.approx(-0.8, rel=1e-6)


def test_every_constructor_is_in_the_table() -> None:
    from fedloom import algorithms

    for name, value in vars(algorithms).items():
        if callable(value) and name.startswith(("fed", "scaffold", "normalized")):
            assert f"fl.{name}(" in README, name
            assert getattr(fl, name) is value
