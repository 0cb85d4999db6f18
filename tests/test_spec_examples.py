"""Worked examples: numbers computed beforehand for two small cohorts, rule by rule.

Cohort A is two clients with 30 and 10 examples whose deltas y_k - x are given; cohort B two quadratics that the tests
minimise themselves; cohort C two tensors, for the rules that work tensor by tensor. Printed numbers have ten digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from algorithm_table import Outcome, play
from torch import Tensor

import fedloom as fl
from fedloom import schedule
from fedloom.algorithm import Algorithm
from fedloom.types import Evidence
from fedloom.weighting import accumulated_steps, by_angle, by_effective_steps

DELTAS = np.array([[(-0.4, 0.2), (0.2, -0.4)], [(-0.1, 0.3), (-0.3, -0.1)], [(-0.2, 0.1), (-0.1, 0.2)]])
CENTRES = np.array([(1.0, 0.0), (-1.0, 2.0)])
Point = tuple[float, float]


def near(expected: object, dtype: torch.dtype = torch.float64) -> object:
    """Equal to the printed digits."""
    return pytest.approx(expected, rel=1e-9 if dtype == torch.float64 else 1e-5, abs=1e-15)


def run_a(
    algorithm: Algorithm,
    rounds: int = 2,
    examples: tuple[int, int] = (30, 10),
    split: bool = False,
    dtype: torch.dtype = torch.float64,
) -> list[Outcome]:
    """Cohort A; `split` makes its two coordinates two tensors."""
    x = torch.tensor([1.0, -2.0], dtype=dtype)
    leaves = (lambda rows: {"a": rows[..., :1], "b": rows[..., 1:]}) if split else (lambda rows: {"w": rows})
    cohorts = [
        fl.Cohort(torch.tensor([0, 1]), torch.tensor(examples), leaves(torch.tensor(-deltas, dtype=dtype)))
        for deltas in DELTAS[:rounds]
    ]
    return play(algorithm, leaves(x), cohorts, population=2)


def flat(params: dict[str, Tensor]) -> list[float]:
    return [float(entry) for leaf in params.values() for entry in leaf.flatten()]


def models(outcomes: list[Outcome]) -> list[list[float]]:
    return [flat(params) for params, _, _ in outcomes]


def adam(**options: object) -> Algorithm:
    return fl.fedadam(client_lr=0.1, server_lr=0.1, **({"tau": 0.01} | options))


def yogi(**options: object) -> Algorithm:
    return fl.fedyogi(client_lr=0.1, server_lr=0.1, tau=0.01, **options)


def adagrad(**options: object) -> Algorithm:
    return fl.fedadagrad(client_lr=0.1, server_lr=0.1, **options)


MODELS: list[tuple[str, Callable[[], Algorithm], list[Point]]] = [
    ("fedavg", lambda: fl.fedavg(client_lr=0.1), [(0.75, -1.95), (0.6, -1.75)]),
    ("fedavg, eta_s 0.5", lambda: fl.fedavg(client_lr=0.1, server_lr=0.5), [(0.875, -1.975), (0.8, -1.875)]),
    ("fedavgm heavyball", lambda: fl.fedavgm(client_lr=0.1), [(0.75, -1.95), (0.375, -1.705)]),
    (
        "fedavgm nesterov",
        lambda: fl.fedavgm(client_lr=0.1, variant="nesterov"),
        [(0.525, -1.905), (0.0375, -1.4845)],
    ),
    ("fedavgm ema", lambda: fl.fedavgm(client_lr=0.1, variant="ema"), [(0.975, -1.995), (0.9375, -1.9705)]),
    (
        "fedavgm heavyball, eta_s 0.5",
        lambda: fl.fedavgm(client_lr=0.1, server_lr=0.5),
        [(0.875, -1.975), (0.6875, -1.8525)],
    ),
    (
        "fedavgm nesterov, eta_s 0.5",
        lambda: fl.fedavgm(client_lr=0.1, server_lr=0.5, variant="nesterov"),
        [(0.7625, -1.9525), (0.51875, -1.74225)],
    ),
    (
        "fedadagrad, v0 tau^2",
        lambda: adagrad(tau=0.01),
        [(0.903920032, -1.91801961), (0.8542049068, -1.825597175)],
    ),
    (
        "fedadagrad, v0 0.1",
        lambda: adagrad(tau=0.01, initial_accumulator=0.1),
        [(0.9394838535, -1.984855654), (0.9054019501, -1.933241648)],
    ),
    (
        "fedadagrad, v0 0",
        lambda: adagrad(tau=0.001, initial_accumulator=0.0),
        [(0.9003984064, -1.901960784), (0.8491246982, -1.805414851)],
    ),
    ("fedadam none", lambda: adam(), [(0.9322626278, -1.976343152), (0.8400981075, -1.901793369)]),
    (
        "fedadam none, beta1 0",
        lambda: adam(beta1=0.0),
        [(0.3226262783, -1.763431515), (-0.04603180323, -1.154861858)],
    ),
    (
        "fedadam none, v0 0",
        lambda: adam(initial_accumulator=0.0),
        [(0.9285714286, -1.966666667), (0.8325342432, -1.886626062)],
    ),
    (
        "fedadam keras",
        lambda: adam(bias_correction="keras"),
        [(0.9285714286, -1.966666667), (0.8572676802, -1.907239736)],
    ),
    (
        "fedadam torch",
        lambda: adam(bias_correction="torch"),
        [(0.9038461538, -1.916666667), (0.8124343817, -1.834059259)],
    ),
    ("fedyogi none", lambda: yogi(), [(0.9322967039, -1.976393202), (0.8404346303, -1.901954256)]),
    (
        "fedyogi none, v0 0.1",
        lambda: yogi(initial_accumulator=0.1),
        [(0.9923133214, -1.998467143), (0.980770631, -1.990941534)],
    ),
    (
        "normalized_fedavg",
        lambda: fl.normalized_fedavg(client_lr=0.1, server_lr=0.1),
        [(0.9019419324, -1.980388386), (0.8419419324, -1.900388386)],
    ),
    ("fedadp", lambda: fl.fedadp(client_lr=0.1), [(0.6013588092, -1.801358809), (0.5008526951, -1.502371037)]),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("make", "expected"), [row[1:] for row in MODELS], ids=[row[0] for row in MODELS])
def test_models_of_cohort_a(make: Callable[[], Algorithm], expected: list[Point], dtype: torch.dtype) -> None:
    for got, point in zip(models(run_a(make(), dtype=dtype)), expected, strict=True):
        assert got == near(list(point), dtype)


MOMENTS: list[tuple[str, Callable[[], Algorithm], str, list[Point]]] = [
    ("fedavgm heavyball v", lambda: fl.fedavgm(client_lr=0.1), "v", [(0.25, -0.05), (0.375, -0.245)]),
    ("fedavgm ema m", lambda: fl.fedavgm(client_lr=0.1, variant="ema"), "v", [(0.025, -0.005), (0.0375, -0.0245)]),
    ("fedadagrad v", lambda: adagrad(tau=0.01), "v", [(0.0626, 0.0026), (0.0851, 0.0426)]),
    ("fedadam m", lambda: adam(), "m", [(0.025, -0.005), (0.0375, -0.0245)]),
    ("fedadam v", lambda: adam(), "v", [(0.000724, 0.000124), (0.00094176, 0.00052276)]),
    ("fedyogi v", lambda: yogi(), "v", [(0.000725, 0.000125), (0.00095, 0.000525)]),
    (
        "fedyogi v falling",
        lambda: yogi(initial_accumulator=0.1),
        "v",
        [(0.099375, 0.099975), (0.09915, 0.099575)],
    ),
]


@pytest.mark.parametrize(("make", "moment", "expected"), [r[1:] for r in MOMENTS], ids=[r[0] for r in MOMENTS])
def test_moments_of_cohort_a(make: Callable[[], Algorithm], moment: str, expected: list[Point]) -> None:
    for (_, state, _), point in zip(run_a(make()), expected, strict=True):
        assert state.server[0][moment]["w"].tolist() == near(list(point))


def test_fedyogi_keras_second_round() -> None:
    outcomes = run_a(yogi(bias_correction="keras"))
    assert flat(outcomes[1][0]) == near([0.8574632352, -1.907251507])
    assert outcomes[1][1].server[0]["v"]["w"].tolist() == near([0.00085, 0.000425])
    assert models(run_a(yogi(bias_correction="keras", initial_accumulator=0.0))) == models(outcomes)


@pytest.mark.parametrize("tau", [0.01, 0.0])
def test_a_coordinate_never_updated_stays(tau: float) -> None:
    """FedAdagrad and FedAdam from v0 = 0: 0 / tau is 0, and so is 0 / 0."""
    params = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64)}
    cohort = fl.Cohort(torch.tensor([0]), torch.tensor([1]), {"w": torch.tensor([[0.5, 0.0]], dtype=torch.float64)})
    for algorithm in (
        adagrad(tau=tau, initial_accumulator=0.0),
        adam(tau=tau, initial_accumulator=0.0),
        adam(tau=tau, bias_correction="torch"),
    ):
        got, _, _ = play(algorithm, params, [cohort] * 2, population=1)[-1]
        assert got["w"][1] == -2.0
        assert 0.5 < got["w"][0] < 1.0


def test_fedavg_of_one_client_interpolates() -> None:
    """x becomes (1 - eta_s) x + eta_s y."""
    params = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64)}
    cohort = fl.Cohort(torch.tensor([1]), torch.tensor([7]), {"w": torch.tensor([[0.4, -0.6]], dtype=torch.float64)})
    [(got, _, _)] = play(fl.fedavg(client_lr=0.1, server_lr=0.25), params, [cohort], population=2)
    assert flat(got) == near([0.75 * 1 + 0.25 * 0.6, 0.75 * -2 + 0.25 * -1.4])


# Cohort B: quadratics 0.5 ||y - centre_k||^2, client step 0.1; the clients are minimised here, the server is ours.


def descend(
    x: np.ndarray, steps: tuple[int, int], extra: Callable[[int, np.ndarray], np.ndarray] | None = None
) -> np.ndarray:
    """y_k after its local steps; `extra(k, y)` is added to the gradient."""
    finals = []
    for k, count in enumerate(steps):
        y = x.copy()
        for _ in range(count):
            y = y - 0.1 * (y - CENTRES[k] + (0.0 if extra is None else extra(k, y)))
        finals.append(y)
    return np.stack(finals)


class ServerB:
    """The server of cohort B, fed with numpy arrays."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.params = {"w": torch.zeros(2, dtype=torch.float64)}
        self.state = algorithm.init(self.params, population=2)

    @property
    def x(self) -> np.ndarray:
        return self.params["w"].numpy()

    def round(
        self, updates: np.ndarray, control: np.ndarray | None = None, steps: tuple[int, int] = (2, 2)
    ) -> list[float]:
        cohort = fl.Cohort(
            torch.tensor([0, 1]),
            torch.tensor([30, 10]),
            {"w": torch.tensor(updates)},
            steps=torch.tensor(steps),
            extra=None if control is None else {"control": {"w": torch.tensor(control)}},
        )
        self.params, self.state, _ = self.algorithm.apply(self.params, self.state, cohort)
        return self.params["w"].tolist()


def test_fedsgd_on_quadratics() -> None:
    server = ServerB(fl.fedsgd(server_lr=0.1))
    assert server.round(server.x - CENTRES) == near([0.05, 0.05])
    assert server.round(server.x - CENTRES) == near([0.095, 0.095])


def test_fedavg_on_quadratics() -> None:
    server = ServerB(fl.fedavg(client_lr=0.1))
    for finals, expected in [
        ([(0.19, 0), (-0.19, 0.38)], [0.095, 0.095]),
        ([(0.26695, 0.07695), (-0.11305, 0.45695)], [0.17195, 0.17195]),
    ]:
        y = descend(server.x, (2, 2))
        np.testing.assert_allclose(y, finals, rtol=1e-9, atol=1e-15)
        assert server.round(server.x - y) == near(expected)


@pytest.mark.parametrize("eta_s", [1.0, 0.5])
def test_fedprox_and_fedavg_share_the_server(eta_s: float) -> None:
    """FedProx, mu = 1: x^1 = (0.09, 0.09), x^2 = (0.1638, 0.1638) with eta_s = 1."""
    server = ServerB(fl.fedprox(client_lr=0.1, server_lr=eta_s, mu=1.0))
    plain = ServerB(fl.fedavg(client_lr=0.1, server_lr=eta_s))
    for expected in ([0.09, 0.09], [0.1638, 0.1638]):
        x = server.x
        updates = x - descend(x, (2, 2), lambda k, y, x=x: y - x)
        got = server.round(updates)
        assert got == plain.round(updates)
        if eta_s == 1:
            assert got == near(expected)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            "I",
            [
                ([0, 0.19], [0, -1], [(-1, 0), (1, -2)]),
                ([0, 0.3439], [0, -0.81], [(-1, 0.19), (1, -1.81)]),
            ],
        ),
        (
            "II",
            [
                ([0, 0.19], [0, -0.95], [(-0.95, 0), (0.95, -1.9)]),
                ([0, 0.3439], [0, -0.7695], [(-0.9975, 0.228), (0.9975, -1.767)]),
            ],
        ),
    ],
)
def test_scaffold_server_control(option: str, expected: list[tuple[list[float], list[float], list[Point]]]) -> None:
    server = ServerB(fl.scaffold(client_lr=0.1, option=option))
    rows = np.zeros((2, 2))
    for x_next, shared, controls in expected:
        x, c = server.x, server.state.memory["w"].numpy()
        y = descend(x, (2, 2), lambda k, y, c=c, rows=rows: c - rows[k])
        new = x - CENTRES if option == "I" else rows - c + (x - y) / (2 * 0.1)
        np.testing.assert_allclose(new, controls, rtol=1e-9, atol=1e-15)
        assert server.round(x - y, control=new - rows) == near(x_next)
        assert server.state.memory["w"].tolist() == near(shared)
        rows = new


def test_fednova_with_two_and_four_steps() -> None:
    server = ServerB(fl.fednova(client_lr=0.1))
    for directions, expected in [
        ([(-0.95, 0), (0.85975, -1.7195)], [0.124390625, 0.10746875]),
        ([(-0.8318289063, 0.1020953125), (0.9666948398, -1.627103742)], [0.2199401174, 0.1900198628]),
    ]:
        updates = server.x - descend(server.x, (2, 4))
        np.testing.assert_allclose(updates / (0.1 * np.array([[2.0], [4.0]])), directions, rtol=1e-9, atol=1e-15)
        assert server.round(updates, steps=(2, 4)) == near(expected)


def test_fednova_effective_steps() -> None:
    assert accumulated_steps(2, momentum=0.9) == near(2.9)
    assert accumulated_steps(4, momentum=0.9) == near(9.049)
    assert accumulated_steps(5) == 5.0
    assert accumulated_steps(3, proximal=0.1 * 0.5) == near((1 - (1 - 0.05) ** 3) / 0.05)
    p, scale, _ = by_effective_steps().weigh(evidence([30.0, 10.0], steps=[2, 4]), {})
    assert p.tolist() == near([0.75, 0.25])
    assert (scale * torch.tensor([2, 4])).tolist() == near([2.5, 2.5])  # tau_eff
    _, scale, _ = by_effective_steps(proximal=0.05).weigh(evidence([30.0, 10.0], steps=[2, 4]), {})
    lengths = torch.tensor([accumulated_steps(tau, proximal=0.05) for tau in (2, 4)], dtype=torch.float64)
    assert (scale * lengths).tolist() == near([2.5, 2.5])  # sum p_k tau_k, not sum p_k ||a_k||


def test_feddyn_server_drift() -> None:
    server = ServerB(fl.feddyn(client_lr=0.1, alpha=0.5))
    q = np.zeros((2, 2))
    for finals, drift, expected in [
        ([(0.185, 0), (-0.185, 0.37)], [0, -0.0925], [0, 0.37]),
        ([(0.1678875, 0.30155), (-0.1678875, 0.637325)], [0, -0.14221875], [0, 0.753875]),
    ]:
        x = server.x
        y = descend(x, (2, 2), lambda k, y, x=x, q=q: -q[k] + 0.5 * (y - x))
        np.testing.assert_allclose(y, finals, rtol=1e-9, atol=1e-15)
        assert server.round(x - y) == near(expected)
        assert server.state.server["h"]["w"].tolist() == near(drift)
        q = q - 0.5 * (y - x)


# Cohort C: tensors w and b, the pseudo-gradient given.


def run_c(algorithm: Algorithm) -> list[tuple[dict[str, Tensor], Outcome]]:
    """Per round: the parameters it started from, and what it returned."""
    params = {"w": torch.tensor([3.0, 4.0], dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}
    state, played = algorithm.init(params, population=1), []
    for w, b in [((0.6, -0.8), 0.5), ((0.1, 0.2), -0.1)]:
        updates = {"w": torch.tensor([w], dtype=torch.float64), "b": torch.tensor([[b]], dtype=torch.float64)}
        outcome = algorithm.apply(params, state, fl.Cohort(torch.tensor([0]), torch.tensor([1]), updates))
        played.append((params, outcome))
        params, state, _ = outcome
    return played


def test_fedlars() -> None:
    expected = [
        (
            {"w": (0.06, -0.08), "b": (0.05,)},
            {"w": 49.5049505, "b": 1.0},
            {"w": (2.97029703, 4.03960396), "b": (-0.0005,)},
        ),
        (
            {"w": (0.064, -0.052), "b": (0.035,)},
            {"w": 60.07620064, "b": 0.01388888889},
            {"w": (2.931848261, 4.070843585), "b": (-0.0005048611111,)},
        ),
    ]
    for (before, (after, state, _)), (m, ratio, x) in zip(
        run_c(fl.fedlars(client_lr=0.1, server_lr=0.01)), expected, strict=True
    ):
        for name in ("w", "b"):
            moment = state.server[0]["m"][name]
            assert moment.tolist() == near(list(m[name]))
            assert ((before[name] - after[name]) / (0.01 * moment)).tolist() == near([ratio[name]] * len(moment))
            assert after[name].tolist() == near(list(x[name]))


def test_fedlamb() -> None:
    expected = [
        (
            {"w": (0.9983361065, -0.9987515605), "b": (0.998003992,)},
            {"w": 3.540689663, "b": 1.0},
            {"w": (2.964652017, 4.035362693), "b": (-0.00998003992,)},
        ),
        (
            {"w": (0.7831847704, -0.4696014366), "b": (0.5106774962,)},
            {"w": 5.483373967, "b": 0.01954274468},
            {"w": (2.921707067, 4.061112696), "b": (-0.01007984032,)},
        ),
    ]
    for s, ((before, (after, state, _)), (u, ratio, x)) in enumerate(
        zip(run_c(fl.fedlamb(client_lr=0.1, server_lr=0.01)), expected, strict=True), start=1
    ):
        for name in ("w", "b"):
            moments = state.server[0]
            step = (moments["m"][name] / (1 - 0.9**s)) / ((moments["v"][name] / (1 - 0.99**s)).sqrt() + 1e-3)
            assert step.tolist() == near(list(u[name]))
            assert ((before[name] - after[name]) / (0.01 * step)).tolist() == near([ratio[name]] * len(step))
            assert after[name].tolist() == near(list(x[name]))


# FedAdp


def evidence(weights: list[float], round: int = 0, **columns: list[float]) -> Evidence:
    """What a weighting sees of clients 0, 1, ...; all norms are one."""
    tensors = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
    ones = torch.ones(len(weights), dtype=torch.float64)
    return Evidence(
        clients=torch.arange(len(weights)),
        weights=torch.tensor(weights, dtype=torch.float64),
        multiplicity=ones,
        round=round,
        population=len(weights),
        norms=ones,
        mean_norm=torch.ones((), dtype=torch.float64),
        **tensors,
    )


def contributions(n: tuple[int, int], psi: Tensor) -> list[float]:
    """f up to the constant that psi cannot tell: here the first client's is 5."""
    f = (psi / torch.tensor(n)).log()
    return (f - f[0] + 5).tolist()


def test_fedadp_rounds() -> None:
    expected = [
        ([0.2662520492, 2.231839496], [0.2662520492, 2.231839496], [5, 0.01055858132], [0.9977353181, 0.002264681931]),
        ([0.3217505544, 1.249045772], [0.2940013018, 1.740442634], [5, 0.1218353987], [0.9974694299, 0.002530570096]),
    ]
    for (_, state, report), (theta, smoothed, f, psi) in zip(run_a(fl.fedadp(client_lr=0.1)), expected, strict=True):
        assert report.clients.angle.tolist() == near(theta)
        assert state.combine["angle"].tolist() == near(smoothed)
        assert report.clients.weight.tolist() == near(psi)
        assert contributions((30, 10), report.clients.weight) == near(f)


@pytest.mark.parametrize("smoothing", ["count", "round"])
def test_fedadp_equal_sizes(smoothing: str) -> None:
    """Under full participation the two ways of smoothing agree."""
    (x1, first, report1), (x2, second, report2) = run_a(
        fl.fedadp(client_lr=0.1, smoothing=smoothing), examples=(20, 20)
    )
    assert report1.clients.angle.tolist() == near([1.249045772] * 2)
    assert report2.clients.angle.tolist() == near([0.7853981634] * 2)
    assert first.combine["angle"].tolist() == near([1.249045772] * 2)
    assert second.combine["angle"].tolist() == near([1.017221968] * 2)
    assert report1.clients.weight.tolist() == report2.clients.weight.tolist() == near([0.5, 0.5])
    assert flat(x1) == near([0.9, -2.1])
    assert flat(x2) == near([0.7, -2])


@pytest.mark.parametrize(
    ("theta", "f"),
    [(1.0, 3.160602794), (math.pi / 2, 0.2799308564), (math.pi, 0.0001118293467), (1.249045772397, 1.250723472)],
)
def test_fedadp_contribution(theta: float, f: float) -> None:
    """f(0) = 5, and the others relative to it."""
    rule = by_angle()
    psi, scale, _ = rule.weigh(evidence([30.0, 10.0], dots=[1.0, math.cos(theta)]), rule.init(2))
    assert contributions((30, 10), psi) == near([5.0, f])
    assert scale.tolist() == [1, 1]


@pytest.mark.parametrize(("smoothing", "expected"), [("round", 1.25), ("count", 1.5)])
def test_fedadp_smoothing_with_absence(smoothing: str, expected: float) -> None:
    """A client takes part in rounds 1 and 4 with angles 1 and 2."""
    rule = by_angle(smoothing=smoothing)
    state = rule.init(1)
    for round, theta in [(0, 1.0), (3, 2.0)]:
        _, _, state = rule.weigh(evidence([10.0], round, dots=[math.cos(theta)]), state)
    assert state["angle"].tolist() == near([expected])
    assert state["count"].tolist() == [2]


@pytest.mark.parametrize("smoothing", ["count", "round"])
def test_fedadp_first_seen_late_is_not_smoothed(smoothing: str) -> None:
    rule = by_angle(smoothing=smoothing)
    _, _, state = rule.weigh(evidence([10.0], 6, dots=[math.cos(0.7)]), rule.init(1))
    assert state["angle"].tolist() == near([0.7])


def test_fedadp_single_and_zero_clients() -> None:
    """One client has angle 0 and all the weight; a client that did not move stands at a right angle."""
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    row = torch.tensor([[0.3, -0.4]], dtype=torch.float64)
    one = fl.Cohort(torch.tensor([0]), torch.tensor([5]), {"w": row})
    [(got, _, report)] = play(fl.fedadp(client_lr=0.1), params, [one], population=2)
    assert report.clients.angle.tolist() == pytest.approx([0.0], abs=1e-7)  # arccos loses half the digits near 1
    assert report.clients.weight.tolist() == [1.0]
    assert flat(got) == near([-0.3, 0.4])
    two = fl.Cohort(torch.tensor([0, 1]), torch.tensor([5, 5]), {"w": torch.cat([row, 0 * row])})
    [(_, _, report)] = play(fl.fedadp(client_lr=0.1), params, [two], population=2)
    assert report.clients.angle[1].item() == near(math.pi / 2)
    cancel = fl.Cohort(torch.tensor([0, 1]), torch.tensor([5, 5]), {"w": torch.cat([row, -row])})
    [(_, _, report)] = play(fl.fedadp(client_lr=0.1), params, [cancel], population=2)
    assert report.clients.angle.tolist() == near([math.pi / 2] * 2)


# FedGLAD, uniform weights, three rounds of cohort A


def glad(base: Algorithm | None = None, gamma: float = 0.02, grouping: str = "universal") -> Algorithm:
    return fl.fedglad(base or fl.fedavg(client_lr=0.1, weighting=fl.uniform()), gamma=gamma, grouping=grouping)


def test_glad_universal() -> None:
    outcomes = run_a(glad(), rounds=3)
    assert [report["gsi"] for _, _, report in outcomes] == near([3.16227766, 1.414213562, 1.054092553])
    assert [report["glad_ratio"] for _, _, report in outcomes] == near([1, 0.98, 0.96])
    baselines = [float(state.server[0]["baseline"]["all"]) for _, state, _ in outcomes]
    assert baselines[:2] == near([3.16227766, 2.98747125])  # what rounds 1 and 2 compare with
    for got, expected in zip(models(outcomes), [(0.9, -2.1), (0.704, -2.002), (0.56, -1.858)], strict=True):
        assert got == near(list(expected))


def test_glad_group() -> None:
    outcomes = run_a(glad(grouping="group"), rounds=3, split=True)
    report = outcomes[1][2]
    assert (report["gsi/a"], report["gsi/b"]) == near((1.118033989, 2.236067977))
    assert report["gsi"] == near(1.414213562)
    baseline = outcomes[1][1].server[0]["baseline"]
    assert (float(baseline["a"]), float(baseline["b"])) == near((2.957853293, 3.069656692))
    for got, expected in zip(models(outcomes), [(0.9, -2.1), (0.704, -2.002), (0.56, -1.858)], strict=True):
        assert got == near(list(expected))


@pytest.mark.parametrize(
    ("grouping", "ratios", "expected"),
    [
        (
            "universal",
            [(1, 1), (0.5, 0.5), (0.352837723, 0.352837723)],
            [(0.9, -2.1), (0.8, -2.05), (0.7470743416, -1.997074342)],
        ),
        (
            "group",
            [(1, 1), (0.5, 0.7071067812), (0.3563708031, 0.3433910236)],
            [(0.9, -2.1), (0.8, -2.029289322), (0.7465443795, -1.977780668)],
        ),
    ],
)
def test_glad_wide_bounds(grouping: str, ratios: list[Point], expected: list[Point]) -> None:
    """gamma = 0.5; a group's ratio is the step it took over the mean update."""
    outcomes = run_a(glad(gamma=0.5, grouping=grouping), rounds=3, split=True)
    before = [1.0, -2.0]
    for t, (got, point) in enumerate(zip(models(outcomes), expected, strict=True)):
        assert got == near(list(point))
        assert ((np.array(before) - got) / -DELTAS[t].mean(0)).tolist() == near(list(ratios[t]))
        assert outcomes[t][2]["glad_ratio"] == near(sum(ratios[t]) / 2)
        before = got


def test_glad_with_momentum() -> None:
    outcomes = run_a(glad(fl.fedavgm(client_lr=0.1, weighting=fl.uniform())), rounds=3)
    v = [state.server[1][0]["v"]["w"].tolist() for _, state, _ in outcomes]
    for got, expected in zip(v, [(0.1, 0.1), (0.286, -0.008), (0.4014, -0.1512)], strict=True):
        assert got == near(list(expected))
    for got, expected in zip(models(outcomes), [(0.9, -2.1), (0.614, -2.092), (0.2126, -1.9408)], strict=True):
        assert got == near(list(expected))
    outcomes = run_a(glad(fl.fedavgm(client_lr=0.1, variant="ema", weighting=fl.uniform())), rounds=3)
    for got, expected in zip(models(outcomes), [(0.99, -2.01), (0.9614, -2.0092), (0.92126, -1.99408)], strict=True):
        assert got == near(list(expected))


def test_glad_with_adam() -> None:
    """The second moment reads the unscaled mean."""
    base = adam(beta2=0.999, tau=1e-8, bias_correction="keras", weighting=fl.uniform())
    outcomes = run_a(glad(base), rounds=3)
    expected = [
        ((0.01, 0.01), (1e-05, 1e-05), (0.9000003162, -2.099999684)),
        ((0.0286, -0.0008), (4.999e-05, 1.999e-05), (0.8048135338, -2.095789167)),
        ((0.04014, -0.01512), (7.244001e-05, 4.247001e-05), (0.7095423065, -2.048920339)),
    ]
    for (params, state, _), (m, v, x) in zip(outcomes, expected, strict=True):
        assert state.server[1][0]["m"]["w"].tolist() == near(list(m))
        assert state.server[1][0]["v"]["w"].tolist() == near(list(v))
        assert flat(params) == near(list(x))


def glad_rounds(rows: list[list[list[float]]], gamma: float = 0.5, grouping: str = "group") -> list[Outcome]:
    """Two tensors a and b of one entry each, from zero; `rows[t][k]` is client k's update."""
    cohorts = []
    for updates in rows:
        stack = torch.tensor(updates, dtype=torch.float64)
        ids = torch.arange(len(updates))
        cohorts.append(fl.Cohort(ids, torch.ones(len(updates)), {"a": stack[:, :1], "b": stack[:, 1:]}))
    params = {"a": torch.zeros(1, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}
    return play(glad(gamma=gamma, grouping=grouping), params, cohorts, population=2)


ORDINARY = [[1.0, 3.0], [0.5, 1.0]]


def test_glad_when_updates_cancel() -> None:
    """The mean of b is zero though the clients moved: the ratio is the upper bound, the baseline does not notice."""
    outcomes = glad_rounds([ORDINARY, [[1.0, 1.0], [1.0, -1.0]], ORDINARY])
    before, after = (outcomes[t][1].server[0]["baseline"] for t in (0, 1))
    assert after["b"].equal(before["b"])
    assert not after["a"].equal(before["a"])
    gsi = 1 / float(before["a"])
    assert outcomes[1][2]["gsi/b"] == math.inf
    assert outcomes[1][2]["glad_ratio"] == near((max(gsi, 0.5) + 1.5) / 2)
    assert outcomes[1][0]["b"].equal(outcomes[0][0]["b"])
    plain = glad_rounds([ORDINARY, ORDINARY])  # an infinite baseline would collapse every later ratio
    assert outcomes[2][2]["gsi/b"] == plain[1][2]["gsi/b"]
    assert float(outcomes[2][0]["b"] - outcomes[1][0]["b"]) == near(float(plain[1][0]["b"] - plain[0][0]["b"]))


def test_glad_when_updates_cancel_without_bounds() -> None:
    """gamma = infinity: no bounds, and still nothing infinite times zero."""
    outcomes = glad_rounds([ORDINARY, [[1.0, 1.0], [1.0, -1.0]], ORDINARY], gamma=math.inf)
    assert all(math.isfinite(entry) for entry in flat(outcomes[2][0]))
    assert outcomes[1][0]["b"].equal(outcomes[0][0]["b"])


def test_glad_leaves_a_frozen_tensor_alone() -> None:
    outcomes = glad_rounds([[[1.0, 0.0], [0.5, 0.0]], [[1.0, 0.0], [-0.7, 0.0]]])
    assert math.isnan(outcomes[1][2]["gsi/b"])
    assert [float(state.server[0]["baseline"]["b"]) for _, state, _ in outcomes] == [0, 0]  # still not seen
    assert outcomes[1][0]["b"].tolist() == [0.0]
    mean, square = 0.15, (1 + 0.49) / 2
    baseline = math.sqrt((1 + 0.25) / 2) / 0.75
    ratio = min(max(math.sqrt(square) / mean / baseline, 0.5), 1.5)
    assert outcomes[1][2]["glad_ratio"] == near((ratio + 1) / 2)
    assert outcomes[1][0]["a"].item() == near(-0.75 - ratio * mean)


def test_glad_tensor_that_wakes_up_starts_its_baseline_then() -> None:
    outcomes = glad_rounds([[[1.0, 0.0], [0.5, 0.0]], ORDINARY])
    assert float(outcomes[1][1].server[0]["baseline"]["b"]) == near(math.sqrt((9 + 1) / 2) / 2)
    assert outcomes[1][0]["b"].item() == near(-2.0)  # its ratio is 1


def test_glad_of_one_client() -> None:
    """r = 1: the indicator is 1 and nothing is scaled."""
    rows = [[[0.3, -0.7]], [[0.1, 0.9]], [[5.0, 1e-3]]]
    for grouping in ("group", "universal"):
        outcomes = glad_rounds(rows, grouping=grouping)
        assert [report["gsi"] for _, _, report in outcomes] == near([1, 1, 1])
        assert [report["glad_ratio"] for _, _, report in outcomes] == near([1, 1, 1])
        assert flat(outcomes[2][0]) == near([-5.4, -0.201])


# Uploads, sampling, diagnostics


def test_adaptive_clipping() -> None:
    outcomes = run_a(fl.replace(fl.fedavg(client_lr=0.1), upload=fl.adaptive_clip(initial=0.4)))
    (x1, state1, report1), (x2, state2, report2) = outcomes
    assert flat(x1) == near([0.7763932023, -1.95527864])
    assert flat(x2) == near([0.6263932023, -1.75527864])
    assert (state1.upload["rho"], state2.upload["rho"]) == near((0.4694043484, 0.4509987406))
    assert (report1["clip_norm"], report2["clip_norm"]) == near((0.4, 0.4694043484))
    assert (report1["unclipped_fraction"], report2["unclipped_fraction"]) == (0.0, 1.0)
    assert report1.clients.norm.tolist() == near([0.4, 0.4])  # clipped from 0.4472135955
    assert report2.clients.norm.tolist() == near([0.316227766, 0.316227766])
    assert report1["pseudo_gradient_norm"] == near(math.hypot(0.2236067977, 0.04472135955))


def test_clipping_counts_ties_and_zeros_as_unclipped() -> None:
    """The bit is a plain mean over the cohort, whatever the weights."""
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0], [0.0, 5.5]], dtype=torch.float64)
    cohort = fl.Cohort(torch.arange(4), torch.tensor([1, 1, 100, 1]), {"w": rows})
    algorithm = fl.replace(fl.fedavg(client_lr=0.1), upload=fl.adaptive_clip(initial=5.0))
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    [(got, state, report)] = play(algorithm, params, [cohort], population=4)
    assert report["unclipped_fraction"] == 0.5
    assert state.upload["rho"] == near(5 * math.exp(-0.2 * (0.5 - 0.8)))
    assert flat(got) == near([-(3 + 300) / 103, -(4 + 400 + 5) / 103])


def test_adaptive_zeroing_thresholds() -> None:
    """All updates below: the threshold 2 z + 1 falls with z = 10, 9.54992586, 9.120108394."""
    outcomes = run_a(fl.replace(fl.fedavg(client_lr=0.1), upload=fl.zeroing()))
    assert [report["zeroing_norm"] for _, _, report in outcomes] == near([21, 20.09985172])
    assert [state.upload["z"] for _, state, _ in outcomes] == near([9.54992586, 9.120108394])
    assert [report["zeroed_fraction"] for _, _, report in outcomes] == [0.0, 0.0]


def test_a_zeroed_update_keeps_its_weight_and_is_not_clipped() -> None:
    rows = torch.tensor([[30.0, 1.0], [0.4, 0.3]], dtype=torch.float64)
    cohort = fl.Cohort(torch.arange(2), torch.tensor([30, 10]), {"w": rows})
    upload = fl.chain(fl.zeroing(), fl.adaptive_clip(initial=0.25))
    algorithm = fl.replace(fl.fedavg(client_lr=0.1), upload=upload)
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    [(got, state, report)] = play(algorithm, params, [cohort], population=2)
    assert flat(got) == near([-0.25 * 0.2, -0.25 * 0.15])
    assert (report["zeroed_fraction"], report["unclipped_fraction"]) == (0.5, 0.5)
    assert report.clients.weight.tolist() == near([0.75, 0.25])
    assert state.upload[0]["z"] == near(10 * math.exp(-math.log(10) * (0.5 - 0.98)))


def test_drawn_twice_counts_twice() -> None:
    """Multinomial draws (1, 1, 2): weights 2/3 and 1/3, whatever the sizes."""
    cohort = fl.Cohort(
        torch.arange(2), torch.tensor([30, 10]), {"w": torch.tensor(-DELTAS[0])}, multiplicity=torch.tensor([2, 1])
    )
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    algorithm = fl.fedavg(client_lr=0.1, weighting=fl.uniform())
    [(got, _, report)] = play(algorithm, params, [cohort], population=2)
    assert report.clients.weight.tolist() == near([2 / 3, 1 / 3])
    assert flat(got) == near([-0.2, 0.0])


def test_diagnostics() -> None:
    """Mean pairwise cosine -0.8, then 0; norms of the mean and mean of the norms."""
    (_, _, first), (_, _, second) = run_a(fl.fedavg(client_lr=0.1))
    assert first["cosine"] == near(-0.8)
    assert second["cosine"] == pytest.approx(0.0, abs=1e-15)
    assert (first["mean_update_norm"], second["mean_update_norm"]) == near((0.4472135955, 0.316227766))
    assert first["pseudo_gradient_norm"] == near(math.hypot(0.25, 0.05))


def test_cosine_skips_clients_that_did_not_move() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    cohort = fl.Cohort(torch.arange(3), torch.ones(3), {"w": rows})
    [(_, _, report)] = play(fl.fedavg(client_lr=0.1), params, [cohort], population=3)
    assert report["cosine"] == near(math.sqrt(0.5))
    alone = fl.Cohort(torch.arange(2), torch.ones(2), {"w": rows[:2]})
    [(_, _, report)] = play(fl.fedavg(client_lr=0.1), params, [alone], population=3)
    assert math.isnan(report["cosine"])


# Schedules


@pytest.mark.parametrize(
    ("rate", "values"),
    [
        (schedule.constant(0.1), {0: 0.1, 1000: 0.1}),
        (schedule.inverse_sqrt(0.1), {0: 0.1, 1: 0.07071067812, 3: 0.05, 99: 0.01}),
        (schedule.staircase(0.1), {0: 0.1, 499: 0.1, 500: 0.01, 999: 0.01, 1000: 0.001}),
        (schedule.geometric(0.1), {0: 0.1, 1: 0.0995, 2: 0.0990025}),
        (schedule.warmup(0.4), {0: 0.004, 49: 0.2, 99: 0.4, 100: 0.4}),
        (schedule.warmup(0.4, start=0.1), {0: 0.103, 49: 0.25, 99: 0.4, 100: 0.4}),
        (schedule.scaled(0.1, cohort=800, warmup_rounds=100), {0: 0.004, 49: 0.2, 99: 0.4, 100: 0.4}),
        (
            schedule.scaled(0.1, cohort=200, rule="linear", warmup_rounds=100, warmup_from="base"),
            {0: 0.103, 49: 0.25, 99: 0.4, 100: 0.4},
        ),
        (schedule.scaled(0.1, cohort=800), {0: 0.4}),
        (schedule.scaled(0.1, cohort=200, rule="linear"), {0: 0.4}),
        (schedule.scaled(0.1, cohort=20), {0: 0.1}),
        (schedule.scaled(0.1, cohort=20, rule="linear"), {0: 0.1}),
    ],
    ids=repr,
)
def test_schedules(rate: schedule.Schedule, values: dict[int, float]) -> None:
    for t, expected in values.items():
        assert rate(t) == near(expected)


def test_a_server_schedule_reads_the_round() -> None:
    """eta_s = 0.1 / sqrt(t + 1) on cohort A."""
    outcomes = run_a(fl.fedavg(client_lr=0.1, server_lr=schedule.inverse_sqrt(0.1)))
    x1 = [1 - 0.1 * 0.25, -2 + 0.1 * 0.05]
    assert flat(outcomes[0][0]) == near(x1)
    assert flat(outcomes[1][0]) == near([x1[0] - 0.15 * 0.07071067812, x1[1] + 0.2 * 0.07071067812])
