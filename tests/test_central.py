"""Centralised training is what a hand-written loop over the same batches comes to, and its optimizer goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_federations import EXECUTORS, classification, digest, flat, linear, noise
from torch import Tensor, nn
from torch.nn import functional as F

import fedloom as fl
from fedloom import checkpoint, simulation
from fedloom.batches import Batching, plan
from fedloom.experiments import schema
from fedloom.experiments.runner import run_experiment
from fedloom.functional import Functional
from fedloom.ranks import Ranks

SIZES = [20, 9, 31, 5]
DATA = classification(SIZES)
SHARED: dict[str, Any] = {"rounds": 4, "batch_size": 8, "dtype": torch.float64}


class Normed(nn.Module):
    """Batch norm in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.norm(self.first(x))))
        return out


class Yogi(torch.optim.Optimizer):
    """Zaheer et al. 2018, with the bias correction of their implementation."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad
                if not state:
                    state |= {"m": torch.zeros_like(p), "v": torch.full_like(p, 1e-6), "t": 0}
                state["t"] += 1
                state["m"] = 0.9 * state["m"] + 0.1 * g
                state["v"] = state["v"] - 0.001 * torch.sign(state["v"] - g**2) * g**2
                rate = group["lr"] * (1 - 0.999 ** state["t"]) ** 0.5 / (1 - 0.9 ** state["t"])
                p.data -= rate * state["m"] / (state["v"].sqrt() + 1e-3)


def by_hand(
    task: fl.Task,
    data: fl.FederatedData,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    rounds: int,
    clip: float | None = None,
    rate: Callable[[int], float] | None = None,
) -> nn.Module:
    """An ordinary training loop over the batches that are planned for client 0 of the pooled rows."""
    model = task.model()
    model.load_state_dict(Functional.of(task, 0, torch.device("cpu"), torch.float64).leaves)
    model = model.double().train()
    made = optimizer(model.parameters())
    rows = fl.federate(data.x, data.y, [data.indices.unique()])
    for t in range(rounds):
        batches = plan(rows, torch.tensor([0]), Batching(batch_size=8), 0, t)
        for s, size in enumerate(batches.sizes[0].tolist()):
            index = batches.index[0, s, :size]
            if rate is not None:
                made.param_groups[0]["lr"] = rate(t)
            made.zero_grad()
            F.cross_entropy(model(data.x[index]), data.y[index]).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            made.step()
    return model


CASES: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.1), {}),
    "momentum": ({"client_optimizer": "momentum"}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), {}),
    "nesterov": (
        {"client_optimizer": "nesterov", "client_momentum": 0.5, "client_weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, nesterov=True, weight_decay=0.01),
        {},
    ),
    "adam": ({"client_optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.1), {}),
    "adamw": (
        {"client_optimizer": "adamw", "client_weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
        {},
    ),
    "adagrad": ({"client_optimizer": "adagrad"}, lambda p: torch.optim.Adagrad(p, lr=0.1), {}),
    "yogi": ({"client_optimizer": "yogi"}, lambda p: Yogi(p, lr=0.1), {}),
    "clipped": ({"client_clip_norm": 0.3}, lambda p: torch.optim.SGD(p, lr=0.1), {"clip": 0.3}),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("case", CASES)
def test_it_is_an_ordinary_training_loop(case: str, executor: str) -> None:
    options, optimizer, also = CASES[case]
    history = fl.simulate(linear(), DATA, fl.central(client_lr=0.1, **options), executor=executor, **SHARED)
    model = by_hand(linear(), DATA, optimizer, 4, **also)
    expected = torch.cat([leaf.detach().flatten() for leaf in model.parameters()])
    # torch's clipping adds 1e-6 to the norm
    assert float((flat(history) - expected).norm() / expected.norm()) <= (1e-5 if case == "clipped" else 1e-12)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_batch_norm_statistics_are_those_of_the_loop(executor: str) -> None:
    task, data = fl.Task(Normed), classification([20, 9, 31, 4])
    history = fl.simulate(task, data, fl.central(0.1, client_optimizer="momentum"), executor=executor, **SHARED)
    expected = by_hand(task, data, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 4).state_dict()
    got = history.state_dict()
    assert got.keys() == expected.keys()
    for name, leaf in expected.items():
        assert torch.allclose(got[name].double(), leaf.double(), rtol=1e-10, atol=1e-12), name
    assert int(got["norm.num_batches_tracked"]) == 4 * 8


def test_the_rate_follows_a_schedule_over_rounds() -> None:
    schedule = fl.schedule.geometric(0.5, 0.5)
    history = fl.simulate(linear(), DATA, fl.central(schedule), **SHARED)
    model = by_hand(linear(), DATA, lambda p: torch.optim.SGD(p, lr=1.0), 4, rate=lambda t: 0.5 * 0.5**t)
    expected = torch.cat([leaf.detach().flatten() for leaf in model.parameters()])
    assert torch.allclose(flat(history), expected, rtol=1e-12, atol=1e-14)


def test_momentum_survives_a_round() -> None:
    """One row, one step a round: what a velocity that starts anew could not do."""
    data = fl.federate(noise(1, 6), torch.tensor([1]), [[0]])
    norms = {}
    for beta in (0.0, 0.9):
        algorithm = fl.central(1e-6, client_optimizer="momentum", client_momentum=beta)
        history = fl.simulate(linear(), data, algorithm, rounds=3, dtype=torch.float64)
        norms[beta] = [record["pseudo_gradient_norm"] for record in history.rounds]
    assert norms[0.0][2] == pytest.approx(norms[0.0][0], rel=1e-4)
    assert norms[0.9][1:] == pytest.approx([1.9 * norms[0.9][0], 2.71 * norms[0.9][0]], rel=1e-4)


def test_every_row_is_used_once_an_epoch_however_clients_overlap() -> None:
    x = torch.eye(7, dtype=torch.float64)
    data = fl.federate(x, torch.zeros(7, dtype=torch.int64), [[0, 1, 2], [2, 3, 0], [5]], overlap=True)
    seen: list[Tensor] = []

    class Watching(nn.Linear):
        def forward(self, batch: Tensor) -> Tensor:
            if self.training:
                seen.append(batch.detach().clone())
            return super().forward(batch)

    history = fl.simulate(
        fl.Task(lambda: Watching(7, 2)), data, fl.central(0.1), 2, batch_size=2, dtype=torch.float64, executor="loop"
    )
    batches = torch.cat(seen[-6:])  # earlier ones tried the model
    assert torch.equal(batches.sum(0), 2 * torch.tensor([1, 1, 1, 1, 0, 1, 0], dtype=torch.float64))
    assert history.rounds[-1]["examples_processed"] == 10


def test_cohort_sampler_and_devices_play_no_part() -> None:
    plain = fl.simulate(linear(), DATA, fl.central(0.1), **SHARED)
    system = fl.System(availability=0.1, dropout=0.9)
    other = fl.simulate(linear(), DATA, fl.central(0.1), cohort=0.5, sampler="multinomial", system=system, **SHARED)
    assert digest(plain.params) == digest(other.params)
    assert {"test_accuracy", "test_loss", "train_loss", "train_accuracy", "seconds"} <= plain.rounds[0].keys()


def test_steps_take_the_place_of_epochs() -> None:
    history = fl.simulate(linear(), DATA, fl.central(0.1), steps=3, **SHARED)
    assert [record["examples_processed"] for record in history.rounds] == [24, 48, 72, 96]


def test_the_same_seed_gives_the_same_bits_and_the_state_holds_the_optimizer(tmp_path: Path) -> None:
    algorithm = fl.central(0.01, client_optimizer="adam")
    histories = [
        fl.simulate(linear(), DATA, algorithm, run_dir=tmp_path / name, **SHARED, seed=3) for name in ("one", "two")
    ]
    assert digest(histories[0].params) == digest(histories[1].params)
    saved = [checkpoint.load(tmp_path / name / "checkpoints" / "round-000004") for name in ("one", "two")]
    assert saved[0]["rows"].keys() == {"0"}
    assert digest(saved[0]["rows"]["0"]) == digest(saved[1]["rows"]["0"])
    count = [leaf for leaf in saved[0]["rows"]["0"].values() if leaf.dtype == torch.int64]
    assert count and int(count[0]) == 4 * 9  # Adam's count of steps goes on


def test_a_run_that_was_killed_goes_on_with_its_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = fl.central(0.01, client_optimizer="adam")
    whole = fl.simulate(linear(), DATA, algorithm, **SHARED)

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "current", lambda device: Ranks(launched=True, device=device))
    with pytest.raises(KeyboardInterrupt):
        fl.simulate(linear(), DATA, algorithm, run_dir=tmp_path, callbacks=[stop], **SHARED)
    monkeypatch.setattr(simulation, "current", lambda device: Ranks(launched=True, restarted=True, device=device))
    history = fl.simulate(linear(), DATA, algorithm, run_dir=tmp_path, **SHARED)
    assert digest(history.params) == digest(whole.params)
    assert [record["round"] for record in history.rounds] == [0, 1, 2, 3]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_grid_of_rates_is_one_program(executor: str) -> None:
    trials = [
        {"algorithm": fl.central(rate, client_optimizer="adam"), "seed": s} for rate in (0.01, 0.1) for s in (0, 1)
    ]
    together = fl.simulate_trials(linear(), DATA, trials, executor=executor, chunk=3, **SHARED)
    for trial, history in zip(trials, together, strict=True):
        alone = fl.simulate(linear(), DATA, trial["algorithm"], seed=trial["seed"], **SHARED)
        assert torch.allclose(flat(alone), flat(history), rtol=1e-11, atol=1e-13)


def test_federated_and_central_trials_do_not_share_a_program() -> None:
    with pytest.raises(fl.FedloomError, match="run it by itself"):
        trials = [{"algorithm": fl.central(0.1)}, {"algorithm": fl.fedavg(0.1)}]
        fl.simulate_trials(linear(), DATA, trials, cohort=1, **SHARED)


def test_a_rate_too_large_is_a_diverged_run() -> None:
    with pytest.raises(fl.Diverged):
        fl.simulate(linear(), DATA, fl.central(1e38, client_optimizer="momentum"), **SHARED | {"dtype": torch.float32})


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(fl.FedloomError, match=r"client_optimizer: expected one of .*yogi; got 'adamm'.*'adam'"):
        fl.central(0.1, client_optimizer="adamm")


TEXT = """
name = "both"
rounds = 2
cohort = 3
data = { name = "digits", partition = "dirichlet", clients = 20, alpha = 0.1 }
model = { name = "logistic" }
algorithms = [
    { name = "fedavg", client_lr = 0.1 },
    { name = "central", label = "Adam", client_lr = 0.01, client_optimizer = "adam" },
]
"""


@pytest.mark.usefixtures("blank_pictures")
def test_an_experiment_file_sets_it_beside_federated_algorithms(tmp_path: Path) -> None:
    results = {result.label: result for result in run_experiment(schema.read(TEXT), tmp_path / "out", quiet=True)}
    central, federated = results["Adam"].final("test_accuracy"), results["fedavg"].final("test_accuracy")
    assert central is not None and federated is not None and central > federated
    lines = (tmp_path / "out" / "adam-seed0" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["asked"] for line in lines] == [1, 1]


@pytest.mark.parametrize("setting", ["glad=true", "clip=1.0", "adaptive_clip=true", "zeroing=true"])
def test_what_belongs_to_updates_is_refused(setting: str) -> None:
    with pytest.raises(
        fl.FedloomError, match=rf"algorithms.1.{setting.split('=')[0]}: expected none with name = 'cent"
    ):
        schema.read(TEXT, [f"algorithms.1.{setting}"])
