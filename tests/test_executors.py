"""Whatever runs a cohort, the numbers agree: loop and vectorized, over models, algorithms, optimizers and chunks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from small_federations import EXECUTORS, classification, distance, linear, noise, split
from torch import Tensor, nn
from torch.nn import functional as F

import fedloom as fl
from fedloom import tree
from fedloom.algorithm import Algorithm
from fedloom.algorithms import CLIENT_OPTIMIZERS
from fedloom.batches import Batching
from fedloom.errors import FedloomError
from fedloom.executors.auto import resolve
from fedloom.executors.job import Job
from fedloom.functional import Functional
from fedloom.memory import Extra, Memory, Trace
from fedloom.simulation import History
from fedloom.transforms.base import stateless
from fedloom.types import Params


class Dense(nn.Module):
    """Two kinds of dropout around a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(self.drop(torch.tanh(self.first(x))), 0.2, self.training))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.last = nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.embed((x.abs() * 3).long().clamp(max=6)).flatten(1))


class BatchNormed(nn.Module):
    """No bias before the norm: its gradient would be rounding noise, which adaptive optimizers blow up."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5, bias=False)
        self.norm = nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 2, bias=False)
        self.norm = nn.GroupNorm(2, 4)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.conv(x.unflatten(1, (1, 2, 3))))).flatten(1))


MODELS: tuple[Callable[[], nn.Module], ...] = (Dense, Words, BatchNormed, Conv)
ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": lambda **options: fl.fedavg(0.1, **options),
    "fedprox": lambda **options: fl.fedprox(0.1, mu=0.5, **options),
    **{
        f"scaffold-{option}": lambda option=option, **options: fl.scaffold(0.1, option=option, **options)
        for option in ("I", "II", "gradmean")
    },
    "fednova": lambda **options: fl.fednova(0.1, **options),
    "feddyn": lambda **options: fl.feddyn(0.1, alpha=0.3, **options),
    "fedadp": lambda **options: fl.fedadp(0.1, **options),
    "fedglad-yogi": lambda **options: fl.fedglad(fl.fedyogi(0.1, 0.01, **options)),
}
SIZES = [1, 7, 50, 20, 33]
DATA = {dtype: classification(SIZES, dtype=dtype) for dtype in (torch.float32, torch.float64)}


def run(model: Callable[[], nn.Module], algorithm: Algorithm, executor: str, rounds: int, **options: Any) -> History:
    settings: dict[str, Any] = {"cohort": 4, "batch_size": 20, "seed": 3, "eval_every": 99, "dtype": torch.float64}
    settings |= {"drop_last": model is BatchNormed} | options
    data = settings.pop("data", None) or DATA[settings["dtype"]]
    return fl.simulate(fl.Task(model), data, algorithm, rounds, executor=executor, **settings)


def assert_agree(
    model: Callable[[], nn.Module], algorithm: Algorithm, rounds: int = 2, chunks: Sequence[int] = (3,), **options: Any
) -> None:
    reference = run(model, algorithm, "loop", rounds, **options)
    assert reference.resolved["executor"] == "loop"
    for chunk in chunks:
        history = run(model, algorithm, "vectorized", rounds, chunk=chunk, **options)
        assert history.resolved["executor"] == "vectorized" and history.resolved["chunk"] == chunk
        assert distance(reference, history) <= 1e-12
        for name, leaf in reference.buffers.items():
            if not leaf.is_floating_point():
                assert torch.equal(leaf, history.buffers[name])
        losses = [[record["train_loss"] for record in each.rounds] for each in (reference, history)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-10)


GRID = [
    pytest.param(make, optimizer, MODELS[(row + column) % len(MODELS)], id=f"{name}-{optimizer}")
    for row, (name, make) in enumerate(ALGORITHMS.items())
    for column, optimizer in enumerate(CLIENT_OPTIMIZERS)
]


def test_the_grid_holds_every_pair() -> None:
    cells = [tuple(cell.values) for cell in GRID]
    models, algorithms = len(MODELS), len(ALGORITHMS)
    assert len({(make, optimizer) for make, optimizer, _ in cells}) == algorithms * len(CLIENT_OPTIMIZERS)
    assert len({(make, model) for make, _, model in cells}) == algorithms * models
    assert len({(optimizer, model) for _, optimizer, model in cells}) == len(CLIENT_OPTIMIZERS) * models


@pytest.mark.parametrize(("make", "optimizer", "model"), GRID)
def test_loop_and_stack_agree_in_double_precision(
    make: Callable[..., Algorithm], optimizer: str, model: Callable[[], nn.Module]
) -> None:
    regularized = optimizer in ("momentum", "adam", "adamw")
    options = {"client_weight_decay": 0.01, "client_clip_norm": 0.5} if regularized else {}
    assert_agree(model, make(client_optimizer=optimizer, **options))


@pytest.mark.parametrize("model", MODELS)
def test_chunks_of_every_size_agree(model: Callable[[], nn.Module]) -> None:
    assert_agree(model, fl.scaffold(0.1, client_optimizer="adam"), 2, chunks=(1, 2, 4, 9), epochs=2, batch_size=10)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", CLIENT_OPTIMIZERS)
def test_loop_and_stack_agree_in_single_precision(model: Callable[[], nn.Module], optimizer: str) -> None:
    algorithm = fl.fedavg(0.1, client_optimizer=optimizer, client_weight_decay=0.01, client_clip_norm=1.0)
    results = [run(model, algorithm, executor, 1, cohort=5, dtype=torch.float32) for executor in EXECUTORS]
    assert distance(*results) <= 1e-5
    assert all(leaf.dtype == torch.float32 for leaf in results[1].params.values())


@pytest.mark.parametrize("model", MODELS)
def test_whole_gradients_agree(model: Callable[[], nn.Module]) -> None:
    assert_agree(model, fl.fedsgd(server_lr=0.1), epochs=2)


@pytest.mark.parametrize("options", [{"epochs": 3}, {"steps": 7}, {"batch_size": None, "epochs": 2}, {"batch_size": 1}])
def test_every_amount_of_local_work_agrees(options: dict[str, Any]) -> None:
    data = classification([1, 4, 9, 5])
    assert_agree(Dense, fl.fedavg(0.1, client_optimizer="adam"), 2, data=data, **({"batch_size": 3} | options))


@pytest.mark.parametrize(
    "rate",
    [
        fl.schedule.geometric(0.2, 0.7),
        fl.schedule.within_round(0.2),
        fl.schedule.within_round(0.1, warmup=0.5),
        fl.schedule.Schedule("harmonic", lambda t: 0.2, lambda step, steps: 1 / (1 + step)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("make", [fl.fedavg, fl.scaffold, fl.fednova])
def test_schedules_agree(make: Callable[..., Algorithm], rate: fl.schedule.Schedule) -> None:
    """Clients with different numbers of steps stand at different points of a schedule within the round."""
    assert_agree(Dense, make(rate), chunks=(4,), epochs=2)


def test_rates_of_zero_leave_a_client_where_it_was() -> None:
    """The only step of a client that warms up within the round has rate zero: its control cannot be taken from it."""
    history = run(Dense, fl.scaffold(fl.schedule.within_round(0.1)), "vectorized", 2, cohort=5)
    assert [record["admitted"] for record in history.rounds] == [5.0, 5.0]


@pytest.mark.parametrize("start", range(3))
def test_any_mixture_of_sizes_agrees(start: int) -> None:
    data = classification([[1, 2, 3], [9, 10, 11], [4, 40, 1]][start] * 2)
    assert_agree(Dense, fl.scaffold(0.1, client_optimizer="momentum"), 2, data=data, cohort=0.8, epochs=2)


def test_the_memory_of_a_stack_is_counted_in_its_own_form() -> None:
    """A stacked batch norm keeps more than torch's: a client of a stack takes more than one of the loop."""
    pictures = fl.federate(noise(64, 1, 24, 24), torch.zeros(64).long(), split([32, 32]))

    def normed() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 22**2, 4))

    options: dict[str, Any] = {"data": pictures, "cohort": 2, "chunk": 1, "batch_size": 32}
    loop, stack = (run(normed, fl.fedavg(0.1), executor, 1, **options) for executor in EXECUTORS)
    one = loop.resolved["memory_mib"] / loop.resolved["workers"]
    assert stack.resolved["executor"] == "vectorized" and stack.resolved["memory_mib"] > 1.3 * one


class ZeroStart(BatchNormed):
    """Its output does not depend on any row at first: what mixes rows cannot be seen in it."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.last.weight)


@pytest.mark.parametrize("equal_rows", [False, True])
@pytest.mark.parametrize("model", [BatchNormed, ZeroStart])
def test_batch_norm_is_recognised(model: Callable[[], nn.Module], equal_rows: bool) -> None:
    """Also where the first rows are all alike: padding them changes nothing that could be noticed there."""
    sizes = [7, 50, 33, 12]
    x, y = noise(sum(sizes), 6), torch.arange(sum(sizes)) % 4
    if equal_rows:
        x[:5] = 0.0
    assert_agree(model, fl.fedavg(0.1), 2, batch_size=10, data=fl.federate(x, y, split(sizes)), drop_last=False)


class WordsNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.embed(x).mean(1))))


def test_batch_norm_is_recognised_behind_words_that_are_alike() -> None:
    """The first sentences are all padding, say: no noise can be added to them."""
    sizes = [7, 50, 33, 12]
    x, y = (noise(sum(sizes), 4).abs() * 3).long().clamp(max=6), torch.arange(sum(sizes)) % 4
    x[:5] = 0
    assert_agree(WordsNormed, fl.fedavg(0.1), 2, batch_size=10, data=fl.federate(x, y, split(sizes)))


def test_batch_norm_is_recognised_beside_rows_that_are_not_finite() -> None:
    """The first client, whose rows a trial would look at, is refused; the others must not be padded."""
    sizes = [7, 50, 33, 12]
    x, y = noise(sum(sizes), 6), torch.arange(sum(sizes)) % 4
    x[0] = torch.nan
    data = fl.federate(x, y, split(sizes))
    assert_agree(BatchNormed, fl.fedavg(0.1), 2, batch_size=10, data=data, drop_last=False)


class Centred(nn.Module):
    """Rows see each other through an operation of the model's own, behind a layer that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.last = nn.Linear(5, 4)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(h - h.mean(0) if self.training else h)


def test_other_mixing_of_rows_is_recognised() -> None:
    assert_agree(Centred, fl.fedavg(0.1), 2)


class TimeMajor(nn.Module):
    """Dropout where the rows are not the first axis: padding would shift the other rows' masks."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.first = nn.Linear(1, 3)
        self.last = nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(torch.tanh(self.first(x.T.unsqueeze(-1))), self.p, self.training)
        return self.last(h.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("p", [0.02, 0.05, 0.5])
def test_dropout_along_another_axis_agrees(p: float) -> None:
    assert_agree(lambda: TimeMajor(p), fl.fedavg(0.1), 2)


class Folded(BatchNormed):
    """Batch norm over parts of rows, as over frames or views: a batch's mask does not say which are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, 3)).unflatten(0, (len(x), 2)).mean(1)


def test_batch_norm_of_parts_of_rows_agrees() -> None:
    assert_agree(Folded, fl.fedavg(0.1), 2, batch_size=4, drop_last=False)


@pytest.mark.parametrize(
    ("model", "alone"),
    [(Dense, True), (Words, True), (Conv, True), (BatchNormed, True), (Centred, False), (Folded, False)],
)
def test_models_whose_rows_stand_alone_may_be_padded(model: Callable[[], nn.Module], alone: bool) -> None:
    """Taking them for others would be right too, and slow."""
    data = DATA[torch.float64]
    functional = Functional.of(fl.Task(model), 0, torch.device("cpu"), torch.float64)
    job, _ = resolve(Job(functional, fl.fedavg(0.1), data, Batching()), "vectorized", None, 4)
    assert job.rows_independent == alone


class Amplified(BatchNormed):
    """Rounding becomes as large as rows that see each other would make it, as through many batch norms in a row."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(1e5 * super().forward(x))


def test_rounding_is_not_taken_for_rows_that_see_each_other() -> None:
    functional = Functional.of(fl.Task(Amplified), 0, torch.device("cpu"), torch.float32)
    job, _ = resolve(Job(functional, fl.fedavg(0.1), DATA[torch.float32], Batching()), "vectorized", None, 4)
    assert job.rows_independent


class Single(nn.Module):
    """It computes in float32, whatever it is given; and in batches of three alone, if it is `choosy`."""

    def __init__(self, choosy: bool) -> None:
        super().__init__()
        self.choosy, self.layer = choosy, nn.Linear(6, 4)
        self.scale = torch.ones(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if self.choosy and len(x) == 4:
            raise RuntimeError("not of four")
        return self.layer(x @ self.scale)


@pytest.mark.parametrize("choosy", [False, True])
def test_a_model_that_keeps_to_a_precision_is_tried_in_its_own(choosy: bool) -> None:
    functional = Functional.of(fl.Task(lambda: Single(choosy)), 0, torch.device("cpu"), torch.float32)
    job, _ = resolve(Job(functional, fl.fedavg(0.1), DATA[torch.float32], Batching()), "vectorized", None, 4)
    assert job.rows_independent == (not choosy)


class Spy(Centred):
    """Notes how many rows it is shown in training."""

    seen: list[int]

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            type(self).seen.append(len(x))
        return super().forward(x)


def test_rows_that_see_each_other_are_never_padded() -> None:
    """Clients of 7 and 25 rows in batches of 10 give batches of 7 and 5 beside those of 10."""
    sizes = {}
    for executor in EXECUTORS:
        Spy.seen = []
        run(Spy, fl.fedavg(0.1), executor, 1, cohort=2, batch_size=10, data=classification([7, 25]), drop_last=False)
        sizes[executor] = sorted(set(Spy.seen) - {1, 2, 3, 4})  # those are the trials before the run
    assert sizes == {"loop": [5, 7, 10], "vectorized": [5, 7, 10]}
    assert_agree(Centred, fl.fedavg(0.1), 2)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("sizes", "culprit"), [([20, 1, 8], 1), ([20, 10, 11], 2)])
def test_batch_norm_on_one_value_names_the_client(executor: str, sizes: list[int], culprit: int) -> None:
    with pytest.raises(fl.FedloomError, match=rf"client {culprit}, round 0: batch norm .* drop_last=True"):
        data = classification(sizes)
        run(BatchNormed, fl.fedavg(0.1), executor, 1, cohort=3, batch_size=10, data=data, drop_last=False)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("algorithm", [fl.fedavg(0.1), fl.scaffold(0.1), fl.fedsgd(0.1), fl.fednova(0.1)])
def test_a_client_without_a_whole_batch_is_not_asked(executor: str, algorithm: Algorithm) -> None:
    data = classification([20, 9, 31])
    history = run(BatchNormed, algorithm, executor, 2, cohort=3, batch_size=10, data=data, drop_last=True)
    assert [(record["asked"], record["admitted"]) for record in history.rounds] == [(2, 2)] * 2
    assert all(torch.isfinite(leaf).all() for leaf in history.params.values())
    assert all(record["train_loss"] > 0 for record in history.rounds)


def test_nothing_but_short_clients_is_a_mistake() -> None:
    with pytest.raises(
        fl.FedloomError, match="drop_last: expected a client with a whole batch of 20, the largest has 9"
    ):
        run(Dense, fl.fedavg(0.1), "loop", 2, cohort=2, data=classification([3, 9]), drop_last=True)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5)
        self.last = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x.unsqueeze(0))[0][0])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_forward_that_changes_what_no_client_has_for_its_own_is_a_mistake(executor: str) -> None:
    class Counts(nn.Module):
        def __init__(self, persistent: bool) -> None:
            super().__init__()
            self.last = nn.Linear(6, 4)
            self.register_buffer("seen", torch.zeros(()), persistent=persistent)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.seen += 0.1
            return self.last(x) * (1 + self.seen)

    for precision in ("high", "bfloat16"):
        with pytest.raises(FedloomError, match=r"seen: expected what does not train to stay.* persistent=True"):
            run(lambda: Counts(False), fl.fedavg(0.1), executor, 1, precision=precision, dtype=torch.float32)
    assert_agree(lambda: Counts(True), fl.fedavg(0.1))


def test_what_a_forward_changes_once_is_no_mistake() -> None:
    class Settles(nn.Module):
        """Frozen vectors that are cut to a length, and a number that is computed when it is first needed."""

        def __init__(self) -> None:
            super().__init__()
            vectors = noise(7, 3, dtype=torch.float32)
            self.embed = nn.Embedding.from_pretrained(vectors, freeze=True, max_norm=1.0)
            self.last = nn.Linear(18, 4)
            self.register_buffer("slope", torch.zeros(0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            if not self.slope.numel():
                self.slope.resize_(4).fill_(0.5)
            return self.last(self.embed((x.abs() * 3).long().clamp(max=6)).flatten(1)) * self.slope

    history = run(Settles, fl.fedavg(0.1), "loop", 1)
    assert history.rounds[0]["admitted"] == 4


@pytest.mark.parametrize("chunk", [2, 5])
def test_what_a_memory_passes_on_is_kept_as_it_was(chunk: int) -> None:
    """The parameters that a client ends with lie where the next clients train."""

    def remember(shared: Params, row: Params, trace: Trace) -> tuple[Params, Extra]:
        return trace.final, {"ends": trace.final}

    def settle(shared: Params, sums: Mapping[str, Params], population: int) -> Params:
        return {name: shared[name] + leaf / population for name, leaf in sums["ends"].items()}

    memory = Memory("ends", remember, settle, ("ends",))
    pull = stateless("pull", lambda g, params, info: tree.map(torch.add, tree.map(torch.add, g, info.shared), info.row))
    algorithm = fl.replace(fl.fedavg(0.1), memory=memory, client=fl.chain(pull, fl.fedavg(0.1).client), name="ends")
    assert_agree(Dense, algorithm, rounds=3, chunks=[chunk], cohort=5, compile=False)


def test_what_torch_can_stack_is_stacked() -> None:
    assert_agree(Recurrent, fl.fedavg(0.1), 2)


class Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum().item() > 0 else -x)


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * torch.randn(x.shape, dtype=x.dtype) if self.training else x)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: Branching(6, 4), ".*item"),
        (lambda: Noisy(6, 4), "its forward draws random numbers other than dropout's"),
        (lambda: nn.Sequential(nn.FeatureAlphaDropout(0.5), nn.Linear(6, 4)), "its forward draws random numbers"),
    ],
    ids=["item", "randn", "feature-dropout"],
)
def test_what_cannot_be_stacked_falls_to_the_loop(model: Callable[[], nn.Module], reason: str) -> None:
    with pytest.warns(UserWarning, match=r"executor='vectorized': \w+ cannot be stacked: .*; running the loop"):
        asked = run(model, fl.fedavg(0.1), "vectorized", 2, dtype=torch.float32)
    automatic, loop = (run(model, fl.fedavg(0.1), executor, 2, dtype=torch.float32) for executor in ("auto", "loop"))
    for history in (asked, automatic):
        assert history.resolved["executor"] == "loop"
        why = history.resolved["why"]
        assert re.match(rf"\w+ cannot be stacked: {reason}", why)
        assert len(why) < 160 and "\n" not in why and ". " not in why  # one sentence
        assert distance(loop, history) == 0  # randomness of the model's own is a function of the seed too


def test_auto_follows_a_rule_and_says_which() -> None:
    dense, conv = (run(model, fl.fedavg(0.1), "auto", 1) for model in (Dense, Conv))
    single = run(Dense, fl.fedavg(0.1), "auto", 1, cohort=1)
    assert (dense.resolved["executor"], conv.resolved["executor"], single.resolved["executor"]) == (
        "vectorized",
        "loop",
        "loop",
    )
    assert "Conv2d" in conv.resolved["why"] and "cohort of one" in single.resolved["why"]
    assert dense.resolved["why"].startswith("on a CPU")
    assert run(Dense, fl.fedavg(0.1), "loop", 1).resolved["why"] == "asked for"
    assert distance(dense, run(Dense, fl.fedavg(0.1), "vectorized", 1)) == 0


def test_an_unknown_executor_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(fl.FedloomError, match=r"executor: expected one of .* did you mean 'vectorized'"):
        run(Dense, fl.fedavg(0.1), "vectorised", 1)
    with pytest.raises(fl.FedloomError, match="chunk: expected at least 1 client, got 0"):
        fl.simulate(linear(), DATA[torch.float64], fl.fedavg(0.1), 1, 2, chunk=0)


def test_a_short_run_of_a_stack_does_without_torchs_compiler() -> None:
    """Whose import takes longer than all else that a run begins with."""
    code = """
import sys, torch, fedloom as fl
data = fl.federate(torch.randn(40, 6), torch.arange(40) % 4, [range(0, 20), range(20, 40)])
history = fl.simulate(fl.Task(lambda: torch.nn.Linear(6, 4)), data, fl.fedavg(0.1), rounds=2, cohort=2)
words = fl.federate(torch.arange(240).reshape(40, 6) % 9, torch.arange(40) % 4, [range(0, 20), range(20, 40)])
nn = torch.nn
task = fl.Task(lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 4)))
fl.simulate(task, words, fl.fedavg(0.1), rounds=1, cohort=2)
print(history.resolved["executor"], *sorted({"torch._dynamo", "sympy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["vectorized"]


@pytest.mark.parametrize(("width", "clients", "expected"), [(4, 3, (1, 1)), (100, 300, (2, 1)), (30_000, 3, (2, 2))])
def test_operations_have_as_many_threads_as_what_they_work_on_is_worth(
    width: int, clients: int, expected: tuple[int, int]
) -> None:
    """In training a stack, and aside a model: of half a MiB each. Whoever shares an operation waits for the others."""
    seen: dict[bool, int] = {}

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen[torch.is_grad_enabled()] = torch.get_num_threads()
        return fl.cross_entropy(output, target)

    test = torch.zeros(2, width), torch.zeros(2).long()
    data = fl.federate(torch.zeros(clients, width), torch.zeros(clients).long(), split([1] * clients), test=test)
    task = fl.Task(lambda: nn.Linear(width, 10), loss)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fl.simulate(task, data, fl.fedavg(0.1), 1, clients, executor="vectorized", chunk=clients)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert (seen[True], seen[False]) == expected
