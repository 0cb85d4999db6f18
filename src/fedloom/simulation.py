"""The run loop: choose a cohort, train a stack of clients, turn their updates into one pseudo-gradient, step."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom import __version__, random, tree
from fedloom.algorithm import Algorithm
from fedloom.batches import Batching
from fedloom.callbacks import Callback
from fedloom.data.federated import FederatedData, count
from fedloom.errors import Diverged, FedloomError, choose
from fedloom.estimate import estimate_accumulator
from fedloom.evaluation import evaluate, evaluate_clients, percentiles
from fedloom.executors.auto import resolve
from fedloom.executors.job import Assignment, Job
from fedloom.functional import Functional
from fedloom.gate import NONFINITE
from fedloom.history import History
from fedloom.memory import RowStore
from fedloom.progress import rounds_bar
from fedloom.rundir import RunDirectory
from fedloom.sampling import Drawn, Sampler, as_sampler, cohort_size
from fedloom.system import System
from fedloom.task import Task
from fedloom.types import Cohort, Needs, Params, PartState, Report

EVALUATIONS = ("test", "train", "clients")
CHEAP = 1000
"""A test set of this many rows is evaluated every round: one batch, whatever the training costs."""


def simulate(
    task: Task,
    data: FederatedData,
    algorithm: Algorithm,
    rounds: int = 10,
    cohort: int | float | Callable[[int], int] = 10,
    epochs: int = 1,
    steps: int | None = None,
    batch_size: int | None = 20,
    seed: int = 0,
    sampling_seed: int | None = None,
    sampler: str | Sampler = "uniform",
    executor: str = "auto",
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    eval_every: int | None = None,
    params: Params | None = None,
    callbacks: Sequence[Callback] = (),
    run_dir: str | PathLike[str] | None = None,
    progress: bool = False,
    *,
    drop_last: bool = False,
    chunk: int | None = None,
    system: System | None = None,
    evaluate_on: Sequence[str] = ("test",),
    alignment: bool = False,
    config: Mapping[str, Any] | None = None,
) -> History:
    """Train `task` over the clients of `data` with `algorithm`.

    A round draws `cohort` clients (a number, a fraction as a float, or a function of the round); each works for
    `epochs` passes over its rows, or for `steps` batches. The same seed gives the same bits. `params` starts from
    another model. A callback that returns True ends the run. `system` lets clients be away, drop out or be late.

    Evaluation is on the `"test"` set, the whole `"train"` set, or each of the `"clients"`' own test rows, every
    `eval_every` rounds and after the last; by default so rarely that it costs about a tenth of the training.
    `alignment` measures each update against the mean: angles, distances, and the divergence of client gradients.

    >>> import fedloom as fl
    >>> data = fl.load("digits", partition="iid", clients=10)
    >>> task = fl.Task(model=lambda: fl.models.Logistic(64, 10))
    >>> history = fl.simulate(task, data, fl.fedavg(client_lr=0.1), rounds=2, cohort=5)
    >>> [record["round"] for record in history.rounds]
    [0, 1]
    """
    began = time.perf_counter()
    _check_kinds(task=(task, Task), data=(data, FederatedData), algorithm=(algorithm, Algorithm))
    batching = Batching(epochs, steps, batch_size, drop_last)
    _check_counts(rounds=rounds, eval_every=1 if eval_every is None else eval_every)
    who, draw_seed = as_sampler(sampler), seed if sampling_seed is None else sampling_seed
    most = math.inf if who.each_draw_counts else data.population  # with replacement there is no bound
    size = max(cohort_size(cohort, data.population, t, most) for t in (0, rounds - 1))
    for name in evaluate_on:
        if name not in EVALUATIONS:
            raise choose("evaluate_on", name, EVALUATIONS)
    target = _device(device)
    data = data.to(target, dtype)
    used, _ = batching.counts(data.examples.cpu())
    through = used if algorithm.work.name == "full_gradient" else batching.rows(data.examples.cpu())
    if not bool((used > 0).any()):
        largest = int(data.examples.max())
        raise FedloomError(
            f"drop_last: expected a client with a whole batch of {batch_size}, the largest has {largest}"
        )
    functional = Functional.of(task, seed, target, dtype)
    functional = replace(functional, metrics=task.metrics, augment=data.augment)
    if params is not None:
        functional = functional.starting_from(params)
    recorded: dict[str, Any] = {}
    if algorithm.server.resolve is not None:
        recorded["initial_accumulator"] = estimate_accumulator(
            task, data, functional.leaves, seed, batch_size=batch_size
        )
        algorithm = replace(algorithm, server=algorithm.server.resolve(recorded["initial_accumulator"]))

    job = Job(functional, algorithm, data, batching, seed)
    job, choice = resolve(job, executor, chunk, size)
    history = History(
        constants=functional.constants,
        names=functional.names,
        resolved={
            "executor": choice.executor,
            "chunk": choice.chunk,
            "why": choice.why,
            "device": str(target),
            "dtype": str(next(iter(functional.params.values())).dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            **recorded,
        },
    )
    if config is None:
        config = {
            "algorithm": repr(algorithm),
            "rounds": rounds,
            "cohort": cohort if isinstance(cohort, int | float) else repr(cohort),
            "epochs": epochs,
            "steps": steps,
            "batch_size": batch_size,
            "drop_last": drop_last,
            "seed": seed,
            "sampling_seed": sampling_seed,
            "sampler": who.name,
            "eval_every": eval_every,
            "evaluate_on": list(evaluate_on),
            "alignment": alignment,
            "system": vars(system or System()),
        }
    run = _Records(run_dir, config, history, data, seed)

    x = functional.params
    state = algorithm.init(x, data.population, buffers=functional.buffers, examples=data.examples.cpu())
    sampling, rows = who.init(data.population), RowStore()
    lost: dict[int, str] = {}
    every = eval_every or _rarely(data, batching, size)
    devices = system or System()
    needs: Needs = "alignment" if alignment else who.needs
    processed = 0.0

    def measure(t: int, params: Params, buffers: Params) -> dict[str, float]:
        if job.draws:
            torch.manual_seed(int(random.key(seed, t, 0, "evaluation")))
        return _evaluate(functional, params, buffers, data, task, evaluate_on)

    with rounds_bar(rounds, progress) as shown, random.generator_kept(job.draws):
        for t in range(rounds):
            started = time.perf_counter()
            goal = cohort_size(cohort, data.population, t, most)
            here = torch.where(devices.available(draw_seed, t, data.population), used, 0)
            drawn = _draw(who, random.key(draw_seed, t, 0, "cohort"), t, devices.asked(goal), here, sampling)
            work = through[drawn.clients]
            reports = devices.reports(draw_seed, t, drawn.clients, work, goal)
            drawn = drawn.only(reports.mask)
            shared = {name: leaf.to(x[name].dtype) for name, leaf in state.memory.items()}
            assignment = Assignment(t, state.round, drawn.clients, x, state.buffers, shared, rows)
            functional.module.train()
            arrivals = _Arrivals(choice.run(job, assignment), drawn, who.each_draw_counts)
            before = x, state
            x, state, report = algorithm.apply(x, state, arrivals, needs)
            lost = _lost(lost, report)
            if (diverged := _diverged(t, x, lost, data.population)) is not None:
                history.params, history.state, history.buffers = before[0], before[1], before[1].buffers
                run.keep(t, history, rows, sampling)
                raise diverged
            arrivals.store(rows, report)
            sampling = who.observe(sampling, report)

            processed += float(work[reports.mask].sum())
            record = {"round": t, "train_loss": arrivals.loss(report), **arrivals.metrics(report), **report}
            record |= {"asked": len(reports.mask), "examples_processed": processed}
            if reports.seconds is not None:
                record["simulated_seconds"] = reports.seconds
            if alignment:
                record["divergence"] = _divergence(report, algorithm.client_rates.rate(before[1].round))
            evaluated = (t + 1) % every == 0 or t + 1 == rounds
            if evaluated:
                record |= measure(t, x, state.buffers)
            record["seconds"] = time.perf_counter() - started
            history.rounds.append(record)
            shown(record)
            answers = [callback(record) for callback in callbacks]  # every callback sees every round
            if any(answers) and not evaluated:
                record |= measure(t, x, state.buffers)
            run.record(record)
            if any(answers):
                break

    history.params, history.buffers, history.state = x, state.buffers, state
    history.seconds = time.perf_counter() - began
    run.finish(history, rows, sampling)
    return history


def _rarely(data: FederatedData, batching: Batching, size: int) -> int:
    """How many rounds lie between evaluations: a round's training on a row costs about three forward passes."""
    tested = 0 if data.test is None else count(data.test[1])
    if tested <= CHEAP:
        return 1
    trained = 3 * size * max(1.0, float(batching.rows(data.examples.cpu()).double().mean()))
    return max(1, math.ceil(tested / (0.1 * trained)))


def _evaluate(
    functional: Functional, params: Params, buffers: Params, data: FederatedData, task: Task, on: Sequence[str]
) -> dict[str, float]:
    """`test_accuracy`, `trainset_accuracy`, `client_accuracy/p5` and the like, as far as there is data for them."""
    found: dict[str, float] = {}
    if "test" in on and data.test is not None:
        test = evaluate(functional, params, buffers, *data.test, task.metrics)
        found |= {f"test_{name}": value for name, value in test.items()}
    if "train" in on:
        plain = getattr(data.augment, "plain", None)  # what augmentation is to an example at rest: a central crop, say
        x = data.x if plain is None else plain(data.x)
        train = evaluate(functional, params, buffers, x, data.y, task.metrics)
        found |= {f"trainset_{name}": value for name, value in train.items()}
    if "clients" in on:
        if data.test is None or data.client_test is None:
            raise FedloomError("evaluate_on 'clients': expected per-client test rows, got none: pass client_test")
        for name, values in evaluate_clients(functional, params, buffers, data, task.metrics).items():
            found |= {f"client_{name}/{cut}": value for cut, value in percentiles(values).items()}
    return found


class _Arrivals(Iterable[Cohort]):
    """The cohort's chunks on their way into `apply`, remembering what is needed once it says who was admitted."""

    def __init__(self, trained: Iterable[Any], drawn: Drawn, each_draw_counts: bool) -> None:
        self.trained, self.each_draw_counts = trained, each_draw_counts
        counts = drawn.multiplicity if drawn.multiplicity is not None else torch.ones_like(drawn.clients)
        self.multiplicity = dict(zip(drawn.clients.tolist(), counts.tolist(), strict=True))
        self.kept: list[tuple[Tensor, Params]] = []
        self.losses: list[Tensor] = []
        self.counted: dict[str, list[Tensor]] = {}

    def __iter__(self) -> Iterator[Cohort]:
        for part in self.trained:
            cohort = part.cohort
            self.losses.append(cohort.losses.cpu())
            self.kept.append((cohort.clients, part.rows))
            for name, sums in part.counted.items():
                self.counted.setdefault(name, []).append(sums.double().cpu())
            counts = torch.tensor([self.multiplicity[client] for client in cohort.clients.tolist()])
            weights = (cohort.examples > 0).double() if self.each_draw_counts else None
            yield replace(cohort, multiplicity=counts, weights=weights)

    def store(self, rows: RowStore, report: Report) -> None:
        """Keep the memory rows of the clients that were admitted; the others' stay as they were."""
        admitted = report.clients.admitted.tolist()
        for clients, new in self.kept:
            taken, admitted = admitted[: len(clients)], admitted[len(clients) :]
            index = [i for i, yes in enumerate(taken) if yes]
            if new and index:
                rows.put(clients[index].tolist(), tree.map(lambda leaf, index=index: leaf[index], new))

    def loss(self, report: Report) -> float:
        """The mean training loss of the admitted clients, with their weights in the average."""
        losses = torch.cat(self.losses).double() if self.losses else torch.zeros(0)
        weight = report.clients.weight
        return float((torch.where(weight > 0, losses, 0.0) * weight).sum()) if weight.sum() > 0 else float("nan")

    def metrics(self, report: Report) -> dict[str, float]:
        """What the admitted clients measured on the batches they trained on, all their rows together."""
        admitted = report.clients.admitted
        if not bool(admitted.any()):
            return {}
        sums = {name: torch.cat(parts)[admitted].sum(0) for name, parts in self.counted.items()}
        return {f"train_{name}": float(above / below) for name, (above, below) in sums.items()}


class _Records:
    """What a run writes to its directory; nothing when it has none."""

    def __init__(
        self,
        path: str | PathLike[str] | None,
        config: Mapping[str, Any],
        history: History,
        data: FederatedData,
        seed: int,
    ) -> None:
        self.directory = None if path is None else RunDirectory(Path(path))
        if self.directory is not None:
            self.fingerprint = data.fingerprint()
            self.seed = seed
            settled = {
                k: v for k, v in history.resolved.items() if k in ("executor", "chunk", "device", "dtype", "threads")
            }
            self.directory.config({**config, **settled})

    def record(self, record: Mapping[str, Any]) -> None:
        if self.directory is not None:
            self.directory.record(record)

    def keep(self, round: int, history: History, rows: RowStore, sampling: Any) -> None:
        """Write the state: parameters, buffers, the server's slots, memory rows, the sampler's."""
        if self.directory is not None:
            assert history.state is not None
            self.directory.checkpoint(
                round,
                {
                    "round": round,
                    "params": history.params,
                    "state": dict(vars(history.state)),
                    "rows": {str(client): row for client, row in sorted(rows.rows.items())},
                    "sampler": sampling,
                },
            )

    def finish(self, history: History, rows: RowStore, sampling: Any) -> None:
        if self.directory is None:
            return
        self.keep(len(history.rounds), history, rows, sampling)
        last = history.rounds[-1] if history.rounds else {}
        self.directory.summary(
            {
                "seed": self.seed,
                "rounds": len(history.rounds),
                "final": last,
                "seconds": history.seconds,
                "resolved": history.resolved,
                "data_fingerprint": self.fingerprint,
                "versions": {"fedloom": __version__, "torch": torch.__version__, "python": platform.python_version()},
            }
        )


def _draw(who: Sampler, key: Tensor, t: int, size: int, examples: Tensor, state: PartState) -> Drawn:
    """The round's cohort: the sampler's draw, or the one that was forced."""
    if t not in who.forced:
        return who.draw(key, size, examples, state)
    clients = who.forced[t]
    if len(clients) and not 0 <= int(clients[0]) <= int(clients[-1]) < len(examples):
        raise FedloomError(f"round {t}, forced cohort: expected ids in 0..{len(examples) - 1}, got {clients.tolist()}")
    return Drawn(clients)


def _divergence(report: Report, rate: float) -> float:
    """The mean distance of the clients' gradients, -D / eta, to their mean (Wu and Wang 2021, figure 7)."""
    distance = report.clients.distance
    if distance is None or not rate:
        return math.nan
    return float(distance[report.clients.admitted].mean()) / rate


def _diverged(t: int, params: Params, lost: dict[int, str], population: int) -> Diverged | None:
    """The global model is not finite, or nobody is left whose own is."""
    if (leaf := tree.first_nonfinite(params)) is not None:
        return Diverged(t, leaf)
    if len(lost) >= min(3, population):
        return Diverged(t, next(iter(lost.values())), "every client's model")
    return None


def _lost(before: dict[int, str], report: Report) -> dict[int, str]:
    """The clients that became non-finite, and in which leaf, since anybody was admitted last.

    One broken client is refused and the run goes on, however often it comes; when several do and nobody else is left,
    it is the training that diverged.
    """
    if report["admitted"]:
        return {}
    rows = zip(report.clients.ids.tolist(), report.clients.reasons, strict=True)
    found = {client: reason for client, reason in rows if reason is not None and reason.startswith(NONFINITE)}
    return before | {client: reason.split("'")[1] for client, reason in found.items()}


def _check_counts(**counts: Any) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise FedloomError(f"{name}: expected a whole number of at least 1, got {value!r}")


def _check_kinds(**given: tuple[Any, type]) -> None:
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            hint = ": call it" if callable(value) and not isinstance(value, torch.nn.Module) else ""
            raise FedloomError(f"simulate {name}: expected a {kind.__name__}, got {value!r}{hint}")


def _device(device: str | torch.device | None) -> torch.device:
    """The device asked for; one that is not there is an error, not a surprise in the first round."""
    try:
        found = torch.device(device or "cpu")
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise FedloomError(f"device: expected one this machine has, got {device!r}: {error}") from error
    return found
