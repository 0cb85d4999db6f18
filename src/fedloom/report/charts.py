"""What the page's script draws: every series as lines, and which charts there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedloom.report.figures import is_share, rank, score
from fedloom.report.partition_map import partitions
from fedloom.report.series import AXES, Series, axes, line, metrics, percentile_line

LEARNING = (
    *("test_accuracy", "test_recall", "validation_accuracy", "validation_recall"),
    *("test_loss", "validation_loss", "train_loss"),
)
INSIDE = (
    *("trainset_accuracy", "trainset_loss", "train_accuracy", "pseudo_gradient_norm", "mean_update_norm", "cosine"),
    *("gsi", "glad_ratio", "clip_norm", "unclipped_fraction", "divergence", "norm_variation", "label_cosine"),
    *("epsilon", "refused", "admitted"),
)
TITLES = {
    "test_accuracy": "Test accuracy",
    "test_recall": "Test recall",
    "test_loss": "Test loss",
    "train_loss": "Training loss",
    "train_accuracy": "Accuracy on the clients' own batches",
    "trainset_accuracy": "Accuracy on the training set",
    "trainset_loss": "Loss on the training set",
    "pseudo_gradient_norm": "Norm of the pseudo-gradient",
    "mean_update_norm": "Mean norm of the clients' updates",
    "cosine": "Mean cosine between two clients' updates",
    "gsi": "How much the clients disagree (GSI)",
    "glad_ratio": "FedGLAD's factor, mean over groups",
    "clip_norm": "Clipping norm",
    "unclipped_fraction": "Updates left unclipped",
    "divergence": "Distance of the clients' gradients to their mean",
    "norm_variation": "Spread of the clients' squared norms, over their mean",
    "label_cosine": "Cosine of the cohort's labels with everybody's",
    "epsilon": "Privacy spent (epsilon)",
    "refused": "Clients refused",
    "admitted": "Clients admitted",
    "asked": "Clients asked",
    "examples_processed": "Examples processed",
    "simulated_seconds": "Simulated seconds of a round",
    "seconds": "Seconds of a round by the clock",
}
MANY = 12
"""More series than this in several folders: the page begins with one folder's, and with that folder's best."""
FEW = 5
"""Of a tuning the page begins with as many, and with the best of every algorithm."""


def payload(series: Sequence[Series], folder: Path | None = None) -> dict[str, Any]:
    """Everything the script needs, as plain JSON."""
    found = metrics(series)
    groups = list(dict.fromkeys(each.group for each in series))
    places = [axes(each) for each in series]
    lines = {name: _metric(name, [line(each, name) for each in series]) for name in found}
    families = [name.removesuffix("/p50") for name in found if name.endswith("/p50")]
    for family in families:
        title = f"{_title(family)} over the clients: median, 5th to 95th percentile"
        parts = [percentile_line(each, family) for each in series]
        lines[f"{family}/percentiles"] = _metric(family, parts, title)
    inside = [f"{family}/percentiles" for family in families] + [name for name in INSIDE if _moves(lines.get(name))]
    return {
        "series": [
            {"label": each.label, "group": each.group, "axes": place, **each.look._asdict()}
            for each, place in zip(series, places, strict=True)
        ],
        "groups": groups,
        "group": groups[0] if len(groups) > 1 and len(series) > MANY else None,
        "hidden": _hidden(series),
        "axes": {name: title for name, title in AXES.items() if any(name in place for place in places)},
        "learning": [name for name in LEARNING if name in lines],
        "inside": inside,
        "metrics": lines,
        "partitions": partitions(series, folder),
    }


def _hidden(series: Sequence[Series]) -> list[int]:
    """The series that a reader has to ask for: of a folder with many, all but the best."""
    metric = score(series)
    hidden = []
    for group in dict.fromkeys(each.group for each in series):
        members = [index for index, each in enumerate(series) if each.group == group]
        members.sort(key=lambda index: rank(series[index], metric))
        verdicts = {index: series[index].runs[0].told.judged for index in members}
        if all(verdicts.values()):
            hidden += [index for index in members[FEW:] if (judged := verdicts[index]) is None or not judged.best]
        elif len(members) > 2 * MANY:
            hidden += members[MANY:]
    return sorted(hidden)


def _metric(name: str, lines: Sequence[dict[str, list[float]] | None], title: str | None = None) -> dict[str, Any]:
    return {"title": title or _title(name), "share": is_share(name), "lines": list(lines)}


def _title(name: str) -> str:
    """What a metric is called in words; one without words goes by its name.

    >>> _title("client_accuracy"), _title("gsi/fc.weight")
    ('Client accuracy', 'gsi/fc.weight')
    """
    if name in TITLES:
        return TITLES[name]
    return name if "/" in name else name.replace("_", " ").capitalize()


def _moves(metric: dict[str, Any] | None) -> bool:
    """Whether there is anything to see: a count that never changes is in the chooser, and that is enough."""
    if metric is None:
        return False
    return len({value for part in metric["lines"] if part for value in part["mean"]}) > 1
