"""Dropout's masks are a function of (seed, round, client, step), the same in the loop and in the stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_federations import EXECUTORS, classification, digest, distance
from torch import Tensor, nn
from torch.nn import functional as F

import fedloom as fl
from fedloom import random
from fedloom.dropout import SeededDropout

Forward = Callable[[Tensor, float], Tensor]

WAYS: dict[str, Forward] = {
    "nn.Dropout": lambda x, p: nn.Dropout(p)(x),
    "F.dropout": lambda x, p: F.dropout(x, p),
    "F.dropout by name": lambda x, p: F.dropout(input=x, p=p, training=True),
    "torch.dropout": lambda x, p: torch.dropout(x, p, True),
    "torch.dropout by name": lambda x, p: torch.dropout(input=x, p=p, train=True),
    "nn.Dropout in place": lambda x, p: nn.Dropout(p, inplace=True)(x.clone()),
}


def key(seed: int = 0, round: int = 0, client: int = 0) -> Tensor:
    return random.key(seed, round, client, "dropout")


def dropped(x: Tensor, p: float, at: Tensor | None = None, forward: Forward = F.dropout) -> Tensor:
    with SeededDropout(key() if at is None else at):
        return forward(x, p)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_every_spelling_is_caught_and_gives_the_same_mask(way: str, p: float) -> None:
    x = torch.randn(40, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    got = dropped(x, p, forward=WAYS[way])
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(got, dropped(x, p))
    kept = got != 0
    torch.testing.assert_close(got[kept], x[kept] / (1 - p), rtol=1e-14, atol=0)
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * (p * (1 - p) / x.numel()) ** 0.5


def test_dropping_in_place_changes_the_tensor_itself() -> None:
    """A forward may leave the result of an in-place call aside."""
    x = torch.ones(6, 5)
    with SeededDropout(key()):
        nn.Dropout(0.5, inplace=True)(x)
    assert torch.equal(x, dropped(torch.ones(6, 5), 0.5))
    assert not torch.equal(x, torch.ones(6, 5))


@pytest.mark.parametrize("way", WAYS)
def test_nothing_or_everything_is_dropped(way: str) -> None:
    x = torch.arange(1.0, 13.0).reshape(3, 4)
    assert torch.equal(dropped(x, 0.0, forward=WAYS[way]), x)
    assert torch.equal(dropped(x, 1.0, forward=WAYS[way]), torch.zeros(3, 4))


def test_evaluation_drops_nothing() -> None:
    x = torch.ones(3, 4)
    ways: list[Forward] = [
        lambda x, p: nn.Dropout(p).eval()(x),
        lambda x, p: F.dropout(x, p, training=False),
        lambda x, p: F.dropout(x, p, False),
        lambda x, p: torch.dropout(x, p, False),
    ]
    for forward in ways:
        assert torch.equal(dropped(x, 0.5, forward=forward), x)


def test_a_probability_out_of_range_is_an_error() -> None:
    with pytest.raises(fl.FedloomError, match=r"dropout: expected a probability in \[0, 1\], got 1.5"):
        dropped(torch.ones(2), 1.5)


def test_masks_are_told_apart_by_key_and_by_call() -> None:
    x = torch.ones(8, 8)
    with SeededDropout(key()):
        first, second = F.dropout(x), nn.Dropout()(x)
    masks = [first, second, *(dropped(x, 0.5, at) for at in (key(1), key(0, 1), key(0, 0, 1)))]
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == len(masks)
    for one in masks:  # neighbours are independent, too
        for other in masks:
            if one is not other:
                assert 10 < int((one == other).sum()) < 54
    with SeededDropout(key()):
        assert torch.equal(F.dropout(x), first) and torch.equal(F.dropout(x), second)


def test_a_rows_mask_does_not_depend_on_the_rows_after_it() -> None:
    x = torch.ones(9, 2, 3)
    assert torch.equal(dropped(x, 0.5)[:4], dropped(x[:4], 0.5))


def test_a_stack_of_keys_gives_each_client_its_own_mask() -> None:
    x, keys = torch.ones(3, 6, 5), torch.stack([key(client=client) for client in range(3)])

    def one(x: Tensor, at: Tensor) -> Tensor:
        return dropped(dropped(x, 0.3, at), 0.5, at + 1)

    stacked = torch.func.vmap(one)(x, keys)
    assert torch.equal(stacked, torch.stack([one(*pair) for pair in zip(x, keys, strict=True)]))


def test_gradients_pass_where_values_do() -> None:
    x = torch.ones(5, 5, requires_grad=True)
    out = dropped(x, 0.4)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out)


class Masks(nn.Module):
    """Keeps every mask it meets in training, as the loop shows them."""

    seen: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(self.drop(torch.ones_like(x)).detach())
        return self.last(self.drop(x))


def masks(rounds: int = 2, steps: int = 2, seed: int = 0) -> list[tuple[float, ...]]:
    """The masks of a run by the loop: round by round, client by client, step by step."""
    Masks.seen = []
    options: dict[str, Any] = {"cohort": 2, "batch_size": None, "steps": steps, "seed": seed, "dtype": torch.float64}
    fl.simulate(fl.Task(Masks), classification([8, 8]), fl.fedavg(0.1), rounds, executor="loop", **options)
    return [tuple(mask.flatten().tolist()) for mask in Masks.seen if len(mask) == 8]  # the others are trials


def test_masks_are_a_function_of_seed_round_client_and_step() -> None:
    found = masks()
    assert len(found) == 2 * 2 * 2 and len(set(found)) == len(found)
    assert masks() == found
    assert masks(rounds=1) == found[:4]
    assert masks(steps=1) == found[::2]
    assert not set(masks(seed=1)) & set(found)


class Net(nn.Module):
    def __init__(self, forward: Forward = WAYS["F.dropout"]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.way = forward

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.last(self.way(self.way(h, 0.3), 0.2) if self.training else h)


@pytest.mark.parametrize("way", WAYS)
def test_every_spelling_trains_to_the_same_model(way: str) -> None:
    data = classification([1, 7, 30, 12])
    options: dict[str, Any] = {"rounds": 2, "cohort": 3, "epochs": 2, "dtype": torch.float64, "batch_size": 8}
    reference = fl.simulate(fl.Task(Net), data, fl.fedavg(0.1), executor="loop", **options)
    for executor in EXECUTORS:
        before = torch.get_rng_state()
        history = fl.simulate(fl.Task(lambda: Net(WAYS[way])), data, fl.fedavg(0.1), executor=executor, **options)
        again = fl.simulate(fl.Task(lambda: Net(WAYS[way])), data, fl.fedavg(0.1), executor=executor, **options)
        assert history.resolved["executor"] == executor
        assert torch.equal(before, torch.get_rng_state())
        assert distance(reference, history) <= 1e-12
        assert digest(history.params) == digest(again.params)
    other = fl.simulate(fl.Task(lambda: Net(WAYS[way])), data, fl.fedavg(0.1), seed=1, **options)
    assert distance(reference, other) > 1e-3


def test_dropout_makes_a_difference() -> None:
    """Else the tests above would hold for a dropout that drops nothing."""
    data = classification([9, 7])
    plain, dropping = (
        fl.simulate(
            fl.Task(lambda p=p: Net(lambda x, _: F.dropout(x, p))), data, fl.fedavg(0.1), 1, 2, dtype=torch.float64
        )
        for p in (0.0, 0.5)
    )
    assert distance(plain, dropping) > 1e-3


class Noisy(nn.Module):
    """Draws random numbers of its own, in training and in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + torch.randn_like(x))


@pytest.mark.parametrize("model", [Noisy, lambda: nn.Sequential(nn.AlphaDropout(0.3), nn.Linear(6, 4))])
def test_other_randomness_is_a_function_of_the_seed_and_leaves_the_generator_alone(
    model: Callable[[], nn.Module],
) -> None:
    records = []
    for state in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(state)
            before = torch.get_rng_state()
            history = fl.simulate(fl.Task(model), classification([9, 7]), fl.fedavg(0.1), 2, 2, dtype=torch.float64)
            assert torch.equal(before, torch.get_rng_state())
        seen = [{name: value for name, value in record.items() if name != "seconds"} for record in history.rounds]
        records.append((digest(history.params), seen))
    assert records[0] == records[1]
    assert records[0][1][0]["train_loss"] != records[0][1][1]["train_loss"]
