"""The table of contents of the field: each constructor fills the six slots, its docstring carries the rule.

x is the global model, g = sum_k p_k (x - y_k) the pseudo-gradient, eta_s the server's rate. Every rule subtracts.
All take `weighting`, and all but FedSGD the clients' settings: `client_optimizer`, `client_momentum`,
`client_weight_decay`, `client_clip_norm`. Rates are numbers or `fl.schedule.*`.
"""

from __future__ import annotations

import dataclasses
from typing import TypedDict, Unpack

from fedloom.algorithm import Algorithm, Work, replace
from fedloom.errors import FedloomError, choose, positive
from fedloom.memory import Memory, controls, duals
from fedloom.privacy import Privacy
from fedloom.schedule import Rate, as_schedule
from fedloom.transforms import corrections as correct
from fedloom.transforms import optimizers as opt
from fedloom.transforms.base import Transform, chain, stateless
from fedloom.upload import Upload, keep
from fedloom.upload import clip as clip_to
from fedloom.weighting import Weighting, by_angle, by_effective_steps, by_examples, uniform

CLIENT_OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "yogi")


class Options(TypedDict, total=False):
    """What every constructor takes beside its own arguments."""

    weighting: Weighting
    client_optimizer: str
    client_momentum: float
    client_weight_decay: float
    client_clip_norm: float


def fedsgd(server_lr: Rate = 1.0, *, weighting: Weighting | None = None) -> Algorithm:
    """FedSGD (McMahan et al. 2017): x = x - eta_s sum_k p_k grad F_k(x), exact gradients of the clients' whole loss."""
    identity = stateless("identity()", lambda g, params, info: g)
    server = opt.scale(server_lr, "server_lr")
    return Algorithm("fedsgd", Work("full_gradient"), identity, keep(), weighting or by_examples(), server)


def fedavg(client_lr: Rate, server_lr: Rate = 1.0, **options: Unpack[Options]) -> Algorithm:
    """FedAvg (McMahan et al. 2017): x = x - eta_s g; with eta_s = 1 the weighted mean of the client models.

    >>> fedavg(client_lr=0.1).combine
    by_examples()
    """
    return _fill("fedavg", client_lr, opt.scale(server_lr, "server_lr"), options)


def fedavgm(
    client_lr: Rate,
    server_lr: Rate = 1.0,
    *,
    momentum: float = 0.9,
    variant: str = "heavyball",
    **options: Unpack[Options],
) -> Algorithm:
    """FedAvgM (Hsu, Qi and Brown 2019): v = beta v + g; x = x - eta_s v.

    `variant="nesterov"` (their experiments) steps by g + beta v; `"ema"` keeps v = beta v + (1 - beta) g.
    """
    server = chain(opt.momentum(momentum, variant), opt.scale(server_lr, "server_lr"))
    return _fill("fedavgm", client_lr, server, options)


def fedadagrad(
    client_lr: Rate,
    server_lr: Rate = 1.0,
    *,
    tau: float = 1e-3,
    initial_accumulator: float | str | None = None,
    beta1: float = 0.0,
    **options: Unpack[Options],
) -> Algorithm:
    """FedAdagrad (Reddi et al. 2020): v = v + g^2; x = x - eta_s g / (sqrt(v) + tau), v starting at tau^2."""
    server = chain(opt.adagrad(tau, initial_accumulator, beta1), opt.scale(server_lr, "server_lr"))
    return _fill("fedadagrad", client_lr, server, options)


def fedadam(
    client_lr: Rate,
    server_lr: Rate = 1.0,
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    bias_correction: str = "none",
    initial_accumulator: float | str | None = None,
    **options: Unpack[Options],
) -> Algorithm:
    """FedAdam (Reddi et al. 2020): x = x - eta_s m / (sqrt(v) + tau).

    m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2.

    The paper's algorithm corrects no bias (`"none"`); its code did (`"keras"`); `"torch"` is Kingma and Ba's form.
    """
    server = chain(opt.adam(beta1, beta2, tau, bias_correction, initial_accumulator), opt.scale(server_lr, "server_lr"))
    return _fill("fedadam", client_lr, server, options)


def fedyogi(
    client_lr: Rate,
    server_lr: Rate = 1.0,
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    bias_correction: str = "none",
    initial_accumulator: float | str | None = None,
    **options: Unpack[Options],
) -> Algorithm:
    """FedYogi (Reddi et al. 2020): as FedAdam but v = v - (1 - beta2) g^2 sign(v - g^2)."""
    server = chain(opt.yogi(beta1, beta2, tau, bias_correction, initial_accumulator), opt.scale(server_lr, "server_lr"))
    return _fill("fedyogi", client_lr, server, options)


def fedlars(
    client_lr: Rate, server_lr: Rate = 1.0, *, beta: float = 0.9, eps: float = 1e-3, **options: Unpack[Options]
) -> Algorithm:
    """FedLARS (Charles et al. 2021): per tensor m = beta m + (1 - beta) g; x = x - eta_s ||x|| / (||m|| + eps) m."""
    server = chain(opt.lars(beta, eps), opt.scale(server_lr, "server_lr"))
    return _fill("fedlars", client_lr, server, options)


def fedlamb(
    client_lr: Rate,
    server_lr: Rate = 1.0,
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
    **options: Unpack[Options],
) -> Algorithm:
    """FedLamb (Charles et al. 2021): u = Adam's bias-corrected step; per tensor x = x - eta_s ||x|| / ||u|| u."""
    server = chain(opt.lamb(beta1, beta2, eps), opt.scale(server_lr, "server_lr"))
    return _fill("fedlamb", client_lr, server, options)


def normalized_fedavg(client_lr: Rate, server_lr: Rate = 1.0, **options: Unpack[Options]) -> Algorithm:
    """Normalised FedAvg (Charles et al. 2021): x = x - eta_s g / ||g||, the norm over all parameters."""
    server = chain(opt.normalize(), opt.scale(server_lr, "server_lr"))
    return _fill("normalized_fedavg", client_lr, server, options)


def fedprox(client_lr: Rate, server_lr: Rate = 1.0, *, mu: float, **options: Unpack[Options]) -> Algorithm:
    """FedProx (Li et al. 2020): clients minimise F_k(y) + (mu / 2) ||y - x||^2."""
    server = opt.scale(server_lr, "server_lr")
    return _fill("fedprox", client_lr, server, options, corrections=(correct.add_proximal(mu),))


def scaffold(client_lr: Rate, server_lr: Rate = 1.0, *, option: str = "II", **options: Unpack[Options]) -> Algorithm:
    """SCAFFOLD (Karimireddy et al. 2020): y = y - eta_c (grad + c - c_k); x = x - eta_s mean_S g_k.

    c = c + (1 / N) sum_S (c_k+ - c_k), with c_k+ the client's new control.

    Option II takes c_k+ from the path, which is a gradient under plain SGD only: with other client optimizers use
    `"gradmean"`. Option I takes the exact gradient at x.
    """
    server = opt.scale(server_lr, "server_lr")
    options["weighting"] = options.get("weighting") or uniform()
    return _fill("scaffold", client_lr, server, options, corrections=(correct.add_control(),), memory=controls(option))


def fednova(client_lr: Rate, server_lr: Rate = 1.0, **options: Unpack[Options]) -> Algorithm:
    """FedNova (Wang et al. 2020): x = x - eta_s tau_eff sum_k p_k g_k / ||a_k||_1, ||a_k||_1 = tau_k for plain SGD.

    ||a_k||_1 follows the client optimizer named here: with another `client` slot, replace `combine` too.
    """
    optimizer, beta = options.get("client_optimizer", "sgd"), _client_momentum(options)
    combine = by_effective_steps(
        momentum=beta if optimizer in ("sgd", "momentum", "nesterov") else 0.0,
        nesterov=optimizer == "nesterov",
        shape=as_schedule(client_lr, "client_lr").shape,
        base=options.get("weighting"),
    )
    return _fill("fednova", client_lr, opt.scale(server_lr, "server_lr"), options, combine=combine)


def feddyn(client_lr: Rate, *, alpha: float, **options: Unpack[Options]) -> Algorithm:
    """FedDyn (Acar et al. 2021): clients minimise F_k(y) - <q_k, y> + (alpha / 2) ||y - x||^2.

    Client: q_k = q_k - alpha (y_k - x). Server: h = h - (alpha / N) sum_S (y_k - x); x = mean_S y_k - h / alpha.
    """
    positive("feddyn alpha", alpha)
    options["weighting"] = options.get("weighting") or uniform()
    return _fill(
        "feddyn",
        client_lr,
        correct.drift(alpha),
        options,
        corrections=(correct.add_dynamic(alpha),),
        memory=duals(alpha),
    )


def fedadp(
    client_lr: Rate,
    server_lr: Rate = 1.0,
    *,
    alpha: float = 5.0,
    smoothing: str = "count",
    **options: Unpack[Options],
) -> Algorithm:
    """FedAdp (Wu and Wang 2021): x = x - eta_s sum_k psi_k g_k, psi_k larger the smaller g_k's angle to the mean."""
    combine = by_angle(alpha, smoothing, options.get("weighting"))
    return _fill("fedadp", client_lr, opt.scale(server_lr, "server_lr"), options, combine=combine)


def central(client_lr: Rate, **options: Unpack[Options]) -> Algorithm:
    """Centralised training, the line federated ones are compared with: one client has everybody's rows, each once.

    A round is its `epochs` (or `steps`) over them: y = y - eta step(gradient), the optimizer going on from round to
    round; x = y. Cohorts, samplers and devices play no part.

    >>> central(client_lr=0.1, client_optimizer="momentum").client
    chain(momentum(0.9), scale(0.1))
    """
    return replace(_fill("central", client_lr, opt.scale(1.0), options), work=Work("central"))


def fedglad(algorithm: Algorithm, beta: float = 0.9, gamma: float = 0.02, grouping: str = "group") -> Algorithm:
    """FedGLAD (Yang et al. 2023) around any algorithm: its pseudo-gradient is scaled by the cohort's agreement first.

    Second moments and FedDyn's h go on reading the unscaled one.

    >>> fedglad(fedavg(client_lr=0.1)).name
    'fedglad(fedavg)'
    """
    if not isinstance(algorithm, Algorithm):
        raise FedloomError(f"fedglad: expected an Algorithm to wrap, got {algorithm!r}")
    server = chain(correct.glad(beta, gamma, grouping), algorithm.server)
    return replace(algorithm, name=f"fedglad({algorithm.name})", server=server)


def private(
    algorithm: Algorithm,
    *,
    clip: float | Upload,
    noise_multiplier: float,
    delta: float,
    cohort: float | None = None,
    count_noise: float | None = None,
    seeded_noise: bool = False,
) -> Algorithm:
    """Client-level differential privacy (McMahan et al. 2018) around an algorithm whose server reads the mean alone.

    g = (sum_k clip_C(g_k) + N(0, (z C)^2)) / (q N), z the `noise_multiplier`, q N the expected cohort.

    `clip` is the norm C, or `fl.adaptive_clip(...)`, whose count of unclipped clients gets noise of its own (Andrew et
    al. 2021). Cohorts are Poisson samples and weights uniform; epsilon is told for `delta`. `simulate` knows the
    cohort; who calls `apply` passes it. `seeded_noise` repeats itself, for tests: it protects nobody.

    >>> import fedloom as fl
    >>> private(fl.fedavg(client_lr=0.1, weighting=fl.uniform()), clip=0.5, noise_multiplier=1.0, delta=1e-5).upload
    clip(0.5)
    """
    if not isinstance(algorithm, Algorithm):
        raise FedloomError(f"private: expected an Algorithm to wrap, got {algorithm!r}")
    if algorithm.upload.name != "keep()":
        raise FedloomError(f"private: expected upload=fl.keep(), since it clips by itself; got {algorithm.upload}")
    return dataclasses.replace(
        algorithm,
        name=f"private({algorithm.name})",
        upload=clip if isinstance(clip, Upload) else clip_to(clip),
        privacy=Privacy(noise_multiplier, delta, cohort, count_noise, seeded_noise),
    )


def _fill(
    name: str,
    client_lr: Rate,
    server: Transform,
    options: Options,
    *,
    corrections: tuple[Transform, ...] = (),
    combine: Weighting | None = None,
    memory: Memory | None = None,
) -> Algorithm:
    for option in options:
        if option not in Options.__annotations__:
            raise choose(f"{name} keyword", option, Options.__annotations__)
    client = chain(*corrections, *_client_steps(client_lr, options))
    combine = combine or options.get("weighting") or by_examples()
    return Algorithm(name, Work(), client, keep(), combine, server, memory)


def _client_momentum(options: Options) -> float:
    """What `client_momentum` stands for when it is not given: 0.9 where the optimizer's name asks for momentum."""
    by_name = 0.9 if options.get("client_optimizer", "sgd") in ("momentum", "nesterov") else 0.0
    return options.get("client_momentum", by_name)


def _client_steps(client_lr: Rate, options: Options) -> list[Transform]:
    """Gradient -> step on a client: clip, then decay, then the optimizer, then the rate; AdamW decays last."""
    optimizer, beta = options.get("client_optimizer", "sgd"), _client_momentum(options)
    if optimizer not in CLIENT_OPTIMIZERS:
        raise choose("client_optimizer", optimizer, CLIENT_OPTIMIZERS)
    if beta and optimizer not in ("sgd", "momentum", "nesterov"):
        raise FedloomError(f"client_momentum: expected none with client_optimizer={optimizer!r}, got {beta!r}")
    decay = options.get("client_weight_decay", 0.0)
    decays = [correct.add_weight_decay(decay)] if decay else []
    clips = [correct.clip_gradient(norm)] if (norm := options.get("client_clip_norm")) is not None else []
    scale = opt.scale(client_lr, "client_lr")
    if optimizer == "adamw":
        return [*clips, opt.adam(0.9, 0.999, 1e-8, "torch"), *decays, scale]
    rules = {
        "adam": [opt.adam(0.9, 0.999, 1e-8, "torch")],
        "adagrad": [opt.adagrad(1e-10, 0.0)],
        "yogi": [opt.yogi(0.9, 0.999, 1e-3, "keras", 1e-6)],  # the settings of its authors (Zaheer et al. 2018)
        "nesterov": [opt.momentum(beta, "nesterov")],
    }
    momentum = [opt.momentum(beta)] if beta else []
    return [*clips, *decays, *rules.get(optimizer, momentum), scale]
