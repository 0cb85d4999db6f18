"""What is measured on given examples: sums over examples, batched on the device."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fedloom import interruption
from fedloom.data.federated import Features, FederatedData, count, take
from fedloom.errors import FedloomError, choose
from fedloom.functional import Functional
from fedloom.task import Metric, parts
from fedloom.types import Params

PERCENTILES = (5, 25, 50, 75, 95)
PREFIXES = {"test": "test_", "train": "trainset_", "validation": "validation_", "clients": "client_"}
"""What the names of the numbers measured in a place begin with, and of no others."""

Parts = dict[str, tuple[Tensor, Tensor]]
"""By metric: numerator and denominator of each example."""


def per_example(
    functional: Functional,
    params: Params,
    buffers: Params,
    x: Features,
    y: Features,
    metrics: Mapping[str, Metric],
    rows: Tensor | None = None,
    batch: int = 1024,
) -> Parts:
    """The loss and every metric of each example (of those in `rows`), in evaluation mode."""
    functional.module.eval()
    if rows is None:
        rows = torch.arange(count(y), device=next(iter(params.values())).device)
    measures: dict[str, Metric] = {"loss": functional.loss, **metrics}
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in measures}
    with torch.no_grad():
        for index in rows.split(batch):
            interruption.check()
            output, target = functional.output(params, buffers, take(x, index)), take(y, index)
            for name, measure in measures.items():
                found[name].append(parts(name, measure(output, target), len(index)))
    return {
        name: (torch.cat([a for a, _ in pairs]).double(), torch.cat([b for _, b in pairs]).double())
        for name, pairs in found.items()
        if pairs
    }


def evaluate(
    functional: Functional, params: Params, buffers: Params, x: Features, y: Features, metrics: Mapping[str, Metric]
) -> dict[str, float]:
    """Each metric over all examples."""
    return over_all(per_example(functional, params, buffers, x, y, metrics))


def over_all(found: Parts) -> dict[str, float]:
    """Each metric over the examples that were looked at."""
    return {name: float(above.sum() / below.sum()) for name, (above, below) in found.items()}


def by_client(found: Parts, index: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    """Each metric on each client's own rows, which `index` names client after client; NaN for one that has none."""
    owner = torch.repeat_interleave(torch.arange(len(offsets) - 1, device=index.device), offsets.diff())

    def each(values: Tensor) -> Tensor:
        return values.new_zeros(len(offsets) - 1).index_add(0, owner, values[index])

    return {name: each(above) / each(below) for name, (above, below) in found.items()}


def percentiles(values: Tensor) -> dict[str, float]:
    """The 5th, 25th, 50th, 75th and 95th percentile over clients, interpolated linearly, and the mean.

    >>> percentiles(torch.tensor([0.0, 1.0, torch.nan]))["p75"]
    0.75
    """
    known = values[~values.isnan()].double()
    if not len(known):
        return {}
    points = torch.tensor([each / 100 for each in PERCENTILES], dtype=torch.float64, device=known.device)
    cuts = torch.quantile(known, points).tolist()
    return {f"p{each}": cut for each, cut in zip(PERCENTILES, cuts, strict=True)} | {"mean": float(known.mean())}


def check_places(places: Collection[str], data: FederatedData) -> None:
    """An error unless there are rows wherever it is to be tested."""
    for name in places:
        if name not in PREFIXES:
            raise choose("evaluate_on", name, PREFIXES)
    if "validation" in places and data.held_out is None:
        raise FedloomError("evaluate_on 'validation': expected clients held out for it, got none: use fl.hold_out")
    if "clients" in places and (data.test is None or data.client_test is None):
        raise FedloomError(
            "evaluate_on 'clients': expected test rows of each client, got none: take data that have them, such as "
            "those with natural clients; in a script federate(client_test=...)"
        )


def evaluate_on(
    places: Collection[str],
    functional: Functional,
    params: Params,
    buffers: Params,
    data: FederatedData,
    metrics: Mapping[str, Metric],
) -> dict[str, float]:
    """`test_accuracy`, `trainset_accuracy`, `client_accuracy/p5` and the like, as far as there is data for them."""
    found: dict[str, float] = {}
    model = functional, params, buffers
    tested: Parts | None = None  # the clients' test rows are among all
    if data.test is not None and {"test", "clients"} & set(places):
        tested = per_example(*model, *data.test, metrics)
    if "test" in places and tested is not None:
        found |= named("test", over_all(tested))
    if "train" in places:
        train = evaluate(*model, _at_rest(data, data.x), data.y, metrics)
        found |= named("train", train)
    if "validation" in places:
        assert data.held_out is not None  # checked before the first round
        x, y = take(data.x, data.held_out), take(data.y, data.held_out)
        kept = evaluate(*model, _at_rest(data, x), y, metrics)
        found |= named("validation", kept)
    if "clients" in places:
        assert tested is not None and data.client_test is not None  # checked before the first round
        for name, values in by_client(tested, *data.client_test).items():
            found |= named("clients", {f"{name}/{cut}": value for cut, value in percentiles(values).items()})
    return found


def named(place: str, values: Mapping[str, float]) -> dict[str, float]:
    """Numbers under the names that tell where they were measured."""
    return {f"{PREFIXES[place]}{name}": value for name, value in values.items()}


def names(places: Collection[str], metrics: Collection[str]) -> set[str]:
    """The names of all that `evaluate_on` measures there.

    >>> sorted(names(["test"], ["accuracy"]))
    ['test_accuracy', 'test_loss']
    """
    cuts = [f"/{cut}" for cut in (*(f"p{each}" for each in PERCENTILES), "mean")]
    return {
        f"{PREFIXES[place]}{name}{cut}"
        for place in places
        for name in ("loss", *metrics)
        for cut in (cuts if place == "clients" else [""])
    }


def _at_rest(data: FederatedData, x: Features) -> Features:
    """Examples as augmentation leaves them where nothing is drawn: a central crop, say."""
    plain = getattr(data.augment, "plain", None)
    at_rest: Features = x if plain is None else plain(x)
    return at_rest
