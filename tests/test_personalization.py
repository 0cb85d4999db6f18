"""What clients gain by training on: before and after on their own test rows, the global model left as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_federations import EXECUTORS, POINT, always, classification, digest, linear, quadratics, split
from torch import Tensor, nn

import fedloom as fl
from fedloom.data.catalog import _deal
from fedloom.data.holdout import hold_out
from fedloom.data.source import Source
from fedloom.types import Params

SIZES = [9, 14, 6, 11]
TEST = [[0, 1, 2], [10, 11], [], [30]]


def federation(dtype: torch.dtype = torch.float64) -> fl.FederatedData:
    return classification(SIZES, dtype=dtype, client_test=[torch.tensor(part, dtype=torch.int64) for part in TEST])


def name_of(algorithm: fl.Algorithm) -> str:
    return algorithm.name


def point_federation(centres: list[list[float]]) -> fl.FederatedData:
    """Each client is tested on its own centre, the last one not at all."""
    data = quadratics(centres, [3] * len(centres))
    targets = torch.tensor(centres, dtype=torch.float64)
    tests = [[k] for k in range(len(centres) - 1)] + [[]]
    return fl.federate(data.x, data.y, split([3] * len(centres)), (torch.zeros(len(centres), 1), targets), tests)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_before_and_after_by_hand(executor: str) -> None:
    """From y = (0, 0), s steps of 0.1 leave 0.9^s of the way to the client's centre."""
    data = point_federation([[1.0, 0.0], [-1.0, 2.0], [5.0, 5.0]])
    params = {"y": torch.zeros(2, dtype=torch.float64)}
    options: dict[str, Any] = {"steps": 3, "batch_size": None, "executor": executor}
    result = fl.personalize(POINT, data, params, fl.fedavg(0.1), **options)
    assert result.clients.tolist() == [0, 1, 2]
    assert result.before["loss"].tolist() == pytest.approx([0.5, 2.5, float("nan")], nan_ok=True)
    assert result.after["loss"].tolist() == pytest.approx(
        [0.5 * 0.9**6, 2.5 * 0.9**6, float("nan")], rel=1e-12, nan_ok=True
    )
    assert torch.equal(params["y"], torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    "algorithm", [fl.fedavg(0.1), fl.fedprox(0.1, mu=1.0), fl.scaffold(0.1), fl.feddyn(0.1, alpha=0.1)], ids=name_of
)
def test_one_client_is_one_round_of_its_own(executor: str, algorithm: fl.Algorithm) -> None:
    """Fine-tuning is the local work of a round that this client alone takes part in."""
    data = federation()
    start = fl.simulate(linear(), data, fl.fedavg(0.1), 1, 2, dtype=torch.float64).params
    kept = digest(start)
    options: dict[str, Any] = {"epochs": 2, "batch_size": 4, "seed": 6, "executor": executor}
    result = fl.personalize(linear(), data, start, algorithm, **options)
    assert digest(start) == kept
    x, y = data.test or (None, None)
    assert isinstance(x, Tensor) and isinstance(y, Tensor)
    for client, part in enumerate(TEST):
        tuned = fl.simulate(
            linear(), data, fl.replace(algorithm, server=fl.fedavg(0.1).server), 1, 1,
            params=start, sampler=always([client]), dtype=torch.float64, **options,
        ).params  # fmt: skip
        for found, params in ((result.before, start), (result.after, tuned)):
            if not part:
                assert all(bool(values[client].isnan()) for values in found.values())
                continue
            output = x[part] @ params["weight"].T + params["bias"]
            expected = nn.functional.cross_entropy(output, y[part])
            assert float(found["loss"][client]) == pytest.approx(float(expected), rel=1e-10)
            assert float(found["accuracy"][client]) == pytest.approx(
                float((output.argmax(1) == y[part]).double().mean())
            )


def test_some_clients_only() -> None:
    data = federation()
    start = fl.simulate(linear(), data, fl.fedavg(0.1), 1, 2, dtype=torch.float64).params
    everyone = fl.personalize(linear(), data, start, fl.fedavg(0.1))
    some = fl.personalize(linear(), data, start, fl.fedavg(0.1), clients=torch.tensor([0, 3]))
    assert some.clients.tolist() == [0, 3]
    for name, values in some.after.items():
        torch.testing.assert_close(values, everyone.after[name][[0, 3]], rtol=1e-12, atol=0)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)
        self.drop = nn.Dropout(0.5)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(x))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_with_statistics_and_frozen_leaves(dtype: torch.dtype) -> None:
    """Before: the global statistics; after: the client's own. The frozen leaves come with the model's state."""
    data, task = federation(torch.float32), fl.Task(Mixed)
    options: dict[str, Any] = {"batch_size": 5, "drop_last": True}
    history = fl.simulate(task, data, fl.fedavg(0.1), 2, 4, dtype=dtype, seed=8, **options)
    kept = digest(history.state_dict())
    results = [
        fl.personalize(task, data, params, fl.fedavg(0.1), executor=executor, **options, **given)
        for executor in EXECUTORS
        for params, given in ((history.state_dict(), {}), (history.params, {"buffers": history.buffers, "seed": 8}))
    ]
    assert digest(history.state_dict()) == kept
    module = Mixed().to(dtype).eval()
    module.load_state_dict(history.state_dict())
    x, y = data.test or (None, None)
    assert isinstance(x, Tensor) and isinstance(y, Tensor)
    expected = nn.functional.cross_entropy(module(x[TEST[1]].to(dtype)), y[TEST[1]]).detach()
    for result in results:
        assert float(result.before["loss"][1]) == pytest.approx(float(expected), rel=1e-5)
    for first, second in (results[:2], results[2:]):
        torch.testing.assert_close(first.before, second.before, equal_nan=True)
    for first, second in zip(results[:2], results[2:], strict=True):  # loop and stack, of one seed each
        torch.testing.assert_close(first.after, second.after, equal_nan=True, rtol=1e-4, atol=1e-5)
    start, own = history.state_dict(), always([1])
    tuned = fl.simulate(task, data, fl.fedavg(0.1), 1, 1, sampler=own, params=start, dtype=dtype, **options)
    module.load_state_dict(tuned.state_dict())
    expected = nn.functional.cross_entropy(module(x[TEST[1]].to(dtype)), y[TEST[1]]).detach()
    assert float(results[0].after["loss"][1]) == pytest.approx(float(expected), rel=1e-5)
    assert abs(float(expected) - float(results[0].before["loss"][1])) > 1e-3


def test_it_needs_test_rows_of_the_clients() -> None:
    with pytest.raises(fl.FedloomError, match=r"personalize: expected data with per-client test rows, got none"):
        fl.personalize(linear(), classification(SIZES), {}, fl.fedavg(0.1))


def test_it_needs_them_of_those_who_train() -> None:
    """As many clients to test on, allocated as those to train on are, are strangers all the same."""
    tree = np.repeat(np.arange(4), 5), np.repeat(np.arange(2), 10)
    x, y = np.zeros((20, 6), np.float32), tree[0]
    source = Source(x, y, test=(x, y), fine=tree[0], coarse=tree[1], test_tree=tree)
    data = _deal("cifar100", source, None, "pachinko", 4, 0, {"per_client": 5})
    assert data.client_test is not None and len(data.client_test[1]) == data.population + 1
    held = hold_out(classification([5] * 5, client_test=[[k] for k in range(5)]), 0.2)
    params = {"weight": torch.zeros(4, 6), "bias": torch.zeros(4)}
    for strangers in (data, held):
        with pytest.raises(
            fl.FedloomError, match=r"expected test rows of the 4 clients, got those of . clients of their own"
        ):
            fl.personalize(linear(), strangers, params, fl.fedavg(0.1))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda params: params.pop("bias"), {}, "bias"),
        (lambda params: params.update(bais=torch.zeros(4)), {}, "bais"),
        (lambda params: params.update(bias=torch.zeros(3)), {}, r"\(4,\), got \(3,\)"),
        (lambda params: None, {"clients": torch.tensor([4])}, "4"),
        (lambda params: None, {"epochs": 0}, "epochs"),
    ],
    ids=["missing", "unknown", "shape", "client", "epochs"],
)
def test_mistakes_are_named(change: Callable[[Params], Any], options: dict[str, Any], message: str) -> None:
    params = {"weight": torch.zeros(4, 6), "bias": torch.zeros(4)}
    change(params)
    with pytest.raises(fl.FedloomError, match=message):
        fl.personalize(linear(), federation(torch.float32), params, fl.fedavg(0.1), **options)
