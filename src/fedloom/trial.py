"""One run, round by round: who is drawn, what comes in, what the server makes of it, what is told.

On a GPU the host runs ahead: a round's numbers are read while the next one is being computed. Should they say that a
client was not finite, or that the run is over, what was begun after that round is taken back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedloom import checkpoint, private_runs, random, round_numbers, tree
from fedloom.accounting import Ledger
from fedloom.algorithm import After, Algorithm, Intake
from fedloom.asking import Asked, Asking
from fedloom.batches import Batching
from fedloom.callbacks import Callback
from fedloom.data.federated import FederatedData
from fedloom.data.skew import label_counts
from fedloom.divergence import lost_since, nobody_left
from fedloom.errors import Diverged
from fedloom.evaluation import evaluate_on
from fedloom.executors.job import Assignment, Trained
from fedloom.faults import Faults
from fedloom.functional import Functional
from fedloom.history import History
from fedloom.interruption import Interrupted
from fedloom.memory import RowStore
from fedloom.ranks import ALONE, Ranks, gather_columns
from fedloom.records import Records
from fedloom.resumption import Found
from fedloom.sampling import Drawn, Sampler
from fedloom.server_graphs import ServerGraphs
from fedloom.system import System
from fedloom.task import Task
from fedloom.types import Needs, Params, State


@dataclass(frozen=True)
class Setup:
    """What a run is given."""

    task: Task
    data: FederatedData
    trained_on: FederatedData  # the same, or with labels that hostile clients flipped
    algorithm: Algorithm
    functional: Functional
    batching: Batching
    rounds: int
    cohort: int | float | Callable[[int], int]
    seed: int
    draw_seed: int
    sampler: Sampler
    system: System
    every: int  # rounds between evaluations
    evaluate_on: Sequence[str]
    alignment: bool = False
    callbacks: Sequence[Callback] = ()
    draws: bool = False
    recorded: Mapping[str, Any] = field(default_factory=dict)  # what was estimated for it
    ranks: Ranks = ALONE
    ledger: Ledger | None = None  # of a private run
    shortcut: ServerGraphs | None = None  # for the server's side of a round that nobody waits for
    faults: Faults = field(default_factory=Faults)
    min_reports: int = 1

    @cached_property
    def asking(self) -> Asking:
        whole = self.algorithm.work.name == "full_gradient"
        how = self.batching, self.cohort, self.draw_seed, self.sampler, self.system, self.faults
        return Asking(self.data, *how, whole=whole)

    @property
    def needs(self) -> Needs:
        return "alignment" if self.alignment else self.sampler.needs


@dataclass
class Round:
    """A round on its way: what it began from, who takes part, what has come in, and what the server made of it."""

    t: int
    trusting: bool
    before: tuple[Params, State]
    asked: Asked
    intake: Intake
    held: list[Trained] = field(default_factory=list)  # until all is in, where reports are tampered with
    clients: list[Tensor] = field(default_factory=list)
    rows: list[Params] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    counted: dict[str, list[Tensor]] = field(default_factory=dict)
    overwritten: dict[int, Params | None] = field(default_factory=dict)  # memory rows, as they were
    after: After | None = None

    @property
    def drawn(self) -> Drawn:
        """Those who report."""
        return self.asked.reporting

    @property
    def outcome(self) -> After:
        assert self.after is not None, "the round is still open"
        return self.after


class Trial:
    """A run between rounds, and what each round does to it: `begin`, `take`, `close`, and once it is read, `settle`."""

    def __init__(self, setup: Setup, history: History, records: Records, ahead: bool = False) -> None:
        self.setup, self.history, self.records = setup, history, records
        # a draw may wait for the last round's report, what is tampered with is not trusted, and no round is begun, and
        # charged, that may be taken back
        alone = setup.sampler.observes or setup.faults.tampers or setup.ledger is not None
        self.ahead = ahead and not alone
        self.x = setup.functional.params
        data = setup.data
        self.state = setup.algorithm.init(
            self.x, data.population, buffers=setup.functional.buffers, examples=data.sizes
        )
        self.rows = RowStore()
        self.sampling = setup.sampler.init(data.population)
        labelled = setup.alignment and data.classes is not None
        self.labels = torch.from_numpy(label_counts(data)).double() if labelled else None
        self.pending: deque[Round] = deque()
        self.lost: dict[int, str] = {}
        self.processed = 0.0
        self.over = False
        self.start = 0  # the first round to be run
        self.began = self.clock = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Its time so far, that before it was resumed included."""
        return time.perf_counter() - self.began

    def restore(self, found: Found) -> None:
        """Go on from a state; without one, from the beginning."""
        if found.state is None:
            return
        value = found.value
        device = next(iter(self.x.values())).device

        def here(part: Any) -> Any:
            return tree.map_state(lambda leaf: leaf.to(device), part)

        state = checkpoint.state_from_dict(value["state"])
        self.x = here(value["params"])
        parts = {name: here(getattr(state, name)) for name in ("buffers", "server", "combine", "upload", "memory")}
        self.state = replace(state, **parts)
        self.rows = RowStore({int(client): here(row) for client, row in value["rows"].items()})
        self.sampling, self.processed = value["sampler"], value["processed"]
        self.lost = {int(client): leaf for client, leaf in value["lost"].items()}
        self.start, self.over = value["round"], value["over"]
        self.began -= found.notes["seconds"]

    def begin(self, t: int, trusting: bool) -> tuple[Round, Assignment]:
        """Draw round t's cohort."""
        setup = self.setup
        asked = setup.asking.ask(t, self.sampling)
        x, state = self.x, self.state
        intake = setup.algorithm.open(
            x,
            state,
            setup.needs,
            trusting=trusting,
            ranks=setup.ranks,
            shortcut=setup.shortcut,
            min_reports=setup.min_reports,
        )
        shared = {name: leaf.to(x[name].dtype) for name, leaf in state.memory.items()}
        rates = setup.algorithm.client_rates
        data = setup.trained_on
        assignment = Assignment(setup.seed, t, state.round, data, x, state.buffers, shared, self.rows, rates)
        return Round(t, trusting, (x, state), asked, intake), assignment

    def take(self, round: Round, trained: Trained) -> None:
        """A part of the cohort comes in."""
        if self.setup.faults.tampers:
            round.held.append(trained)
        else:
            self._hand_in(round, trained)

    def _hand_in(self, round: Round, trained: Trained, misfits: Mapping[int, str] | None = None) -> None:
        cohort = trained.cohort
        weights = (cohort.examples > 0).double() if self.setup.sampler.each_draw_counts else cohort.weights
        counts = None
        if round.drawn.multiplicity is not None:
            counts = round.drawn.multiplicity[torch.searchsorted(round.drawn.clients, cohort.clients)]
        round.intake.take(replace(cohort, multiplicity=counts, weights=weights), trained.part.lane, misfits)
        assert cohort.losses is not None
        round.losses.append(cohort.losses)
        for name, sums in trained.counted.items():
            round.counted.setdefault(name, []).append(sums.double())
        if trained.rows:
            round.clients.append(cohort.clients)
            round.rows.append(trained.rows)

    def close(self, round: Round) -> None:
        """The server step, for which nobody waits where rows are trusted."""
        setup, (x, state) = self.setup, round.before
        for trained, misfits in setup.faults.tampered(round.held, round.t, state.round, x, setup.ranks):
            self._hand_in(round, trained, misfits)
        told = {"loss": round.losses} | {f"counted/{name}": parts for name, parts in round.counted.items()}
        gathered = gather_columns(self.setup.ranks, {name: parts for name, parts in told.items() if parts})
        if self.setup.ledger is not None:
            self.setup.ledger.charge()
        round.after = round.intake.close({name: torch.cat(parts) for name, parts in gathered.items()})
        if self.setup.algorithm.keeps_rows:
            self._store(round)
        self.x, self.state = round.after.params, round.after.state
        self.pending.append(round)

    def _store(self, round: Round) -> None:
        """Keep the memory rows of the clients that were admitted, unless the round is void; the others' stay."""
        if round.outcome.void:
            return
        columns: dict[str, list[Tensor]] = {"": round.clients} if round.clients else {}
        for part in round.rows:
            for name, leaf in part.items():
                columns.setdefault(f"/{name}", []).append(leaf)
        gathered = {name: torch.cat(parts) for name, parts in gather_columns(self.setup.ranks, columns).items()}
        if not gathered:
            return
        clients = gathered.pop("")
        keep = list(range(len(clients)))
        if not round.trusting:
            admitted = round.outcome.report().clients.admitted.tolist()
            keep = [index for index, taken in enumerate(admitted) if taken]
        if len(keep) < len(clients):
            clients, gathered = clients[keep], {name: leaf[keep] for name, leaf in gathered.items()}
        rows = {name.removeprefix("/"): leaf for name, leaf in gathered.items()}
        round.overwritten = self.rows.put(clients.tolist(), rows)

    def settle(self, play: Callable[[Trial, int], None]) -> None:
        """Read the oldest round that is pending. `play` runs a round again, waiting for everything."""
        round = self.pending.popleft()
        if round.outcome.sound:
            self._tell(round)
            return
        again = [round.t, *(later.t for later in self.pending)]
        self._take_back()
        self._undo(round)
        for t in again:
            play(self, t)
            self._tell(self.pending.popleft())
            if self.over:
                return

    def _undo(self, round: Round) -> None:
        self.rows.restore(round.overwritten)
        self.x, self.state = round.before

    def _take_back(self) -> None:
        """What was begun beyond the last settled round has not happened."""
        while self.pending:
            self._undo(self.pending.pop())

    def keep(self) -> None:
        """Write its state; nothing is pending."""
        self.records.write(len(self.history.rounds), self.to_dict(), self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """What `restore` goes on from: parameters, the server's state, memory rows, the sampler's."""
        return {
            "round": len(self.history.rounds),
            "params": self.x,
            "state": checkpoint.state_to_dict(self.state),
            "rows": {str(client): row for client, row in sorted(self.rows.rows.items())},
            "sampler": self.sampling,
            "processed": self.processed,
            "lost": {str(client): leaf for client, leaf in self.lost.items()},
            "over": self.over,
        }

    def leave(self) -> None:
        """A signal came: rounds that were told are kept, what was begun since has not happened."""
        self._take_back()
        self.keep()

    def _tell(self, round: Round) -> None:
        """A round's numbers are here: it has happened, unless a signal comes while it is evaluated."""
        told, learned = len(self.history.rounds), (self.sampling, self.processed, self.lost, self.over)
        try:
            self._learn(round)
        except Interrupted:
            self._take_back()
            self._undo(round)
            del self.history.rounds[told:]
            self.sampling, self.processed, self.lost, self.over = learned
            raise

    def _learn(self, round: Round) -> None:
        """Check, learn, evaluate, record, and ask the callbacks."""
        setup, t, after = self.setup, round.t, round.outcome
        report = after.report()
        struck = setup.faults.struck("nan", t, report.clients.ids)
        known = set(report.clients.ids[struck].tolist())
        self.lost = lost_since(self.lost, report, known) if setup.ledger is None else {}
        if (diverged := self._diverged(t, after)) is not None:
            self._take_back()
            self._undo(round)
            self._finish()
            self.keep()
            raise diverged
        self.sampling = setup.sampler.observe(self.sampling, report)
        asked = round.asked
        self.processed += float(asked.work[asked.reports.mask | asked.crashed].sum())
        record = {
            "round": t,
            "train_loss": round_numbers.loss(after, report),
            **round_numbers.metrics(after, report, round.counted),
            **report,
        }
        record |= {"asked": len(asked.reports.mask), "examples_processed": self.processed}
        record["norm_variation"] = round_numbers.variation(report)
        if asked.reports.seconds is not None:
            record["simulated_seconds"] = asked.reports.seconds
        if setup.alignment:
            record["divergence"] = round_numbers.divergence(
                report, setup.algorithm.client_rates.rate(round.before[1].round)
            )
            record |= round_numbers.angles(report)
        if self.labels is not None:
            record["label_cosine"] = round_numbers.label_cosine(report, self.labels)
        if setup.ledger is not None:
            record = private_runs.covered(record, setup.algorithm.upload.learns)
            record["epsilon"] = setup.ledger.epsilon
        evaluated = (t + 1) % setup.every == 0 or t + 1 == setup.rounds
        if evaluated:
            record |= self._measure(t, after)
        now = time.perf_counter()
        record["seconds"], self.clock = now - self.clock, now
        self.history.rounds.append(record)
        answers = [callback(record) for callback in setup.callbacks]  # every callback sees every round
        if any(answers):
            self._take_back()
            self.x, self.state = after.params, after.state
            self.over = True
            if not evaluated:
                record |= self._measure(t, after)
        self.records.record(record)

    def _diverged(self, t: int, after: After) -> Diverged | None:
        """The global model is not finite, or nobody is left whose own is."""
        if (leaf := after.nonfinite_leaf()) is not None:
            return Diverged(t, leaf)
        return nobody_left(t, self.lost, self.setup.data.population)

    def _measure(self, t: int, after: After) -> dict[str, float]:
        setup = self.setup
        if setup.draws:
            torch.manual_seed(int(random.key(setup.seed, t, 0, "evaluation")))
        model = setup.functional, after.params, after.state.buffers
        return evaluate_on(setup.evaluate_on, *model, setup.data, setup.task.metrics)

    def _finish(self) -> None:
        history = self.history
        history.params, history.buffers, history.state = self.x, self.state.buffers, self.state
        history.seconds = self.seconds

    def finish(self) -> History:
        """Nothing is pending: the outcome."""
        self._finish()
        self.keep()
        self.records.summarise(self.history, self.setup.ledger)
        return self.history
