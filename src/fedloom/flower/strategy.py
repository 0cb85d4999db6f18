"""A Flower strategy that runs an `Algorithm`: it draws the cohort, hands out orders, gives the replies to `apply`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedloom import private_runs, random, tree
from fedloom.accounting import Ledger
from fedloom.algorithm import Algorithm
from fedloom.batches import Batching
from fedloom.data.federated import Features, count, federate
from fedloom.divergence import lost_since, nobody_left
from fedloom.errors import Diverged, FedloomError
from fedloom.evaluation import evaluate, named
from fedloom.flower import wire
from fedloom.flower.nodes import Nodes
from fedloom.flower.standing import Standing
from fedloom.functional import Functional
from fedloom.history import History
from fedloom.preparation import check_arrivals, check_counts, check_kinds, sizes
from fedloom.private_setup import on_terms, opened
from fedloom.records import Records
from fedloom.resumption import newest
from fedloom.rundir import CONFIG, enter
from fedloom.sampling import Sampler, as_sampler, cohort_size
from fedloom.system import System
from fedloom.task import Task
from fedloom.types import Cohort, Report

_log = logging.getLogger("flwr")


class FlowerStrategy(Strategy):
    """`algorithm` as a strategy for a ServerApp. Keywords have the names, and the meaning, that `simulate` gives them.

    The first `population` nodes are numbered as clients 0, 1, ... by ascending node id; the table is kept in `run_dir`.
    Until they are there the first round waits. Later rounds draw from those that are connected. A reply that is an
    error, does not fit the model or is refused by the gate is logged with its node and reason, and the round goes on
    without it. `test` is `(x, y)`, to evaluate on after each round.

    In `run_dir` the state is written after every round, and an unfinished run is gone on with. Other settings, test
    rows or versions than it was begun with are refused, unless `allow` names the key. `history` is what `simulate`
    would return.

    >>> import fedloom as fl
    >>> task = fl.Task(model=lambda: fl.models.Logistic(64, 10))
    >>> FlowerStrategy(fl.fedadam(client_lr=0.1, server_lr=0.01), task, population=3).algorithm.name
    'fedadam'
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        *,
        population: int,
        cohort: int | float | Callable[[int], int] = 1.0,
        epochs: int = 1,
        steps: int | None = None,
        batch_size: int | None = 20,
        drop_last: bool = False,
        seed: int = 0,
        sampling_seed: int | None = None,
        sampler: str | Sampler = "uniform",
        min_reports: int = 1,
        test: tuple[Features, Features] | None = None,
        run_dir: str | PathLike[str] | None = None,
        allow: Collection[str] = (),
    ) -> None:
        check_kinds("FlowerStrategy", algorithm=(algorithm, Algorithm), task=(task, Task))
        check_counts(population=population)
        if hasattr(cohort, "item"):  # a number of numpy's
            cohort = cohort.item()
        self.population, self.cohort, self.sampler = population, cohort, _deployable(algorithm, as_sampler(sampler))
        self.algorithm = on_terms(
            "FlowerStrategy", algorithm, population, cohort, self.sampler, seed, min_reports=min_reports
        )
        check_arrivals((), min_reports, System(), cohort_size(cohort, population))
        self.task, self.batching = task, Batching(epochs, steps, batch_size, drop_last)
        self.seed, self.draw_seed = seed, seed if sampling_seed is None else sampling_seed
        self.min_reports, self.test, self.allow = min_reports, test, allow
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._asked: dict[int, int] = {}  # node -> client, in the round that is on
        self._began = self._clock = time.perf_counter()
        self._timeout = math.inf
        self._ledger: Ledger | None = None
        self._nodes: Nodes | None = None  # until the first start
        self._begin(Functional.of(task, seed, torch.device("cpu")))

    def _begin(self, functional: Functional) -> None:
        """Before the first round of a run that nobody has begun."""
        self.functional = functional
        self.history = History(constants=functional.constants, names=functional.names, resolved={"executor": "flower"})
        x, sampling = functional.params, self.sampler.init(self.population)
        self.now = Standing(x, self.algorithm.init(x, self.population, buffers=functional.buffers), sampling)

    def _config(self, rounds: int) -> dict[str, Any]:
        return {
            "algorithm": repr(self.algorithm),
            "population": self.population,
            "cohort": sizes(self.cohort, rounds),
            **vars(self.batching),
            "seed": self.seed,
            "sampling_seed": None if self.draw_seed == self.seed else self.draw_seed,
            "sampler": self.sampler.name,
            "min_reports": self.min_reports,
        }

    def _fingerprint(self) -> str:
        """Of the rows that the server has: those to evaluate on."""
        return "" if self.test is None else federate(*self.test, [range(count(self.test[1]))]).fingerprint()

    @property
    def arrays(self) -> ArrayRecord:
        """The global model as a whole `state_dict`."""
        leaves = {**self.functional.constants, **self.now.params, **self.now.state.buffers}
        return wire.to_arrays({key: leaves[name] for key, name in self.functional.names.items()})

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run until `num_rounds` rounds are done, those of an earlier start in the same `run_dir` included.

        Without `initial_arrays` the model begins as it does in a simulation with the same seed. A round waits for
        replies for `timeout` seconds, and as long for one of the run's clients to be connected.
        """
        check_counts(num_rounds=num_rounds)
        self._timeout = timeout
        if initial_arrays is not None:
            self._begin(self.functional.starting_from(wire.from_arrays(initial_arrays)))
        with nullcontext() if self.run_dir is None else enter(self.run_dir, resume=True):
            self._go_on(num_rounds)
            done = self.now.round
            told = super().start(
                grid,
                self.arrays,
                max(0, num_rounds - done),
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else lambda t, arrays: evaluate_fn(t + done, arrays),
            )
            self._finish()

        def since(start: Mapping[int, MetricRecord]) -> dict[int, MetricRecord]:
            return {t + done: metrics for t, metrics in start.items()}

        return Result(
            self.arrays,
            since(told.train_metrics_clientapp),
            since(told.evaluate_metrics_clientapp),
            since(told.evaluate_metrics_serverapp),
        )

    def _go_on(self, rounds: int) -> None:
        """To where the run in the directory stands; without one, to the beginning."""
        folder, self._began = self.run_dir, time.perf_counter()
        found = newest(folder) if folder is not None and (folder / CONFIG).exists() else None
        if found is not None:
            self.now = self.now.restored(found)
            self._began -= found.notes.get("seconds", 0.0)
        if self.algorithm.privacy is not None and self._ledger is None:
            self._ledger, self.sampler = opened(self.algorithm.privacy, self.population, self.sampler, folder)
        config = self._config(rounds)
        self._records = Records(
            folder,
            config,
            self.history,
            self._fingerprint,
            self.functional.frozen,
            self.seed,
            found,
            self.allow,
        )
        if self._nodes is None:  # a later start goes on with the same clients, and with what they remember
            self._nodes = Nodes.of(self.population, folder)
        if found is not None:
            for why in found.passed_over:
                _log.warning("%s: passed over", why)
            _log.info("Going on after round %d, from %s", self.now.round, folder)

    def _finish(self) -> None:
        now, history = self.now, self.history
        history.params, history.buffers, history.state = now.params, now.state.buffers, now.state
        history.seconds = time.perf_counter() - self._began
        self._records.summarise(history, self._ledger)

    def summary(self) -> None:
        _log.info("\t├──> Algorithm: %r", self.algorithm)
        _log.info("\t└──> Clients: %d, sampler %r", self.population, self.sampler.name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's cohort among the nodes that are connected, and write each of them its order."""
        self._clock = time.perf_counter()
        assert self._nodes is not None, "start knows the nodes"
        t, present = self.now.round, self._nodes.present(grid, self._timeout)
        here = torch.zeros(self.population, dtype=torch.int64)
        here[list(present)] = 1
        key = random.key(self.draw_seed, t, 0, "cohort")
        drawn = self.sampler.draw(key, cohort_size(self.cohort, self.population, t), here, self.now.sampling)
        self._asked = {present[client]: client for client in drawn.clients.tolist()}
        config["server-round"] = t + 1
        records: dict[str, Any] = {wire.ARRAYS: self.arrays, wire.CONFIG: config}
        if self.now.state.memory:
            x = self.now.params
            records[wire.SHARED] = wire.to_arrays(
                {name: leaf.to(x[name].dtype) for name, leaf in self.now.state.memory.items()}
            )
        return [
            Message(
                content=RecordDict({**records, wire.ORDER: self._order(self._nodes.run, client).record()}),
                message_type=MessageType.TRAIN,
                dst_node_id=node,
                group_id=str(t + 1),
            )
            for node, client in self._asked.items()
        ]

    def _order(self, run: str, client: int) -> wire.Order:
        return wire.Order(
            run=run,
            client=client,
            round=self.now.round,
            server_round=self.now.state.round,
            seed=self.seed,
            remembered=self.now.admitted.get(client, -1),
            work=wire.clients_work(self.algorithm),
            **vars(self.batching),
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One server round: rows that fit, in the order of clients, go to `Algorithm.apply`, whose gate comes first."""
        now, received = self.now, self._receive(replies)
        rows = [received[client][0] for client in sorted(received)]
        if self._ledger is not None:
            self._ledger.charge()
        params, state, report = self.algorithm.apply(
            now.params, now.state, _alike(rows), self.sampler.needs, min_reports=self.min_reports
        )
        self._tell_refused(report)
        if (name := tree.first_nonfinite(params)) is not None:
            raise Diverged(now.round, name)
        lost = lost_since(now.lost, report) if self._ledger is None else {}
        if (diverged := nobody_left(now.round, lost, self.population)) is not None:
            raise diverged
        void = state.round == now.state.round  # then nobody's memory counts, as nobody's update does
        remember = self.algorithm.memory is not None and not void  # else who was admitted is nobody's business
        ids = report.clients.ids[report.clients.admitted].tolist() if remember else []
        sampling = self.sampler.observe(now.sampling, report)
        admitted = now.admitted | dict.fromkeys(ids, now.round)
        self.now = Standing(params, state, sampling, now.round + 1, admitted, lost)
        record = self._told(now.round, report, received) | self._measure()
        record["seconds"] = time.perf_counter() - self._clock
        self.history.rounds.append(record)
        self._records.record(record)
        self._records.write(self.now.round, self.now.to_dict(), time.perf_counter() - self._began)
        return self.arrays, MetricRecord({name: value for name, value in record.items() if math.isfinite(value)})

    def _receive(self, replies: Iterable[Message]) -> dict[int, Received]:
        """The rows that fit the model, and what their clients counted; all else is refused, each with its reason."""
        silent, received = dict(self._asked), dict[int, Received]()
        model = self.algorithm, self.now.params, self.now.state.buffers, self.functional.names
        for reply in replies:
            node = reply.metadata.src_node_id
            client = silent.pop(node, None)
            if client is None:
                self._refuse(node, client, "expected one reply from each node that was asked, got another")
            elif reply.has_error():
                self._refuse(node, client, wire.quoted(str(reply.error.reason)))
            else:
                try:
                    received[client] = wire.to_row(reply.content, client, *model), wire.counted(reply.content)
                except FedloomError as error:
                    self._refuse(node, client, str(error))
        for node, client in silent.items():
            self._refuse(node, client, "no reply in time")
        return received

    def _tell_refused(self, report: Report) -> None:
        nodes = {client: node for node, client in self._asked.items()}
        for client, reason in zip(report.clients.ids.tolist(), report.clients.reasons, strict=True):
            if reason is not None:
                self._refuse(nodes[client], client, reason)

    def _refuse(self, node: int, client: int | None, reason: str) -> None:
        who = f"node {node}" if client is None else f"node {node} (client {client})"
        _log.warning("%s, round %d: %s: refused", who, self.now.round, reason)

    def _told(self, round: int, report: Report, received: Mapping[int, Received]) -> dict[str, Any]:
        """What a round's record says of its clients."""
        record = {"round": round, **_trained(report, received), **report, "asked": len(self._asked)}
        if self._ledger is None:
            return record
        return {**private_runs.covered(record, self.algorithm.upload.learns), "epsilon": self._ledger.epsilon}

    def _measure(self) -> dict[str, float]:
        if self.test is None:
            return {}
        found = evaluate(self.functional, self.now.params, self.now.state.buffers, *self.test, self.task.metrics)
        return named("test", found)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody is asked: the server evaluates on its own `test` rows, or by Flower's `evaluate_fn`."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None


def _deployable(algorithm: Algorithm, sampler: Sampler) -> Sampler:
    """The sampler; an error where it, or the algorithm, asks for what only a simulation has."""
    objections = (
        (algorithm.work.pooled, "a federated algorithm", f"{algorithm.name}, which pools all rows"),
        (sampler.each_draw_counts, "a sampler that does not draw by the clients' sizes", repr(sampler.name)),
        (bool(sampler.forced), "cohorts among those who are connected", "forced ones"),
    )
    for refused, expected, got in objections:
        if refused:
            raise FedloomError(f"FlowerStrategy: expected {expected}, got {got}: only fl.simulate can")
    return sampler


Received = tuple[Cohort, Mapping[str, Sequence[float]]]
"""A client's row, and what it counted while it trained."""


def _alike(rows: Sequence[Cohort]) -> list[Cohort]:
    """Steps and losses only where every client told them: clients of other make need not."""
    lacking: dict[str, Any] = {
        name: None for name in ("steps", "losses") if any(getattr(row, name) is None for row in rows)
    }
    return [replace(row, **lacking) for row in rows]


def _trained(report: Report, received: Mapping[int, Received]) -> dict[str, float]:
    """The admitted clients' training loss, with their weights in the average, and what they counted, all together."""
    admitted = report.clients.admitted
    weights = zip(report.clients.ids[admitted].tolist(), report.clients.weight[admitted].tolist(), strict=True)
    parts = [(weight, *received[client]) for client, weight in weights]
    told: dict[str, float] = {}
    losses = [(weight, row.losses) for weight, row, _ in parts if row.losses is not None]
    if losses and len(losses) == len(parts):
        told["train_loss"] = sum(weight * float(loss) for weight, loss in losses)
    for name in parts[0][2] if parts else ():
        sums = [counted[name] for _, _, counted in parts if name in counted]
        if len(sums) == len(parts) and (below := sum(part[1] for part in sums)):
            told[f"train_{name}"] = sum(part[0] for part in sums) / below
    return told
