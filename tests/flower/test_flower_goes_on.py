"""A deployment's directory: a server goes on from it, or says in one line why not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from algorithm_table import CONSTRUCTORS
from small_federations import classification, half_frozen

import fedloom as fl
from fedloom import cli

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedloom[flower]'")

from one_room import OneRoom, apps, deploy

from fedloom.flower import FlowerStrategy, client, plan
from fedloom.flower.nodes import Nodes

DATA = classification((14, 9, 20), dtype=torch.float32)
TASK = fl.Task(model=lambda: torch.nn.Linear(6, 4))
FEDADAM = dict(CONSTRUCTORS)["fedadam-none"]
OPTIONS: dict[str, Any] = {"cohort": 2, "batch_size": 8, "test": DATA.test}


class Interrupted(FlowerStrategy):
    """A server that dies when the third round's replies are there."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if self.now.round == 2:
            raise KeyboardInterrupt
        return super().aggregate_train(server_round, replies)


def room(tmp_path: Path, algorithm: Any = None) -> OneRoom:
    return OneRoom(apps(TASK, DATA, algorithm or FEDADAM(), tmp_path / "devices"))


def interrupted(tmp_path: Path, algorithm: Any = None, **options: Any) -> Path:
    """The directory of a run of two rounds that was to have four."""
    strategy = Interrupted(algorithm or FEDADAM(), TASK, population=3, run_dir=tmp_path / "run", **OPTIONS | options)
    with pytest.raises(KeyboardInterrupt):
        strategy.start(room(tmp_path, algorithm), num_rounds=4)
    return tmp_path / "run"


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["fedadam-none", "scaffold-II"])
def test_a_run_goes_on_in_its_directory_with_the_same_nodes(name: str, tmp_path: Path) -> None:
    make = dict(CONSTRUCTORS)[name]
    whole = deploy(TASK, room(tmp_path / "whole", make()), make(), rounds=4, **OPTIONS)
    run = interrupted(tmp_path, make())
    later = room(tmp_path, make())
    later.apps[5], later.contexts[5] = later.apps[11], later.contexts[11]  # a node that is nobody's client
    resumed = deploy(TASK, later, make(), rounds=4, run_dir=run, **OPTIONS)
    assert same(resumed.history.params, whole.history.params)
    assert [record["round"] for record in resumed.history.rounds] == [0, 1, 2, 3]
    assert [json.loads(line)["round"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2, 3]
    assert json.loads((run / "nodes.json").read_text())["nodes"] == {"11": 0, "340": 1, "907": 2}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rounds"] == 4 and summary["resolved"]["resumed"]["round"] == 2


def test_a_state_that_was_damaged_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = deploy(TASK, room(tmp_path), FEDADAM(), rounds=4, **OPTIONS)
    run = interrupted(tmp_path)
    with (run / "checkpoints" / "round-000002" / "state.safetensors").open("r+b") as file:
        file.write(b"damaged!")
    resumed = deploy(TASK, room(tmp_path), FEDADAM(), rounds=4, run_dir=run, **OPTIONS)
    assert same(resumed.history.params, whole.history.params)
    assert "round-000002/state.safetensors: changed since it was written" in caplog.text


def test_a_device_has_the_row_that_a_server_asks_for_whose_newest_state_is_damaged(tmp_path: Path) -> None:
    make = dict(CONSTRUCTORS)["scaffold-II"]
    everybody = OPTIONS | {"cohort": 3}
    whole = deploy(TASK, room(tmp_path / "whole", make()), make(), rounds=4, **everybody)
    run = interrupted(tmp_path, make(), **everybody)
    with (run / "checkpoints" / "round-000002" / "state.safetensors").open("r+b") as file:
        file.write(b"damaged!")
    resumed = deploy(TASK, room(tmp_path, make()), make(), rounds=4, run_dir=run, **everybody)
    assert [record["admitted"] for record in resumed.history.rounds] == [3, 3, 3, 3]
    assert same(resumed.history.params, whole.history.params)


def test_a_second_start_goes_on_with_what_clients_remember(tmp_path: Path) -> None:
    make = dict(CONSTRUCTORS)["scaffold-II"]
    whole = deploy(TASK, room(tmp_path / "whole", make()), make(), rounds=4, batch_size=8)
    twice, there = FlowerStrategy(make(), TASK, population=3, batch_size=8), room(tmp_path, make())
    twice.start(there, num_rounds=2)
    twice.start(there, num_rounds=4)
    assert [record["admitted"] for record in twice.history.rounds] == [3, 3, 3, 3]
    assert same(twice.history.params, whole.history.params)


def numbered(present: list[int]) -> tuple[Nodes, OneRoom]:
    """The three nodes of a run, and a room with others."""
    return Nodes(3, clients={11: 0, 340: 1, 907: 2}), OneRoom(dict.fromkeys(present, print))


def test_nodes_that_come_back_under_other_ids_are_not_waited_for_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="flwr")
    nodes, there = numbered([1, 2])
    with pytest.raises(fl.FedloomError, match=r"expected one of the run's 3 within 0 s, got 2 others"):
        nodes.present(there, timeout=0)
    nodes, there = numbered([1, 2, 340])
    assert nodes.present(there, timeout=0) == {1: 340}


def test_those_who_are_waited_for_are_counted_without_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", logger="flwr")
    monkeypatch.setattr("fedloom.flower.nodes._LOOK_AGAIN", 0.01)
    nodes, there = numbered([1, 2])
    with pytest.raises(fl.FedloomError):
        nodes.present(there, timeout=0.02)
    assert "Waiting for nodes: 0 of the run's 3 are connected, and 2 others" in caplog.text


def test_clients_that_all_become_non_finite_end_the_run_as_they_end_a_simulation(tmp_path: Path) -> None:
    wild = fl.fedavg(client_lr=3e38)
    options: dict[str, Any] = {"cohort": 2, "batch_size": 4}
    with pytest.raises(fl.Diverged) as simulated:
        fl.simulate(TASK, DATA, wild, rounds=4, executor="loop", **options)
    for _ in "first", "gone on with":
        with pytest.raises(fl.Diverged) as deployed:
            deploy(TASK, room(tmp_path, wild), wild, rounds=4, run_dir=tmp_path / "run", **options)
        assert str(deployed.value) == str(simulated.value)
    assert deployed.value.round > 0  # so that those lost before were remembered
    assert not (tmp_path / "run" / "summary.json").exists()


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"seed": 2}, "seed: expected 0 as when its state was made, got 2"),
    (
        {"algorithm": fl.fedadam(client_lr=0.1, server_lr=0.2)},
        "algorithm: expected .fedadam.* as when its state was made, got ",
    ),
    ({"population": 2}, "population: expected 3 as when its state was made, got 2"),
    ({"test": (DATA.x[1:], DATA.y[1:])}, "data_fingerprint: expected"),
    (
        {"task": fl.Task(model=lambda: torch.nn.Linear(7, 4))},
        r"'weight': expected shape \(4, 7\), as in the task's model",
    ),
]


@pytest.mark.parametrize("cohort", [lambda t: 1 + t, np.int64(2)], ids=["function", "numpy"])
def test_a_cohort_is_noted_by_its_sizes(cohort: Any, tmp_path: Path) -> None:
    run = interrupted(tmp_path, cohort=cohort)
    with pytest.raises(fl.FedloomError, match=r"cohort: expected .* as when its state was made, got '3 from round 0'"):
        deploy(TASK, room(tmp_path), FEDADAM(), rounds=4, run_dir=run, **OPTIONS | {"cohort": lambda t: 3})
    assert deploy(TASK, room(tmp_path), FEDADAM(), rounds=4, run_dir=run, **OPTIONS | {"cohort": cohort}).now.round == 4


@pytest.mark.parametrize(("change", "told"), CHANGES, ids=[next(iter(change)) for change, _ in CHANGES])
def test_other_settings_than_a_run_was_begun_with_are_refused(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    run = interrupted(tmp_path)
    given = {"algorithm": FEDADAM(), "task": TASK, "population": 3, "run_dir": run, **OPTIONS, **change}
    with pytest.raises(fl.FedloomError, match=told):
        FlowerStrategy(**given).start(room(tmp_path), num_rounds=4)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


def test_another_part_that_does_not_train_is_refused(tmp_path: Path) -> None:
    """It is sent to every client, and stands in no state and no setting."""

    def rooms(scale: float) -> OneRoom:
        return OneRoom(apps(half_frozen(scale), DATA, FEDADAM(), tmp_path / "devices"))

    strategy = Interrupted(FEDADAM(), half_frozen(1.0), population=3, run_dir=tmp_path / "run", **OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        strategy.start(rooms(1.0), num_rounds=4)
    with pytest.raises(fl.FedloomError, match=r"run, frozen: expected '\w{64}'"):
        deploy(half_frozen(2.0), rooms(2.0), FEDADAM(), rounds=4, run_dir=tmp_path / "run", **OPTIONS)
    resumed = deploy(half_frozen(1.0), rooms(1.0), FEDADAM(), rounds=4, run_dir=tmp_path / "run", **OPTIONS)
    assert len(resumed.history.rounds) == 4


def test_what_is_allowed_may_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = interrupted(tmp_path)
    monkeypatch.setattr("fedloom.resumption.BITS", {"fedloom": fl.__version__, "torch": "3.0"})
    with pytest.raises(fl.FedloomError, match=r"versions\.torch: expected"):
        deploy(TASK, room(tmp_path), FEDADAM(), rounds=4, run_dir=run, **OPTIONS)
    allowed = deploy(TASK, room(tmp_path), FEDADAM(), rounds=4, run_dir=run, allow=["versions"], **OPTIONS)
    assert allowed.now.round == 4


def test_a_second_server_in_a_directory_is_refused(tmp_path: Path) -> None:
    run = interrupted(tmp_path)
    held = (
        f"from pathlib import Path; from fedloom import lock\nwith lock.alone(Path({str(run)!r})): input(print('in'))"
    )
    with subprocess.Popen([sys.executable, "-uc", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"in\n"
        with pytest.raises(fl.FedloomError, match=f"nobody works in, got one of process {other.pid}"):
            deploy(TASK, room(tmp_path), FEDADAM(), run_dir=run, **OPTIONS)
        other.communicate(b"\n")
    assert deploy(TASK, room(tmp_path), FEDADAM(), rounds=3, run_dir=run, **OPTIONS).now.round == 3


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    deploy(TASK, room(tmp_path), FEDADAM(), rounds=1, run_dir=tmp_path / "run", **OPTIONS)
    with pytest.raises(fl.FedloomError, match="got one with a finished run"):
        deploy(TASK, room(tmp_path), FEDADAM(), rounds=2, run_dir=tmp_path / "run", **OPTIONS)


def test_simulations_and_deployments_do_not_go_on_with_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = interrupted(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(["resume", str(run)])
    assert end.value.code == 3
    assert "got a deployment's: the same ServerApp goes on" in capsys.readouterr().err
    simulated = {"rounds": 2, "cohort": 2, "executor": "loop", "run_dir": tmp_path / "simulated"}
    fl.simulate(TASK, DATA, FEDADAM(), **simulated)
    (tmp_path / "simulated" / "summary.json").unlink()
    with pytest.raises(fl.FedloomError, match="expected the state of a deployment, got a simulation's"):
        deploy(TASK, room(tmp_path), FEDADAM(), run_dir=tmp_path / "simulated", **OPTIONS)


def test_a_table_of_nodes_that_was_damaged_is_one_line(tmp_path: Path) -> None:
    run = interrupted(tmp_path)
    (run / "nodes.json").write_text('{"nodes": [1, 2]}')
    with pytest.raises(fl.FedloomError, match=r"nodes\.json: expected the table of a run's nodes"):
        deploy(TASK, room(tmp_path), FEDADAM(), run_dir=run, **OPTIONS)


def private(seeded: bool = False) -> Any:
    base = fl.fedadam(client_lr=0.1, server_lr=0.1, weighting=fl.uniform())
    return fl.private(base, clip=0.5, noise_multiplier=1.0, delta=1e-5, seeded_noise=seeded)


PRIVATE = OPTIONS | {"sampler": "poisson"}


def test_a_private_algorithm_ends_where_a_simulation_ends(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    given = {name: value for name, value in PRIVATE.items() if name != "test"}
    simulated = fl.simulate(TASK, DATA, private(True), rounds=3, executor="loop", **given)
    deployed = deploy(TASK, room(tmp_path, private(True)), private(True), rounds=3, **PRIVATE)
    for name, leaf in simulated.params.items():
        assert torch.allclose(deployed.history.params[name], leaf, atol=1e-6, rtol=0)
    for told, record in zip(deployed.history.rounds, simulated.rounds, strict=True):
        assert told.keys() == record.keys()  # nothing of single clients


def test_what_a_private_run_has_spent_outlives_its_server(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    run = interrupted(tmp_path, private(), **PRIVATE)
    assert json.loads((run / "privacy.json").read_text())["charged"] == 2
    resumed = deploy(TASK, room(tmp_path, private()), private(), rounds=4, run_dir=run, **PRIVATE)
    spent = fl.epsilon(noise_multiplier=1.0, sampling_rate=2 / 3, rounds=4, delta=1e-5)
    assert resumed.history.rounds[-1]["epsilon"] == pytest.approx(spent)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["privacy"]["charged"] == 4 and summary["privacy"]["epsilon"] == pytest.approx(spent)
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert not {"train_loss", "admitted", "asked", "mean_update_norm"} & {name for row in written for name in row}
    assert resumed.now.to_dict()["admitted"] == {}  # nor does a state say who was


def test_a_second_start_adds_to_what_a_private_run_has_spent(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    strategy, there = FlowerStrategy(private(), TASK, population=3, **PRIVATE), room(tmp_path, private())
    strategy.start(there, num_rounds=2)
    strategy.start(there, num_rounds=4)
    spent = fl.epsilon(noise_multiplier=1.0, sampling_rate=2 / 3, rounds=4, delta=1e-5)
    assert strategy.history.rounds[-1]["epsilon"] == pytest.approx(spent)


EXPERIMENT = """
name = "tuned"
rounds = 2
cohort = 2
batch_size = 10
data = { name = "digits", partition = "iid", clients = 3 }
model = { name = "logistic" }
algorithms = [{ name = "fedadam", client_lr = 0.1, server_lr = 0.01 }]
"""


def test_a_device_does_not_load_the_federation_that_was_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("fedloom.data.catalog.load", lambda name, *_, **__: loaded.append(name))
    file = tmp_path / "tuned.toml"
    file.write_text(EXPERIMENT)
    read = plan(file)
    own = read.task_for(fl.federate(DATA.x, DATA.y, [range(43)]))
    assert read.options["cohort"] == 2 and own.model()(DATA.x).shape == (43, 4)
    file.write_text(EXPERIMENT.replace("logistic", "tag_predictor"))
    assert isinstance(plan(file).task, fl.Task) and not loaded
    assert read.data is None and loaded == ["digits"]


def test_an_experiment_file_is_deployed_as_it_was_simulated(tmp_path: Path) -> None:
    file = tmp_path / "tuned.toml"
    file.write_text(EXPERIMENT)
    read = plan(file)
    simulated = fl.simulate(read.task, read.data, read.algorithm, rounds=read.rounds, executor="loop", **read.options)
    there = OneRoom(apps(read.task, read.data, read.algorithm, tmp_path))
    deployed = deploy(read.task, there, read.algorithm, rounds=read.rounds, test=read.data.test, **read.options)
    assert deployed.history.rounds[-1]["test_accuracy"] == simulated.rounds[-1]["test_accuracy"]
    for name, leaf in simulated.params.items():
        assert torch.allclose(deployed.history.params[name], leaf, atol=1e-6, rtol=0)
    assert torch.equal(read.rows(1).x[read.rows(1).indices], read.data.x[read.data.rows(1)])


@pytest.mark.parametrize(
    ("added", "told"),
    [
        ("seeds = [0, 1]", "tuned.toml, seeds: expected one to deploy, got 2: keep one"),
        ("faults = [{ kind = 'nan', rate = 0.1 }]", "tuned.toml, faults: expected none, got 1: only a simulation"),
        ("forced = [{ round = 1, clients = [0] }]", "tuned.toml, forced: expected no such rounds, got 1"),
        ("system = { availability = 0.5 }", "tuned.toml, system: expected the defaults, got others"),
        ("target = 0.9", "tuned.toml, target: expected none, got 0.9: a deployment runs for all its rounds"),
        ("precision = 'bfloat16'", "tuned.toml, precision: expected 'high', got 'bfloat16'"),
        ("dtype = 'float64'", "tuned.toml, dtype: expected 'float32', got 'float64'"),
    ],
)
def test_what_only_a_simulation_has_is_refused_in_a_file(added: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "tuned.toml").write_text(f"{added}\n{EXPERIMENT}")
    with pytest.raises(fl.FedloomError) as error:
        plan(tmp_path / "tuned.toml")
    assert str(error.value).startswith(told)


def test_weights_that_a_server_cannot_check_are_refused_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tuned.toml"
    file.write_text(EXPERIMENT.replace("clients = 3 }", 'clients = 3, weights = "tokens" }'))
    with pytest.raises(fl.FedloomError, match=r"tuned\.toml, data\.weights: expected 'examples', got 'tokens'"):
        plan(file)


def test_and_on_a_device() -> None:
    weighed = replace(fl.federate(DATA.x, DATA.y, [range(43)]), row_weights=torch.ones(43))
    with pytest.raises(fl.FedloomError, match="data_fn: expected a client that is weighed by its examples"):
        client._numbered(weighed, 0)
