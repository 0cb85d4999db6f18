"""What a run is given, checked and made ready: data and model on their device, what each client will have done."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedloom import capacity
from fedloom.algorithm import Algorithm
from fedloom.batches import Batching
from fedloom.data.federated import FederatedData, count
from fedloom.errors import FedloomError, Unlike
from fedloom.estimate import estimate_accumulator
from fedloom.evaluation import check_places
from fedloom.faults import Fault, Faults, as_faults
from fedloom.functional import Functional
from fedloom.private_setup import under_terms
from fedloom.sampling import as_sampler, cohort_size
from fedloom.system import System
from fedloom.task import Task
from fedloom.trial import Setup
from fedloom.types import Params

CHEAP = 1000
"""A test set of this many rows is evaluated every round: one batch, whatever the training costs."""


class Place:
    """Where data and model go; rows that several partitions share are moved once."""

    def __init__(self, device: torch.device, dtype: torch.dtype | None) -> None:
        self.device, self.dtype = device, dtype
        self.moved: list[tuple[FederatedData, FederatedData]] = []
        self.flipped: list[tuple[FederatedData, list[int], FederatedData]] = []

    def put(self, data: FederatedData) -> FederatedData:
        for before, after in self.moved:
            if data is before:
                return after
            if data.x is before.x and data.y is before.y and data.test is before.test:
                none = data.offsets[:0]  # a move would make a tuple or a dict of rows anew
                own = replace(data, x=none, y=none, test=None).to(self.device, self.dtype)
                return replace(own, x=after.x, y=after.y, test=after.test)
        self.moved.append((data, data.to(self.device, self.dtype)))
        return self.moved[-1][1]

    def poisoned(self, data: FederatedData, faults: Faults) -> FederatedData:
        """What clients train on; runs with the same hostile clients share it."""
        clients = faults.of("label_flip").tolist()
        for before, flipped, after in self.flipped:
            if before is data and flipped == clients:
                return after
        self.flipped.append((data, clients, faults.poisoned(data)))
        return self.flipped[-1][2]


def prepared(given: Mapping[str, Any], place: Place) -> Setup:
    """What one run is given, checked, with its data and its model on the device."""
    task, data, algorithm, rounds = (given[name] for name in ("task", "data", "algorithm", "rounds"))
    check_kinds("simulate", task=(task, Task), data=(data, FederatedData), algorithm=(algorithm, Algorithm))
    batching = Batching(*(given[name] for name in ("epochs", "steps", "batch_size", "drop_last")))
    every = given["eval_every"]
    check_counts(rounds=rounds, eval_every=1 if every is None else every)
    seed = _seed("seed", given["seed"])
    draw_seed = seed if given["sampling_seed"] is None else _seed("sampling_seed", given["sampling_seed"])
    who = as_sampler(given["sampler"])
    capacity.check_model(task, data, place.device, place.dtype)
    cohort, system, data = given["cohort"], given["system"] or System(), place.put(data)
    faults, min_reports = as_faults(given["faults"]), given["min_reports"]
    if algorithm.work.pooled:
        cohort, who, system, data, faults, min_reports = 1, as_sampler("uniform"), System(), data.pooled, (), 1
    check_places(given["evaluate_on"], data)
    most = math.inf if who.each_draw_counts else data.population
    size = max(cohort_size(cohort, data.population, t, most) for t in (0, rounds - 1))
    check_arrivals(faults, min_reports, system, size)
    used, _ = batching.counts(data.sizes)
    if not bool((used > 0).any()):
        largest = int(data.sizes.max())
        raise FedloomError(
            f"drop_last: expected a client with a whole batch of {batching.batch_size}, the largest has {largest}"
        )
    functional = Functional.of(task, seed, place.device, place.dtype)
    functional = replace(functional, metrics=task.metrics, augment=data.augment)
    if given["params"] is not None:
        functional = functional.starting_from(given["params"])
    recorded: dict[str, Any] = {}
    if algorithm.server.resolve is not None:
        estimate = estimate_accumulator(task, data, functional.leaves, seed, batch_size=batching.batch_size)
        recorded["initial_accumulator"] = estimate
        algorithm = replace(algorithm, server=algorithm.server.resolve(estimate))
    wrong = Faults(faults, draw_seed, data.population)
    setup = Setup(
        task=task,
        data=data,
        algorithm=algorithm,
        functional=functional,
        batching=batching,
        rounds=rounds,
        cohort=cohort,
        seed=seed,
        draw_seed=draw_seed,
        sampler=who,
        system=system,
        every=every or _rarely(data, batching, size, given["evaluate_on"]),
        evaluate_on=given["evaluate_on"],
        alignment=given["alignment"],
        callbacks=tuple(given["callbacks"]),
        recorded=recorded,
        faults=wrong,
        trained_on=place.poisoned(data, wrong),
        min_reports=min_reports,
    )
    return under_terms(setup)


def _seed(what: str, given: Any) -> int:
    """NumPy's whole numbers too."""
    try:
        return operator.index(given)
    except TypeError:
        raise FedloomError(f"{what}: expected a whole number, got {given!r}") from None


def check_stackable(setups: Sequence[Setup]) -> None:
    """Runs in one stack have the same rows and frozen parts, and clients that differ in their rates alone."""
    first = setups[0]
    expected = client_work(first.algorithm)
    for number, setup in enumerate(setups[1:], start=1):
        where, alone = f"simulate_trials trial {number}", "run it by itself"
        if setup.data.x is not first.data.x:
            raise Unlike(f"{where}: expected the rows of trial 0's data, got others: {alone}")
        if setup.trained_on.y is not first.trained_on.y:
            raise Unlike(f"{where}: expected labels flipped for trial 0's clients, got others': {alone}")
        if setup.functional.augment != first.functional.augment:
            raise Unlike(f"{where}: expected trial 0's augmentation of data, got another: {alone}")
        if (leaf := _other(first.functional.constants, setup.functional.constants)) is not None:
            raise Unlike(f"{where}, {leaf}: expected what does not train as trial 0 has it, got other numbers: {alone}")
        if (got := client_work(setup.algorithm)) != expected:
            raise Unlike(
                f"{where}: expected clients that differ from trial 0's in their rate alone, {expected}; "
                f"got {got}: {alone}"
            )


def _other(ours: Params, theirs: Params) -> str | None:
    """The first leaf that is not the same in both."""
    if ours.keys() != theirs.keys():
        return next(iter(ours.keys() ^ theirs.keys()))
    pairs = ((name, leaf, theirs[name]) for name, leaf in ours.items())
    return next((name for name, a, b in pairs if a is not b and not torch.equal(a, b)), None)


def client_work(algorithm: Algorithm) -> str:
    """What clients do, up to a round's learning rate: names show every setting of a part.

    The rate is that of the last link; how it goes on within a round is theirs to share.
    """
    client = repr(algorithm.client)
    if (rates := algorithm.client.rates) is not None:
        before, _, after = client.rpartition(f"scale({rates})")
        client = f"{before}scale(rate{'' if rates.shape is None else f', {rates.shape!r}'}){after}"
    return f"{algorithm.work!r}, {client}, {algorithm.memory!r}"


def settings(given: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    kept = ("rounds", "epochs", "steps", "batch_size", "drop_last", "eval_every", "alignment")
    return {
        "algorithm": repr(setup.algorithm),
        "cohort": sizes(given["cohort"], given["rounds"]),
        **{name: given[name] for name in kept},
        "seed": setup.seed,
        "sampling_seed": None if given["sampling_seed"] is None else setup.draw_seed,
        "sampler": setup.sampler.name,
        "evaluate_on": list(setup.evaluate_on),
        "system": vars(setup.system),
        "faults": [vars(fault) for fault in as_faults(given["faults"])],
        "min_reports": setup.min_reports,
    }


def sizes(cohort: float | Callable[[int], int], rounds: int) -> float | str:
    """A cohort as it is noted: a function by what it gives, which is the same in another process.

    >>> sizes(lambda t: 10 if t < 300 else 20, rounds=1000)
    '10 from round 0, 20 from round 300'
    """
    if not callable(cohort):
        return cohort if isinstance(cohort, float) else int(cohort)
    given = [cohort(t) for t in range(rounds)]
    changes = [f"{size} from round {t}" for t, size in enumerate(given) if not t or size != given[t - 1]]
    if len(changes) <= 20:
        return ", ".join(changes)
    digest = hashlib.sha256(" ".join(map(str, given)).encode()).hexdigest()[:16]
    return f"{min(given)} to {max(given)}, changing {len(changes) - 1} times, sha256 {digest}"


def _rarely(data: FederatedData, batching: Batching, size: int, on: Sequence[str]) -> int:
    """How many rounds lie between evaluations: a round's training on a row costs about three forward passes."""
    tested = 0 if data.test is None or tuple(on) == ("validation",) else count(data.test[1])
    if "validation" in on and data.held_out is not None:
        tested += data.held_out.numel()
    if tested <= CHEAP:
        return 1
    trained = 3 * size * max(1.0, float(batching.rows(data.examples.cpu()).double().mean()))
    return max(1, math.ceil(tested / (0.1 * trained)))


def check_counts(**counts: Any) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise FedloomError(f"{name}: expected a whole number of at least 1, got {value!r}")


def check_arrivals(faults: Sequence[Fault], min_reports: int, system: System, cohort: int) -> None:
    if any(fault.kind == "lateness" for fault in faults) and not system.needs_clock:
        raise FedloomError("lateness: expected something to be late for: set a deadline or over_selection, got neither")
    check_counts(min_reports=min_reports)
    if min_reports > cohort:
        raise FedloomError(f"min_reports: expected at most the cohort, {cohort}, got {min_reports}")


def check_kinds(where: str, **given: tuple[Any, type]) -> None:
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            hint = ": call it" if callable(value) and not isinstance(value, torch.nn.Module) else ""
            raise FedloomError(f"{where} {name}: expected a {kind.__name__}, got {value!r}{hint}")
