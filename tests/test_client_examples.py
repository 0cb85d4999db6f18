"""The worked examples of the specification that need clients (sections 1 and 3), end to end on fixture B.

f_k(y) = 0.5 ||y - c_k||^2, c_1 = (1, 0), c_2 = (-1, 2), x^0 = (0, 0), n = (30, 10); clients take two full-batch steps
of 0.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from small_federations import EXECUTORS, POINT, always, quadratics
from torch import Tensor

import fedloom as fl
from fedloom import checkpoint
from fedloom.algorithm import Algorithm
from fedloom.simulation import History

Pair = tuple[float, float]

CENTRES = [[1.0, 0.0], [-1.0, 2.0]]
SIZES = [30, 10]
FIXTURE_B = quadratics(CENTRES, SIZES)


def play(algorithm: Algorithm, executor: str, rounds: int, **options: Any) -> History:
    settings: dict[str, Any] = {"steps": 2, "batch_size": None, "cohort": 2, **options}
    return fl.simulate(POINT, FIXTURE_B, algorithm, rounds, executor=executor, dtype=torch.float64, **settings)


def local_model(algorithm: Algorithm, executor: str, client: int, start: Tensor) -> Tensor:
    """y_k: what one round that only this client takes part in makes of `start`."""
    return play(algorithm, executor, 1, params={"y": start}, sampler=always([client])).params["y"]


def close(got: Tensor, expected: Any) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-15)


def point(*coordinates: float) -> Tensor:
    return torch.tensor(coordinates, dtype=torch.float64)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("batch_size", [None, 20, 7])
def test_fedsgd(executor: str, batch_size: int | None) -> None:
    for rounds, expected in ((1, (0.05, 0.05)), (2, (0.095, 0.095))):
        history = play(fl.fedsgd(server_lr=0.1), executor, rounds, batch_size=batch_size)
        close(history.params["y"], expected)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("algorithm", "models", "locals_"),
    [
        (
            fl.fedavg(client_lr=0.1),
            [(0.095, 0.095), (0.17195, 0.17195)],
            [[(0.19, 0.0), (-0.19, 0.38)], [(0.26695, 0.07695), (-0.11305, 0.45695)]],
        ),
        (
            fl.fedprox(client_lr=0.1, mu=1.0),
            [(0.09, 0.09), (0.1638, 0.1638)],
            [[(0.18, 0.0), (-0.18, 0.36)], [(0.2538, 0.0738), (-0.1062, 0.4338)]],
        ),
    ],
    ids=["fedavg", "fedprox"],
)
def test_local_and_global_models(
    executor: str, algorithm: Algorithm, models: list[Pair], locals_: list[list[Pair]]
) -> None:
    start = point(0.0, 0.0)
    for rounds, (model, clients) in enumerate(zip(models, locals_, strict=True), 1):
        for client, expected in enumerate(clients):
            close(local_model(algorithm, executor, client, start), expected)
        start = play(algorithm, executor, rounds).params["y"]
        close(start, model)


SCAFFOLD: dict[str, list[tuple[Pair, Pair, Pair, Pair]]] = {  # x, c, c_1, c_2 after each round
    "I": [
        ((0.0, 0.19), (0.0, -1.0), (-1.0, 0.0), (1.0, -2.0)),
        ((0.0, 0.3439), (0.0, -0.81), (-1.0, 0.19), (1.0, -1.81)),
    ],
    "II": [
        ((0.0, 0.19), (0.0, -0.95), (-0.95, 0.0), (0.95, -1.9)),
        ((0.0, 0.3439), (0.0, -0.7695), (-0.9975, 0.228), (0.9975, -1.767)),
    ],
}
SCAFFOLD["gradmean"] = SCAFFOLD["II"]  # the same under plain SGD


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("option", SCAFFOLD)
def test_scaffold_models_and_controls(executor: str, option: str, tmp_path: Path) -> None:
    for rounds, (x, c, first, second) in enumerate(SCAFFOLD[option], 1):
        folder = tmp_path / str(rounds)
        history = play(fl.scaffold(client_lr=0.1, option=option), executor, rounds, run_dir=folder)
        assert history.state is not None
        close(history.params["y"], x)
        close(history.state.memory["y"], c)
        saved = checkpoint.load(folder / "checkpoints" / f"round-{rounds:06d}")
        assert list(saved["rows"]) == ["0", "1"]
        close(saved["rows"]["0"]["y"], first)
        close(saved["rows"]["1"]["y"], second)
        close(saved["state"]["memory"]["y"], c)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_scaffold_option_one_reads_the_whole_loss_whatever_the_steps(executor: str, tmp_path: Path) -> None:
    """Its control is the gradient at x^t over all rows, not over the rows that local training happened to see."""
    rows = torch.arange(8, dtype=torch.float64).reshape(4, 2)
    data = fl.federate(torch.zeros(4, 1, dtype=torch.float64), rows, [[0, 1, 2, 3]])
    algorithm = fl.scaffold(client_lr=0.1, option="I")
    options: dict[str, Any] = {"cohort": 1, "steps": 1, "batch_size": 3, "dtype": torch.float64}
    history = fl.simulate(POINT, data, algorithm, 1, executor=executor, run_dir=tmp_path, **options)
    close(checkpoint.load(tmp_path / "checkpoints" / "round-000001")["rows"]["0"]["y"], -rows.mean(0))
    assert not torch.allclose(history.params["y"], 0.1 * rows.mean(0))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_feddyn_models_duals_and_drift(executor: str, tmp_path: Path) -> None:
    locals_ = [[(0.185, 0.0), (-0.185, 0.37)], [(0.1678875, 0.30155), (-0.1678875, 0.637325)]]
    models, drifts = [(0.0, 0.0), (0.0, 0.37), (0.0, 0.753875)], [(0.0, -0.0925), (0.0, -0.14221875)]
    duals = [point(0.0, 0.0), point(0.0, 0.0)]
    for rounds in (1, 2):
        folder = tmp_path / str(rounds)
        history = play(fl.feddyn(client_lr=0.1, alpha=0.5), executor, rounds, run_dir=folder)
        assert history.state is not None
        close(history.params["y"], models[rounds])
        close(history.state.server["h"]["y"], drifts[rounds - 1])
        saved = checkpoint.load(folder / "checkpoints" / f"round-{rounds:06d}")
        for client, y in enumerate(locals_[rounds - 1]):  # q_k = q_k - alpha (y_k - x^t)
            duals[client] = duals[client] - 0.5 * (point(*y) - point(*models[rounds - 1]))
            close(saved["rows"][str(client)]["y"], duals[client])


def by_numpy(taus: list[int], sizes: list[int], rounds: int, momentum: float, mean: bool) -> npt.NDArray[np.float64]:
    """FedNova (or FedAvg, `mean`) with clients that differ in their number of steps."""
    x, p = np.zeros(2), np.array(sizes) / sum(sizes)
    lengths = [sum((1 - momentum ** (tau - s)) / (1 - momentum) for s in range(tau)) for tau in taus]
    for _ in range(rounds):
        moves = []
        for tau, centre in zip(taus, np.array(CENTRES), strict=True):
            y, v = x.copy(), np.zeros(2)
            for _ in range(tau):
                v = momentum * v + (y - centre)
                y = y - 0.1 * v
            moves.append(x - y)
        effective = p @ lengths
        scale = np.ones(2) if mean else effective / np.array(lengths)
        x = x - sum(weight * factor * move for weight, factor, move in zip(p, scale, moves, strict=True))
    return x


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_unequal_steps(executor: str, momentum: float) -> None:
    sizes, taus = [20, 37], [2, 4]  # batches of 10
    data = quadratics(CENTRES, sizes)
    for rounds in (1, 2):
        results = [
            fl.simulate(
                POINT,
                data,
                make(client_lr=0.1, client_momentum=momentum),
                rounds,
                2,
                batch_size=10,
                executor=executor,
                dtype=torch.float64,
            ).params["y"]
            for make in (fl.fednova, fl.fedavg)
        ]
        close(results[0], by_numpy(taus, sizes, rounds, momentum, mean=False))
        close(results[1], by_numpy(taus, sizes, rounds, momentum, mean=True))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("option", ["II", "gradmean"])
def test_a_schedule_over_rounds_and_one_within_them(executor: str, option: str) -> None:
    """eta_c(t, s) multiplies each local step; option II divides by the sum of them, gradmean does not read them."""
    rate = fl.schedule.within_round(fl.schedule.geometric(0.1, 0.5), warmup=0.25)
    history = play(fl.scaffold(client_lr=rate, option=option), executor, 2, steps=4)
    shape = [0.0, 1.0, 2 / 3, 1 / 3]  # one step of warm-up from zero, then down
    x, c, rows = np.zeros(2), np.zeros(2), np.zeros((2, 2))
    for t in range(2):
        rates = [0.1 * 0.5**t * factor for factor in shape]
        ys, gradients = np.tile(x, (2, 1)), []
        for eta in rates:
            gradients.append(ys - np.array(CENTRES))
            ys = ys - eta * (gradients[-1] + c - rows)
        new = rows - c + (x - ys) / sum(rates) if option == "II" else sum(gradients) / len(gradients)
        x, c, rows = ys.mean(0), c + (new - rows).mean(0), new
    assert history.state is not None
    close(history.params["y"], x)
    close(history.state.memory["y"], c)
