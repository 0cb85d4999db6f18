"""From an experiment's tables to the real things: an algorithm, federated data, a task."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom import algorithms, robust, schedule, task, upload, weighting
from fedloom.accounting import require_accounting
from fedloom.algorithm import Algorithm, replace
from fedloom.data import catalog
from fedloom.data.federated import FederatedData
from fedloom.data.holdout import hold_out
from fedloom.data.places import data_folder, named_place
from fedloom.data.skew import label_counts
from fedloom.errors import FedloomError, choose, cut
from fedloom.experiments.algorithm_sections import AlgorithmSection, TorchServer
from fedloom.experiments.data_sections import DataSection
from fedloom.experiments.model_sections import ModelSection
from fedloom.experiments.robust_sections import AnyRule
from fedloom.experiments.schema import Doubling, Experiment, SystemSection
from fedloom.experiments.section import Section
from fedloom.faults import Fault
from fedloom.models import MODELS, penalty
from fedloom.sampling import Sampler, cohort_size, doubling, forced
from fedloom.schedule import Rate
from fedloom.system import System
from fedloom.task import Task
from fedloom.transforms.base import chain, from_torch
from fedloom.weighting import Weighting

_SLOTS = {"name", "label", "clip", "adaptive_clip", "zeroing", "glad", "combine", "server", "privacy"}


def build_algorithm(spec: AlgorithmSection) -> Algorithm:
    """The constructor's algorithm, with the upload, combine and server slots and FedGLAD as the table asks.

    >>> from fedloom.experiments.algorithm_sections import FedAvg
    >>> build_algorithm(FedAvg(name="fedavg", client_lr=0.1, clip=1.0, glad=True)).upload
    clip(1)
    """
    given = {key: getattr(spec, key) for key in type(spec).model_fields if key not in _SLOTS}
    options = {key: _rate(value) for key, value in given.items() if value is not None}
    options["weighting"] = getattr(weighting, spec.weighting)()
    algorithm: Algorithm = getattr(algorithms, spec.name)(**options)
    server: TorchServer | None = getattr(spec, "server", None)
    if server is not None:
        algorithm = replace(algorithm, server=from_torch(getattr(torch.optim, server.torch), **server.options()))
    if spec.combine is not None:
        algorithm = replace(algorithm, combine=build_rule(spec.combine))
    if spec.glad:
        algorithm = algorithms.fedglad(algorithm, **dict(spec.glad))
    if spec.privacy:
        require_accounting()
        fixed = upload.clip(spec.clip) if spec.clip is not None else upload.keep()
        clip = upload.adaptive_clip(**dict(spec.adaptive_clip)) if spec.adaptive_clip else fixed
        return algorithms.private(algorithm, clip=clip, **dict(spec.privacy))
    leaves = [
        *([upload.zeroing(**dict(spec.zeroing))] if spec.zeroing else []),
        *([upload.clip(spec.clip)] if spec.clip is not None else []),
        *([upload.adaptive_clip(**dict(spec.adaptive_clip))] if spec.adaptive_clip else []),
    ]
    if leaves:
        algorithm = replace(algorithm, upload=leaves[0] if len(leaves) == 1 else chain(*leaves))
    return algorithm


def build_rule(spec: AnyRule) -> Weighting:
    options = {key: value for key, value in dict(spec).items() if key != "rule" and value is not None}
    if "base" in options:
        options["base"] = getattr(weighting, options["base"])()
    made: Weighting = getattr(robust, spec.rule)(**options)
    return made


def build_data(spec: DataSection, folder: Path | None = None, shelf: catalog.Shelf | None = None) -> FederatedData:
    """The data set, dealt to its clients; files are looked for in `folder` where one is given."""
    with _data_folder(folder):
        load = catalog.load if shelf is None else shelf.load
        return load(spec.name, spec.partition, spec.clients, spec.seed, spec.weights, **spec.options())


def build_federation(
    experiment: Experiment, folder: Path | None = None, shelf: catalog.Shelf | None = None
) -> FederatedData:
    """The experiment's data, without the clients it holds out."""
    data = build_data(experiment.data, folder, shelf)
    return data if experiment.validation is None else hold_out(data, experiment.validation, experiment.data.seed)


def fingerprint(data: FederatedData, pooled: bool, dtype: str) -> str:
    """Of the rows as a run has them: central training pools them, and their numbers are of its type."""
    return (data.pooled if pooled else data).to(dtype=getattr(torch, dtype)).fingerprint()


def check_named_files(experiment: Experiment, folder: Path | None = None) -> None:
    """An error where a file or folder that the model or the words need, by its name, is not there."""
    model, data = experiment.model.options(), experiment.data.options()
    named = {f"model.{key}": model.get(key) for key in ("source", "embedding")}
    named |= {"data.vocabulary": data.get("vocabulary")}
    for key, path in named.items():
        if isinstance(path, str) and not named_place(path, folder).exists():
            raise FedloomError(
                f"{key}: expected a file or folder, as a path or within {data_folder(folder)}, got {cut(path)!r}, "
                "which is neither"
            )


def build_task(spec: ModelSection, data: FederatedData, folder: Path | None = None) -> Task:
    """The model, with as many inputs and classes as the data have; one from files may lie in the data's `folder`."""
    entry = MODELS[spec.name]
    sizes = {size: _SIZES[size](spec.name, data) for size in entry.sizes}
    options = spec.options()
    if isinstance(options.get("source"), str):
        options["source"] = named_place(options["source"], folder)
    if isinstance(options.get("embedding"), str):
        options["embedding"] = _vectors(options["embedding"], data, folder)
    model = partial(entry.load(), **sizes, **options)
    return Task(model=model, **_MEASURES.get(spec.name, dict)(), penalty=_PENALTIES.get(spec.name))


def _vectors(file: str, data: FederatedData, folder: Path | None) -> Tensor:
    from fedloom.models.vectors import word_vectors

    if data.words is None:
        raise FedloomError(f"model, embedding: expected data of words (encode = 'words') for {file!r}, got {data.name}")
    return word_vectors(named_place(file, folder), data.words)


def build_cohort(cohort: int | float | Doubling) -> int | float | Callable[[int], int]:
    """A number as it is; a table becomes a function of the round."""
    return doubling(**dict(cohort)) if isinstance(cohort, Doubling) else cohort


def build_sampler(experiment: Experiment, data: FederatedData) -> str | Sampler:
    """The sampler's name, or, where rounds are forced, the sampler that knows their cohorts."""
    if not experiment.forced:
        return experiment.sampler
    size = cohort_size(build_cohort(experiment.cohort), data.population)
    cohorts = {each.round - 1: each.clients or _holders(data, each.label or 0, size) for each in experiment.forced}
    return forced(experiment.sampler, cohorts)


def _holders(data: FederatedData, label: int, size: int) -> list[int]:
    """The clients with the largest share of one label, the larger of those that are equal."""
    counts = label_counts(data)
    if not 0 <= label < counts.shape[1]:
        raise FedloomError(f"forced, label: expected 0 to {counts.shape[1] - 1}, got {label}")
    shares = counts[:, label] / counts.sum(1).clip(min=1)
    order = sorted(range(len(shares)), key=lambda client: (-shares[client], -counts[client, label], client))
    return order[:size]


def build_options(experiment: Experiment, data: FederatedData) -> dict[str, Any]:
    """The keywords of `simulate` that an experiment of one run settles: not task, data and algorithm."""
    return {
        "rounds": experiment.rounds,
        "cohort": build_cohort(experiment.cohort),
        "epochs": experiment.epochs or 1,
        "steps": experiment.steps,
        "batch_size": experiment.batch_size,
        "drop_last": experiment.drop_last,
        "seed": experiment.seeds[0],
        "sampling_seed": experiment.sampling_seed,
        "sampler": build_sampler(experiment, data),
        "executor": experiment.executor,
        "chunk": experiment.chunk,
        "compile": experiment.compile,
        "precision": experiment.precision,
        "deterministic": experiment.deterministic,
        "device": experiment.device,
        "dtype": getattr(torch, experiment.dtype),
        "eval_every": experiment.eval_every,
        "evaluate_on": experiment.evaluate_on,
        "alignment": experiment.alignment,
        "system": build_system(experiment.system),
        "faults": [Fault(**dict(fault)) for fault in experiment.faults or []],
        "min_reports": experiment.min_reports or 1,
        "config": experiment.to_mapping(),
    }


def build_system(spec: SystemSection) -> System:
    return System(**dict(spec))


def check_device(device: str | None) -> None:
    """A device that this machine does not have is an error that names those it has."""
    if device is None:
        return
    names = ["cpu"]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        indices = range(torch.accelerator.device_count())
        names += [accelerator.type, *(f"{accelerator.type}:{index}" for index in indices)]
    if device not in names:
        raise choose("device", device, names)


def _rate(value: Any) -> Any:
    """A schedule's table becomes the schedule; any other value stays."""
    if not isinstance(value, Section):
        return value
    options = {key: _rate(getattr(value, key)) for key in type(value).model_fields if key != "schedule"}
    made: Rate = getattr(schedule, getattr(value, "schedule"))(**options)  # noqa: B009
    return made


def _inputs(model: str, data: FederatedData) -> int:
    if not isinstance(data.x, Tensor):
        raise FedloomError(f"model {model!r}: expected features in one tensor, got {type(data.x).__name__}")
    return math.prod(data.x.shape[1:])


def _classes(model: str, data: FederatedData) -> int:
    if data.classes is None:
        raise FedloomError(f"model {model!r}: expected data with class labels, got {data.name!r} without")
    return data.classes


_MEASURES: dict[str, Callable[[], dict[str, Any]]] = {
    "autoencoder": lambda: {"loss": task.squared_error, "metrics": {}},
    "tag_predictor": lambda: {"loss": task.tag_cross_entropy, "metrics": {"recall": task.recall_at(5)}},
    "shakespeare_lstm": lambda: {"loss": task.token_cross_entropy(), "metrics": {"accuracy": task.token_accuracy()}},
    "stackoverflow_lstm": lambda: {
        "loss": task.token_cross_entropy(),
        "metrics": {"accuracy": task.token_accuracy(ignore=(0, 10001, 10003))},  # padding, unknown words, the end
    },
}
"""What a model learns and is measured by, where that is not the class of each example."""

_PENALTIES = {"resnet18_gn": penalty.resnet18_gn(), "cifar10_cnn": penalty.cifar10_cnn()}

_SIZES = {"inputs": _inputs, "classes": _classes}


@contextmanager
def _data_folder(folder: Path | None) -> Iterator[None]:
    before = os.environ.get("FEDLOOM_DATA")
    if folder is not None:
        os.environ["FEDLOOM_DATA"] = str(folder)
    try:
        yield
    finally:
        if folder is not None:
            os.environ.pop("FEDLOOM_DATA")
            if before is not None:
                os.environ["FEDLOOM_DATA"] = before
