"""What `mkdocs build` does beyond its own: pages and pictures from outside docs/, the reference, links between them.

The Markdown is written to be read where it lies, so a link is relative to the file in the repository. Here each is
turned into one that is right on the site.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/flower-mnist/README.md": "flower-mnist.md",
    "LICENSE": "LICENSE.txt",
    "CITATION.cff": "CITATION.cff",
}
REFERENCE = {
    "algorithms": ("Algorithms", ["fedloom.algorithms", "fedloom.algorithm"]),
    "parts": ("Parts", ["fedloom.transforms.base", "fedloom.weighting", "fedloom.upload", "fedloom.memory"]),
    "optimizers": ("Optimizers", ["fedloom.transforms.optimizers", "fedloom.transforms.corrections"]),
    "schedules": ("Schedules", ["fedloom.schedule"]),
    "simulation": ("Simulation", ["fedloom.simulation", "fedloom.history", "fedloom.sampling", "fedloom.system"]),
    "data": ("Data", ["fedloom.data.federated", "fedloom.data.partition", "fedloom.data.holdout"]),
    "catalog": ("Data sets", ["fedloom.data.catalog"]),
    "tasks": ("Tasks and models", ["fedloom.task", "fedloom.models.dense", "fedloom.models.cnn"]),
    "more-models": ("More models", ["fedloom.models.recurrent", "fedloom.models.resnet", "fedloom.models.bert"]),
    "tools": ("Tools", ["fedloom.testing", "fedloom.callbacks", "fedloom.trackers", "fedloom.personalization"]),
    "flower": ("Deployment", ["fedloom.flower.strategy", "fedloom.flower.client", "fedloom.flower.experiment"]),
    "types": ("Types and errors", ["fedloom.types", "fedloom.errors"]),
}
LINK = re.compile(r"(?P<before>\]\()(?P<file>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
FENCED = re.compile(r"(^```.*?^```[^\S\n]*$)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """The menu: folders are filled, pages that are not there left out."""
    told = tomllib.loads((ROOT / "docs" / "tools" / "algorithms.toml").read_text(encoding="utf-8"))
    filled = {
        "algorithms": [
            "algorithms/index.md",
            *({about["title"]: f"algorithms/{name}.md"} for name, about in told.items()),
        ],
        "api": [{title: f"api/{name}.md"} for name, (title, _) in REFERENCE.items()],
    }
    config.nav = [entry for entry in (_kept(each, filled) for each in config.nav) if entry is not None]
    return config


def _kept(entry: dict[str, Any], filled: dict[str, Any]) -> dict[str, Any] | None:
    [(title, target)] = entry.items()
    if isinstance(target, list):
        inside = [each for each in (_kept(one, filled) for one in target) if each is not None]
        return {title: inside} if inside else None
    if target in filled:
        return {title: filled[target]}
    return entry if (ROOT / "docs" / target).exists() or target in MOVED.values() else None


def on_files(files: Files, config: Any) -> Files:
    """Pages from outside docs/, the pictures of results/, and a page for each part of the reference."""
    for source, target in MOVED.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    for picture in sorted((ROOT / "results").glob("*/*.png")):
        files.append(File.generated(config, str(picture.relative_to(ROOT)), abs_src_path=str(picture)))
    for name, (title, modules) in REFERENCE.items():
        text = "\n\n".join([f"# {title}", *(f"::: {module}" for module in modules)])
        files.append(File.generated(config, f"api/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links, from the repository's places to the site's."""
    back = {target: source for source, target in MOVED.items()}
    here = page.file.src_uri
    folder = Path(back.get(here, f"docs/{here}")).parent

    def moved(link: re.Match[str]) -> str:
        place = os.path.normpath(folder / link["file"])
        target = MOVED.get(place, place.removeprefix("docs/"))
        return link["before"] + os.path.relpath(target, Path(here).parent) + (link["anchor"] or "")

    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in FENCED.split(markdown))
