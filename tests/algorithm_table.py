"""One table of all algorithms: a row added here goes through every battery."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

import fedloom as fl
from fedloom.algorithm import Algorithm
from fedloom.types import Cohort, Params, Report, State

Row = tuple[str, Callable[[], Algorithm]]
Outcome = tuple[Params, State, Report]

CONSTRUCTORS: list[Row] = [
    ("fedsgd", lambda: fl.fedsgd(server_lr=0.1)),
    ("fedavg", lambda: fl.fedavg(client_lr=0.1)),
    ("fedavgm-heavyball", lambda: fl.fedavgm(client_lr=0.1, server_lr=0.5)),
    ("fedavgm-nesterov", lambda: fl.fedavgm(client_lr=0.1, server_lr=0.5, variant="nesterov")),
    ("fedavgm-ema", lambda: fl.fedavgm(client_lr=0.1, variant="ema")),
    ("fedadagrad", lambda: fl.fedadagrad(client_lr=0.1, server_lr=0.1)),
    *[
        (f"fedadam-{mode}", lambda mode=mode: fl.fedadam(client_lr=0.1, server_lr=0.1, bias_correction=mode))
        for mode in ("none", "keras", "torch")
    ],
    *[
        (f"fedyogi-{mode}", lambda mode=mode: fl.fedyogi(client_lr=0.1, server_lr=0.1, bias_correction=mode))
        for mode in ("none", "keras", "torch")
    ],
    ("fedlars", lambda: fl.fedlars(client_lr=0.1, server_lr=0.1)),
    ("fedlamb", lambda: fl.fedlamb(client_lr=0.1, server_lr=0.1)),
    ("normalized_fedavg", lambda: fl.normalized_fedavg(client_lr=0.1, server_lr=0.1)),
    ("fedprox", lambda: fl.fedprox(client_lr=0.1, mu=0.5)),
    *[
        (f"scaffold-{option}", lambda option=option: fl.scaffold(client_lr=0.1, option=option))
        for option in ("I", "II", "gradmean")
    ],
    ("fednova", lambda: fl.fednova(client_lr=0.1)),
    ("feddyn", lambda: fl.feddyn(client_lr=0.1, alpha=0.5)),
    ("central", lambda: fl.central(client_lr=0.1)),
    ("fedadp-count", lambda: fl.fedadp(client_lr=0.1)),
    ("fedadp-round", lambda: fl.fedadp(client_lr=0.1, smoothing="round")),
]

SETTINGS: list[Row] = [
    ("fedavg-uniform", lambda: fl.fedavg(client_lr=0.1, server_lr=0.5, weighting=fl.uniform())),
    ("fedavg-scheduled", lambda: fl.fedavg(client_lr=0.1, server_lr=fl.schedule.warmup(0.5, rounds=2))),
    ("fedadagrad-momentum", lambda: fl.fedadagrad(client_lr=0.1, server_lr=0.1, beta1=0.9, initial_accumulator=0.1)),
    ("fedyogi-estimate", lambda: fl.fedyogi(client_lr=0.1, server_lr=0.1, initial_accumulator="estimate")),
    ("fednova-momentum", lambda: fl.fednova(client_lr=0.1, client_momentum=0.9)),
    ("fedadp-uniform", lambda: fl.fedadp(client_lr=0.1, weighting=fl.uniform())),
]

WRAPPED: list[Row] = [
    (
        f"fedglad-{grouping}-{name}",
        lambda make=make, grouping=grouping: fl.fedglad(make(), gamma=0.5, grouping=grouping),
    )
    for grouping in ("group", "universal")
    for name, make in CONSTRUCTORS
]

COMPOSED: list[Row] = [
    (
        "fedglad-fedadp-clip-yogi",
        lambda: fl.fedglad(
            fl.replace(
                fl.fedadp(client_lr=0.1), upload=fl.adaptive_clip(), server=fl.fedyogi(client_lr=0.1, tau=0.1).server
            ),
            gamma=0.5,
        ),
    ),
    ("fedavg-clip", lambda: fl.replace(fl.fedavg(client_lr=0.1), upload=fl.clip(0.5))),
    (
        "fedadam-zeroing-clip",
        lambda: fl.replace(
            fl.fedadam(client_lr=0.1, server_lr=0.1),
            upload=fl.chain(fl.zeroing(initial=0.2, offset=0.0), fl.adaptive_clip(initial=0.4)),
        ),
    ),
    (
        "fednova-clip-momentum",
        lambda: fl.replace(
            fl.fednova(client_lr=0.1), upload=fl.adaptive_clip(), server=fl.fedavgm(client_lr=0.1).server
        ),
    ),
    ("scaffold-yogi", lambda: fl.replace(fl.scaffold(client_lr=0.1), server=fl.fedyogi(client_lr=0.1).server)),
    *[
        (
            f"from_torch-{optimizer.__name__}-{index}",
            lambda optimizer=optimizer, options=options: fl.replace(
                fl.fedavg(client_lr=0.1), server=fl.from_torch(optimizer, **options)
            ),
        )
        for index, (optimizer, options) in enumerate(
            [
                (torch.optim.SGD, {"lr": 0.5}),
                (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9, "nesterov": True}),
                (torch.optim.Adam, {"lr": 0.1}),
                (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}),
                (torch.optim.Adagrad, {"lr": 0.1}),
                (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.9}),
            ]
        )
    ],
]

UNWRAPPED: list[Row] = [*CONSTRUCTORS, *SETTINGS, *COMPOSED]
TABLE: list[Row] = [*UNWRAPPED, *WRAPPED]
"""Rows of (id, factory)."""


def ready(make: Callable[[], Algorithm]) -> Algorithm:
    """The row's algorithm with an 'estimate' replaced by a number, as a simulation would do before the first round."""
    algorithm = make()
    if algorithm.server.resolve is not None:
        return fl.replace(algorithm, server=algorithm.server.resolve(0.1))
    return algorithm


def play(algorithm: Algorithm, params: Params, cohorts: Iterable[Cohort], population: int) -> list[Outcome]:
    """What each round returned, starting from the algorithm's first state."""
    state, outcomes = algorithm.init(params, population), []
    for cohort in cohorts:
        params, state, report = algorithm.apply(params, state, cohort)
        outcomes.append((params, state, report))
    return outcomes
