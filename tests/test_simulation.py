"""The run loop: what repeats, what a run starts from, when it ends, what it leaves behind, what it refuses to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_federations import EXECUTORS, POINT, classification, digest, distance, flat, linear, quadratics, watched
from torch import Tensor, nn

import fedloom as fl
from fedloom import checkpoint
from fedloom.simulation import History

DATA = classification([4, 9, 17, 6, 11, 8])


def play(algorithm: fl.Algorithm | None = None, task: fl.Task | None = None, **options: Any) -> History:
    settings: dict[str, Any] = {"rounds": 3, "cohort": 3, "batch_size": 5, "dtype": torch.float64} | options
    return fl.simulate(task or linear(), settings.pop("data", DATA), algorithm or fl.fedavg(0.1), **settings)


def without_clock(history: History) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history.rounds]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_same_seed_gives_the_same_bits(executor: str) -> None:
    first, second, other = (play(fl.fedadam(0.1, 0.05), executor=executor, seed=seed) for seed in (5, 5, 6))
    assert digest(first.params) == digest(second.params)
    assert without_clock(first) == without_clock(second)
    assert distance(first, other) > 1e-3


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_client_weighs_as_much_as_its_rows_do(executor: str) -> None:
    """One step of half a square's gradient moves a client from 0 to a tenth of its centre."""
    data = quadratics([[1.0, 0.0], [0.0, 1.0]], [1, 3])
    weighed = replace(data, row_weights=torch.tensor([7, 1, 1, 1]))  # 7 and 3 in place of 1 and 3
    options: dict[str, Any] = {"rounds": 1, "cohort": 2, "batch_size": None, "dtype": torch.float64}
    options["executor"] = executor
    for rows, shares in ((data, [0.25, 0.75]), (weighed, [0.7, 0.3]), (weighed.pooled, [0.25, 0.75])):
        run = fl.simulate(POINT, rows, fl.fedavg(0.1), **options | {"cohort": rows.population})
        assert flat(run).tolist() == pytest.approx([0.1 * share for share in shares], abs=1e-12)
    alike = fl.simulate(POINT, weighed, fl.fedavg(0.1, weighting=fl.uniform()), **options)
    assert flat(alike).tolist() == pytest.approx([0.05, 0.05], abs=1e-12)


@pytest.mark.parametrize("algorithm", [fl.fedavg(0.1), fl.fednova(0.1), fl.fedadp(0.1)], ids=lambda each: each.name)
@pytest.mark.parametrize("sampler", ["uniform", "multinomial"])
def test_rows_of_weight_one_change_nothing(algorithm: fl.Algorithm, sampler: str) -> None:
    """Rows that `drop_last` leaves out do not count, however much they weigh."""
    alike = replace(DATA, row_weights=torch.ones(len(DATA.y)))
    found = [play(algorithm, data=data, sampler=sampler, drop_last=True) for data in (DATA, alike)]
    assert digest(found[0].params) == digest(found[1].params)


def test_clients_are_drawn_by_what_their_rows_weigh() -> None:
    weighs = torch.cat([torch.full((int(size),), float(client == 2)) for client, size in enumerate(DATA.sizes)])
    weighed = replace(DATA, row_weights=weighs)
    for sampler in ("uniform", "multinomial"):
        seen, chosen = watched(sampler)
        assert play(data=weighed, sampler=seen, cohort=1).rounds[-1]["admitted"] == 1
        assert chosen == [[2]] * 3


@pytest.mark.parametrize(
    ("weights", "got"),
    [
        (torch.ones(6), r"55 finite numbers of at least 0, got shape \(6,\)"),
        (torch.ones(55, 1), r"got shape \(55, 1\)"),
        (torch.full((55,), -1.0), "got others among them"),
        (torch.full((55,), float("nan")), "got others among them"),
    ],
)
def test_weights_that_are_none_are_refused_before_a_round(weights: Tensor, got: str) -> None:
    with pytest.raises(fl.FedloomError, match=f"data, row_weights: expected .*{got}"):
        play(data=replace(DATA, row_weights=weights))


def told() -> str:
    """What a run with dropout came to."""
    task = fl.Task(lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3), nn.Linear(5, 4)))
    data = classification([4, 9, 17, 6])
    history = fl.simulate(task, data, fl.fedadp(0.1), 3, 3, seed=7, executor="loop", dtype=torch.float64)
    return f"{digest(history.params)} {history.rounds[-1]['test_loss']}"


def test_another_process_gives_the_same_bits() -> None:
    """Whatever the order of its sets and dictionaries' hashes: this process has one by chance, the other its own."""
    script = "import torch, test_simulation; torch.set_num_threads(1); print(test_simulation.told())"
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout == f"{told()}\n", done.stderr


def cohorts(**options: Any) -> list[list[int]]:
    sampler, seen = watched()
    play(sampler=sampler, **options)
    return seen


def test_cohorts_follow_the_seed_and_the_round_alone() -> None:
    drawn = cohorts(rounds=6)
    assert len({tuple(cohort) for cohort in drawn}) > 1
    assert cohorts(rounds=4, algorithm=fl.fedadam(0.3), batch_size=None, executor="loop") == drawn[:4]
    assert cohorts(rounds=6, seed=1) != drawn
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert cohorts(rounds=6) == drawn
    finally:
        torch.set_num_threads(threads)


def test_a_sampling_seed_shares_cohorts_over_seeds() -> None:
    first, second = (cohorts(rounds=5, seed=seed, sampling_seed=3) for seed in (0, 1))
    assert first == second == cohorts(rounds=5, seed=3)
    assert distance(play(seed=0, sampling_seed=3), play(seed=1, sampling_seed=3)) > 1e-3


def test_going_on_from_a_model_is_going_on() -> None:
    """With whole batches nothing but the model passes from one round to the next."""
    options: dict[str, Any] = {"batch_size": None, "cohort": 6}
    whole = play(rounds=3, **options)
    first = play(rounds=1, **options)
    second = play(rounds=2, params=first.params, seed=9, **options)
    assert distance(whole, second) < 1e-14
    assert distance(whole, play(rounds=2, seed=9, **options)) > 1e-3
    kept = {name: leaf.clone() for name, leaf in first.params.items()}
    play(rounds=1, params=first.params)
    assert digest(kept) == digest(first.params)  # what it started from is left alone


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wieght": torch.zeros(4, 6)}, r"params\['wieght'\]: the model has no such leaf; expected weight, bias"),
        ({"weight": torch.zeros(6, 4)}, r"params\['weight'\]: expected shape \(4, 6\), got \(6, 4\)"),
        ({"bias": None}, "params: expected every trainable leaf, got none for bias"),
    ],
    ids=["unknown", "shape", "missing"],
)
def test_a_model_to_start_from_must_fit(change: dict[str, Tensor | None], message: str) -> None:
    given = {"weight": torch.zeros(4, 6), "bias": torch.zeros(4)} | change
    with pytest.raises(fl.FedloomError, match=message):
        play(params={name: leaf for name, leaf in given.items() if leaf is not None})


def test_a_run_stops_at_its_target() -> None:
    falling = play(rounds=8)
    losses = [record["test_loss"] for record in falling.rounds]
    target = sorted(losses)[3]
    expected = next(t for t, loss in enumerate(losses) if loss <= target)
    stopped = play(rounds=8, callbacks=[fl.stop_at("test_loss", target)])
    assert 0 < expected < 7 and [record["round"] for record in stopped.rounds] == list(range(expected + 1))
    assert digest(stopped.params) == digest(play(rounds=expected + 1).params)
    with_metric = play(rounds=8, callbacks=[fl.stop_at("test_accuracy", 0.0)])
    assert len(with_metric.rounds) == 1
    assert len(play(rounds=2, callbacks=[fl.stop_at("test_accuracy", 1.1)]).rounds) == 2


def test_every_callback_sees_every_round() -> None:
    first: list[dict[str, Any]] = []
    second: list[dict[str, Any]] = []

    def stop(record: dict[str, Any]) -> bool:
        first.append(record)
        return record["round"] == 1

    history = play(rounds=5, callbacks=[stop, second.append])
    assert first == second == history.rounds
    assert [record["round"] for record in first] == [0, 1]


def test_evaluation_is_every_so_many_rounds_and_at_the_end() -> None:
    evaluated = [[record["round"] for record in play(rounds=5, eval_every=every).rounds if "test_loss" in record]
                 for every in (None, 1, 2, 3, 9)]  # fmt: skip
    assert evaluated == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 3, 4], [2, 4], [4]]


def test_a_record_holds_what_it_promises() -> None:
    history = play(rounds=2)
    names = {"round", "test_accuracy", "test_loss", "train_loss", "seconds"}
    names |= {"pseudo_gradient_norm", "mean_update_norm", "cosine", "admitted"}
    assert all(names <= record.keys() for record in history.rounds)
    assert not any(name.startswith("test_") for record in play(data=quadratics([[1, 0], [0, 1]], [3, 3]), task=POINT,
                                                              cohort=2).rounds for name in record)  # fmt: skip
    assert history.seconds > 0


def test_the_test_loss_is_that_of_the_model_of_the_round() -> None:
    history = play(rounds=2)
    x, y = DATA.test or (None, None)
    assert isinstance(x, Tensor) and isinstance(y, Tensor)
    output = x @ history.params["weight"].T + history.params["bias"]
    assert history.rounds[-1]["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(output, y)), rel=1e-12)
    hits = (output.argmax(1) == y).double().mean()
    assert history.rounds[-1]["test_accuracy"] == pytest.approx(float(hits))


def test_the_training_loss_is_the_weighted_mean_over_the_clients() -> None:
    """One step from zero: f_k(0) = 0.5 ||c_k||^2, weights n_k."""
    data = quadratics([[1.0, 0.0], [-1.0, 2.0]], [30, 10])
    options: dict[str, Any] = {"data": data, "task": POINT, "cohort": 2, "rounds": 1, "batch_size": None}
    assert play(**options).rounds[0]["train_loss"] == pytest.approx(0.75 * 0.5 + 0.25 * 2.5)
    uneven = play(fl.fedavg(0.1, weighting=fl.uniform()), **options | {"steps": 2})
    second = [0.5 * 0.81, 2.5 * 0.81]  # at y = 0.1 c_k
    assert uneven.rounds[0]["train_loss"] == pytest.approx(0.5 * ((0.5 + second[0]) / 2 + (2.5 + second[1]) / 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cohort": 7}, r"cohort: expected 1 to 6 clients .*, got 7"),
        ({"cohort": 0}, "cohort: expected 1 to 6 clients"),
        ({"cohort": 1.5}, "cohort: expected 1 to 6 clients"),
        ({"cohort": 0.0}, "cohort: expected 1 to 6 clients"),
        ({"cohort": True}, "cohort: expected 1 to 6 clients"),
        ({"rounds": 0}, "rounds: expected a whole number of at least 1, got 0"),
        ({"epochs": 0}, "epochs: expected a whole number of at least 1, got 0"),
        ({"steps": 0}, "steps: expected a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number of at least 1, got 2.5"),
        ({"eval_every": 0}, "eval_every: expected a whole number of at least 1, got 0"),
        ({"sampler": "unifrom"}, "sampler: expected one of .* did you mean 'uniform'"),
        ({"task": fl.Task(model=lambda: "net")}, "Task.model: expected a function that returns an nn.Module, got str"),
        ({"task": fl.Task(model=nn.ReLU)}, "Task.model: expected at least one trainable parameter, got none"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fl.FedloomError, match=message):
        play(**options)


@pytest.mark.parametrize(("cohort", "size"), [(0.5, 3), (0.01, 1), (1.0, 6), (6, 6)])
def test_a_fraction_of_the_population(cohort: float, size: int) -> None:
    assert [len(drawn) for drawn in cohorts(cohort=cohort)] == [size] * 3


@pytest.mark.parametrize("reduced", [nn.CrossEntropyLoss(), lambda output, target: output.mean()])
@pytest.mark.parametrize("executor", [*EXECUTORS, "auto"])
def test_a_loss_must_give_one_value_per_example(reduced: Any, executor: str) -> None:
    task = fl.Task(model=lambda: nn.Linear(6, 4), loss=reduced)
    message = r"Task.loss: expected one value per example, shape \(\d+,\), got \(\): use a loss with reduction='none'"
    with pytest.raises(fl.FedloomError, match=message):
        play(task=task, executor=executor)


def test_divergence_is_named_and_the_last_finite_state_is_kept(tmp_path: Path) -> None:
    rates = fl.schedule.Schedule("burst", lambda t: 1.0 if t < 2 else 1e308 * (t - 1) * 9)
    finite = play(rounds=2)
    with pytest.raises(fl.Diverged, match="round 2, 'weight': the global model became non-finite") as caught:
        play(fl.fedavg(0.1, rates), rounds=5, run_dir=tmp_path)
    assert (caught.value.round, caught.value.leaf) == (2, "weight")
    saved = checkpoint.load(tmp_path / "checkpoints" / "round-000002")
    assert saved["round"] == 2 and saved["state"]["round"] == 2
    assert digest(saved["params"]) == digest(finite.params)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "summary.json").exists()


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_run_directory_holds_the_settings_the_rounds_and_the_end(tmp_path: Path) -> None:
    sampler, seen = watched("poisson")  # cohorts of one or none: cosine and loss are not always numbers
    history = play(rounds=6, cohort=1, sampler=sampler, seed=11, run_dir=tmp_path / "run", eval_every=4)
    assert any(not cohort for cohort in seen) and any(seen)
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert {"executor", "chunk", "device", "dtype", "threads", "seed", "rounds"} <= config.keys()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [strict(line) for line in lines]
    assert [record["round"] for record in records] == list(range(6))
    for record, kept in zip(records, history.rounds, strict=True):
        assert record.keys() == kept.keys()
        assert all(value is None or value == kept[name] for name, value in record.items())
    assert any(record["train_loss"] is None for record in records)
    summary = strict((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 6 and summary["seed"] == 11
    assert summary["data_fingerprint"] == DATA.to(dtype=torch.float64).fingerprint()
    assert summary["final"]["test_loss"] == history.rounds[-1]["test_loss"]
    assert summary["seconds"] > 0 and summary["versions"]["torch"] == torch.__version__
    saved = checkpoint.load(tmp_path / "run" / "checkpoints" / "round-000006")
    assert digest(saved["params"]) == digest(history.params)
    with pytest.raises(fl.FedloomError, match="finished run"):
        play(run_dir=tmp_path / "run")


def test_one_precision_in_one_precision_out() -> None:
    single, double = (play(dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert {leaf.dtype for leaf in single.params.values()} == {torch.float32}
    assert (single.resolved["dtype"], double.resolved["dtype"]) == ("float32", "float64")
    assert 0 < float((flat(single) - flat(double)).norm() / flat(double).norm()) < 1e-4
