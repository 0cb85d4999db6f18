"""Trackers get what the metrics file gets; a missing one is a line that says what to install."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom.experiments import schema
from fedloom.experiments.runner import run_experiment
from fedloom.trackers import numbers

MADE = {"tensorboard": ("events",), "wandb": (), "mlflow": ()}


def play(callback: Any) -> list[dict[str, Any]]:
    x = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    data = fl.federate(
        x, (x[:, 0] > 0).long(), [list(range(k, 24, 4)) for k in range(4)], test=(x, (x[:, 0] > 0).long())
    )
    task = fl.Task(model=lambda: torch.nn.Linear(4, 2))
    return fl.simulate(task, data, fl.fedavg(0.1), rounds=3, cohort=2, callbacks=[callback]).rounds


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_missing_tracker_is_told_before_the_first_round(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, name, None)  # what an import of it finds then is nothing
    with pytest.raises(fl.FedloomError, match=rf"callbacks\.{name}: .*pip install 'fedloom\[{name}\]'"):
        getattr(fl.callbacks, name)(*MADE[name])


def _installed(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


@pytest.fixture
def lenient() -> Any:
    """Trackers warn about their own dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("lenient")
def test_tensorboard_reads_back_what_was_recorded(tmp_path: Path) -> None:
    _installed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "events" / "fedavg"
    sink = fl.callbacks.tensorboard(folder)
    assert not folder.exists()
    rounds = play(sink)
    events = EventAccumulator(str(folder)).Reload()
    assert set(events.Tags()["scalars"]) == set(numbers(rounds[0]))
    for name in ("train_loss", "test_accuracy", "pseudo_gradient_norm"):
        read = [(event.step, event.value) for event in events.Scalars(name)]
        assert read == [(record["round"], pytest.approx(record[name], rel=1e-6)) for record in rounds]


@pytest.mark.usefixtures("lenient")
def test_mlflow_reads_back_what_was_recorded(tmp_path: Path) -> None:
    _installed("mlflow")
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    rounds = play(fl.callbacks.mlflow(run_name="fedavg"))
    run = mlflow.active_run()
    mlflow.end_run()
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train_loss")
    assert [(each.step, each.value) for each in history] == [(each["round"], each["train_loss"]) for each in rounds]


@pytest.mark.usefixtures("lenient")
def test_wandb_keeps_what_was_recorded(tmp_path: Path) -> None:
    _installed("wandb")
    import wandb

    rounds = play(fl.callbacks.wandb(project="fedloom", mode="offline", dir=str(tmp_path)))
    assert wandb.run is not None
    assert wandb.run.summary["train_loss"] == pytest.approx(rounds[-1]["train_loss"])
    wandb.finish()
    assert list(tmp_path.rglob("*.wandb"))


def test_other_ranks_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sink = fl.callbacks.tensorboard(tmp_path / "events")
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        sink({"round": 0, "train_loss": 1.0})
    assert not (tmp_path / "events").exists()


TINY = """
name = "tiny"
rounds = 3
cohort = 2
seeds = [0, 1]
data = { name = "digits", partition = "iid", clients = 4 }
model = { name = "logistic" }
algorithms = [{ name = "fedavg", client_lr = 0.1 }]
"""


@pytest.mark.usefixtures("lenient")
def test_every_run_of_a_file_is_followed(tmp_path: Path) -> None:
    _installed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    results = run_experiment(schema.read(TINY), tmp_path / "out", quiet=True, track="tensorboard")
    for result in results:
        events = EventAccumulator(str(tmp_path / "out-events" / result.directory.name)).Reload()
        read = [(event.step, event.value) for event in events.Scalars("train_loss")]
        assert read == [(each["round"], pytest.approx(each["train_loss"], rel=1e-6)) for each in result.rounds]
    assert len(results) == 2


@pytest.mark.usefixtures("lenient")
def test_mlflow_has_the_settings_of_every_run_of_a_file(tmp_path: Path) -> None:
    _installed("mlflow")
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    run_experiment(schema.read(TINY), tmp_path / "out", quiet=True, track="mlflow")
    assert mlflow.active_run() is None
    found = mlflow.MlflowClient().search_runs(["0"])
    assert {each.info.run_name for each in found} == {"tiny, fedavg, seed 0", "tiny, fedavg, seed 1"}
    assert all(each.data.params["algorithm.client_lr"] == "0.1" for each in found)


def test_a_tracker_that_is_none_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(fl.FedloomError, match=r"--track: expected one of .*did you mean 'mlflow'"):
        run_experiment(schema.read(TINY), tmp_path / "out", quiet=True, track="mlflo")
    assert not (tmp_path / "out").exists()
