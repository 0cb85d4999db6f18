"""Who holds what, for the page: class counts per client, dealt again from a run's settings where that is cheap."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.errors import FedloomError
from fedloom.report.series import Series

SHOWN = 100
"""As many clients as can still be told apart."""
LARGEST = 256 * 2**20
"""Bytes of data files that are read for a picture."""
Form = tuple[bool, str]
MOST = 6
"""Different partitions that one page shows."""


def spread_out(clients: int, most: int = SHOWN) -> npt.NDArray[np.int64]:
    """All clients, or that many of them from the first on: round numbers are among them, and can be told on an axis.

    >>> spread_out(100, 30).tolist()[:10]
    [0, 3, 6, 10, 13, 16, 20, 23, 26, 30]
    """
    shown = min(clients, most)
    return np.arange(shown) * clients // max(1, shown)


def partitions(series: Sequence[Series], folder: Path | None = None) -> list[dict[str, Any]]:
    """For every way in which the runs' data were dealt: the counts, or in words why there are none."""
    dealt: dict[str, tuple[dict[str, Any], list[str], dict[Form, set[str]]]] = {}
    for each in series:
        for run in each.runs:
            section = run.config.get("data")
            if not isinstance(section, Mapping) or "name" not in section:
                continue
            held = {"validation": run.config["validation"]} if "validation" in run.config else {}
            section = {**section, **held}
            _, labels, prints = dealt.setdefault(repr(sorted(section.items())), (section, [], {}))
            labels += [each.label] if each.label not in labels else []
            if print := (run.summary or {}).get("data_fingerprint"):
                prints.setdefault(_form(run.config), set()).add(str(print))
    found = []
    for section, labels, prints in list(dealt.values())[:MOST]:
        about = {"title": _title(section), "labels": labels if len(labels) < len(series) else []}
        try:
            found.append({**about, **_counts(section, prints, folder)})
        except (FedloomError, OSError, TypeError) as error:
            found.append({**about, "why": " ".join(str(error).split())})
    return found


def _form(config: Mapping[str, Any]) -> Form:
    """How a run has its rows: whether in one pool, and of which type."""
    parts = config.get("algorithms")
    names = [part.get("name") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    return "central" in names, str(config.get("dtype", "float32"))


def _counts(section: Mapping[str, Any], prints: Mapping[Form, set[str]], folder: Path | None) -> dict[str, Any]:
    options = dict(section)
    name, validation = str(options.pop("name")), options.pop("validation", None)
    options |= _files(name, folder)

    from fedloom.data.catalog import load
    from fedloom.data.holdout import hold_out
    from fedloom.data.skew import label_counts
    from fedloom.experiments.build import fingerprint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about files: whether they are those of the run is checked here
        data = load(name, **options)
    if validation is not None:
        data = hold_out(data, validation, options.get("seed", 0))
    if any(found != {fingerprint(data, *form)} for form, found in prints.items()):
        raise FedloomError(f"the files of {name!r} here are not those of the run")
    counts = label_counts(data)
    chosen = spread_out(len(counts))
    return {"population": len(counts), "clients": chosen.tolist(), "counts": counts[chosen].T.tolist()}


def _files(name: str, folder: Path | None) -> dict[str, Any]:
    """An error unless the data set's files are here and small; the option that says where they are."""
    from fedloom.data.places import locate
    from fedloom.data.releases import RELEASES

    if name not in RELEASES or not RELEASES[name].layouts:
        return {}
    _, found = locate(name, folder)
    size = sum(path.stat().st_size for paths in found.values() for path in paths)
    if size > LARGEST:
        raise FedloomError(f"its files have {size / 2**20:,.0f} MiB, which is more than a page's picture is worth")
    return {} if folder is None else {"folder": folder}


def _title(section: Mapping[str, Any]) -> str:
    """The data section in a line.

    >>> _title({"name": "digits", "partition": "dirichlet", "clients": 50, "alpha": 0.1, "seed": 0})
    'digits, dirichlet, clients 50, alpha 0.1, seed 0'
    """
    named = ("name", "partition")
    first = [str(section[key]) for key in named if key in section]
    return ", ".join([*first, *(f"{key} {value}" for key, value in section.items() if key not in named)])
