"""The loop's threads: a client's bits do not depend on them, its errors reach the caller, and none is left behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import test_executors
import torch
from small_federations import classification, noise, split
from test_executors import BatchNormed, Conv
from torch import Tensor, nn
from torch.nn import functional as F

import fedloom as fl
from fedloom.aggregate import Aggregation, Rule
from fedloom.algorithm import Algorithm
from fedloom.batches import Batching
from fedloom.executors import auto
from fedloom.executors import loop as executor
from fedloom.executors.job import Assignment, Job, Part, Trained, cut
from fedloom.executors.layout import Layout, layout
from fedloom.executors.loop import loop
from fedloom.functional import Functional
from fedloom.memory import RowStore
from fedloom.simulation import History
from fedloom.transforms.base import Transform
from fedloom.types import Params


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Operations with several threads may round differently; whoever trains side by side gives each one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    assert torch.get_num_threads() == 1
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("fedloom")]


class Images(nn.Module):
    """Convolutions, pooling, dropout, and rows taken by `view`, which channels-last images do not have."""

    def __init__(self, rows: str = "view") -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3, padding=1)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(6 * 9, 4)
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.second(F.relu(self.first(x.unflatten(1, (1, 8, 8))))))
        x = F.max_pool2d(x, 2)
        x = x.view(len(x), -1) if self.rows == "view" else x.flatten(1)
        return self.last(self.drop(x))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.last = nn.Linear(4 * 36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x.unflatten(1, (1, 8, 8))))).flatten(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 5, num_layers=2, batch_first=True)
        self.last = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x.unflatten(1, (8, 8)))[0][:, -1])


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(torch.tanh(self.first(x)), 0.2, self.training))


SIZES = [13, 4, 22, 9, 17, 30, 8, 11, 25]
MODELS: tuple[Callable[[], nn.Module], ...] = (Images, Normed, Recurrent, Dense)


def data_of(sizes: list[int] = SIZES, dtype: torch.dtype = torch.float32) -> fl.FederatedData:
    return classification(sizes, 64, dtype=dtype)


def job_of(model: Callable[[], nn.Module], algorithm: Algorithm | None = None, workers: int = 1, **options: Any) -> Job:
    data = options.pop("data", None) or data_of()
    task = fl.Task(model)
    functional = replace(Functional.of(task, 0, torch.device("cpu"), data.x.dtype), metrics=task.metrics)
    functional.module.train()
    batching = options.pop("batching", Batching(epochs=1, batch_size=6, drop_last=model is Normed))
    return Job(functional, algorithm or fl.fedavg(0.1), data, batching, workers=workers, **options)


def assignment_of(job: Job, rows: RowStore | None = None) -> Assignment:
    functional, algorithm = job.functional, job.algorithm
    shared = {name: noise(*leaf.shape, seed=7, dtype=leaf.dtype) for name, leaf in functional.params.items()}
    return Assignment(
        *(3, 1, 1, job.data, functional.params, functional.buffers, shared),
        *(RowStore() if rows is None else rows, algorithm.client_rates),
    )


def parts_of(job: Job, clients: list[int], rows: RowStore | None = None) -> list[list[Part]]:
    return [[part] for part in cut(job, assignment_of(job, rows), torch.tensor(clients))]


def by_client(trained: list[Trained]) -> dict[int, dict[str, Tensor]]:
    """All that came back, client by client."""
    found: dict[int, dict[str, Tensor]] = {}
    for part in trained:
        cohort = part.cohort
        groups: dict[str, Params] = {"update": cohort.updates, "row": part.rows, "counted": part.counted}
        groups |= {"buffer": cohort.buffers or {}, **(cohort.extra or {})}
        assert cohort.losses is not None and cohort.steps is not None
        groups[""] = {"loss": cohort.losses, "steps": cohort.steps, "examples": cohort.examples}
        for k, client in enumerate(cohort.clients.tolist()):
            assert client not in found
            found[client] = {f"{g}/{name}": leaf[k] for g, leaves in groups.items() for name, leaf in leaves.items()}
    return found


def assert_same_bits(one: dict[int, dict[str, Tensor]], other: dict[int, dict[str, Tensor]]) -> None:
    assert one.keys() == other.keys()
    for client, leaves in one.items():
        assert leaves.keys() == other[client].keys()
        for name, leaf in leaves.items():
            assert torch.equal(leaf, other[client][name]), (client, name)


ALGORITHMS = {
    "fedavg": fl.fedavg(0.1),
    "fedavg-scheduled": fl.fedavg(fl.schedule.within_round(0.1)),
    "fedprox-adam": fl.fedprox(0.05, mu=0.3, client_optimizer="adam"),
    "scaffold-I": fl.scaffold(0.1, option="I"),
    "scaffold-gradmean": fl.scaffold(0.1, option="gradmean", client_optimizer="momentum"),
    "feddyn": fl.feddyn(0.1, alpha=0.3),
    "fedsgd": fl.fedsgd(0.1),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bits_do_not_depend_on_workers_order_or_pieces(
    model: Callable[[], nn.Module], algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(model, ALGORITHMS[algorithm], chunk=4)
    rows = RowStore({4: {name: noise(*leaf.shape, dtype=leaf.dtype) for name, leaf in job.functional.params.items()}})
    clients = [5, 0, 7, 2, 4, 8, 3]
    reference = by_client(list(loop(job, parts_of(job, clients, rows))))
    assert sorted(reference) == sorted(clients)
    for workers, shares in ((1, 8), (2, 1), (4, 8)):
        monkeypatch.setattr(executor, "_SHARES", shares)
        beside = replace(job, workers=workers, chunk=3 if workers == 4 else 4)
        assert_same_bits(reference, by_client(list(loop(beside, parts_of(beside, clients[::-1], rows)))))


def test_the_sum_of_a_round_has_the_same_bits_too() -> None:
    job = job_of(Images, chunk=3)
    state = job.algorithm.init(job.functional.params, len(SIZES), buffers={}, examples=job.data.sizes)
    sums = []
    for workers in (1, 2, 4):
        beside = replace(job, workers=workers)
        rule = Rule(job.algorithm.upload, job.algorithm.combine)
        aggregation = Aggregation(job.functional.params, state, rule)
        for trained in loop(beside, parts_of(beside, list(range(9)))):
            for block in aggregation.admit(trained.cohort):
                aggregation.add(block, trained.part.lane)
        sums.append(aggregation.finish().gradient)
    for other in sums[1:]:
        assert all(torch.equal(leaf, other[name]) for name, leaf in sums[0].items())


def test_parts_come_back_in_order_in_pieces() -> None:
    job = job_of(Dense, workers=2, chunk=4)
    parts = parts_of(job, list(range(9)))
    for workers, pieces in ((1, 3), (2, 9)):
        trained = list(loop(replace(job, workers=workers), parts))
        assert len(trained) == pieces
        assert [piece.part.lane for piece in trained] == sorted(piece.part.lane for piece in trained)
        assert all(piece.part.assignment is parts[0][0].assignment for piece in trained)
        assert [client for piece in trained for client in piece.cohort.clients.tolist()] == [
            client for [part] in parts for client in sorted(part.clients.tolist())
        ]


def test_stacked_runs_are_trained_each_from_its_own_model() -> None:
    job = job_of(Dense, chunk=8)
    first = assignment_of(job)
    second = replace(first, seed=9, params={name: leaf + 0.1 for name, leaf in first.params.items()})
    for workers in (1, 2):
        beside = replace(job, workers=workers)
        alone = [by_client(list(loop(beside, [[Part(run, torch.arange(4))]]))) for run in (first, second)]
        together = list(loop(beside, [[Part(first, torch.arange(4)), Part(second, torch.arange(4))]]))
        for run, expected in zip((first, second), alone, strict=True):
            assert_same_bits(expected, by_client([part for part in together if part.part.assignment is run]))


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * torch.randn(x.shape))


def test_a_forward_that_draws_stays_in_one_thread() -> None:
    job = job_of(lambda: Noisy(64, 4), draws=True, chunk=4)
    results = [by_client(list(loop(replace(job, workers=n), parts_of(job, [1, 5, 2, 7])))) for n in (1, 3)]
    assert_same_bits(*results)


def test_autocasting_reaches_the_clients() -> None:
    job = job_of(Dense, chunk=4)
    with torch.autocast("cpu", torch.bfloat16):
        results = [by_client(list(loop(replace(job, workers=n), parts_of(job, [1, 5, 2])))) for n in (1, 2)]
    assert_same_bits(*results)
    plain = by_client(list(loop(job, parts_of(job, [1, 5, 2]))))
    assert not torch.equal(plain[1]["update/last.weight"], results[1][1]["update/last.weight"])


class Failing(Dense):
    """Fails on the rows of clients that are marked."""

    error: BaseException

    def forward(self, x: Tensor) -> Tensor:
        if self.training and bool((x == 99.0).any()):
            raise self.error
        return super().forward(x)


def marked(*clients: int) -> fl.FederatedData:
    x = noise(sum(SIZES), 64, dtype=torch.float32)
    owned = split(SIZES)
    for client in clients:
        x[owned[client]] = 99.0
    return fl.federate(x, torch.arange(len(x)) % 4, owned)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(
    "error", [RuntimeError("of the model"), ValueError("of another"), KeyboardInterrupt("by hand")]
)
def test_an_error_reaches_the_caller(workers: int, error: BaseException) -> None:
    Failing.error = error
    job = job_of(Failing, workers=workers, data=marked(3), chunk=4)
    with pytest.raises(type(error), match=str(error)):
        list(loop(job, parts_of(job, list(range(9)))))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_batch_norm_on_one_value_names_the_client(workers: int) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.BatchNorm1d(64), nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.norm(x))

    data = data_of([12, 13, 12, 7, 12])  # clients 1 and 3 have a last batch of one row; 1 is in an earlier lane
    job = job_of(Flat, workers=workers, data=data, chunk=2)
    for _ in range(3):  # whoever fails first
        with pytest.raises(fl.FedloomError, match="client 1, round 1: batch norm needs more than one value"):
            list(loop(job, parts_of(job, list(range(5)))))


class Slow(Dense):
    started: list[int]

    def forward(self, x: Tensor) -> Tensor:
        self.started.append(len(x))
        time.sleep(0.002)
        return super().forward(x)


def test_few_clients_are_trained_before_they_are_asked_for() -> None:
    Slow.started = []
    job = job_of(Slow, workers=2, chunk=9, batching=Batching(batch_size=None))
    arriving = loop(job, parts_of(job, list(range(9))))
    for taken in range(1, 10):
        next(arriving)
        time.sleep(0.05)
        assert taken <= len(Slow.started) <= taken + 3  # two at work, one more begun at most
    assert next(arriving, None) is None


def test_leaving_early_ends_the_threads() -> None:
    Slow.started = []
    job = job_of(Slow, workers=2, chunk=9)
    arriving = loop(job, parts_of(job, list(range(9))))
    next(arriving)
    del arriving


def test_an_interrupt_does_not_wait_for_the_clients(request: pytest.FixtureRequest) -> None:
    """As Ctrl-C does while the loop waits for a client."""
    main = threading.main_thread()
    if threading.current_thread() is not main:
        pytest.skip("signals go to the main thread")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    Slow.started = []
    job = job_of(Slow, workers=2, chunk=9, batching=Batching(epochs=2000, batch_size=6))
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main.ident or 0, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(loop(job, parts_of(job, list(range(9)))))
    timer.join()
    assert 0 < len(Slow.started) < 2000


# Steps in place.

FORGETFUL = {
    "fedavg": fl.fedavg(0.1),
    "decay-clip": fl.fedavg(0.1, client_weight_decay=0.01, client_clip_norm=0.5),
    "fedprox": fl.fedprox(0.1, mu=0.5),
    "scaffold-II": fl.scaffold(0.1),
    "scaffold-gradmean": fl.scaffold(0.1, option="gradmean"),
    "gradients-summed": fl.replace(fl.scaffold(0.1, option="gradmean"), client=fl.fedavg(0.1).client),
    "feddyn": fl.feddyn(0.1, alpha=0.5),
}


class Twins(nn.Module):
    """Leaves whose gradient autograd returns as one tensor, and one whose gradient is a single number, expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.left, self.right = nn.Linear(64, 4), *(nn.Parameter(torch.zeros(4)) for _ in range(2))
        self.even = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) + (self.left + self.right) + self.even.sum()


class Views(nn.Module):
    """Two leaves whose gradients are views of one tensor, and one whose is a view of what its function keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.zeros(4, 64)) for _ in range(2))
        self.shift = nn.Parameter(torch.zeros(4))
        self.slope = torch.ones(4, dtype=torch.float64)  # no buffer: nobody but the function knows of it

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.left.t() + self.right.t()) + Sloped.apply(self.shift, self.slope).unsqueeze(0)  # type: ignore[no-untyped-call]


class Sloped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shift: Tensor, slope: Tensor) -> Tensor:
        ctx.slope = slope
        return shift * slope.to(shift.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return ctx.slope.to(g.dtype).view(-1), None


@pytest.mark.parametrize("model", [Dense, Images, Twins, Views])
@pytest.mark.parametrize("name", FORGETFUL)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_in_place_has_the_bits_of_a_pure_one(model: Callable[[], nn.Module], name: str, workers: int) -> None:
    algorithm = FORGETFUL[name]
    assert algorithm.client.forgets
    pure = replace(algorithm, client=replace(algorithm.client, forgets=False))
    job = job_of(model, algorithm, workers=workers, chunk=4)
    run = assignment_of(job, RowStore({5: {key: leaf + 1 for key, leaf in job.functional.params.items()}}))
    given = {"params": run.params, "shared": run.shared, "row": run.rows.rows[5], "data": {"x": job.data.x}}
    before = {what: {key: leaf.clone() for key, leaf in leaves.items()} for what, leaves in given.items()}
    stacks = [[part] for part in cut(job, run, torch.tensor([1, 5, 2, 8, 3]))]
    trained = list(loop(job, stacks))
    assert_same_bits(by_client(trained), by_client(list(loop(replace(job, algorithm=pure), stacks))))
    for what, leaves in given.items():
        assert all(torch.equal(leaf, before[what][key]) for key, leaf in leaves.items()), what
    updates = [leaf for part in trained for leaf in part.cohort.updates.values()]
    spans = sorted((leaf.data_ptr(), leaf.data_ptr() + leaf.nbytes) for leaf in [*updates, *run.params.values()])
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("workers", [1, 2])
def test_large_models_are_handed_on_one_by_one(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(Dense, fl.scaffold(0.1), workers=workers, chunk=4)
    together = by_client(list(loop(job, parts_of(job, [1, 5, 2, 8, 3]))))
    monkeypatch.setattr("fedloom.executors.loop._PIECE", 1)
    trained = list(loop(job, parts_of(job, [1, 5, 2, 8, 3])))
    assert all(len(part.cohort.clients) == 1 for part in trained)
    assert_same_bits(by_client(trained), together)


def test_what_remembers_its_input_is_stepped_purely() -> None:
    """A momentum's step is its state: scaled in place, it would forget."""
    for optimizer in ("momentum", "nesterov", "adam"):
        assert not fl.fedavg(0.1, client_optimizer=optimizer).client.forgets
    keeper = Transform("keep", lambda g, state, params, info: (g, {"g": g, "y": params}, info), lambda params: {})
    assert not keeper.forgets and not fl.chain(keeper, fl.fedavg(0.1).client).forgets


def test_a_client_without_rows_leaves_the_model_alone() -> None:
    job = job_of(Dense, data=data_of([12, 4, 12]), batching=Batching(batch_size=6, drop_last=True))
    run = assignment_of(job)
    before = {name: leaf.clone() for name, leaf in run.params.items()}
    found = by_client(list(loop(job, [[Part(run, torch.arange(3))]])))
    assert not any(leaf.any() for name, leaf in found[1].items() if name.startswith("update"))
    assert all(torch.equal(leaf, before[name]) for name, leaf in run.params.items())


# Channels-last images.


def test_convolutions_on_a_cpu_lie_channels_last() -> None:
    assert layout(job_of(Images)).names == {"first.weight", "second.weight"}
    assert layout(job_of(lambda: nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 8), nn.Flatten()))).names
    assert layout(job_of(Dense)) == Layout()
    assert layout(job_of(Images, data=data_of(dtype=torch.float64))) == Layout()
    assert layout(job_of(Images, draws=True)) == Layout()


@pytest.mark.parametrize("rows", ["view", "flatten"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox-adam"])
def test_channels_last_agrees_with_the_usual_order(rows: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(lambda: Images(rows), ALGORITHMS[algorithm], chunk=4)
    found = by_client(list(loop(job, parts_of(job, [1, 5, 2]))))
    monkeypatch.setattr(executor, "layout", lambda job: Layout())
    usual = by_client(list(loop(job, parts_of(job, [1, 5, 2]))))
    for client, leaves in usual.items():
        for name, leaf in leaves.items():
            got = found[client][name]
            assert got.is_contiguous()
            torch.testing.assert_close(got, leaf, rtol=1e-3, atol=1e-5)


class WritesThrough(Images):
    """Writes into its images through a view, which a copy would not pass on."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(F.relu(self.first(x.unflatten(1, (1, 8, 8)))))
        x.view(len(x), -1).mul_(0.1)
        return self.last(F.max_pool2d(x, 2).flatten(1))


def test_a_model_that_would_notice_keeps_the_usual_order() -> None:
    assert layout(job_of(WritesThrough)) == Layout()


def test_an_operation_that_fails_in_both_orders_says_why() -> None:
    with Layout(frozenset({"x"})).mode(), pytest.raises(RuntimeError, match="shape '\\[7\\]' is invalid"):
        torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).view(7)


# Whole runs.

DATA = classification([20, 10, 31, 20, 5, 14, 40])


def simulated(model: Callable[[], nn.Module], algorithm: Algorithm, workers: int, **options: Any) -> History:
    given = {"rounds": 2, "cohort": 6, "batch_size": 8, "executor": "loop", "dtype": torch.float32, **options}
    before = auto._workers
    auto._workers = lambda job, cohort, draws, ranks: workers
    try:
        return fl.simulate(fl.Task(model), DATA, algorithm, **given)
    finally:
        auto._workers = before


@pytest.mark.parametrize("model", [Conv, test_executors.Recurrent, BatchNormed])
@pytest.mark.parametrize("algorithm", [fl.fedavg(0.1), fl.scaffold(0.1, client_optimizer="momentum")])
def test_the_same_bits_for_any_number_of_workers(model: Callable[[], nn.Module], algorithm: Algorithm) -> None:
    one, *others = (simulated(model, algorithm, workers) for workers in (1, 2, 4))
    for other in others:
        assert other.resolved["workers"] > 1
        for mine, theirs in ((one.params, other.params), (one.buffers, other.buffers)):
            assert all(torch.equal(leaf, theirs[name]) for name, leaf in mine.items())
        for name in ("train_loss", "cosine"):
            assert [record[name] for record in one.rounds] == [record[name] for record in other.rounds]


class Broken(Conv):
    """Fails on a batch of five rows."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 5:
            raise ArithmeticError("five rows")
        return super().forward(x)


def test_an_error_surfaces_and_leaves_no_thread() -> None:
    threads = torch.get_num_threads()
    with pytest.raises(ArithmeticError, match="five rows"):
        simulated(Broken, fl.fedavg(0.1), 3, cohort=7)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fedloom")]
    assert torch.get_num_threads() == threads


def test_dense_models_have_one_worker() -> None:
    history = fl.simulate(
        fl.Task(lambda: nn.Linear(6, 4)), DATA, fl.fedavg(0.1), rounds=1, cohort=3, executor="loop", dtype=torch.float64
    )
    assert history.resolved["workers"] == 1
