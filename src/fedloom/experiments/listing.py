"""What there is to name in an experiment: experiments, algorithms, data sets, partitions, models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedloom.experiments.algorithm_sections import ALGORITHMS, Trained
from fedloom.experiments.data_sections import DATASETS, PARTITIONS
from fedloom.experiments.registry import studies, titles
from fedloom.models import MODELS
from fedloom.report.columns import print_columns

_AROUND = {
    "fedglad": "around any of them: glad = true",
    "private": "around those whose server reads the mean alone: privacy = { noise_multiplier = 1.0, delta = 1e-5 }",
}


def names() -> dict[str, Any]:
    return {
        "experiments": [{"id": name, "title": title} for name, title in titles().items()],
        "algorithms": sorted([*ALGORITHMS, "fedglad"]),
        "datasets": sorted(DATASETS),
        "models": sorted(MODELS),
    }


def show() -> None:
    """Print it all, with what a file may set of each."""
    shared = {"name", *Trained.model_fields, "server_lr", "server"}
    known, papers = titles(), studies()
    print_columns("experiments: fedloom run ID", {name: known[name] for name in known if name not in papers})
    print_columns("the papers' tables and figures: fedloom reproduce ID", {name: known[name] for name in papers})
    print_columns("algorithms", {**_keys(ALGORITHMS, shared), **_AROUND})
    print_columns("datasets", DATASETS)
    print_columns("partitions", _keys(PARTITIONS, {"name", "partition"}))
    print_columns("models", {name: entry.about for name, entry in MODELS.items()})


def _keys(sections: Mapping[str, Any], shared: set[str]) -> dict[str, str]:
    """Of each section the keys that are its own."""
    return {
        name: _keywords({key: field for key, field in section.model_fields.items() if key not in shared})
        for name, section in sections.items()
    }


def _keywords(fields: dict[str, Any]) -> str:
    """Keys with their defaults, as a file would have them.

    >>> from fedloom.experiments.algorithm_sections import FedAvgM
    >>> _keywords({"variant": FedAvgM.model_fields["variant"]})
    "variant = 'heavyball'"
    """
    shown = []
    for key, field in fields.items():
        has_default = not field.is_required() and field.default is not None
        shown.append(f"{key} = {field.default!r}" if has_default else key)
    return ", ".join(shown)
