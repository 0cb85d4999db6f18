"""Parts of the server side and how they are put together: torch optimizers, chains, options, blocks of rows."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from algorithm_table import UNWRAPPED, Row, play, ready
from torch import Tensor

import fedloom as fl
from fedloom import aggregate, schedule
from fedloom.algorithm import Algorithm
from fedloom.checkpoint import pack, state_to_dict
from fedloom.transforms.base import Transform, stateless
from fedloom.transforms.optimizers import momentum, normalize, scale
from fedloom.types import Cohort, Params, State

SHAPES: dict[str, tuple[int, ...]] = {"w": (3, 2), "b": (3,)}
FEDAVG = fl.fedavg(client_lr=0.1)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model(dtype: torch.dtype = torch.float64) -> Params:
    return {name: randn(index, *shape).to(dtype) for index, (name, shape) in enumerate(SHAPES.items())}


def cohort(seed: int, clients: int = 3) -> Cohort:
    def rows(first: int) -> Params:
        return {name: randn(first + index, clients, *shape) for index, (name, shape) in enumerate(SHAPES.items())}

    ids = torch.arange(clients)
    return Cohort(ids, 10 + 5 * ids, rows(100 * seed + 10), steps=1 + ids, extra={"control": rows(100 * seed + 20)})


def bits(value: Any) -> Any:
    tensors, skeleton = pack(state_to_dict(value) if isinstance(value, State) else value)
    return {name: (tensor.dtype, tensor.shape, tensor.numpy().tobytes()) for name, tensor in tensors.items()}, skeleton


# from_torch

OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.5}),
    (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.Adam, {"lr": 0.1}),
    (torch.optim.Adam, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
    (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1, "centered": True}),
    (torch.optim.NAdam, {"lr": 0.1}),
    (torch.optim.Rprop, {"lr": 0.1}),
]


@pytest.mark.parametrize(
    ("optimizer", "options"), OPTIMIZERS, ids=[f"{o.__name__}-{i}" for i, (o, _) in enumerate(OPTIMIZERS)]
)
def test_a_torch_optimizer_steps_as_it_does_by_hand(
    optimizer: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    """Five rounds beside the same optimizer kept alive and given the same gradients."""
    algorithm = fl.replace(FEDAVG, server=fl.from_torch(optimizer, **options))
    by_hand = {name: leaf.clone().requires_grad_() for name, leaf in model().items()}
    alive = optimizer(list(by_hand.values()), **options)
    for (params, _, _), sent in zip(
        play(algorithm, model(), [cohort(t) for t in range(5)], population=3),
        [cohort(t) for t in range(5)],
        strict=True,
    ):
        weights = sent.examples.double() / sent.examples.sum()
        for name, leaf in by_hand.items():
            leaf.grad = torch.tensordot(weights, sent.updates[name], dims=1)
        alive.step()
        for name, leaf in by_hand.items():
            torch.testing.assert_close(params[name], leaf.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("optimizer", "options", "ours"),
    [
        (torch.optim.SGD, {"lr": 0.5}, lambda: fl.fedavg(client_lr=0.1, server_lr=0.5)),
        (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9}, lambda: fl.fedavgm(client_lr=0.1, server_lr=0.5)),
        (
            torch.optim.SGD,
            {"lr": 0.5, "momentum": 0.9, "nesterov": True},
            lambda: fl.fedavgm(client_lr=0.1, server_lr=0.5, variant="nesterov"),
        ),
        (
            torch.optim.Adam,
            {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-3},
            lambda: fl.fedadam(client_lr=0.1, server_lr=0.1, bias_correction="torch"),
        ),
        (
            torch.optim.Adagrad,
            {"lr": 0.1, "eps": 1e-3, "initial_accumulator_value": 1e-6},
            lambda: fl.fedadagrad(client_lr=0.1, server_lr=0.1),
        ),
    ],
    ids=["sgd", "heavyball", "nesterov", "adam", "adagrad"],
)
def test_our_optimizers_agree_with_torchs(
    optimizer: type[torch.optim.Optimizer], options: dict[str, Any], ours: Callable[[], Algorithm]
) -> None:
    theirs = fl.replace(FEDAVG, server=fl.from_torch(optimizer, **options))
    rounds = [cohort(t) for t in range(5)]
    for (got, _, _), (expected, _, _) in zip(
        play(theirs, model(), rounds, population=3), play(ours(), model(), rounds, population=3), strict=True
    ):
        for name, leaf in got.items():
            torch.testing.assert_close(leaf, expected[name], rtol=1e-11, atol=1e-12)


def test_a_torch_optimizer_keeps_the_parameters_dtype() -> None:
    algorithm = fl.replace(FEDAVG, server=fl.from_torch(torch.optim.Adam, lr=0.1))
    [(params, _, _)] = play(algorithm, model(torch.float32), [cohort(0)], population=3)
    assert {leaf.dtype for leaf in params.values()} == {torch.float32}
    assert not any(leaf.requires_grad for leaf in params.values())


def test_fedglad_over_a_torch_optimizer_is_said_once() -> None:
    base = fl.replace(FEDAVG, server=fl.from_torch(torch.optim.Adam, lr=0.1))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")  # python's own: once per place
        play(fl.fedglad(base), model(), [cohort(t) for t in range(4)], population=3)
    assert len(told) == 1
    assert "from_torch(Adam, lr=0.1) cannot separate FedGLAD's scaled gradient" in str(told[0].message)
    with pytest.warns(UserWarning, match="all its moments see the scaled one"):
        play(fl.fedglad(base), model(), [cohort(0)], population=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(base, model(), [cohort(0), cohort(1)], population=3)
        normalized = fl.replace(FEDAVG, server=fl.chain(normalize(), fl.from_torch(torch.optim.SGD, lr=0.1)))
        play(normalized, model(), [cohort(0), cohort(1)], population=3)


@pytest.mark.filterwarnings("ignore:from_torch")
def test_a_torch_optimizer_under_fedglad_sees_the_scaled_gradient() -> None:
    base = fl.replace(FEDAVG, server=fl.from_torch(torch.optim.SGD, lr=0.5))
    ours = fl.fedavg(client_lr=0.1, server_lr=0.5)
    rounds = [cohort(t) for t in range(4)]
    got = play(fl.fedglad(base, gamma=0.5), model(), rounds, population=3)[-1][0]
    expected = play(fl.fedglad(ours, gamma=0.5), model(), rounds, population=3)[-1][0]
    for name, leaf in got.items():
        torch.testing.assert_close(leaf, expected[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("optimizer", "options", "told"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentun": 0.9}, "momentun"),
        (torch.optim.Adam, {"lr": -1.0}, "Invalid learning rate"),
        (torch.optim.SGD, {"lr": schedule.inverse_sqrt(0.1)}, "torch refused"),
    ],
)
def test_wrong_torch_options_are_told_at_once(
    optimizer: type[torch.optim.Optimizer], options: dict[str, Any], told: str
) -> None:
    algorithm = fl.replace(FEDAVG, server=fl.from_torch(optimizer, **options))
    with pytest.raises(fl.FedloomError) as error:
        algorithm.init(model(), 3)
    assert f"from_torch({optimizer.__name__}" in str(error.value)
    assert told in str(error.value)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    algorithm = fl.replace(FEDAVG, server=fl.from_torch(torch.optim.LBFGS, lr=0.1))
    state = algorithm.init(model(), 3)
    with pytest.raises(fl.FedloomError, match="needs more than a gradient"):
        algorithm.apply(model(), state, cohort(0))


# chain and replace


def test_a_chain_acts_in_order() -> None:
    """Momentum of the normalised gradient is not the normalised momentum."""
    rounds = [cohort(t) for t in range(2)]
    first, second = (
        play(fl.replace(FEDAVG, server=fl.chain(*parts, scale(0.1))), model(), rounds, population=3)[-1][0]
        for parts in ((normalize(), momentum(0.9)), (momentum(0.9), normalize()))
    )
    assert not first["w"].equal(second["w"])
    length = math.sqrt(sum(float(((model()[k] - leaf) ** 2).sum()) for k, leaf in first.items()))
    assert length > 0.1  # two steps of momentum reach further than one of length 0.1


def test_chains_nest() -> None:
    rounds = [cohort(t) for t in range(3)]
    nested = fl.chain(fl.chain(normalize(), momentum(0.9)), scale(0.1))
    assert repr(nested) == "chain(chain(normalize(), momentum(0.9)), scale(0.1))"
    level = fl.chain(normalize(), momentum(0.9), scale(0.1))
    got, expected = (
        play(fl.replace(FEDAVG, server=server), model(), rounds, population=3)[-1][0] for server in (nested, level)
    )
    assert bits(got) == bits(expected)


def test_chains_of_uploads_note_their_own() -> None:
    upload = fl.chain(fl.clip(0.5), fl.adaptive_clip(initial=0.4))
    [(_, state, report)] = play(fl.replace(FEDAVG, upload=upload), model(), [cohort(0)], population=3)
    assert state.upload[0] == {}
    assert state.upload[1]["rho"] == pytest.approx(0.4 * math.exp(0.16))
    assert report["clip_norm"] == 0.4
    assert report.clients.norm.tolist() == pytest.approx([0.4] * 3)


@pytest.mark.parametrize(
    "parts", [(fl.clip(1.0), scale(0.1)), (scale(0.1), fl.keep()), (scale(0.1), 3), (fl.keep(), None)], ids=repr
)
def test_a_chain_is_of_one_kind(parts: tuple[Any, ...]) -> None:
    with pytest.raises(fl.FedloomError, match="chain: expected parts of one kind, got"):
        fl.chain(*parts)


def test_replace_swaps_slots() -> None:
    algorithm = fl.replace(fl.fedadam(client_lr=0.1), upload=fl.clip(1.0), combine=fl.uniform())
    assert repr(algorithm.upload) == "clip(1)"
    assert repr(algorithm.combine) == "uniform()"
    assert algorithm.name == "fedadam"
    with pytest.raises(fl.FedloomError, match="did you mean 'server'"):
        fl.replace(algorithm, sever=scale(0.1))


def test_a_parts_resolution_reaches_into_chains() -> None:
    algorithm = fl.fedglad(fl.fedyogi(client_lr=0.1, initial_accumulator="estimate"))
    with pytest.raises(fl.FedloomError, match="initial_accumulator='estimate' is not resolved"):
        algorithm.init(model(), 3)
    assert algorithm.server.resolve is not None
    resolved = fl.replace(algorithm, server=algorithm.server.resolve(0.25))
    assert resolved.server.resolve is None
    v = resolved.init(model(), 3).server[1][0]["v"]
    assert all(bool((leaf == 0.25).all()) for leaf in v.values())
    assert FEDAVG.server.resolve is None


# Options


@pytest.mark.parametrize("make", [fl.fedadagrad, fl.fedadam, fl.fedyogi])
def test_an_unresolved_estimate_is_an_error(make: Callable[..., Algorithm]) -> None:
    algorithm = make(client_lr=0.1, initial_accumulator="estimate")
    with pytest.raises(fl.FedloomError, match=r"fl\.estimate_accumulator"):
        algorithm.init(model(), 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0.01**2),
        ({"bias_correction": "keras"}, 0.0),
        ({"bias_correction": "torch"}, 0.0),
        ({"initial_accumulator": 0.3, "bias_correction": "keras"}, 0.3),
        ({"initial_accumulator": 0}, 0.0),
    ],
)
def test_default_accumulators(options: dict[str, Any], expected: float) -> None:
    for make in (fl.fedadam, fl.fedyogi):
        state = make(client_lr=0.1, tau=0.01, **options).init(model(), 3)
        assert float(state.server[0]["v"]["w"][0, 0]) == expected
    state = fl.fedadagrad(client_lr=0.1, tau=0.01).init(model(), 3)
    assert float(state.server[0]["v"]["w"][0, 0]) == 0.01**2


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: fl.fedavgm(client_lr=0.1, variant="heavybal"), "did you mean 'heavyball'"),
        (lambda: fl.fedadam(client_lr=0.1, bias_correction="kera"), "did you mean 'keras'"),
        (lambda: fl.fedyogi(client_lr=0.1, bias_correction="Torch"), "did you mean 'torch'"),
        (lambda: fl.scaffold(client_lr=0.1, option="gradmeen"), "did you mean 'gradmean'"),
        (lambda: fl.scaffold(client_lr=0.1, option="III"), "got 'III'"),
        (lambda: fl.fedadp(client_lr=0.1, smoothing="counts"), "did you mean 'count'"),
        (lambda: fl.fedglad(FEDAVG, grouping="groups"), "did you mean 'group'"),
        (lambda: fl.fedavg(client_lr=0.1, client_optimizer="adamv"), "did you mean 'adam"),
        (lambda: fl.fedavg(client_lr=0.1, client_momentun=0.9), "did you mean 'client_momentum'"),
        (lambda: fl.fedavg(client_lr=0.1, momentum=0.9), "fedavg keyword: expected one of"),
        (lambda: fl.feddyn(client_lr=0.1, alpha=0.1, server_lr=1.0), "got 'server_lr'"),
        (lambda: schedule.scaled(0.1, cohort=100, rule="square"), "expected one of linear, sqrt"),
        (lambda: schedule.scaled(0.1, cohort=100, warmup_rounds=2, warmup_from="zer"), "did you mean 'zero'"),
        (lambda: fl.fedadam(client_lr=0.1, initial_accumulator="estimated"), "got 'estimated'"),
    ],
)
def test_a_wrong_word_gets_the_nearest_right_one(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(fl.FedloomError) as error:
        make()
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: fl.fedavg(client_lr=-0.1), "client_lr: expected a non-negative number"),
        (lambda: fl.fedavg(client_lr=math.nan), "client_lr"),
        (lambda: fl.fedavg(client_lr="0.1"), "client_lr"),
        (lambda: fl.fedavg(client_lr=0.1, server_lr=-1.0), "server_lr"),
        (lambda: fl.fedavg(client_lr=0.1, server_lr=True), "server_lr"),
        (lambda: fl.fedavgm(client_lr=0.1, momentum=1.0), "momentum: expected a number in [0, 1), got 1.0"),
        (lambda: fl.fedadam(client_lr=0.1, beta1=-0.1), "beta1"),
        (lambda: fl.fedadam(client_lr=0.1, beta2=1.0), "beta2"),
        (lambda: fl.fedyogi(client_lr=0.1, beta2=2.0), "beta2"),
        (lambda: fl.fedadam(client_lr=0.1, tau=-1e-3), "tau"),
        (lambda: fl.fedadagrad(client_lr=0.1, initial_accumulator=-1.0), "initial_accumulator"),
        (lambda: fl.fedlars(client_lr=0.1, beta=1.5), "beta"),
        (lambda: fl.feddyn(client_lr=0.1, alpha=0.0), "alpha"),
        (lambda: fl.fedprox(client_lr=0.1, mu=-1.0), "mu"),
        (lambda: fl.fedglad(FEDAVG, beta=1.5), "glad beta"),
        (lambda: fl.fedglad(FEDAVG, gamma=-0.1), "glad gamma"),
        (lambda: fl.clip(0.0), "clip norm: expected a positive number, got 0.0"),
        (lambda: fl.clip(math.nan), "clip norm"),
        (lambda: fl.adaptive_clip(initial=-1.0), "adaptive_clip initial"),
        (lambda: fl.zeroing(initial=0.0), "zeroing initial"),
        (lambda: fl.fedavg(client_lr=0.1, client_clip_norm=0.0), "client_clip_norm"),
        (lambda: fl.fedavg(client_lr=0.1, client_optimizer="adam", client_momentum=0.9), "client_momentum"),
        (lambda: fl.fedadp(client_lr=0.1, weighting=fl.by_angle()), "by_angle"),
    ],
)
def test_a_number_out_of_range_is_named(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(fl.FedloomError) as error:
        make()
    assert told in str(error.value)


def test_keywords_given_twice_or_not_known_to_python() -> None:
    with pytest.raises(TypeError, match="client_lr"):
        fl.fedavg(0.1, client_lr=0.1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="client_lr"):
        fl.fedavg()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="client_lr"):
        fl.fedsgd(client_lr=0.1)  # type: ignore[call-arg]


def test_weightings_by_default() -> None:
    for name in ("fedavg", "fedavgm", "fedadam", "fedlars", "normalized_fedavg"):
        assert repr(getattr(fl, name)(client_lr=0.1).combine) == "by_examples()"
    assert repr(fl.scaffold(client_lr=0.1).combine) == "uniform()"
    assert repr(fl.feddyn(client_lr=0.1, alpha=0.1).combine) == "uniform()"
    assert repr(fl.scaffold(client_lr=0.1, weighting=fl.by_examples()).combine) == "by_examples()"
    assert repr(fl.fedavg(client_lr=0.1, weighting=fl.uniform()).combine) == "uniform()"


def test_slots_are_readable() -> None:
    algorithm = fl.fedprox(client_lr=0.1, mu=0.5)
    assert repr(algorithm.client) == "chain(add_proximal(0.5), scale(0.1))"
    assert repr(algorithm.work) == "epochs()"
    assert repr(fl.fedsgd().work) == "full_gradient()"
    assert repr(algorithm) == (
        "fedprox(work=epochs(), client=chain(add_proximal(0.5), scale(0.1)), upload=keep(), "
        "combine=by_examples(), server=scale(1))"
    )
    assert algorithm.memory is None
    assert repr(fl.scaffold(client_lr=0.1).memory) == "controls('II')"


def test_no_weighting_means_the_default() -> None:
    assert repr(fl.scaffold(client_lr=0.1, weighting=None).combine) == "uniform()"  # type: ignore[arg-type]
    assert repr(fl.feddyn(client_lr=0.1, alpha=0.1, weighting=None).combine) == "uniform()"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: fl.chain(3), "chain: expected"),
        (lambda: fl.adaptive_clip(quantile=7.0), "quantile"),
        (lambda: fl.zeroing(quantile=-0.1), "quantile"),
        (lambda: fl.fedadam(client_lr=0.1, tau="0.1"), "tau"),
        (lambda: fl.fedprox(client_lr=0.1, mu="0.1"), "mu"),
        (lambda: schedule.warmup(0.1, rounds=0), "rounds"),
        (lambda: FEDAVG.init({}, 3), "params"),
    ],
)
def test_more_numbers_out_of_range(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(fl.FedloomError) as error:
        make()
    assert told in str(error.value)


def test_a_torch_optimizer_for_sparse_gradients_is_refused() -> None:
    algorithm = fl.replace(FEDAVG, server=fl.from_torch(torch.optim.SparseAdam, lr=0.1))
    with pytest.raises(fl.FedloomError, match="SparseAdam"):
        algorithm.apply(model(), algorithm.init(model(), 3), cohort(0))


def test_fednova_when_no_client_had_a_rate() -> None:
    """A warm-up within the round starts at zero: clients of one step did not move, and the model stays."""
    algorithm = fl.fednova(client_lr=schedule.within_round(0.1))
    sent = dataclasses.replace(cohort(0), steps=torch.ones(3))
    [(params, _, _)] = play(algorithm, model(), [sent], population=3)
    assert bits(params) == bits(model())


# What transforms are told


def test_a_transform_is_told_about_the_round() -> None:
    told = []

    def look(g: Params, params: Params, info: Any) -> Params:
        told.append((info.round, info.admitted, info.population, info.raw is g, sorted(info.squares)))
        return g

    algorithm = fl.replace(FEDAVG, server=stateless("look()", look))
    play(algorithm, model(), [cohort(0, clients=2), cohort(1, clients=3)], population=5)
    assert told == [(0, 2, 5, True, ["b", "w"]), (1, 3, 5, True, ["b", "w"])]


def test_a_transforms_notes_are_reported() -> None:
    def update(g: Params, state: Any, params: Params, info: Any) -> Any:
        return g, state, dataclasses.replace(info, notes=info.notes | {"temperature": 3.0})

    algorithm = fl.replace(FEDAVG, server=fl.chain(Transform("note()", update), scale(1.0)))
    [(_, _, report)] = play(algorithm, model(), [cohort(0)], population=3)
    assert report["temperature"] == 3.0


@pytest.mark.parametrize("row", UNWRAPPED, ids=[row[0] for row in UNWRAPPED])
def test_blocks_of_rows_do_not_matter(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are worked on in blocks that fit the memory: one at a time gives the same bits."""
    algorithm = ready(row[1])
    whole = play(algorithm, model(), [cohort(0, 5), cohort(1, 4)], population=5)
    monkeypatch.setattr(aggregate, "_BLOCK", 1)
    singly = play(algorithm, model(), [cohort(0, 5), cohort(1, 4)], population=5)
    for (params, state, report), (other, other_state, other_report) in zip(whole, singly, strict=True):
        assert bits(params) == bits(other)
        assert bits(state) == bits(other_state)
        assert bits(dict(report)) == bits(dict(other_report))


def test_alignment_on_request() -> None:
    """A sampler may ask for distances to the mean; the step stays the same."""
    params, state = model(), FEDAVG.init(model(), 3)
    sent = cohort(0)
    plain, _, report = FEDAVG.apply(params, state, sent)
    assert report.clients.distance is None and report.clients.angle is None
    got, _, report = FEDAVG.apply(params, state, sent, needs="alignment")
    for name, leaf in got.items():
        torch.testing.assert_close(leaf, plain[name], rtol=1e-13, atol=1e-13)
    flat = torch.cat([rows.flatten(1) for rows in sent.updates.values()], 1)
    mean = (sent.examples.double() @ flat) / sent.examples.sum()
    assert report.clients.distance is not None and report.clients.angle is not None
    torch.testing.assert_close(report.clients.distance, (flat - mean).norm(dim=1), rtol=1e-12, atol=0)
    cosine = flat @ mean / (flat.norm(dim=1) * mean.norm())
    torch.testing.assert_close(report.clients.angle, cosine.arccos(), rtol=1e-9, atol=0)


def test_the_report_has_what_it_promises() -> None:
    [(_, _, report)] = play(fl.fedglad(FEDAVG), model(), [cohort(0)], population=3)
    promised = {"pseudo_gradient_norm", "mean_update_norm", "cosine", "admitted", "gsi", "gsi/w", "gsi/b", "glad_ratio"}
    assert promised <= report.keys()
    assert all(type(value) in (int, float) for value in report.values())
    assert report.clients.ids.tolist() == [0, 1, 2]
    assert report.clients.reasons == [None] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_parameters_are_rounded_once(dtype: torch.dtype) -> None:
    """All arithmetic is float64; the parameters are rounded at the end."""
    params = model(dtype)
    [(got, _, _)] = play(FEDAVG, params, [cohort(0)], population=3)
    exact = {name: leaf.double() for name, leaf in params.items()}
    [(expected, _, _)] = play(FEDAVG, exact, [cohort(0)], population=3)
    for name, leaf in got.items():
        assert leaf.equal(expected[name].to(dtype))


def test_moments_of_narrow_parameters_are_wide() -> None:
    state = fl.fedadam(client_lr=0.1).init(model(torch.float16), 3)
    assert {leaf.dtype for leaf in state.server[0]["m"].values()} == {torch.float64}
