"""Each rule against a second version of it: plain float64 numpy, a few lines, written from the papers.

Twenty rounds of random cohorts with partial participation, unequal sizes and three tensors; after every round the
parameters agree to ten digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.algorithm import Algorithm

Tree = dict[str, np.ndarray]

SHAPES = {"conv": (2, 3), "bias": (3,), "scale": (1,)}
SIZES = np.array([30, 10, 5, 80, 17, 42])
N = len(SIZES)
ROUNDS = 20


@dataclass
class Cohort:
    """Rows g_k per tensor, who they are, and their local steps."""

    ids: np.ndarray
    rows: Tree
    steps: np.ndarray
    control: Tree

    @property
    def n(self) -> np.ndarray:
        return SIZES[self.ids].astype(float)


def cohorts(seed: int, smallest: int) -> Iterator[Cohort]:
    rng = np.random.default_rng(seed)
    for _ in range(ROUNDS):
        ids = rng.permutation(N)[: rng.integers(smallest, N + 1)]
        common = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
        rows = {k: 0.2 * (common[k] + rng.normal(size=(len(ids), *shape))) for k, shape in SHAPES.items()}
        control = {k: rng.normal(size=(len(ids), *shape)) for k, shape in SHAPES.items()}
        yield Cohort(ids, rows, rng.integers(1, 6, size=len(ids)), control)


def average(rows: Tree, p: np.ndarray) -> Tree:
    return {name: np.tensordot(p, leaf, axes=1) for name, leaf in rows.items()}


def norms(rows: Tree) -> np.ndarray:
    return np.sqrt(sum((leaf.reshape(len(leaf), -1) ** 2).sum(1) for leaf in rows.values()))


def zeros() -> Tree:
    return {name: np.zeros(shape) for name, shape in SHAPES.items()}


# Weights: (p, scale)


def by_size(cohort: Cohort) -> tuple[np.ndarray, np.ndarray]:
    return cohort.n / cohort.n.sum(), np.ones(len(cohort.n))


def evenly(cohort: Cohort) -> tuple[np.ndarray, np.ndarray]:
    return np.full(len(cohort.n), 1 / len(cohort.n)), np.ones(len(cohort.n))


def nova(momentum: float = 0.0) -> Callable[[Cohort], tuple[np.ndarray, np.ndarray]]:
    """FedNova: tau_eff / ||a_k||, the closed form of ||a_k|| under momentum."""

    def weigh(cohort: Cohort) -> tuple[np.ndarray, np.ndarray]:
        tau, rho = cohort.steps.astype(float), momentum
        length = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
        p = cohort.n / cohort.n.sum()
        return p, (p * length).sum() / length

    return weigh


@dataclass
class Adp:
    """FedAdp's weights, the angle smoothed over a client's own rounds or over all of them."""

    smoothing: str = "count"
    alpha: float = 5.0
    theta: dict[int, float] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    t: int = 0

    def __call__(self, cohort: Cohort) -> tuple[np.ndarray, np.ndarray]:
        self.t += 1
        flat = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in cohort.rows.values()], axis=1)
        mean = cohort.n @ flat / cohort.n.sum()
        cosine = flat @ mean / (np.linalg.norm(flat, axis=1) * np.linalg.norm(mean))
        for k, now in zip(cohort.ids.tolist(), np.arccos(np.clip(cosine, -1, 1)), strict=True):
            self.seen[k] = self.seen.get(k, 0) + 1
            t = self.seen[k] if self.smoothing == "count" else self.t
            self.theta[k] = now if self.seen[k] == 1 else (t - 1) / t * self.theta[k] + now / t
        theta = np.array([self.theta[k] for k in cohort.ids.tolist()])
        f = self.alpha * (1 - np.exp(-np.exp(-self.alpha * (theta - 1))))
        weight = cohort.n * np.exp(f)
        return weight / weight.sum(), np.ones(len(weight))


# Uploads


@dataclass
class Clip:
    """Adaptive clipping at the 0.8 quantile of the norms."""

    rho: float = 1.0

    def __call__(self, rows: Tree) -> Tree:
        length, rho = norms(rows), self.rho
        self.rho = rho * np.exp(-0.2 * ((length <= rho).mean() - 0.8))
        factor = np.minimum(1, rho / np.maximum(length, 1e-300))
        return {name: leaf * factor.reshape(-1, *[1] * (leaf.ndim - 1)) for name, leaf in rows.items()}


@dataclass
class Zero:
    """Adaptive zeroing above 2 z + 1, z following the 0.98 quantile of the largest entries."""

    z: float = 10.0
    offset: float = 1.0

    def __call__(self, rows: Tree) -> Tree:
        largest = np.max([np.abs(leaf.reshape(len(leaf), -1)).max(1) for leaf in rows.values()], axis=0)
        kept = largest <= 2 * self.z + self.offset
        self.z = self.z * np.exp(-np.log(10) * ((largest <= self.z).mean() - 0.98))
        return {name: leaf * kept.reshape(-1, *[1] * (leaf.ndim - 1)) for name, leaf in rows.items()}


def both(*uploads: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
    def apply(rows: Tree) -> Tree:
        for upload in uploads:
            rows = upload(rows)
        return rows

    return apply


# Servers: step(x, g, raw, share) -> step, tensor by tensor; raw is g before FedGLAD, share is M / N


Server = Callable[[Tree, Tree, Tree, float], Tree]


def sgd(eta: float = 1.0) -> Server:
    return lambda x, g, raw, share: {k: eta * g[k] for k in g}


def momentum(variant: str, eta: float = 0.5, beta: float = 0.9) -> Server:
    v = zeros()

    def step(x: Tree, g: Tree, raw: Tree, share: float) -> Tree:
        for k in g:
            v[k] = beta * v[k] + (1 - beta if variant == "ema" else 1) * g[k]
        return {k: eta * (g[k] + beta * v[k] if variant == "nesterov" else v[k]) for k in g}

    return step


def adaptive(rule: str, mode: str = "none", v0: float = 1e-6, beta1: float = 0.9, eta: float = 0.1) -> Server:
    m, v, b2, tau, s = zeros(), {k: leaf + v0 for k, leaf in zeros().items()}, 0.99, 1e-3, [0]

    def step(x: Tree, g: Tree, raw: Tree, share: float) -> Tree:
        s[0] += 1
        out = {}
        for k in g:
            square = raw[k] * raw[k]
            m[k] = beta1 * m[k] + (1 - beta1) * g[k]
            v[k] = {
                "adagrad": v[k] + square,
                "adam": b2 * v[k] + (1 - b2) * square,
                "yogi": v[k] - (1 - b2) * square * np.sign(v[k] - square),
            }[rule]
            first, second = 1 - beta1 ** s[0], 1 - b2 ** s[0]
            out[k] = {
                "none": lambda m, v, first, second: m / (np.sqrt(v) + tau),
                "keras": lambda m, v, first, second: np.sqrt(second) / first * m / (np.sqrt(v) + tau),
                "torch": lambda m, v, first, second: (m / first) / (np.sqrt(v / second) + tau),
            }[mode](m[k], v[k], first, second)
        return {k: eta * leaf for k, leaf in out.items()}

    return step


def trust(x: np.ndarray, u: np.ndarray, eps: float) -> float:
    above, below = np.linalg.norm(x), np.linalg.norm(u)
    return above / (below + eps) if above > 0 and below > 0 else 1.0


def lars(eta: float = 0.1) -> Server:
    m = zeros()

    def step(x: Tree, g: Tree, raw: Tree, share: float) -> Tree:
        for k in g:
            m[k] = 0.9 * m[k] + 0.1 * g[k]
        return {k: trust(x[k], m[k], 1e-3) * eta * m[k] for k in g}

    return step


def lamb(eta: float = 0.1) -> Server:
    inner = adaptive("adam", "torch", v0=0.0, eta=1.0)

    def step(x: Tree, g: Tree, raw: Tree, share: float) -> Tree:
        u = inner(x, g, raw, share)
        return {k: trust(x[k], u[k], 0.0) * eta * u[k] for k in g}

    return step


def normalized(eta: float = 0.1) -> Server:
    def step(x: Tree, g: Tree, raw: Tree, share: float) -> Tree:
        length = np.sqrt(sum((leaf**2).sum() for leaf in g.values()))
        return {k: eta * g[k] / length for k in g}

    return step


def dyn(alpha: float = 0.5) -> Server:
    """h = h - alpha (1 / N) sum_S (y_k - x); x = mean y_k - h / alpha; h reads the unscaled mean."""
    h = zeros()

    def step(x: Tree, g: Tree, raw: Tree, share: float) -> Tree:
        for k in g:
            h[k] = h[k] + alpha * share * raw[k]
        return {k: g[k] + h[k] / alpha for k in g}

    return step


@dataclass
class Glad:
    """FedGLAD: a ratio per tensor, or one for all."""

    grouping: str
    gamma: float = 0.05
    baseline: dict[str, float] = field(default_factory=dict)
    t: int = 0

    def __call__(self, rows: Tree, p: np.ndarray, g: Tree) -> Tree:
        groups = {k: [k] for k in g} if self.grouping == "group" else {"all": list(g)}
        out = dict(g)
        for name, leaves in groups.items():
            spread = sum((p * (rows[k].reshape(len(p), -1) ** 2).sum(1)).sum() for k in leaves)
            gsi = np.sqrt(spread / sum((g[k] ** 2).sum() for k in leaves))
            base = self.baseline.get(name, gsi)
            ratio = min(max(gsi / base, 1 - self.gamma * self.t), 1 + self.gamma * self.t)
            self.baseline[name] = 0.9 * base + 0.1 * gsi
            out |= {k: ratio * g[k] for k in leaves}
        self.t += 1
        return out


@dataclass
class Reference:
    """One algorithm's server side in numpy."""

    server: Server
    weigh: Callable[[Cohort], tuple[np.ndarray, np.ndarray]] = by_size
    upload: Callable[[Tree], Tree] = lambda rows: rows
    glad: Glad | None = None

    def round(self, x: Tree, cohort: Cohort) -> Tree:
        rows = self.upload(cohort.rows)
        p, scale = self.weigh(Cohort(cohort.ids, rows, cohort.steps, cohort.control))
        rows = {k: leaf * scale.reshape(-1, *[1] * (leaf.ndim - 1)) for k, leaf in rows.items()}
        raw = average(rows, p)
        g = raw if self.glad is None else self.glad(rows, p, raw)
        step = self.server(x, g, raw, len(p) / N)
        return {k: x[k] - step[k] for k in x}


def base(make: Callable[..., Algorithm], **options: object) -> Callable[[], Algorithm]:
    return lambda: make(client_lr=0.1, **options)


def with_upload(upload: Callable[[], fl.Upload]) -> Callable[[], Algorithm]:
    return lambda: fl.replace(fl.fedavg(client_lr=0.1), upload=upload())


def glad_pairs() -> Iterator[tuple[str, Callable[[], Algorithm], Callable[[], Reference]]]:
    servers: list[tuple[str, Callable[[], Algorithm], Callable[[], Server], Callable]] = [
        ("sgd", base(fl.fedavg), sgd, by_size),
        ("heavyball", base(fl.fedavgm, server_lr=0.5), lambda: momentum("heavyball"), by_size),
        ("nesterov", base(fl.fedavgm, server_lr=0.5, variant="nesterov"), lambda: momentum("nesterov"), by_size),
        ("adagrad", base(fl.fedadagrad, server_lr=0.1), lambda: adaptive("adagrad", beta1=0.0), by_size),
        ("adam", base(fl.fedadam, server_lr=0.1), lambda: adaptive("adam"), by_size),
        (
            "adam-keras",
            base(fl.fedadam, server_lr=0.1, bias_correction="keras"),
            lambda: adaptive("adam", "keras", 0.0),
            by_size,
        ),
        ("yogi", base(fl.fedyogi, server_lr=0.1), lambda: adaptive("yogi"), by_size),
        ("lamb", base(fl.fedlamb, server_lr=0.1), lamb, by_size),
        ("feddyn", base(fl.feddyn, alpha=0.5), dyn, evenly),
        ("fednova", base(fl.fednova), sgd, nova()),
        ("scaffold", base(fl.scaffold), sgd, evenly),
    ]
    for grouping in ("group", "universal"):
        for name, make, server, weigh in servers:
            yield (
                f"glad-{grouping}-{name}",
                lambda make=make, grouping=grouping: fl.fedglad(make(), gamma=0.05, grouping=grouping),
                lambda server=server, weigh=weigh, grouping=grouping: Reference(server(), weigh, glad=Glad(grouping)),
            )
        yield (
            f"glad-{grouping}-fedadp-clip-yogi",
            lambda grouping=grouping: fl.fedglad(
                fl.replace(
                    fl.fedadp(client_lr=0.1), upload=fl.adaptive_clip(), server=fl.fedyogi(0.1, server_lr=0.1).server
                ),
                gamma=0.05,
                grouping=grouping,
            ),
            lambda grouping=grouping: Reference(adaptive("yogi"), Adp(), Clip(), Glad(grouping)),
        )


PAIRS: list[tuple[str, Callable[[], Algorithm], Callable[[], Reference]]] = [
    ("fedsgd", lambda: fl.fedsgd(server_lr=0.3), lambda: Reference(sgd(0.3))),
    ("fedavg", base(fl.fedavg), lambda: Reference(sgd())),
    ("fedavg-uniform", base(fl.fedavg, weighting=fl.uniform()), lambda: Reference(sgd(), evenly)),
    ("fedprox", base(fl.fedprox, mu=0.1, server_lr=0.3), lambda: Reference(sgd(0.3))),
    *[
        (
            f"fedavgm-{variant}",
            base(fl.fedavgm, server_lr=0.5, variant=variant),
            lambda variant=variant: Reference(momentum(variant)),
        )
        for variant in ("heavyball", "nesterov", "ema")
    ],
    (
        "fedadagrad",
        base(fl.fedadagrad, server_lr=0.1),
        lambda: Reference(adaptive("adagrad", beta1=0.0)),
    ),
    (
        "fedadagrad-momentum",
        base(fl.fedadagrad, server_lr=0.1, beta1=0.9, initial_accumulator=0.1),
        lambda: Reference(adaptive("adagrad", v0=0.1)),
    ),
    *[
        (
            f"fed{rule}-{mode}",
            base(getattr(fl, f"fed{rule}"), server_lr=0.1, bias_correction=mode),
            lambda rule=rule, mode=mode, v0=v0: Reference(adaptive(rule, mode, v0)),
        )
        for rule in ("adam", "yogi")
        for mode, v0 in (("none", 1e-6), ("keras", 0.0), ("torch", 0.0))
    ],
    (
        "fedyogi-falling",
        base(fl.fedyogi, server_lr=0.1, initial_accumulator=5.0),
        lambda: Reference(adaptive("yogi", v0=5.0)),
    ),
    ("fedlars", base(fl.fedlars, server_lr=0.1), lambda: Reference(lars())),
    ("fedlamb", base(fl.fedlamb, server_lr=0.1), lambda: Reference(lamb())),
    ("normalized", base(fl.normalized_fedavg, server_lr=0.1), lambda: Reference(normalized())),
    ("scaffold", base(fl.scaffold, server_lr=0.5), lambda: Reference(sgd(0.5), evenly)),
    ("fednova", base(fl.fednova), lambda: Reference(sgd(), nova())),
    ("fednova-momentum", base(fl.fednova, client_momentum=0.9), lambda: Reference(sgd(), nova(0.9))),
    ("feddyn", base(fl.feddyn, alpha=0.5), lambda: Reference(dyn(), evenly)),
    ("fedadp-count", base(fl.fedadp), lambda: Reference(sgd(), Adp())),
    ("fedadp-round", base(fl.fedadp, smoothing="round", alpha=3.0), lambda: Reference(sgd(), Adp("round", 3.0))),
    ("adaptive-clip", with_upload(fl.adaptive_clip), lambda: Reference(sgd(), upload=Clip())),
    (
        "zeroing",
        with_upload(lambda: fl.zeroing(initial=0.3, offset=0.0)),
        lambda: Reference(sgd(), upload=Zero(0.3, 0.0)),
    ),
    (
        "zeroing-clip",
        with_upload(lambda: fl.chain(fl.zeroing(initial=0.3, offset=0.1), fl.adaptive_clip(initial=0.5))),
        lambda: Reference(sgd(), upload=both(Zero(0.3, 0.1), Clip(0.5))),
    ),
    *glad_pairs(),
]


@pytest.mark.parametrize(("make", "reference"), [pair[1:] for pair in PAIRS], ids=[pair[0] for pair in PAIRS])
def test_twenty_rounds(make: Callable[[], Algorithm], reference: Callable[[], Reference]) -> None:
    algorithm, other = make(), reference()
    rng = np.random.default_rng(1)
    x = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    x["scale"] = np.zeros(1)  # layer-wise rules treat a zero norm apart
    params = {name: torch.tensor(leaf) for name, leaf in x.items()}
    state = algorithm.init(params, N, examples=torch.tensor(SIZES))
    control = zeros()
    # one client alone has angle zero, where the arc cosine keeps half of the digits
    for cohort in cohorts(2, smallest=2 if algorithm.combine.needs == "alignment" else 1):
        sends = algorithm.memory.sends if algorithm.memory else ()
        params, state, _ = algorithm.apply(
            params,
            state,
            fl.Cohort(
                clients=torch.tensor(cohort.ids),
                examples=torch.tensor(SIZES[cohort.ids]),
                updates={name: torch.tensor(leaf) for name, leaf in cohort.rows.items()},
                steps=torch.tensor(cohort.steps),
                extra={kind: {k: torch.tensor(leaf) for k, leaf in cohort.control.items()} for kind in sends},
            ),
        )
        x = other.round(x, cohort)
        control = {k: control[k] + cohort.control[k].sum(0) / N for k in control}
        for name in SHAPES:
            np.testing.assert_allclose(params[name].numpy(), x[name], rtol=1e-10, atol=1e-12)
            if sends:  # SCAFFOLD's c = c + (M / N) mean of the changes
                np.testing.assert_allclose(state.memory[name].numpy(), control[name], rtol=1e-10, atol=1e-12)
    assert state.round == ROUNDS
