"""The documentation: its code runs and prints what it says, its links lead somewhere, what is generated is fresh."""

from __future__ import annotations

import doctest
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest

from fedloom.experiments.registry import find
from fedloom.experiments.schema import read

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "tools"))

import algorithm_pages  # noqa: E402
import links  # noqa: E402
import pages  # noqa: E402

matplotlib.use("agg")

SLOW = {"tutorial", "many-gpus", "read-a-run"}  # the last two start processes of their own
NEEDS = {"huggingface": ["transformers", "datasets", "torchmetrics", "flwr_datasets"]}
RUN = [DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md"))]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in SLOW)) for page in RUN]
)
def test_a_page_runs_and_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(page.stem, []):
        pytest.importorskip(package)
    blocks = list(pages.run(page, tmp_path))
    assert blocks
    for block in blocks:
        if block.said is not None:
            assert pages.shape(block.printed) == pages.shape(block.said), f"{page.name}, line {block.line}"


def test_a_page_that_prints_something_else_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('```python\nprint("rounds:", 3)\n```\n\n```text\nround: 3\n```\n')
    [block] = pages.run(page, tmp_path)
    assert block.said == "round: 3\n"
    assert pages.shape(block.printed) != pages.shape(block.said)
    pages.write(page)
    assert "```text\nrounds: 3\n```\n" in page.read_text()


@pytest.mark.parametrize("module", [pages, links, algorithm_pages], ids=lambda module: module.__name__)
def test_the_tools_do_what_their_examples_say(module: ModuleType) -> None:
    tried = doctest.testmod(module)
    assert tried.attempted and not tried.failed


def test_every_link_leads_somewhere() -> None:
    assert links.broken(ROOT) == []


def test_a_broken_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.md").write_text("# One\n\n[two](two.md) [here](#one) [there](#nowhere) [far](../x.py)\n")
    (tmp_path / "README.md").write_text(
        "[one](docs/one.md#one) [no](docs/one.md#two)\n\n```\n[code](is-left.md)\n```\n"
    )
    assert links.broken(tmp_path) == [
        "README.md: docs/one.md#two: no such heading",
        "docs/one.md: two.md: no such file",
        "docs/one.md: #nowhere: no such heading",
        "docs/one.md: ../x.py: no such file",
    ]


def test_the_pages_of_algorithms_are_up_to_date() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "algorithms").glob("*.md")}
    assert written == algorithm_pages.pages(), "run: python docs/tools/algorithm_pages.py"


def test_the_commands_on_the_pages_of_algorithms_are_right() -> None:
    for path in (DOCS / "algorithms").glob("*.md"):
        for command in re.findall(r"^fedloom run quickstart .*\\\n.*$", path.read_text(), re.MULTILINE):
            settings = shlex.split(command.replace("\\\n", ""))[3:]
            assert settings[::2] == ["--set"] * (len(settings) // 2)
            [algorithm] = read(find("quickstart"), settings[1::2]).algorithms
            around = "fedglad" if algorithm.glad else "private" if algorithm.privacy else algorithm.name
            assert f"{around}.md" == path.name


def test_every_algorithm_has_a_page() -> None:
    from fedloom import algorithms

    made = {name for name, value in vars(algorithms).items() if getattr(value, "__module__", "") == algorithms.__name__}
    constructors = {name for name in made if not name.startswith("_") and name != "Options"}
    written = {path.name for path in (DOCS / "algorithms").glob("*.md")}
    assert {f"{name}.md" for name in constructors} | {"index.md"} == written
