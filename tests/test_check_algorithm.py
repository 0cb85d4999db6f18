"""Every algorithm passes the public battery, and every law of it is failed by something built to break that law."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from algorithm_table import CONSTRUCTORS, TABLE, Row

import fedloom as fl
from fedloom import tree
from fedloom.algorithm import Algorithm
from fedloom.transforms.base import Transform, changed, stateless
from fedloom.transforms.optimizers import scale
from fedloom.types import Cohort, Info, Needs, Params, PartState, Report, State
from fedloom.weighting import Weighed, Weighting

Result = tuple[Params, State, Report]


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_every_algorithm_passes(row: Row) -> None:
    fl.check_algorithm(row[1]())


@pytest.mark.filterwarnings("ignore:from_torch")
def test_a_torch_optimizer_under_fedglad_passes() -> None:
    algorithm = fl.replace(fl.fedavg(client_lr=0.1), server=fl.from_torch(torch.optim.Adam, lr=0.1))
    fl.check_algorithm(fl.fedglad(algorithm))


def test_the_table_has_every_constructor() -> None:
    built = {make().name for _, make in CONSTRUCTORS}
    assert built | {"fedglad", "private"} == set(fl._HOMES["algorithms"])


# Broken on purpose: parts that go into a slot, and whole algorithms where the slots cannot break the law


def served(update: Callable[..., Any], init: Callable[[Params], PartState] = lambda params: ()) -> Algorithm:
    """FedAvg with a server of its own."""
    return fl.replace(fl.fedavg(client_lr=0.1), server=Transform("broken()", update, init))


def raises(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
    raise RuntimeError("no step today")


def velocity_in_place(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
    for name, leaf in state["v"].items():
        leaf.mul_(0.9).add_(g[name])
    return changed(tree.map(torch.clone, state["v"]), state, info)


def params_in_place(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
    for name, leaf in params.items():
        leaf.sub_(g[name])
    return changed(tree.zeros_like(g), state, info)


def hidden_counter() -> Algorithm:
    calls = [0]

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        calls[0] += 1
        return changed(tree.map(lambda leaf: leaf / calls[0], g), state, info)

    return served(update)


def global_noise(g: Params, params: Params, info: Info) -> Params:
    return tree.map(lambda leaf: leaf + 1e-12 * torch.randn_like(leaf), g)


def keeps_a_set(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
    return changed(g, {"rounds": {info.round}}, info)


@dataclass(frozen=True)
class Moments:
    """A state that is no plain data."""

    v: Params


def keeps_an_object(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
    return changed(g, Moments(g), info)


def state_by_identity() -> Algorithm:
    """Knows its own state again, and starts afresh when it was read back from elsewhere."""
    own: list[Any] = []

    def init(params: Params) -> PartState:
        return {"v": tree.zeros_like(params)}

    def update(g: Params, state: PartState, params: Params, info: Info) -> tuple[Params, PartState, Info]:
        if info.round and not any(state is kept for kept in own):
            state = init(params)
        v = tree.map(lambda v, g: 0.9 * v + g, state["v"], g)
        own.append({"v": v})
        return changed(v, own[-1], info)

    return served(update, init)


def first_row_counts_double() -> Algorithm:
    """Weights by where a row stood: the ids are sorted, so the order is read off the cohort itself."""

    @dataclass(frozen=True, repr=False)
    class Favourite(Algorithm):
        def apply(self, params: Params, state: State, cohort: Any, needs: Needs = "meta") -> Result:
            if isinstance(cohort, Cohort):
                weights = cohort.examples.double()
                weights[0] *= 2
                cohort = dataclasses.replace(cohort, weights=weights)
            return super().apply(params, state, cohort, needs)

    return retyped(Favourite)


def adds_in_the_order_given() -> Algorithm:
    """A plain sum over the rows as they came: right up to rounding, and that is not enough."""

    @dataclass(frozen=True, repr=False)
    class Unsorted(Algorithm):
        def apply(self, params: Params, state: State, cohort: Any, needs: Needs = "meta") -> Result:
            chunks = [cohort] if isinstance(cohort, Cohort) else list(cohort)
            _, new, report = super().apply(params, state, chunks, needs)
            if not report["admitted"]:
                return params, state, report
            moved = {}
            for name, leaf in params.items():
                total, weight = torch.zeros_like(leaf, dtype=torch.float64), 0.0
                for chunk in chunks:
                    for row, n in zip(chunk.updates[name], chunk.examples.tolist(), strict=True):
                        if bool(row.isfinite().all()):
                            total, weight = total + row * n, weight + n
                moved[name] = (leaf - total / weight).to(leaf.dtype)
            return moved, new, report

    return retyped(Unsorted)


def averages_chunks() -> Algorithm:
    """The mean of the chunks' means."""

    @dataclass(frozen=True, repr=False)
    class Chunked(Algorithm):
        def apply(self, params: Params, state: State, cohort: Any, needs: Needs = "meta") -> Result:
            chunks = [cohort] if isinstance(cohort, Cohort) else list(cohort)
            outcomes = [super(Chunked, self).apply(params, state, chunk, needs) for chunk in chunks]
            moved = {name: torch.stack([out[0][name] for out in outcomes]).mean(0) for name in params}
            return (moved if len(outcomes) > 1 else outcomes[0][0]), outcomes[0][1], outcomes[0][2]

    return retyped(Chunked)


def always_float64() -> Algorithm:
    @dataclass(frozen=True, repr=False)
    class Wide(Algorithm):
        def apply(self, params: Params, state: State, cohort: Any, needs: Needs = "meta") -> Result:
            params, state, report = super().apply(params, state, cohort, needs)
            return tree.map(torch.Tensor.double, params), state, report

    return retyped(Wide)


def gains_an_axis(g: Params, params: Params, info: Info) -> Params:
    return tree.map(lambda leaf: leaf.unsqueeze(0), g)


def drops_a_leaf() -> Algorithm:
    @dataclass(frozen=True, repr=False)
    class Short(Algorithm):
        def apply(self, params: Params, state: State, cohort: Any, needs: Needs = "meta") -> Result:
            params, state, report = super().apply(params, state, cohort, needs)
            return dict(list(params.items())[1:]), state, report

    return retyped(Short)


def standardizes() -> Algorithm:
    """Weighs by norms relative to their spread, which one client does not have."""

    def weigh(evidence: Any, state: PartState) -> Weighed:
        spread = evidence.norms.std(correction=1) if len(evidence.norms) > 1 else torch.tensor(float("nan"))
        weight = torch.softmax((evidence.norms - evidence.norms.mean()) / spread, 0)
        return weight, torch.ones_like(weight), state

    return fl.replace(fl.fedavg(client_lr=0.1), combine=Weighting("standardized()", weigh))


def needs_company() -> Algorithm:
    def weigh(evidence: Any, state: PartState) -> Weighed:
        if len(evidence.norms) < 2:
            raise RuntimeError("two clients\nare needed")
        return torch.full_like(evidence.norms, 1 / len(evidence.norms)), torch.ones_like(evidence.norms), state

    return fl.replace(fl.fedavg(client_lr=0.1), combine=Weighting("company()", weigh))


def unit_norm(g: Params, params: Params, info: Info) -> Params:
    length = tree.norm(g)
    return tree.map(lambda leaf: leaf / length, g)


def counts_void_rounds() -> Algorithm:
    @dataclass(frozen=True, repr=False)
    class Counting(Algorithm):
        def apply(self, params: Params, state: State, cohort: Any, needs: Needs = "meta") -> Result:
            params, after, report = super().apply(params, state, cohort, needs)
            return params, dataclasses.replace(after, round=state.round + 1), report

    return retyped(Counting)


def decays_in_void_rounds() -> Algorithm:
    @dataclass(frozen=True, repr=False)
    class Decaying(Algorithm):
        def apply(self, params: Params, state: State, cohort: Any, needs: Needs = "meta") -> Result:
            params, state, report = super().apply(params, state, cohort, needs)
            return tree.map(lambda leaf: 0.99 * leaf, params), state, report

    return retyped(Decaying)


def replaces_nan_by_zero(everyone: bool) -> Algorithm:
    """Lets a broken client in with a zero update: its weight counts."""

    @dataclass(frozen=True, repr=False)
    class Lenient(Algorithm):
        def apply(self, params: Params, state: State, cohort: Any, needs: Needs = "meta") -> Result:
            chunks = [cohort] if isinstance(cohort, Cohort) else list(cohort)
            if everyone or any(bool(leaf.isfinite().any()) for chunk in chunks for leaf in chunk.updates.values()):
                chunks = [
                    dataclasses.replace(chunk, updates=tree.map(torch.nan_to_num, chunk.updates)) for chunk in chunks
                ]
            return super().apply(params, state, chunks, needs)

    return retyped(Lenient)


def writes_into_the_cohort() -> Algorithm:
    @dataclass(frozen=True, repr=False)
    class Scribbling(Algorithm):
        def apply(self, params: Params, state: State, cohort: Any, needs: Needs = "meta") -> Result:
            result = super().apply(params, state, cohort, needs)
            for chunk in [cohort] if isinstance(cohort, Cohort) else ():
                for leaf in chunk.updates.values():
                    leaf.mul_(0.5)
            return result

    return retyped(Scribbling)


def fails_at_the_start() -> Algorithm:
    def init(params: Params) -> PartState:
        raise KeyError("fc.weight")

    return served(lambda g, state, params, info: (g, state, info), init)


def retyped(kind: type[Algorithm]) -> Algorithm:
    """FedAvg with another `apply`."""
    base = fl.fedavg(client_lr=0.1)
    return kind(**{field.name: getattr(base, field.name) for field in dataclasses.fields(base)})


def plain(function: Callable[[Params, Params, Info], Params]) -> Algorithm:
    return fl.replace(fl.fedavg(client_lr=0.1), server=fl.chain(stateless("broken()", function), scale(0.5)))


def zero_velocity(params: Params) -> PartState:
    return {"v": tree.zeros_like(params)}


BROKEN: list[tuple[str, Callable[[], Algorithm], str]] = [
    ("start", fails_at_the_start, "KeyError: 'fc.weight'"),
    ("round", lambda: served(raises), "RuntimeError: no step today"),
    ("inputs", lambda: served(velocity_in_place, zero_velocity), "state/server/v"),
    ("inputs", lambda: served(params_in_place), "params/"),
    ("inputs", writes_into_the_cohort, "cohort/updates"),
    ("plain state", lambda: served(keeps_a_set), "set"),
    ("plain state", lambda: served(keeps_an_object), "Moments"),
    ("plain state", state_by_identity, "the same bits in the parameters"),
    ("dtype", always_float64, "float32 (2, 1, 3, 3), got float64 (2, 1, 3, 3)"),
    ("dtype", lambda: plain(gains_an_axis), "to stay float32 (2, 1, 3, 3), got float32 (1, 2, 1, 3, 3)"),
    ("dtype", drops_a_leaf, "expected leaves"),
    ("determinism", hidden_counter, "the same bits in the parameters"),
    ("determinism", lambda: plain(global_noise), "the same bits in the parameters"),
    ("permutation", first_row_counts_double, "the same bits in the parameters"),
    ("permutation", adds_in_the_order_given, "the same bits in the parameters"),
    ("chunks", averages_chunks, "the same bits in the parameters"),
    ("single client", standardizes, "finite parameters, got nan"),
    ("single client", needs_company, "RuntimeError: two clients are needed"),
    ("zero updates", lambda: plain(unit_norm), "finite parameters, got nan in 'conv.weight'"),
    ("void round", counts_void_rounds, "the same bits in the state, got 1 instead of 0 at 'round'"),
    ("void round", decays_in_void_rounds, "the same bits in the parameters"),
    ("void round", lambda: replaces_nan_by_zero(everyone=True), "nobody admitted, got 5"),
    ("refused row", lambda: replaces_nan_by_zero(everyone=False), "the same bits in the parameters"),
]


@pytest.mark.parametrize(
    ("law", "make", "told"), BROKEN, ids=[f"{law}-{index}" for index, (law, _, _) in enumerate(BROKEN)]
)
def test_a_broken_law_is_named(law: str, make: Callable[[], Algorithm], told: str) -> None:
    with pytest.raises(fl.FedloomError) as error:
        fl.check_algorithm(make())
    message = str(error.value)
    assert message.startswith(f"check_algorithm(fedavg): {law}: expected "), message
    assert told in message
    assert "\n" not in message


def test_every_law_has_something_that_breaks_it() -> None:
    from fedloom.testing import _LAWS

    assert {law for law, _, _ in BROKEN} == {"start", "round", "inputs", "dtype", *_LAWS}


def test_only_algorithms_are_checked() -> None:
    with pytest.raises(fl.FedloomError, match="expected an Algorithm, got 3"):
        fl.check_algorithm(3)  # type: ignore[arg-type]


def test_an_estimate_is_resolved_first() -> None:
    algorithm = fl.fedadam(client_lr=0.1, initial_accumulator="estimate")
    with pytest.raises(fl.FedloomError, match="estimate"):
        algorithm.init({"w": torch.ones(1)}, 1)
    fl.check_algorithm(algorithm)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    fl.check_algorithm(fl.fedavg(client_lr=0.1))
    assert torch.get_rng_state().equal(before)


def test_a_chunk_iterator_is_consumed_once() -> None:
    """Chunks come from an iterator: an algorithm that goes over them twice sees nothing the second time."""

    @dataclass(frozen=True, repr=False)
    class Twice(Algorithm):
        def apply(self, params: Params, state: State, cohort: Any, needs: Needs = "meta") -> Result:
            if isinstance(cohort, Iterable):
                sum(chunk.size for chunk in cohort)
            return super().apply(params, state, cohort, needs)

    with pytest.raises(fl.FedloomError, match="chunks: expected"):
        fl.check_algorithm(retyped(Twice))
