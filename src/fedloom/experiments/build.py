"""From an experiment's tables to the real things: an algorithm, federated data, a task."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom import algorithms, schedule, upload, weighting
from fedloom.algorithm import Algorithm, replace
from fedloom.data import catalog
from fedloom.data.federated import FederatedData
from fedloom.errors import FedloomError, choose
from fedloom.experiments.sections import AlgorithmSection, DataSection, ModelSection, Section, TorchServer
from fedloom.models import MODELS
from fedloom.schedule import Rate
from fedloom.task import Task
from fedloom.transforms.base import chain, from_torch

_SLOTS = {"name", "label", "clip", "adaptive_clip", "zeroing", "glad", "server"}


def build_algorithm(spec: AlgorithmSection) -> Algorithm:
    """The constructor's algorithm, with the upload slot, the server slot and FedGLAD as the table asks.

    >>> from fedloom.experiments.sections import FedAvg
    >>> build_algorithm(FedAvg(name="fedavg", client_lr=0.1, clip=1.0, glad=True)).upload
    clip(1)
    """
    given = {key: getattr(spec, key) for key in type(spec).model_fields if key not in _SLOTS}
    options = {key: _rate(value) for key, value in given.items() if value is not None}
    options["weighting"] = getattr(weighting, spec.weighting)()
    algorithm: Algorithm = getattr(algorithms, spec.name)(**options)
    leaves = [
        *([upload.zeroing(**dict(spec.zeroing))] if spec.zeroing else []),
        *([upload.clip(spec.clip)] if spec.clip is not None else []),
        *([upload.adaptive_clip(**dict(spec.adaptive_clip))] if spec.adaptive_clip else []),
    ]
    if leaves:
        algorithm = replace(algorithm, upload=leaves[0] if len(leaves) == 1 else chain(*leaves))
    server: TorchServer | None = getattr(spec, "server", None)
    if server is not None:
        algorithm = replace(algorithm, server=from_torch(getattr(torch.optim, server.torch), **server.options()))
    return algorithms.fedglad(algorithm, **dict(spec.glad)) if spec.glad else algorithm


def build_data(spec: DataSection, folder: Path | None = None) -> FederatedData:
    """The data set, dealt to its clients; files are looked for in `folder` where one is given."""
    with _data_folder(folder):
        return catalog.load(spec.name, spec.partition, spec.clients, spec.seed, **spec.options())


def build_task(spec: ModelSection, data: FederatedData) -> Task:
    """The model, with as many inputs and classes as the data have."""
    entry = MODELS[spec.name]
    sizes = {size: _SIZES[size](spec.name, data) for size in entry.sizes}
    return Task(model=partial(entry.load(), **sizes, **spec.options()))


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
