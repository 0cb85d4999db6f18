"""Admission: which rows are refused and why, what a refusal leaves behind, and what is the caller's own mistake."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from algorithm_table import UNWRAPPED, Row, ready
from torch import Tensor

import fedloom as fl
from fedloom.algorithm import Algorithm
from fedloom.checkpoint import pack, state_to_dict
from fedloom.types import Cohort, Params, State

NAN, INF = math.nan, math.inf


def model(dtype: torch.dtype = torch.float64) -> Params:
    return {"w": torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=dtype), "b": torch.tensor([0.25, -0.75], dtype=dtype)}


def rows(*ids: int) -> Params:
    """What these clients send, whoever stands beside them."""
    g = [torch.Generator().manual_seed(k) for k in ids]
    return {
        "w": torch.stack([torch.randn(2, 2, generator=one, dtype=torch.float64) for one in g]),
        "b": torch.stack([torch.randn(2, generator=one, dtype=torch.float64) for one in g]),
    }


def cohort(*ids: int, **fields: Any) -> Cohort:
    """Clients with 10, 20, 30, ... examples."""
    given = {
        "clients": torch.tensor(ids),
        "examples": 10.0 + 10 * torch.tensor(ids),
        "updates": rows(*ids),
        "steps": 1 + torch.tensor(ids) % 3,
        "extra": {"control": rows(*(k + 100 for k in ids))},
    }
    return Cohort(**(given | fields))


def poisoned(sent: Cohort, index: int, value: float, leaf: str = "w") -> Cohort:
    updates = {name: rows.clone() for name, rows in sent.updates.items()}
    updates[leaf][index].view(-1)[0] = value
    return dataclasses.replace(sent, updates=updates)


def bits(value: Any) -> Any:
    tensors, skeleton = pack(state_to_dict(value) if isinstance(value, State) else value)
    return {name: (tensor.dtype, tensor.shape, tensor.numpy().tobytes()) for name, tensor in tensors.items()}, skeleton


def assert_as_if_absent(algorithm: Algorithm, sent: Cohort, without: Cohort, **init: Any) -> None:
    """`sent` gives the same bits as `without`, over two rounds, but for the report."""
    params = expected_params = model()
    state = expected_state = algorithm.init(params, 6, **init)
    for _ in range(2):
        params, state, report = algorithm.apply(params, state, sent)
        expected_params, expected_state, expected = algorithm.apply(expected_params, expected_state, without)
        assert bits(params) == bits(expected_params)
        assert bits(state) == bits(expected_state)
        assert report["refused"] == expected["refused"] + sent.size - without.size
        for name in ("admitted", "pseudo_gradient_norm", "mean_update_norm", "cosine"):
            assert bits(report[name]) == bits(expected[name])


FEDAVG = fl.fedavg(client_lr=0.1)

REFUSALS: list[tuple[str, Cohort, dict[str, Any], str]] = [
    ("NaN", poisoned(cohort(0, 1, 2), 1, NAN), {}, "non-finite value in update 'w'"),
    ("infinity", poisoned(cohort(0, 1, 2), 1, -INF, "b"), {}, "non-finite value in update 'b'"),
    (
        "NaN in what memory sends",
        cohort(
            0,
            1,
            2,
            extra={"control": {"w": rows(0, 1, 2)["w"].index_fill(0, torch.tensor(1), NAN), "b": rows(0, 1, 2)["b"]}},
        ),
        {},
        "non-finite value in control 'w'",
    ),
    (
        "NaN in a buffer",
        cohort(0, 1, 2, buffers={"mean": torch.tensor([[1.0], [NAN], [3.0]])}),
        {"buffers": {"mean": torch.zeros(1)}},
        "non-finite value in buffer 'mean'",
    ),
    (
        "weight zero",
        cohort(0, 1, 2, examples=torch.tensor([10, 0, 30])),
        {},
        "weight: expected a finite positive number, got 0",
    ),
    ("weight negative", cohort(0, 1, 2, examples=torch.tensor([10, -3, 30])), {}, "got -3"),
    ("weight NaN", cohort(0, 1, 2, examples=torch.tensor([10.0, NAN, 30.0])), {}, "got nan"),
    ("weight infinite", cohort(0, 1, 2, examples=torch.tensor([10.0, INF, 30.0])), {}, "got inf"),
    (
        "weights override",
        cohort(0, 1, 2, weights=torch.tensor([1.0, -1.0, 2.0])),
        {},
        "weight: expected a finite positive",
    ),
    (
        "above the known count",
        cohort(0, 1, 2),
        {"examples": torch.tensor([10, 19, 30, 40, 50, 60])},
        "examples: expected at most the known 19, got 20",
    ),
    ("unknown client", cohort(0, 6, 2), {}, "unknown client: expected an id in 0..5, got 6"),
    ("negative client", cohort(0, -1, 2, updates=rows(0, 1, 2)), {}, "unknown client: expected an id in 0..5, got -1"),
    ("second row", cohort(0, 0, 2), {}, "second report of this client in the round"),
    (
        "multiplicity zero",
        cohort(0, 1, 2, multiplicity=torch.tensor([1, 0, 1])),
        {},
        "multiplicity: expected a finite number of at least 1",
    ),
    ("steps zero", cohort(0, 1, 2, steps=torch.tensor([1, 0, 1])), {}, "steps: expected a finite number of at least 1"),
    (
        "steps NaN",
        cohort(0, 1, 2, steps=torch.tensor([1.0, NAN, 1.0])),
        {},
        "steps: expected a finite number of at least 1",
    ),
]


@pytest.mark.parametrize(("sent", "init", "reason"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS])
def test_a_row_is_refused_with_a_reason(sent: Cohort, init: dict[str, Any], reason: str) -> None:
    """The middle row of three; the other two go on as if they had come alone."""
    params = model()
    state = FEDAVG.init(params, 6, **init)
    _, _, report = FEDAVG.apply(params, state, sent)
    first, second, third = report.clients.reasons
    assert first is None and third is None
    assert second is not None and reason in second
    assert (report["admitted"], report["refused"]) == (2, 1)
    assert report.clients.admitted.tolist() == [True, False, True]
    assert report.clients.ids.equal(sent.clients)
    assert report.clients.weight[1] == 0
    assert float(report.clients.weight.sum()) == pytest.approx(1)
    keep = torch.tensor([0, 2])

    def pick(value: Any) -> Any:
        return {k: pick(v) for k, v in value.items()} if isinstance(value, dict) else value[keep]

    fields = {f.name: getattr(sent, f.name) for f in dataclasses.fields(sent)}
    without = Cohort(**{name: None if value is None else pick(value) for name, value in fields.items()})
    assert_as_if_absent(FEDAVG, sent, without, **init)


@pytest.mark.parametrize("row", UNWRAPPED, ids=[row[0] for row in UNWRAPPED])
def test_a_nan_client_leaves_no_trace(row: Row) -> None:
    """Alone in its chunk, too."""
    algorithm = ready(row[1])
    sent = poisoned(cohort(3, 0, 5, 1), 2, NAN)
    assert_as_if_absent(algorithm, sent, cohort(3, 0, 1))
    params = model()
    state = algorithm.init(params, 6)
    chunks = [cohort(0, 1), poisoned(cohort(2), 0, INF), cohort(3)]
    got, expected = algorithm.apply(params, state, chunks), algorithm.apply(params, state, cohort(0, 1, 3))
    assert bits(got[0]) == bits(expected[0])
    assert bits(got[1]) == bits(expected[1])


def test_a_row_is_admitted_while_its_entries_are_finite() -> None:
    """Its norm may overflow float32; what stands beside it is looked at none the less."""
    params = {name: leaf.float() for name, leaf in model().items()}
    sent = cohort(0, 1, 2, updates={name: part.float() for name, part in rows(0, 1, 2).items()})
    large = poisoned(sent, 1, 3e38)
    _, _, report = FEDAVG.apply(params, FEDAVG.init(params, 6), large)
    assert report["refused"] == 0
    _, _, report = FEDAVG.apply(params, FEDAVG.init(params, 6), poisoned(large, 2, NAN))
    assert report.clients.admitted.tolist() == [True, True, False]


def test_of_two_rows_the_first_is_kept() -> None:
    sent = cohort(2, 1, 2, updates=rows(2, 1, 4))
    assert_as_if_absent(FEDAVG, sent, cohort(2, 1))
    across = [cohort(1, 2), cohort(2, 3, updates=rows(4, 3))]
    params = model()
    state = FEDAVG.init(params, 6)
    got, _, report = FEDAVG.apply(params, state, across)
    expected, _, _ = FEDAVG.apply(params, state, cohort(1, 2, 3))
    assert bits(got) == bits(expected)
    assert [reason is None for reason in report.clients.reasons] == [True, True, False, True]
    assert report.clients.ids.tolist() == [1, 2, 2, 3]


def test_a_refused_first_row_bars_the_second() -> None:
    """The first report counts, whatever became of it: nobody gets a second try."""
    sent = poisoned(cohort(2, 1, 2, updates=rows(4, 1, 2)), 0, NAN)
    assert_as_if_absent(FEDAVG, sent, cohort(1))


def test_known_counts_bound_what_clients_claim() -> None:
    """Up to the known count is fine, fractions included; weights of another unit are not compared with examples."""
    known = {"examples": torch.tensor([10, 20, 30, 40, 50, 60])}
    params = model()
    state = FEDAVG.init(params, 6, **known)
    _, _, report = FEDAVG.apply(params, state, cohort(0, 1, examples=torch.tensor([10.0, 19.5])))
    assert report["refused"] == 0
    _, _, report = FEDAVG.apply(params, state, cohort(0, 1, weights=torch.tensor([900.0, 100.0])))
    assert report["refused"] == 0
    assert report.clients.weight.tolist() == pytest.approx([0.9, 0.1])


def test_weights_replace_examples() -> None:
    params = model()
    state = FEDAVG.init(params, 6)
    tokens = cohort(0, 1, 2, weights=torch.tensor([7, 5, 3]))
    counted = cohort(0, 1, 2, examples=torch.tensor([7, 5, 3]))
    got, _, report = FEDAVG.apply(params, state, tokens)
    expected, _, _ = FEDAVG.apply(params, state, counted)
    assert bits(got) == bits(expected)
    assert report.clients.weight.tolist() == pytest.approx([7 / 15, 5 / 15, 3 / 15])


def test_multiplicity_multiplies_the_weight() -> None:
    params = model()
    state = FEDAVG.init(params, 6)
    _, _, report = FEDAVG.apply(params, state, cohort(0, 1, multiplicity=torch.tensor([3, 1])))
    assert report.clients.weight.tolist() == pytest.approx([30 / 50, 20 / 50])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.float64])
def test_examples_of_any_real_dtype(dtype: torch.dtype) -> None:
    params = model()
    state = FEDAVG.init(params, 6)
    got, _, _ = FEDAVG.apply(params, state, cohort(0, 1, examples=torch.tensor([10, 20], dtype=dtype)))
    expected, _, _ = FEDAVG.apply(params, state, cohort(0, 1))
    assert bits(got) == bits(expected)


@pytest.mark.parametrize("row", UNWRAPPED, ids=[row[0] for row in UNWRAPPED])
def test_a_void_round_changes_nothing(row: Row) -> None:
    """Nobody admitted, after an ordinary round: same objects, no counter advanced; then on as if it had not been."""
    algorithm = ready(row[1])
    params, state, _ = algorithm.apply(
        model(), algorithm.init(model(), 6, buffers={"n": torch.zeros(2)}), cohort(0, 1, 2)
    )
    snapshot = bits(params), bits(state)
    nobody = cohort(0, 1, examples=torch.tensor([0, -1]))
    for void in (nobody, [nobody, poisoned(cohort(3), 0, NAN)], []):
        same_params, same_state, report = algorithm.apply(params, state, void)
        assert same_params is params and same_state is state
        assert (bits(params), bits(state)) == snapshot
        assert report["admitted"] == 0
        assert report["pseudo_gradient_norm"] == 0
        assert not bool(report.clients.admitted.any())
    assert same_state.round == 1


def test_an_empty_stack_is_nobody() -> None:
    params = model()
    state = FEDAVG.init(params, 6, buffers={"n": torch.zeros(2)})
    empty = Cohort(
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(0),
        {name: leaf.new_zeros(0, *leaf.shape) for name, leaf in params.items()},
        buffers={"n": torch.zeros(0, 2)},
    )
    same_params, same_state, report = FEDAVG.apply(params, state, empty)
    assert same_params is params and same_state is state
    assert (report["admitted"], report["refused"]) == (0, 0)
    got, _, _ = FEDAVG.apply(params, state, [cohort(0), empty, cohort(1)])
    expected, _, _ = FEDAVG.apply(params, state, cohort(0, 1))
    assert bits(got) == bits(expected)


@pytest.mark.parametrize("weight", [1e308, 1.7e308, 1e-310, 5e-324])
@pytest.mark.parametrize("make", [fl.fedavg, fl.fednova, fl.fedadp])
def test_no_weight_can_make_the_model_infinite(make: Callable[..., Algorithm], weight: float) -> None:
    """Finite and positive, yet out of any use: its client must not take the others along."""
    algorithm = make(client_lr=0.1)
    for sent in (
        cohort(0, 1, 2, examples=torch.tensor([10, weight, 30], dtype=torch.float64)),
        cohort(0, 1, examples=torch.tensor([weight, weight], dtype=torch.float64)),
    ):
        sent = dataclasses.replace(sent, updates={name: 100 * rows for name, rows in sent.updates.items()})
        params, _, report = algorithm.apply(model(), algorithm.init(model(), 6), sent)
        assert all(bool(leaf.isfinite().all()) for leaf in params.values())
        assert math.isfinite(report["pseudo_gradient_norm"])


@pytest.mark.parametrize("row", UNWRAPPED, ids=[row[0] for row in UNWRAPPED])
def test_no_update_can_make_the_model_nan(row: Row) -> None:
    """Finite, but its square is not: whatever becomes of it, nothing turns into NaN."""
    algorithm = ready(row[1])
    params = model()
    state = algorithm.init(params, 6)
    for sent in (cohort(0, 1), poisoned(cohort(0, 1, 2), 1, 1e200), cohort(0, 1)):
        params, state, _ = algorithm.apply(params, state, sent)
        assert not any(bool(leaf.isnan().any()) for leaf in params.values())


# The caller's own mistakes


def without(sent: Cohort, leaf: str) -> Cohort:
    return dataclasses.replace(sent, updates={name: rows for name, rows in sent.updates.items() if name != leaf})


def reshaped(sent: Cohort, leaf: str, shape: tuple[int, ...]) -> Cohort:
    return dataclasses.replace(sent, updates=sent.updates | {leaf: torch.zeros(shape)})


MISTAKES: list[tuple[str, Cohort, tuple[str, ...]]] = [
    ("missing leaf", without(cohort(0, 1), "b"), ("updates", "expected leaves b, w", "got w")),
    (
        "unknown leaf",
        dataclasses.replace(cohort(0, 1), updates=rows(0, 1) | {"c": torch.zeros(2)}),
        ("updates", "expected leaves b, w", "got b, c, w"),
    ),
    ("transposed", reshaped(cohort(0, 1), "b", (2, 3)), ("updates['b']", "expected shape (2, 2)", "got (2, 3)")),
    ("no client axis", reshaped(cohort(0, 1), "w", (2, 2)), ("updates['w']", "expected shape (2, 2, 2)", "got (2, 2)")),
    ("too few rows", reshaped(cohort(0, 1), "w", (1, 2, 2)), ("updates['w']", "(2, 2, 2)", "(1, 2, 2)")),
    (
        "integer updates",
        dataclasses.replace(cohort(0, 1), updates=rows(0, 1) | {"b": torch.zeros(2, 2, dtype=torch.int64)}),
        ("updates['b']", "floating", "torch.int64"),
    ),
    ("float clients", cohort(0, 1, clients=torch.tensor([0.0, 1.0])), ("clients", "integers", "torch.float32")),
    ("matrix of clients", cohort(0, 1, clients=torch.tensor([[0, 1], [2, 3]])), ("clients", "(K,)", "(2, 2)")),
    ("short examples", cohort(0, 1, examples=torch.ones(3)), ("examples", "expected shape (2,)", "got (3,)")),
    ("short weights", cohort(0, 1, weights=torch.ones(1)), ("weights", "expected shape (2,)", "got (1,)")),
    ("short steps", cohort(0, 1, steps=torch.ones(2, 1)), ("steps", "expected shape (2,)", "got (2, 1)")),
    ("short losses", cohort(0, 1, losses=torch.ones(5)), ("losses", "expected shape (2,)", "got (5,)")),
    ("short multiplicity", cohort(0, 1, multiplicity=torch.ones(5)), ("multiplicity", "(2,)", "(5,)")),
    ("foreign buffer", cohort(0, 1, buffers={"n": torch.ones(2, 1)}), ("buffers", "got n")),
    (
        "foreign extra",
        cohort(0, 1, extra={"control": {"w": torch.ones(2, 2, 2)}}),
        ("extra['control']", "expected leaves b, w"),
    ),
]


@pytest.mark.parametrize(("sent", "told"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_stack_that_does_not_fit_is_an_error(sent: Cohort, told: tuple[str, ...]) -> None:
    params = model()
    state = FEDAVG.init(params, 6)
    with pytest.raises(fl.FedloomError) as error:
        FEDAVG.apply(params, state, sent)
    for part in told:
        assert part in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(fl.FedloomError):  # in a later chunk as well
        FEDAVG.apply(params, state, [cohort(2), sent])


def test_clients_without_an_axis_are_an_error() -> None:
    with pytest.raises(fl.FedloomError, match=r"clients: expected integers of shape \(K,\)"):
        FEDAVG.apply(model(), FEDAVG.init(model(), 6), cohort(0, clients=torch.tensor(0)))


@pytest.mark.parametrize("field", ["buffers", "losses", "steps"])
def test_chunks_agree_on_what_they_carry(field: str) -> None:
    carried = {"buffers": {"mean": torch.ones(1, 2)}, "losses": torch.ones(1), "steps": torch.ones(1)}[field]
    state = FEDAVG.init(model(), 6, buffers={"mean": torch.zeros(2)})
    with pytest.raises(fl.FedloomError, match=f"{field}: expected"):
        FEDAVG.apply(model(), state, [cohort(0, **{field: carried}), cohort(1, **{field: None})])


def test_fednova_needs_steps() -> None:
    algorithm = fl.fednova(client_lr=0.1)
    with pytest.raises(fl.FedloomError, match=r"Cohort\(steps=\.\.\.\)"):
        algorithm.apply(model(), algorithm.init(model(), 6), cohort(0, 1, steps=None))


@pytest.mark.parametrize("extra", [None, {}, {"other": rows(0, 1)}])
def test_scaffold_needs_controls(extra: Any) -> None:
    algorithm = fl.scaffold(client_lr=0.1)
    with pytest.raises(fl.FedloomError, match=r"scaffold: expected Cohort\(extra=\{'control': \.\.\.\}\)"):
        algorithm.apply(model(), algorithm.init(model(), 6), cohort(0, 1, extra=extra))


def test_init_checks_what_it_is_given() -> None:
    with pytest.raises(fl.FedloomError, match="population: expected at least 1"):
        FEDAVG.init(model(), 0)
    with pytest.raises(fl.FedloomError, match=r"examples: expected shape \(3,\), got \(2,\)"):
        FEDAVG.init(model(), 3, examples=torch.ones(2))
    with pytest.raises(fl.FedloomError, match=r"'n'.*floating.*torch.int64"):
        FEDAVG.init(model() | {"n": torch.tensor([3])}, 3)


# Buffers


def buffered(**buffers: Tensor) -> Cohort:
    return cohort(0, 1, examples=torch.tensor([30, 10]), buffers=buffers)


@pytest.mark.parametrize("row", UNWRAPPED, ids=[row[0] for row in UNWRAPPED])
def test_buffers_are_averaged_by_the_combine_weights(row: Row) -> None:
    """Counters take the largest; neither passes through the optimizer, and both keep their dtype."""
    algorithm = ready(row[1])
    params = model()
    old = {"mean": torch.tensor([9.0, 9.0]), "batches": torch.tensor([3])}
    state = algorithm.init(params, 6, buffers=old)
    for _ in range(2):
        sent = buffered(mean=torch.tensor([[1.0, 2.0], [5.0, -2.0]]), batches=torch.tensor([[4], [7]]))
        params, state, report = algorithm.apply(params, state, sent)
        p = report.clients.weight
        expected = [float(p[0] * 1 + p[1] * 5), float(p[0] * 2 - p[1] * 2)]
        assert state.buffers["mean"].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert state.buffers["mean"].dtype == torch.float32
        assert state.buffers["batches"].tolist() == [7]
        assert state.buffers["batches"].dtype == torch.int64
    assert old["mean"].tolist() == [9.0, 9.0]


def test_buffers_by_examples() -> None:
    state = FEDAVG.init(model(), 6, buffers={"mean": torch.zeros(2, dtype=torch.float64)})
    _, state, _ = FEDAVG.apply(
        model(), state, buffered(mean=torch.tensor([[1.0, 2.0], [5.0, -2.0]], dtype=torch.float64))
    )
    assert state.buffers["mean"].tolist() == pytest.approx([2.0, 1.0], rel=1e-12)


def test_buffers_that_nobody_sends_stay() -> None:
    old = {"mean": torch.tensor([9.0, 9.0])}
    _, state, _ = FEDAVG.apply(model(), FEDAVG.init(model(), 6, buffers=old), cohort(0, 1))
    assert state.buffers["mean"].equal(old["mean"])
    assert state.round == 1


def test_scalar_leaves_and_buffers() -> None:
    """A single number as a parameter, and batch norm's counter, which has no axis of its own."""
    params = {"w": torch.tensor([1.0, 2.0]), "t": torch.tensor(0.5)}
    state = FEDAVG.init(params, 2, buffers={"batches": torch.tensor(3), "mean": torch.tensor(0.0)})
    sent = Cohort(
        torch.tensor([0, 1]),
        torch.tensor([30, 10]),
        {"w": torch.ones(2, 2), "t": torch.tensor([1.0, -1.0])},
        buffers={"batches": torch.tensor([5, 4]), "mean": torch.tensor([1.0, 3.0])},
    )
    params, state, report = FEDAVG.apply(params, state, sent)
    assert params["t"].shape == ()
    assert float(params["t"]) == pytest.approx(0.5 - 0.5)
    assert state.buffers["batches"].equal(torch.tensor(5))
    assert state.buffers["mean"].equal(torch.tensor(1.5))
    assert report["admitted"] == 2
