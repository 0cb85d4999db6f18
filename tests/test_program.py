"""A stack's step as a program agrees with the loop; what cannot be one runs operation by operation, and says so."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_federations import classification, distance
from test_executors import ALGORITHMS, BatchNormed, Conv, Dense, Recurrent, Words
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import fedloom as fl
from fedloom.algorithm import Algorithm
from fedloom.errors import OutOfMemory
from fedloom.executors import crew, program
from fedloom.executors.program import Programs
from fedloom.simulation import History
from fedloom.transforms.base import stateless
from fedloom.transforms.optimizers import scale
from fedloom.types import Info, Params

UNEQUAL = classification([20, 10, 31, 20, 5, 14])


def run(model: Callable[[], nn.Module], algorithm: Algorithm, rounds: int = 2, **options: Any) -> History:
    given = {"cohort": 4, "batch_size": 8, "data": UNEQUAL, "executor": "vectorized", "dtype": torch.float64} | options
    return fl.simulate(fl.Task(model), given.pop("data"), algorithm, rounds=rounds, **given)


@pytest.mark.parametrize("model", [Dense, Words, BatchNormed, Conv, Recurrent])
def test_a_program_agrees_with_the_loop(model: Callable[[], nn.Module]) -> None:
    program = run(model, fl.fedavg(0.1), compile=False)
    assert program.resolved["program"] == "captured" and program.resolved["programs"] >= 1
    assert distance(run(model, fl.fedavg(0.1), executor="loop"), program) <= 1e-12


def plain() -> nn.Module:
    """Without dropout, whose masks are most of what is traced of a small model."""
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_runs_as_a_program(name: str) -> None:
    algorithm = ALGORITHMS[name](client_optimizer="adam")
    assert distance(run(plain, algorithm, executor="loop"), run(plain, algorithm, compile=False)) <= 1e-12


@pytest.mark.parametrize(
    "rate", [fl.schedule.geometric(0.1, 0.5), fl.schedule.within_round(0.1, 0.5), fl.schedule.warmup(0.2, 3)]
)
def test_a_rate_is_an_input_of_the_program(rate: fl.schedule.Schedule) -> None:
    """It changes from round to round and from step to step, and the program is made once."""
    options: dict[str, Any] = {"data": classification([16] * 6)}
    program = run(plain, fl.fedavg(rate), rounds=3, compile=False, **options)
    assert program.resolved["programs"] == 1
    assert distance(run(plain, fl.fedavg(rate), rounds=3, executor="loop", **options), program) <= 1e-12


def test_whole_batches_need_no_mask_and_cohorts_of_other_sizes_few_programs() -> None:
    sizes = iter([4, 4, 5, 4, 5, 5, 4])
    cohort = [next(sizes) for _ in range(7)]
    history = run(plain, fl.fedavg(0.1), 7, cohort=lambda t: cohort[t], chunk=8, compile=False)
    assert history.resolved["programs"] == 2
    padded = run(plain, fl.fedavg(0.1), 7, cohort=lambda t: 9 - cohort[t], chunk=8, compile=False)
    assert padded.resolved["programs"] == 1  # four clients fit in the program for five


def test_a_transform_that_reads_the_round_cannot_be_a_program() -> None:
    """Its value would stay that of the first round; instead the step runs as it is, and that is said."""

    def fade(g: Params, params: Params, info: Info) -> Params:
        return {name: leaf / (1 + info.round) for name, leaf in g.items()}

    algorithm = fl.replace(fl.fedavg(0.1), client=fl.chain(stateless("fade()", fade), scale(0.1)))
    with pytest.warns(UserWarning, match="reads the number of the round.*operation by operation"):
        history = run(Dense, algorithm, compile=False)
    assert history.resolved["program"].startswith("none: Untraceable")
    assert distance(run(Dense, algorithm, executor="loop"), history) <= 1e-12


class Looking(nn.Linear):
    """Its Python depends on values: a stack of clients has no one answer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if self.weight.dim() == 2 else 2.0)


def test_programs_are_kept_by_shape() -> None:
    programs = Programs(compiled=False)
    assert programs.made == {} and not programs.given_up
    history = run(lambda: Looking(6, 4), fl.fedavg(0.1), compile=False)
    assert distance(run(lambda: Looking(6, 4), fl.fedavg(0.1), executor="loop"), history) <= 1e-12


def test_a_program_may_be_tried_more_often_than_its_plan_has_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is captured on a GPU, where it runs three times before the first round."""

    class Tried(program.Program):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.take(3)

    once = {"epochs": 1, "batch_size": None}
    monkeypatch.setattr(program, "Program", Tried)
    tried = run(Dense, fl.fedavg(0.1), compile=False, **once)
    assert tried.resolved["program"] == "captured"
    assert distance(run(Dense, fl.fedavg(0.1), executor="loop", **once), tried) <= 1e-12


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in its compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, such as g++")
@pytest.mark.parametrize("model", [Dense, Conv])
def test_a_compiled_program_agrees_too(model: Callable[[], nn.Module]) -> None:
    program = run(model, fl.fedavg(0.1, client_momentum=0.9), compile=True)
    assert program.resolved["program"] == "compiled"
    assert distance(run(model, fl.fedavg(0.1, client_momentum=0.9), executor="loop"), program) <= 1e-10


def test_memory_running_out_halves_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients at a time fit, more do not: the run goes on, says so once, and tells that it cannot be repeated."""
    from fedloom.executors import vectorized

    honest = vectorized.train

    def small(job: Any, parts: Any, run: Any) -> Any:
        if sum(len(part.clients) for part in parts) > 3:
            raise torch.OutOfMemoryError("out of memory")
        return honest(job, parts, run)

    free = run(Dense, fl.fedavg(0.1), cohort=6)
    monkeypatch.setattr(vectorized, "train", small)
    with pytest.warns(UserWarning, match="from here on 3 clients train at a time") as warned:
        short = run(Dense, fl.fedavg(0.1), cohort=6)
    assert len(warned) == 1
    assert short.resolved["chunk"] == 3 and short.resolved["repeatable"] is False
    assert distance(free, short) <= 1e-12
    monkeypatch.setattr(vectorized, "train", lambda *given: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
    with pytest.warns(UserWarning), pytest.raises(fl.FedloomError, match="a single client does not fit"):
        run(Dense, fl.fedavg(0.1), cohort=2)


def test_memory_running_out_at_the_server_halves_the_stack_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two stacked runs finds no memory to add its clients up: it alone does its round again."""
    from fedloom.algorithm import Intake

    honest, closed = Intake.close, []

    def full(intake: Any, also: Any = None) -> Any:
        closed.append(None)
        if len(closed) == 4:
            raise torch.OutOfMemoryError("out of memory")
        return honest(intake, also)

    def both() -> list[History]:
        task, trials = fl.Task(Dense), [{"algorithm": fl.scaffold(0.1), "seed": seed} for seed in (0, 1)]
        options: dict[str, Any] = {"rounds": 3, "cohort": 4, "batch_size": 8, "dtype": torch.float64}
        return fl.simulate_trials(task, UNEQUAL, trials, executor="vectorized", **options)

    free = both()
    monkeypatch.setattr(Intake, "close", full)
    with pytest.warns(UserWarning, match="from here on 4 clients train at a time"):
        short = both()
    assert len(closed) == 7 and all(run.resolved["repeatable"] is False for run in short)
    assert max(distance(*pair) for pair in zip(free, short, strict=True)) <= 1e-12
    monkeypatch.setattr(Intake, "close", lambda *given: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
    with pytest.warns(UserWarning), pytest.raises(fl.FedloomError, match="round 0: the servers' part does not fit"):
        both()


def test_memory_running_out_at_the_server_halves_what_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the chunk that was asked for, of which a cohort of four is a part: nothing would become smaller at first."""
    from fedloom.algorithm import Intake

    honest, closed = Intake.close, []

    def full(intake: Any, also: Any = None) -> Any:
        closed.append(None)
        if len(closed) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return honest(intake, also)

    monkeypatch.setattr(Intake, "close", full)
    with pytest.warns(UserWarning, match="from here on 2 clients train at a time"):
        run(Dense, fl.fedavg(0.1), chunk=1024)
    assert len(closed) == 3


def test_the_loop_has_nothing_to_halve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not fit is told as one; and a server's part, with what could be smaller."""
    from fedloom.algorithm import Intake
    from fedloom.executors import loop

    def full(*given: Any) -> Any:
        raise torch.OutOfMemoryError("no")

    with monkeypatch.context() as patched:
        patched.setattr(loop, "train", full)
        with pytest.raises(OutOfMemory, match="a single client does not fit the device's memory: no; pass a smaller b"):
            run(Dense, fl.fedavg(0.1), executor="loop")
    monkeypatch.setattr(Intake, "close", full)
    with pytest.raises(OutOfMemory, match=r"round 0: the servers' part .*: no; pass a smaller cohort") as told:
        run(Dense, fl.fedavg(0.1), executor="loop")
    assert isinstance(told.value.__cause__, torch.OutOfMemoryError)


def test_bfloat16_is_for_the_forward_alone() -> None:
    exact, half = (run(Dense, fl.fedavg(0.1), precision=p, dtype=torch.float32) for p in ("highest", "bfloat16"))
    assert all(leaf.dtype == torch.float32 for leaf in half.params.values())
    assert 1e-6 < distance(exact, half) < 1e-2
    with pytest.raises(fl.FedloomError, match="precision"):
        run(Dense, fl.fedavg(0.1), precision="half")


@pytest.mark.parametrize("executor", ["loop", "vectorized"])
def test_batch_norm_in_bfloat16(executor: str) -> None:
    """torch norms bfloat16 by parameters and statistics in float32 alone."""
    how: dict[str, Any] = {"executor": executor, "dtype": torch.float32}
    exact, half = (run(BatchNormed, fl.fedavg(0.1), precision=p, **how) for p in ("highest", "bfloat16"))
    assert half.resolved["executor"] == executor
    assert all(leaf.dtype == torch.float32 for leaf in [*half.params.values(), half.buffers["norm.running_var"]])
    assert 1e-6 < distance(exact, half) < 1e-2


class Kept(nn.Module):
    """Beside what trains it has a frozen layer, a number that is not saved, and a norm that follows no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.norm, self.last = nn.Linear(6, 5).requires_grad_(False), nn.BatchNorm1d(5), nn.Linear(5, 4)
        self.register_buffer("shift", torch.full((5,), 0.3), persistent=False)
        self.register_buffer("order", torch.tensor([4, 2, 0, 1, 3]), persistent=False)

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.frozen(x)) + self.shift)[:, self.order])


class Root(nn.BatchNorm1d):
    """A model that is itself a batch norm: its leaves have no module's name before theirs."""

    def __init__(self) -> None:
        super().__init__(6)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(super().forward(x))


@pytest.mark.parametrize("executor", ["loop", "vectorized"])
@pytest.mark.parametrize("model", [Kept, Root])
def test_what_does_not_train_is_in_bfloat16_too(model: Callable[[], nn.Module], executor: str) -> None:
    how: dict[str, Any] = {"executor": executor, "dtype": torch.float32, "drop_last": True, "rounds": 2}
    exact, half = (run(model, fl.fedavg(0.1), precision=p, **how) for p in ("highest", "bfloat16"))
    assert half.resolved["executor"] == executor
    assert 1e-6 < distance(exact, half) < 1e-2
    if executor == "vectorized":
        program = run(model, fl.fedavg(0.1), precision="bfloat16", compile=False, **how)
        assert program.resolved["program"] == "captured" and 1e-6 < distance(exact, program) < 1e-2


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)
        self.register_buffer("shift", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.shift)


class ShiftedWords(Shifted):
    """Torch calls another precision a ValueError in a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells((x + self.shift).unsqueeze(1))[0].squeeze(1))


@pytest.mark.parametrize("executor", ["loop", "vectorized", "auto"])
@pytest.mark.parametrize("model", [Shifted, ShiftedWords])
def test_a_model_that_cannot_compute_in_bfloat16_is_told(model: Callable[[], nn.Module], executor: str) -> None:
    """What it keeps as state stays in float32."""
    told = rf"{model.__name__} and its loss failed in bfloat16 on .*: pass precision='high'"
    with pytest.raises(fl.FedloomError, match=told):
        run(model, fl.fedavg(0.1), precision="bfloat16", dtype=torch.float32, executor=executor)


def test_a_mistake_in_any_precision_is_not_blamed_on_one() -> None:
    with pytest.raises(fl.FedloomError, match=r"its loss failed on examples of .* shapes cannot be multiplied"):
        run(lambda: nn.Linear(7, 4), fl.fedavg(0.1), precision="bfloat16", dtype=torch.float32)


def test_updates_in_place_leave_the_bits_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    momentum = fl.fedavg(0.1, client_optimizer="momentum")
    cases = [(Dense, fl.fedavg(0.1)), (plain, momentum), (plain, fl.fedprox(0.1, mu=0.5)), (plain, fl.scaffold(0.1))]
    fewer = [run(*case, compile=False) for case in cases]
    found = []

    def keep(traced: torch.fx.GraphModule) -> torch.fx.GraphModule:
        found.append(traced)
        return traced

    monkeypatch.setattr(program, "in_place", keep)
    for case, history in zip(cases, fewer, strict=True):
        pure = run(*case, compile=False)
        assert all(torch.equal(leaf, history.params[name]) for name, leaf in pure.params.items())
    assert len(found) == len(cases)


def test_a_plain_step_is_in_place() -> None:
    def step(w: Tensor, x: Tensor, rate: Tensor) -> None:
        w.copy_(w - torch.bmm(x, w).transpose(1, 2).transpose(1, 2) * rate)

    given = [torch.rand(2, 3, 3), torch.rand(2, 3, 3), torch.rand(2, 1, 1)]
    expected = given[0] - torch.bmm(given[1], given[0]) * given[2]
    traced = program.in_place(make_fx(step, tracing_mode="fake")(*given))
    called = {node.target for node in traced.graph.nodes}
    assert {torch.ops.aten.sub_.Tensor, torch.ops.aten.mul_.Tensor} <= called
    traced(*given)
    assert torch.equal(given[0], expected)


def test_threads_that_share_a_stack_train_what_one_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """With shares of unequal size, and clients that finish one after the other."""
    with crew.operations_on(2):
        alone = run(Dense, fl.fedavg(0.1), compile=False, cohort=5)
        monkeypatch.setattr(crew, "SHARE", 2**6)
        first, second = (run(Dense, fl.fedavg(0.1), compile=False, cohort=5) for _ in range(2))
        assert torch.get_num_threads() == 2
    assert [history.resolved["workers"] for history in (alone, first)] == [1, 2]
    assert first.resolved["program"] == "captured"
    assert all(torch.equal(leaf, second.params[name]) for name, leaf in first.params.items())
    assert distance(alone, first) <= 1e-12


def test_what_a_member_of_a_crew_raises_is_raised_and_ends_the_others() -> None:
    steps = []

    def fails() -> None:
        raise ValueError("a step")

    with pytest.raises(ValueError, match="a step"):
        crew.Crew(2, threads=2).repeat([fails, lambda: steps.append(time.sleep(0.01))], 10_000)
    assert len(steps) < 10_000
