"""Laws that need clients (specification, section 16), and what clients keep while they are away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_federations import (
    EXECUTORS,
    POINT,
    always,
    classification,
    digest,
    distance,
    flat,
    linear,
    noise,
    quadratics,
    split,
)
from torch import Tensor, nn

import fedloom as fl
from fedloom import checkpoint
from fedloom.simulation import History

DATA = classification([4, 9, 17, 6, 11])
BOTH = pytest.mark.parametrize("executor", EXECUTORS)


def play(algorithm: fl.Algorithm, **options: Any) -> History:
    settings: dict[str, Any] = {"rounds": 3, "cohort": 3, "batch_size": 5, "dtype": torch.float64, "seed": 2} | options
    task = settings.pop("task", None) or linear()
    return fl.simulate(task, settings.pop("data", DATA), algorithm, **settings)


def saved(folder: Path, rounds: int) -> Any:
    return checkpoint.load(folder / "checkpoints" / f"round-{rounds:06d}")


@BOTH
def test_fedprox_without_its_term_is_fedavg(executor: str) -> None:
    options: dict[str, Any] = {"executor": executor, "epochs": 2}
    reference = play(fl.fedavg(0.1), **options)
    assert digest(play(fl.fedprox(0.1, mu=0.0), **options).params) == digest(reference.params)
    assert distance(reference, play(fl.fedprox(0.1, mu=0.5), **options)) > 1e-4


@BOTH
@pytest.mark.parametrize("variant", ["heavyball", "nesterov", "ema"])
def test_fedavgm_without_momentum_is_fedavg(executor: str, variant: str) -> None:
    plain = play(fl.fedavg(0.1, 0.7), executor=executor)
    assert digest(play(fl.fedavgm(0.1, 0.7, momentum=0.0, variant=variant), executor=executor).params) == digest(
        plain.params
    )
    assert distance(plain, play(fl.fedavgm(0.1, 0.7, momentum=0.5, variant=variant), executor=executor)) > 1e-4


@BOTH
def test_fednova_with_equal_steps_is_fedavg(executor: str) -> None:
    """Equal steps for clients of unequal sizes; with epochs the steps differ, and so do the models."""
    for options, equal in (({"steps": 4}, True), ({"epochs": 2}, False)):
        one, other = (play(make(0.1), executor=executor, **options) for make in (fl.fedavg, fl.fednova))
        assert (distance(one, other) <= 1e-12) == equal


@BOTH
@pytest.mark.parametrize("batch_size", [None, 4])
def test_fedsgd_is_fedavg_with_one_whole_step_of_rate_one(executor: str, batch_size: int | None) -> None:
    whole = play(fl.fedavg(1.0, 0.3), executor=executor, batch_size=None, steps=1)
    assert distance(whole, play(fl.fedsgd(0.3), executor=executor, batch_size=batch_size, epochs=3)) <= 1e-12


@BOTH
@pytest.mark.parametrize("option", ["I", "II", "gradmean"])
def test_scaffold_with_identical_clients_is_fedavg(executor: str, option: str, tmp_path: Path) -> None:
    """With all clients in every cohort c = c_k, so that the correction vanishes."""
    x, y = noise(6, 6).repeat(3, 1), (torch.arange(6) % 4).repeat(3)
    data = fl.federate(x, y, split([6, 6, 6]))
    options: dict[str, Any] = {"data": data, "executor": executor, "batch_size": None, "steps": 2}
    history = play(fl.scaffold(0.1, option=option), run_dir=tmp_path, **options)
    assert distance(play(fl.fedavg(0.1, weighting=fl.uniform()), **options), history) <= 1e-12
    assert history.state is not None
    assert all(float(leaf.norm()) > 0.01 for leaf in history.state.memory.values())
    for row in saved(tmp_path, 3)["rows"].values():
        for name, leaf in row.items():
            torch.testing.assert_close(leaf, history.state.memory[name], rtol=1e-12, atol=1e-14)


def test_a_torch_optimizer_serves_end_to_end() -> None:
    """torch's SGD with momentum is the server of FedAvgM."""
    ours = play(fl.fedavgm(0.1, 0.5, momentum=0.9), rounds=4)
    base = fl.fedavg(0.1)
    torchs = play(fl.replace(base, server=fl.from_torch(torch.optim.SGD, lr=0.5, momentum=0.9)), rounds=4)
    assert distance(ours, torchs) <= 1e-12
    adam = play(fl.replace(base, server=fl.from_torch(torch.optim.Adam, lr=0.05, eps=1e-3)), rounds=4)
    assert distance(play(fl.fedadam(0.1, 0.05, beta2=0.999, bias_correction="torch"), rounds=4), adam) <= 1e-12


@BOTH
def test_controls_survive_absence(executor: str, tmp_path: Path) -> None:
    """Client 0 takes part in rounds 0 and 2; what it learnt in round 0 is what it corrects with in round 2."""
    data = quadratics([[1.0, 0.0], [-1.0, 2.0]], [3, 3])
    options: dict[str, Any] = {"data": data, "task": POINT, "cohort": 1, "batch_size": None, "executor": executor}

    def run(rounds: int) -> tuple[History, Any]:
        folder = tmp_path / str(rounds)
        sampler = always([0], [1], [0])
        history = play(fl.scaffold(0.5), rounds=rounds, sampler=sampler, run_dir=folder, **options)
        return history, saved(folder, rounds)["rows"]

    (first, after_first), (second, after_second), (third, _) = run(1), run(2), run(3)
    assert list(after_first) == ["0"] and list(after_second) == ["0", "1"]
    assert torch.equal(after_first["0"]["y"], after_second["0"]["y"])
    assert first.state is not None and second.state is not None
    x, centre = second.params["y"], torch.tensor([1.0, 0.0], dtype=torch.float64)
    step = x - centre + second.state.memory["y"] - after_second["0"]["y"]
    torch.testing.assert_close(third.params["y"], x - 0.5 * step)
    torch.testing.assert_close(first.state.memory["y"], after_first["0"]["y"] / 2)  # c = (1 / N) sum of c_k


@BOTH
def test_duals_survive_absence(executor: str, tmp_path: Path) -> None:
    data = quadratics([[1.0, 0.0], [-1.0, 2.0]], [3, 3])
    options: dict[str, Any] = {"data": data, "task": POINT, "cohort": 1, "batch_size": None, "executor": executor}
    rows = []
    for rounds in (1, 2):
        folder = tmp_path / str(rounds)
        play(fl.feddyn(0.5, alpha=0.5), rounds=rounds, sampler=always([0], [1]), run_dir=folder, **options)
        rows.append(saved(folder, rounds)["rows"])
    assert list(rows[1]) == ["0", "1"] and torch.equal(rows[0]["0"]["y"], rows[1]["0"]["y"])
    assert float(rows[1]["1"]["y"].norm()) > 0


@BOTH
def test_angles_survive_absence(executor: str) -> None:
    states = []
    for rounds in (1, 2, 3):
        sampler = always([0, 1], [1, 2], [0, 2])
        state = play(fl.fedadp(0.1), rounds=rounds, sampler=sampler, executor=executor).state
        assert state is not None
        states.append(state.combine)
    assert [state["count"].tolist() for state in states] == [[1, 1, 0, 0, 0], [1, 2, 1, 0, 0], [2, 2, 2, 0, 0]]
    assert states[0]["angle"][0] == states[1]["angle"][0] != states[2]["angle"][0]


def poisoned(client: int, sizes: list[int]) -> fl.FederatedData:
    """One client's rows hold a NaN."""
    data = classification(sizes)
    assert isinstance(data.x, Tensor) and isinstance(data.y, Tensor)
    x = data.x.clone()
    x[split(sizes)[client][-1]] = torch.nan
    return fl.federate(x, data.y, split(sizes), test=data.test)


@BOTH
@pytest.mark.parametrize("make", [fl.scaffold, lambda rate: fl.feddyn(rate, alpha=0.5)], ids=["scaffold", "feddyn"])
def test_a_client_whose_data_is_not_finite_is_refused_and_the_others_train_on(
    executor: str, make: Callable[[float], fl.Algorithm], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"executor": executor, "data": poisoned(1, [4, 9, 17]), "epochs": 2}
    history = play(make(0.1), run_dir=tmp_path, **options)
    assert [(record["admitted"], record["refused"]) for record in history.rounds] == [(2, 1)] * 3
    assert list(saved(tmp_path, 3)["rows"]) == ["0", "2"]
    clean = play(make(0.1), sampler=always([0, 2]), **options)
    assert distance(clean, history) <= 1e-12
    assert bool(torch.isfinite(flat(history)).all()) and history.rounds[-1]["train_loss"] > 0


def test_one_broken_client_is_no_divergence_however_often_it_comes() -> None:
    """Others are still well, though the sampler may not ask them for a while."""
    options: dict[str, Any] = {"data": poisoned(0, [4, 9, 17]), "cohort": 1}
    history = play(fl.fedavg(0.1), sampler=always([0], [0], [0], [0], [1]), rounds=5, **options)
    assert [record["admitted"] for record in history.rounds] == [0, 0, 0, 0, 1]


@BOTH
def test_a_void_round_does_not_advance_the_rates(executor: str) -> None:
    data = quadratics([[float("nan"), 0.0], [1.0, 0.0], [0.0, 2.0]], [3, 3, 3])
    rates = fl.schedule.Schedule("halving", lambda t: 0.5**t)
    options: dict[str, Any] = {"data": data, "task": POINT, "cohort": 1, "batch_size": None, "executor": executor}
    history = play(fl.fedavg(rates), sampler=always([1], [0], [2]), rounds=3, **options)
    assert [record["admitted"] for record in history.rounds] == [1, 0, 1]
    expected = torch.tensor([0.5, 1.0], dtype=torch.float64)  # a whole step to (1, 0), then half of one to (0, 2)
    torch.testing.assert_close(history.params["y"], expected)


def test_when_no_client_is_left_the_training_has_diverged(tmp_path: Path) -> None:
    data = quadratics([[1.0, 0.0], [-1.0, 2.0], [3.0, 3.0]], [3, 3, 3])
    rates = fl.schedule.Schedule("burst", lambda t: 0.1 if t < 2 else 1e308)
    options: dict[str, Any] = {"data": data, "task": POINT, "cohort": 3, "batch_size": None, "steps": 3}
    with pytest.raises(fl.Diverged, match="round 2, 'y': every client's model became non-finite"):
        play(fl.fedavg(rates), rounds=9, run_dir=tmp_path, **options)
    assert digest(saved(tmp_path, 2)["params"]) == digest(play(fl.fedavg(0.1), rounds=2, **options).params)


@BOTH
def test_a_refused_client_keeps_the_row_it_had(executor: str, tmp_path: Path) -> None:
    """A burst of the client's rate makes its update infinite in round 1."""
    data = quadratics([[1.0, 0.0], [0.0, 0.0]], [3, 3])  # from zero, the second client has nothing to do
    rates = fl.schedule.Schedule("burst", lambda t: 0.1 if t == 0 else 1e308)
    options: dict[str, Any] = {"data": data, "task": POINT, "cohort": 1, "batch_size": None, "steps": 3}
    rows = []
    for rounds in (1, 2):
        folder = tmp_path / f"{rounds}"
        sampler = always([0])
        play(fl.scaffold(rates), rounds=rounds, sampler=sampler, executor=executor, run_dir=folder, **options)
        rows.append(saved(folder, rounds))
    assert rows[1]["state"]["round"] == 1  # round 1 was void
    assert torch.equal(rows[0]["rows"]["0"]["y"], rows[1]["rows"]["0"]["y"])


@BOTH
def test_batch_norm_takes_no_statistics_from_a_refused_client(executor: str) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 4))

    options: dict[str, Any] = {"task": fl.Task(model), "executor": executor, "data": poisoned(0, [8, 20, 15])}
    history, clean = (play(fl.fedavg(0.1), **options, **sampled) for sampled in ({}, {"sampler": always([1, 2])}))
    assert distance(clean, history) <= 1e-12
    assert all(bool(torch.isfinite(leaf).all()) for leaf in history.buffers.values())


def test_the_model_is_the_same_however_the_clients_are_numbered() -> None:
    """With whole batches a client's number decides nothing but its place in the sum."""
    sizes = [4, 9, 17, 6, 11]
    parts = split(sizes)
    assert isinstance(DATA.x, Tensor)
    other = fl.federate(DATA.x, DATA.y, [parts[k] for k in (3, 0, 4, 2, 1)], test=DATA.test)
    options: dict[str, Any] = {"batch_size": None, "steps": 2, "cohort": 5}
    for algorithm in (fl.fedavg(0.1), fl.scaffold(0.1), fl.fedadp(0.1)):
        assert distance(play(algorithm, **options), play(algorithm, data=other, **options)) <= 1e-12
