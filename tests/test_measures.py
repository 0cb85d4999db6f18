"""What is measured: tokens, tags, clients, the training itself; and how often."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from small_federations import POINT, classification, linear, quadratics, split
from torch import Tensor, nn

import fedloom as fl
from fedloom.evaluation import percentiles
from fedloom.history import History


def test_tokens_are_counted_without_padding() -> None:
    scores = torch.zeros(2, 5, 4)
    target = torch.tensor([[1, 2, 0, 0], [3, 4, 1, 2]])
    for row, column, token in [(0, 0, 1), (0, 1, 3), (1, 0, 3), (1, 1, 4), (1, 2, 1), (1, 3, 0), (0, 2, 0)]:
        scores[row, token, column] = 1.0
    right, counted = fl.token_accuracy()(scores, target)
    assert right.tolist() == [1, 3] and counted.tolist() == [2, 4]
    right, counted = fl.token_accuracy(ignore=(0, 1))(scores, target)
    assert right.tolist() == [0, 2] and counted.tolist() == [1, 3]
    losses = fl.token_cross_entropy()(scores, target)
    by_hand = nn.functional.cross_entropy(scores[:1, :, :2], target[:1, :2])
    assert float(losses[0]) == pytest.approx(float(by_hand), rel=1e-6)


def test_recall_is_over_all_true_tags() -> None:
    scores = torch.tensor([[9.0, 8, 7, 6, 5, 4, 3], [1, 2, 3, 4, 5, 6, 7]])
    tags = torch.tensor([[1, 0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0, 1]])
    found, true = fl.recall_at(5)(scores, tags)
    assert found.tolist() == [1, 1] and true.tolist() == [3, 2]  # two of five, not the mean of 1/3 and 1/2


def test_tag_losses_are_sums() -> None:
    losses = fl.tag_cross_entropy(torch.zeros(2, 3), torch.tensor([[1, 0, 1], [0, 0, 0]]))
    assert losses.tolist() == pytest.approx([3 * np.log(2)] * 2)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.last = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.embed(x)).transpose(1, 2)


@pytest.mark.parametrize("executor", ["loop", "vectorized"])
def test_a_ratio_of_sums_in_training_and_in_evaluation(executor: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(0, 6, (23, 7), generator=generator) for _ in range(2))
    y[:, 4:] *= torch.randint(0, 2, (23, 3), generator=generator)  # padding of different lengths
    data = fl.federate(x, y, split([1, 9, 13]), test=(x, y))
    task = fl.Task(Tokens, fl.token_cross_entropy(), {"accuracy": fl.token_accuracy()})
    history = fl.simulate(task, data, fl.fedavg(0.0), 1, 3, batch_size=4, executor=executor, dtype=torch.float64)
    module = Tokens().double()
    module.load_state_dict(history.state_dict())
    right, real = (module(x).argmax(1) == y) & (y != 0), y != 0
    expected = float(right.sum() / real.sum())
    assert history.rounds[0]["test_accuracy"] == pytest.approx(expected)
    assert history.rounds[0]["train_accuracy"] == pytest.approx(expected)  # a rate of zero: the same model throughout


@pytest.mark.parametrize("executor", ["loop", "vectorized"])
def test_training_accuracy_is_that_of_the_batches_before_their_steps(executor: str) -> None:
    data = classification([6, 11])
    options: dict[str, Any] = {"batch_size": None, "executor": executor, "dtype": torch.float64}
    history = fl.simulate(linear(), data, fl.fedavg(0.5), 2, 2, evaluate_on=("train",), **options)
    assert history.rounds[1]["train_accuracy"] == pytest.approx(history.rounds[0]["trainset_accuracy"])
    assert history.rounds[1]["train_loss"] == pytest.approx(history.rounds[0]["trainset_loss"])
    assert "test_accuracy" not in history.rounds[0]


def fussy(output: Tensor, target: Tensor) -> Tensor:
    """Cannot be stacked: it looks at a value."""
    return torch.ones(len(target)) if float(output.sum()) > -1e9 else torch.zeros(len(target))


def test_a_metric_that_cannot_be_stacked_does_not_stop_the_stack() -> None:
    task = fl.Task(lambda: nn.Linear(6, 4), metrics={"fussy": fussy})
    history = fl.simulate(
        task, classification([6, 11]), fl.fedavg(0.1), 1, 2, executor="vectorized", dtype=torch.float64
    )
    assert history.resolved["executor"] == "vectorized"
    assert history.rounds[0]["test_fussy"] == 1.0 and "train_fussy" not in history.rounds[0]


def test_percentiles_over_clients() -> None:
    values = torch.rand(37, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = percentiles(torch.cat([values, torch.tensor([torch.nan])]))
    expected = np.percentile(values.numpy(), [5, 25, 50, 75, 95])
    assert [found[f"p{cut}"] for cut in (5, 25, 50, 75, 95)] == pytest.approx(expected.tolist())
    assert percentiles(torch.tensor([torch.nan])) == {}


def test_each_client_on_its_own_test_rows() -> None:
    plain = classification([6, 11, 9])
    assert plain.test is not None
    rows = [[0, 1, 2], [], [3]]
    data = fl.federate(plain.x, plain.y, split([6, 11, 9]), test=plain.test, client_test=rows)
    history = fl.simulate(linear(), data, fl.fedavg(0.1), 1, 2, evaluate_on=("test", "clients"), dtype=torch.float64)
    x, y = plain.test
    assert isinstance(x, Tensor) and isinstance(y, Tensor)
    right = ((x.double() @ history.params["weight"].T + history.params["bias"]).argmax(1) == y).double()
    accuracies = [float(right[part].mean()) for part in rows if part]
    assert history.rounds[0]["client_accuracy/mean"] == pytest.approx(sum(accuracies) / 2)
    assert history.rounds[0]["client_accuracy/p50"] == pytest.approx(float(np.percentile(accuracies, 50)))
    asked: list[int] = []

    def accuracy(output: Tensor, target: Tensor) -> Tensor:
        asked.append(len(target))
        return fl.accuracy(output, target)

    task = fl.Task(linear().model, metrics={"accuracy": accuracy})
    fl.simulate(task, data, fl.fedavg(0.1), 1, 2, evaluate_on=("test", "clients"), dtype=torch.float64, batch_size=5)
    assert asked.count(len(y)) == 1  # the clients' rows are among all, which are gone through once
    with pytest.raises(fl.FedloomError, match="test rows of each client"):
        fl.simulate(linear(), plain, fl.fedavg(0.1), 1, 2, evaluate_on=("clients",), dtype=torch.float64)
    with pytest.raises(fl.FedloomError, match="did you mean 'clients'"):
        fl.simulate(linear(), plain, fl.fedavg(0.1), 1, 2, evaluate_on=("client",))


def test_evaluation_costs_about_a_tenth_unless_asked_for() -> None:
    x, y = torch.randn(4000, 6), torch.randint(0, 4, (4000,))
    data = fl.federate(x, y, split([50] * 80), test=(x[:3000], y[:3000]))
    history = fl.simulate(linear(), data, fl.fedavg(0.1), 12, 40)
    measured = [record["round"] for record in history.rounds if "test_accuracy" in record]
    assert measured == [4, 9, 11]  # 3,000 rows against 3 x 40 x 50, and the last round
    every = fl.simulate(linear(), data, fl.fedavg(0.1), 3, 40, eval_every=1)
    assert all("test_accuracy" in record for record in every.rounds)


def test_divergence_of_client_gradients() -> None:
    """The mean distance of -D / eta to its size-weighted mean, Wu and Wang's figure 7."""
    data = classification([6, 11, 9])
    history = fl.simulate(linear(), data, fl.fedavg(0.5), 1, 3, batch_size=None, alignment=True, dtype=torch.float64)
    start = fl.simulate(linear(), data, fl.fedavg(0.0), 1, 3, dtype=torch.float64)
    assert isinstance(data.x, Tensor) and isinstance(data.y, Tensor)
    gradients = []
    for client in range(3):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in start.params.items()}
        output = data.x[data.rows(client)].double() @ leaves["weight"].T + leaves["bias"]
        loss = nn.functional.cross_entropy(output, data.y[data.rows(client)])
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))]))
    stacked = torch.stack(gradients)
    mean = (torch.tensor([6.0, 11.0, 9.0]).double()[:, None] * stacked).sum(0) / 26
    assert history.rounds[0]["divergence"] == pytest.approx(float((stacked - mean).norm(dim=1).mean()), rel=1e-9)
    angles = (nn.functional.cosine_similarity(stacked, mean[None], dim=1)).arccos()
    assert [history.rounds[0][f"angle/{client}"] for client in range(3)] == pytest.approx(angles.tolist(), rel=1e-6)


def test_spread_of_norms_and_labels_of_the_cohort() -> None:
    """Yang et al.'s figures 7 and 9."""
    x, y = torch.eye(4).repeat(2, 1), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    data = fl.federate(x, y, [[0, 1, 2, 3], [4, 5], [6, 7]])
    history = fl.simulate(linear(4, 3), data, fl.fedavg(0.5), 1, 3, alignment=True, dtype=torch.float64)
    assert history.rounds[0]["label_cosine"] == pytest.approx(1.0)  # everybody takes part
    even = fl.fedavg(0.5, weighting=fl.uniform())
    record = fl.simulate(linear(4, 3), data, even, 1, 3, alignment=True, dtype=torch.float64).rounds[0]
    mixed, everybody = np.array([0.75, 0.75, 1.5]) / 3, np.array([3, 2, 3])
    cosine = mixed @ everybody / np.linalg.norm(mixed) / np.linalg.norm(everybody)
    assert record["label_cosine"] == pytest.approx(cosine)
    points = quadratics([[1.0, 0.0], [-1.0, 2.0]], [30, 10])  # updates of squared norms 1 and 5, all times a factor
    [record] = fl.simulate(POINT, points, fl.fedavg(0.1), 1, 2, batch_size=None, alignment=True).rounds
    assert record["norm_variation"] == pytest.approx(2 / 3) and "label_cosine" not in record
    assert "label_cosine" not in fl.simulate(linear(4, 3), data, even, 1, 3, dtype=torch.float64).rounds[0]


def test_figures_of_a_history() -> None:
    values = [0.1, None, 0.5, math.nan, 0.2, 0.95, 0.9]  # NaN where a round had no clients: nothing, once resumed
    history = History([{"round": t} if v is None else {"round": t, "train_accuracy": v} for t, v in enumerate(values)])
    assert history.rounds_to("train_accuracy", 0.5) == 3 and history.rounds_to("train_accuracy", 0.99) is None
    assert history.last("train_accuracy", 2) == pytest.approx(0.925) and history.best("train_accuracy") == 0.95
    assert history.catastrophic() and not history.catastrophic(chance=0.5)  # 0.5 to 0.2
