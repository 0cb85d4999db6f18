"""Any module, unchanged: frozen and tied parameters, buffers of every kind, batches of several tensors, regression."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from small_federations import EXECUTORS, always, classification, digest, distance, noise, split
from torch import Tensor, nn

import fedloom as fl
from fedloom.functional import Functional
from fedloom.simulation import History
from fedloom.types import Params

DATA = classification([7, 50, 21])
BOTH = pytest.mark.parametrize("executor", EXECUTORS)


def name_of(algorithm: fl.Algorithm) -> str:
    return algorithm.name


def play(model: Callable[[], nn.Module], algorithm: fl.Algorithm | None = None, **options: Any) -> History:
    settings: dict[str, Any] = {"rounds": 2, "cohort": 3, "batch_size": 10, "dtype": torch.float64} | options
    task = fl.Task(model, loss=settings.pop("loss", fl.cross_entropy), metrics=settings.pop("metrics", {}))
    return fl.simulate(task, settings.pop("data", DATA), algorithm or fl.fedavg(0.1), **settings)


class HalfFrozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 4)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


@BOTH
@pytest.mark.parametrize("algorithm", [fl.fedavg(0.1), fl.scaffold(0.1), fl.fedprox(0.1, mu=1.0)], ids=name_of)
def test_frozen_parameters_do_not_move_and_do_not_travel(executor: str, algorithm: fl.Algorithm) -> None:
    start, end = (play(HalfFrozen, algorithm, rounds=rounds, executor=executor, seed=4) for rounds in (1, 3))
    assert list(end.params) == ["last.weight", "last.bias"]
    assert list(end.constants) == ["first.weight", "first.bias"]
    assert digest(start.constants) == digest(end.constants)
    assert distance(start, end) > 1e-3
    assert end.state is not None
    assert not end.state.memory or end.state.memory.keys() == end.params.keys()
    loaded = HalfFrozen().double()
    loaded.load_state_dict(end.state_dict())
    assert torch.equal(loaded.first.weight, end.constants["first.weight"])


class Tied(nn.Module):
    """One matrix under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Shared(nn.Module):
    """The same, written as one parameter that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        whole = Tied()
        self.weight, self.bias = whole.first.weight, whole.first.bias
        self.other, self.last = whole.second.bias, whole.last

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.linear(x, self.weight, self.bias)
        return self.last(torch.tanh(nn.functional.linear(torch.tanh(h), self.weight, self.other)))


def test_tied_parameters_are_one_leaf() -> None:
    results = [play(Tied, fl.fedadam(0.1, 0.05), executor=executor) for executor in EXECUTORS]
    assert list(results[0].params) == ["first.weight", "first.bias", "second.bias", "last.weight", "last.bias"]
    assert distance(*results) <= 1e-12
    shared = play(Shared, fl.fedadam(0.1, 0.05), executor="loop")
    torch.testing.assert_close(results[0].params["first.weight"], shared.params["weight"], rtol=1e-12, atol=0)


def test_tied_parameters_load_into_the_module() -> None:
    history = play(Tied)
    loaded = Tied().double()
    loaded.load_state_dict(history.state_dict())
    assert torch.equal(loaded.second.weight, history.params["first.weight"])
    again = play(Tied, params=history.state_dict(), rounds=1)
    assert distance(again, play(Tied, params=history.params, rounds=1)) == 0


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 4)
        self.register_buffer("seen", torch.tensor(3))
        self.register_buffer("scale", torch.full((6,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x * self.scale))))


@BOTH
def test_batch_norms_statistics_are_the_clients_weighted_mean(executor: str) -> None:
    data = classification([8, 50, 25])
    options: dict[str, Any] = {"data": data, "executor": executor, "rounds": 1}
    alone = [play(Normed, sampler=always([client]), **options).buffers for client in range(3)]
    together = play(Normed, **options)
    for name in ("norm.running_mean", "norm.running_var"):
        mean = sum(n * buffers[name] for n, buffers in zip((8, 50, 25), alone, strict=True)) / 83
        torch.testing.assert_close(together.buffers[name], mean, rtol=1e-12, atol=1e-15)
        assert not torch.allclose(together.buffers[name], alone[1][name])
    counters = [int(buffers["norm.num_batches_tracked"]) for buffers in alone]
    assert counters == [1, 5, 3] and int(together.buffers["norm.num_batches_tracked"]) == 5
    assert int(together.buffers["seen"]) == 3


@pytest.mark.parametrize(
    "algorithm",
    [fl.fedavg(0.1, 0.5), fl.fedadam(0.1, 0.01), fl.fedglad(fl.fedavgm(0.1, 3.0)), fl.fedprox(0.1, 0.0, mu=0.0)],
    ids=name_of,
)
def test_buffers_never_pass_through_the_server_optimizer(algorithm: fl.Algorithm) -> None:
    plain, other = (play(Normed, each, rounds=1, data=classification([8, 25, 9])) for each in (None, algorithm))
    assert digest(plain.buffers) == digest(other.buffers)
    assert digest(plain.params) != digest(other.params)


def test_statistics_go_on_from_round_to_round_and_are_used_in_evaluation() -> None:
    data = classification([8, 25, 9])
    first, second = (play(Normed, rounds=rounds, data=data) for rounds in (1, 2))
    assert int(second.buffers["norm.num_batches_tracked"]) == 2 * int(first.buffers["norm.num_batches_tracked"]) == 6
    module = Normed().double().eval()
    module.load_state_dict(second.state_dict())
    x, y = data.test or (None, None)
    assert isinstance(y, Tensor)
    expected = nn.functional.cross_entropy(module(x), y).detach()
    assert second.rounds[-1]["test_loss"] == pytest.approx(float(expected), rel=1e-12)


def test_a_warm_start_may_bring_its_buffers() -> None:
    data = classification([8, 25, 9])
    options: dict[str, Any] = {"data": data, "rounds": 1, "batch_size": None}
    first = play(Normed, **options)
    with_buffers = play(Normed, params={**first.params, **first.buffers}, **options)
    without = play(Normed, params=first.params, **options)
    assert digest(with_buffers.params) == digest(without.params)  # in training only the batch counts
    assert int(with_buffers.buffers["norm.num_batches_tracked"]) == 2
    assert int(without.buffers["norm.num_batches_tracked"]) == 1
    assert digest(play(Normed, params=first.state_dict(), **options).buffers) == digest(with_buffers.buffers)


def test_buffers_that_are_not_saved_stay_and_do_not_travel() -> None:
    history = play(Normed, data=classification([8, 25, 9]))
    assert "scale" not in history.buffers and "scale" not in history.params
    loaded = Normed().double()
    loaded.load_state_dict(history.state_dict())  # strict: no name too many, none missing
    assert torch.equal(loaded.scale, torch.full((6,), 2.0, dtype=torch.float64))


def test_the_models_first_parameters_follow_the_seed_alone() -> None:
    task = fl.Task(model=lambda: nn.Linear(6, 4))
    device = torch.device("cpu")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = Functional.of(task, 0, device)
        torch.manual_seed(2)
        assert digest(first.params) == digest(Functional.of(task, 0, device).params)
    assert digest(first.params) != digest(Functional.of(task, 1, device).params)


class Slow(nn.Module):
    """Lets other threads in between its draws."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 5)
        time.sleep(0.01)
        self.two = nn.Linear(5, 4)


def test_threads_that_build_models_do_not_draw_from_each_others_seeds() -> None:
    task, device = fl.Task(Slow), torch.device("cpu")
    alone = [digest(Functional.of(task, seed, device).params) for seed in range(8)]
    before = torch.get_rng_state()
    with ThreadPoolExecutor(8) as threads:
        together = threads.map(lambda seed: digest(Functional.of(task, seed, device).params), range(8))
        assert list(together) == alone
    assert torch.equal(torch.get_rng_state(), before)


class Two(nn.Linear):
    """Takes its features in two parts, by place or by name."""

    def __init__(self) -> None:
        super().__init__(6, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return super().forward(torch.cat([left, right], 1))


@BOTH
@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_batches_of_several_tensors(executor: str, kind: str) -> None:
    sizes = [3, 14, 8]
    x, y = noise(25, 6), torch.arange(25) % 4
    reference = play(lambda: nn.Linear(6, 4), data=fl.federate(x, y, split(sizes), test=(x, y)), executor=executor)
    parts: Any = (x[:, :2], x[:, 2:]) if kind == "tuple" else {"right": x[:, 2:], "left": x[:, :2]}
    targets = (y, torch.ones(25, dtype=torch.float64)) if kind == "tuple" else {"label": y}

    def loss(output: Tensor, target: Any) -> Tensor:
        return fl.cross_entropy(output, target[0 if kind == "tuple" else "label"])

    data = fl.federate(parts, targets, split(sizes), test=(parts, targets))
    history = play(Two, data=data, loss=loss, executor=executor)
    assert digest(history.params) == digest(reference.params)
    assert history.rounds[-1]["test_loss"] == reference.rounds[-1]["test_loss"]


@BOTH
def test_regression_takes_the_exact_gradient_of_the_squared_error(executor: str) -> None:
    sizes = [3, 14, 8]
    x, y = noise(25, 6), noise(25, 2, seed=1)
    data = fl.federate(x, y, split(sizes), test=(x, y))
    start = {"weight": noise(2, 6, seed=2), "bias": noise(2, seed=3)}
    options: dict[str, Any] = {"data": data, "loss": fl.squared_error, "executor": executor, "params": start}
    history = play(lambda: nn.Linear(6, 2), fl.fedsgd(0.5), rounds=1, **options)
    errors = x @ start["weight"].T + start["bias"] - y
    torch.testing.assert_close(history.params["weight"], start["weight"] - 0.5 * errors.T @ x / 25)
    torch.testing.assert_close(history.params["bias"], start["bias"] - 0.5 * errors.mean(0))
    assert history.rounds[0]["train_loss"] == pytest.approx(float((errors**2).mean()))


def test_regression_on_targets_of_another_shape_is_an_error() -> None:
    """Broadcasting (n, 1) against (n,) would compare every output with every target."""
    x = noise(9, 6)
    data = fl.federate(x, x[:, 0].clone(), split([4, 5]))
    with pytest.raises(fl.FedloomError, match="squared_error: expected"):
        play(lambda: nn.Linear(6, 1), data=data, loss=fl.squared_error, cohort=2)


def decay(params: Params) -> Tensor:
    return 0.05 * (params["weight"] ** 2).sum() + 0.05 * (params["bias"] ** 2).sum()


@BOTH
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_penalty_is_part_of_every_gradient_and_of_no_loss(executor: str, optimizer: str) -> None:
    """Half a square times 0.1 is weight decay of 0.1; clients with fewer steps do not go on shrinking."""
    options: dict[str, Any] = {"executor": executor, "epochs": 2}
    model = fl.Task(lambda: nn.Linear(6, 4), penalty=decay)
    settings: dict[str, Any] = {"rounds": 2, "cohort": 3, "batch_size": 10, "dtype": torch.float64} | options
    penalised = fl.simulate(model, DATA, fl.fedavg(0.1, client_optimizer=optimizer), **settings)
    algorithm = fl.fedavg(0.1, client_optimizer=optimizer, client_weight_decay=0.1)
    decayed = play(lambda: nn.Linear(6, 4), algorithm, **options)
    assert distance(decayed, penalised) <= 1e-12
    assert (
        distance(play(lambda: nn.Linear(6, 4), fl.fedavg(0.1, client_optimizer=optimizer), **options), decayed) > 1e-4
    )
    for name in ("train_loss", "test_loss"):
        assert penalised.rounds[0][name] == pytest.approx(decayed.rounds[0][name], rel=1e-12)


@BOTH
def test_a_penalty_is_part_of_the_whole_gradient_once(executor: str) -> None:
    start = {"weight": noise(4, 6, seed=2), "bias": noise(4, seed=3)}
    settings: dict[str, Any] = {"rounds": 1, "cohort": 3, "batch_size": 10, "dtype": torch.float64, "params": start}
    plain, penalised = (
        fl.simulate(
            fl.Task(lambda: nn.Linear(6, 4), penalty=penalty), DATA, fl.fedsgd(0.5), executor=executor, **settings
        )
        for penalty in (None, decay)
    )
    for name, leaf in plain.params.items():
        torch.testing.assert_close(penalised.params[name], leaf - 0.5 * 0.1 * start[name])


def test_a_parameter_that_is_not_used_stays() -> None:
    class Spare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 4)
            self.spare = nn.Parameter(torch.ones(2))

    for executor in EXECUTORS:
        history = play(Spare, executor=executor)
        assert torch.equal(history.params["spare"], torch.ones(2, dtype=torch.float64))


def test_sequences_average_over_their_positions() -> None:
    """Targets of shape (rows, positions): one value per example is the mean over its positions."""
    x, y = torch.arange(36).reshape(12, 3) % 5, torch.arange(36).reshape(12, 3) ** 2 % 5

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.embed(x).transpose(1, 2)

    data = fl.federate(x, y, split([2, 10]), test=(x, y))
    options: dict[str, Any] = {"data": data, "cohort": 2, "metrics": {"accuracy": fl.accuracy}}
    loop, stack = (play(Tagger, executor=executor, **options) for executor in EXECUTORS)
    assert distance(loop, stack) <= 1e-12
    scores = loop.params["embed.weight"][x]
    assert loop.rounds[-1]["test_accuracy"] == pytest.approx(float((scores.argmax(2) == y).double().mean()))
