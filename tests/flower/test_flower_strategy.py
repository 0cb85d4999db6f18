"""The strategy and the ClientApp against the simulator, in one process; tests of real processes are beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from algorithm_table import COMPOSED, CONSTRUCTORS, WRAPPED
from small_federations import classification

import fedloom as fl

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedloom[flower]'")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from one_room import NODES, OneRoom, apps, deploy, rows_of

from fedloom.flower import FlowerStrategy, wire
from fedloom.functional import Functional

SIZES = (30, 18, 45)
DATA = classification(SIZES)


class Small(torch.nn.Module):
    """Dense layers, batch norm between them, one layer frozen, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4)
        self.first.bias.requires_grad_(False)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


TASK = fl.Task(model=Small)
CHOSEN = [row for row in [*CONSTRUCTORS, *COMPOSED[:6], *WRAPPED[:2]] if row[0] != "central"]


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize(("name", "make"), CHOSEN, ids=[name for name, _ in CHOSEN])
def test_five_rounds_through_flower_are_those_of_a_simulation(name: str, make: Any, tmp_path: Path) -> None:
    options = {"cohort": 2, "batch_size": 8, "epochs": 2, "seed": 3}
    simulated = fl.simulate(TASK, DATA, make(), rounds=5, executor="loop", **options)
    deployed = deploy(TASK, OneRoom(apps(TASK, DATA, make(), tmp_path)), make(), **options)
    assert apart(deployed.now.params, simulated.params) < 1e-12
    assert apart(deployed.now.state.buffers, simulated.buffers) < 1e-12
    for told, record in zip(deployed.history.rounds, simulated.rounds, strict=True):
        assert told["train_loss"] == pytest.approx(record["train_loss"], rel=1e-9)
        assert told["train_accuracy"] == pytest.approx(record["train_accuracy"], rel=1e-9)


def stock(data: fl.FederatedData, client: int, rate: float = 0.1) -> Any:
    """A ClientApp by the book, which knows nothing of fedloom: one pass of gradient descent over its rows."""
    x, y = rows_of(data, client)

    def answer(message: Message, context: Context) -> Message:
        model = Small()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        metrics = MetricRecord({"num-examples": len(y)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return answer


STOCK = [
    *("fedavg", "fedavgm-heavyball", "fedadagrad", "fedadam-none", "fedyogi-none", "fedlars", "fedlamb"),
    *("normalized_fedavg", "fedadp-count", "fedglad-group-fedavg"),
]


@pytest.mark.parametrize("name", STOCK)
def test_clients_that_know_nothing_of_fedloom_train_as_full_batch_ones_of_a_simulation(name: str) -> None:
    make = dict([*CONSTRUCTORS, *WRAPPED])[name]
    simulated = fl.simulate(TASK, DATA, make(), rounds=3, cohort=3, batch_size=None, executor="loop")
    room = OneRoom({node: stock(DATA, client) for client, node in enumerate(sorted(NODES))})
    deployed = deploy(TASK, room, make(), rounds=3)
    assert apart(deployed.now.params, simulated.params) < 1e-12
    assert apart(deployed.now.state.buffers, simulated.buffers) < 1e-12


@pytest.mark.parametrize("name", ["fedsgd", "fedprox", "scaffold-II", "feddyn", "fednova"])
def test_what_a_stock_client_cannot_do_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make = dict(CONSTRUCTORS)[name]
    room = OneRoom({node: stock(DATA, client) for client, node in enumerate(NODES)})
    deployed = deploy(TASK, room, make(), rounds=1)
    assert deployed.history.rounds[0]["admitted"] == 0
    assert apart(deployed.now.params, fresh().params) == 0
    assert "expected a reply of fedloom.flower.client_app" in caplog.text


def fresh() -> Any:
    return Functional.of(TASK, 0, torch.device("cpu"))


def broken(change: Any) -> Any:
    """A stock client whose reply is changed on its way."""

    def answer(message: Message, context: Context) -> Message:
        reply = stock(DATA, 0)(message, context)
        change(reply.content)
        return reply

    return answer


def _set(name: str, value: torch.Tensor) -> Any:
    def change(content: RecordDict) -> None:
        content["arrays"][name] = Array(value.numpy())

    return change


FAULTS = [
    ("nan", _set("last.bias", torch.full((4,), torch.nan)), "non-finite value in update 'last.bias'"),
    ("shape", _set("last.bias", torch.zeros(5)), "'last.bias': expected shape (4,), got (5,)"),
    ("kind", _set("last.bias", torch.zeros(4, dtype=torch.int64)), "expected torch.float64, got torch.int64"),
    ("missing", lambda content: content["arrays"].pop("last.bias"), "'last.bias': expected this leaf"),
    ("no count", lambda content: content["metrics"].pop("num-examples"), "expected a number 'num-examples'"),
    ("no weight", lambda content: content["metrics"].update({"num-examples": 0}), "expected a finite positive number"),
    ("no arrays", lambda content: content.pop("arrays"), "expected one record of arrays, got 0"),
]


@pytest.mark.parametrize(("change", "reason"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_reply_that_does_not_fit_is_refused_with_its_node_and_reason(
    change: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = {node: client for client, node in enumerate(sorted(NODES))}
    room = OneRoom({node: stock(DATA, client) for node, client in numbers.items()})
    room.apps[11] = broken(change)
    deployed = deploy(TASK, room, fl.fedavg(client_lr=0.1), rounds=1)
    assert deployed.history.rounds[0]["admitted"] == 2
    [told] = [line for line in caplog.messages if line.endswith(": refused")]
    assert told.startswith("node 11 (client 0), round 0: ") and reason in told


def test_nodes_that_raise_or_never_answer_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def raises(message: Message, context: Context) -> Message:
        raise RuntimeError("the disk is full")

    def silent(message: Message, context: Context) -> Message:
        raise TimeoutError

    room = OneRoom({907: stock(DATA, 2), 11: raises, 340: silent})
    assert deploy(TASK, room, fl.fedavg(client_lr=0.1), rounds=2).history.rounds[1]["admitted"] == 1
    assert "node 11 (client 0), round 1: the disk is full: refused" in caplog.text
    assert "node 340 (client 1), round 1: no reply in time: refused" in caplog.text


def test_a_row_counts_only_once_its_reply_was_admitted(tmp_path: Path) -> None:
    """Client 0's first reply is lost on its way: its control stays what it was, as the server's does."""
    make = dict(CONSTRUCTORS)["scaffold-II"]
    own = apps(TASK, DATA, make(), tmp_path)
    lost = OneRoom(dict(own))

    def once(message: Message, context: Context) -> Message:
        reply = own[11](message, context)
        if message.content["config"]["server-round"] == 1:
            raise TimeoutError
        return reply

    lost.apps[11] = once
    first = fl.sampling.forced("uniform", {0: [1, 2]})
    simulated = fl.simulate(TASK, DATA, make(), rounds=3, cohort=3, batch_size=8, sampler=first, executor="loop")
    deployed = deploy(TASK, lost, make(), rounds=3, batch_size=8)
    assert apart(deployed.now.params, simulated.params) < 1e-12
    assert apart(deployed.now.state.memory, simulated.state.memory) < 1e-12


def test_a_run_goes_on_in_its_directory_with_the_same_nodes(tmp_path: Path) -> None:
    make = dict(CONSTRUCTORS)["fedadam-none"]
    room = OneRoom(apps(TASK, DATA, make(), tmp_path / "devices"))
    whole = deploy(TASK, room, make(), rounds=4, cohort=2)

    class Interrupted(FlowerStrategy):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            if self.now.round == 2:
                raise KeyboardInterrupt
            return super().aggregate_train(server_round, replies)

    with pytest.raises(KeyboardInterrupt):
        Interrupted(make(), TASK, population=3, cohort=2, run_dir=tmp_path / "run").start(room, num_rounds=4)
    room.apps[5] = room.apps[11]  # a node that has come since, and is nobody's client
    room.contexts[5] = room.contexts[11]
    resumed = deploy(TASK, room, make(), rounds=4, cohort=2, run_dir=tmp_path / "run")
    assert apart(resumed.now.params, whole.now.params) == 0
    assert [record["round"] for record in resumed.history.rounds] == [0, 1, 2, 3]
    rounds = [json.loads(line)["round"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rounds == [0, 1, 2, 3]
    assert json.loads((tmp_path / "run" / "nodes.json").read_text())["nodes"] == {"11": 0, "340": 1, "907": 2}


def test_a_simulation_that_did_not_finish_is_gone_on_with(tmp_path: Path) -> None:
    make, options = dict(CONSTRUCTORS)["fedadam-none"], {"cohort": 2, "batch_size": 8}
    whole = fl.simulate(TASK, DATA, make(), rounds=4, executor="loop", **options)
    fl.simulate(TASK, DATA, make(), rounds=2, executor="loop", run_dir=tmp_path / "run", **options)
    (tmp_path / "run" / "summary.json").unlink()
    room = OneRoom(apps(TASK, DATA, make(), tmp_path))
    deployed = deploy(TASK, room, make(), rounds=4, run_dir=tmp_path / "run", **options)
    assert [record["round"] for record in deployed.history.rounds] == [0, 1, 2, 3]
    assert apart(deployed.now.params, whole.params) < 1e-12


def test_an_order_cannot_name_a_folder_elsewhere_on_the_device() -> None:
    order = wire.Order("../there", 0, 0, 0, 0, -1, "", 1, False)
    with pytest.raises(fl.FedloomError, match="expected a run of letters and digits"):
        wire.Order.read(RecordDict({wire.ORDER: order.record()}))


def test_other_settings_than_the_run_was_begun_with_are_told(tmp_path: Path) -> None:
    Keeping(tmp_path, FlowerStrategy(fl.fedavg(client_lr=0.1), TASK, population=3, seed=1)._config())
    with pytest.raises(fl.FedloomError, match="seed: expected 1, which the run was begun with, got 2"):
        deploy(TASK, OneRoom({}), fl.fedavg(client_lr=0.1), seed=2, run_dir=tmp_path)


def test_a_client_of_another_algorithm_is_told_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    room = OneRoom(apps(TASK, DATA, fl.fedavg(client_lr=0.1), tmp_path))
    assert deploy(TASK, room, fl.fedavg(client_lr=0.2), rounds=1).history.rounds[0]["admitted"] == 0
    assert "client_app algorithm: expected the server's" in caplog.text


def test_a_model_that_becomes_non_finite_ends_the_run_and_is_not_kept(tmp_path: Path) -> None:
    room = OneRoom({node: stock(DATA, client, rate=1e3) for client, node in enumerate(sorted(NODES))})
    with pytest.raises(fl.Diverged):
        deploy(TASK, room, fl.fedavg(client_lr=0.1, server_lr=1e308), run_dir=tmp_path)
    assert not list(tmp_path.glob("checkpoints/*"))


@pytest.mark.parametrize("bad", [{"sampler": "multinomial"}, {"cohort": 4}, {"population": 0}])
def test_what_cannot_be_deployed_is_told_at_once(bad: dict[str, Any]) -> None:
    with pytest.raises(fl.FedloomError):
        FlowerStrategy(fl.fedavg(client_lr=0.1), TASK, **{"population": 3, **bad})
    with pytest.raises(fl.FedloomError, match="central"):
        FlowerStrategy(fl.central(client_lr=0.1), TASK, population=3)
