"""The strategy and the ClientApp against the simulator, in one process; tests of real processes are beside them."""

from __future__ import annotations

import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
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

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"
DATA = classification((14, 10, 20))


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
RULES = [
    (rule.name, lambda rule=rule: fl.replace(fl.fedadam(client_lr=0.1, server_lr=0.1), combine=rule))
    for rule in (
        *(fl.multi_krum(0.2), fl.geometric_median(), fl.centred_clipping(0.1), fl.norm_bounding(0.05)),
        *(fl.coordinate_median(), fl.trimmed_mean(0.2)),
    )
]
LEFT_OUT = (
    "central",
    "-keras",
    "-torch",
    "-nesterov",
    "-ema",
    "-round",
)  # by Flower, others of their kind go as they do
CHOSEN = [row for row in [*CONSTRUCTORS, *COMPOSED[:5], *WRAPPED[:2], *RULES] if not row[0].endswith(LEFT_OUT)]


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize(("name", "make"), CHOSEN, ids=[name for name, _ in CHOSEN])
def test_rounds_through_flower_are_those_of_a_simulation(name: str, make: Any, tmp_path: Path) -> None:
    options = {"cohort": 2, "batch_size": 8, "epochs": 2, "seed": 3}
    simulated = fl.simulate(TASK, DATA, make(), rounds=3, executor="loop", **options)
    deployed = deploy(TASK, OneRoom(apps(TASK, DATA, make(), tmp_path)), make(), rounds=3, **options)
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


def _bytes(data: bytes) -> Any:
    """In place of a leaf, whatever it says it is."""

    def change(content: RecordDict) -> None:
        content["arrays"]["last.bias"] = Array(dtype="float64", shape=(4,), stype="numpy.ndarray", data=data)

    return change


def _pickled() -> bytes:
    with BytesIO() as file:
        np.save(file, np.array([print], dtype=object), allow_pickle=True)
        return file.getvalue()


def _claiming(length: int) -> bytes:
    """The header of a file of so many numbers, and four of them."""
    with BytesIO() as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (length,)})
        return file.getvalue() + bytes(32)


def _header(text: bytes) -> bytes:
    """A file of numpy's that begins as one should, and goes on as it likes."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


FAULTS = [
    ("nan", _set("last.bias", torch.full((4,), torch.nan)), "non-finite value in update 'last.bias'"),
    ("shape", _set("last.bias", torch.zeros(5)), "'last.bias': expected shape (4,), got (5,)"),
    ("kind", _set("last.bias", torch.zeros(4, dtype=torch.int64)), "expected torch.float64, got torch.int64"),
    ("missing", lambda content: content["arrays"].pop("last.bias"), "'last.bias': expected this leaf"),
    ("no count", lambda content: content["metrics"].pop("num-examples"), "expected a number 'num-examples'"),
    ("no weight", lambda content: content["metrics"].update({"num-examples": 0}), "expected a finite positive number"),
    ("no arrays", lambda content: content.pop("arrays"), "expected one record of arrays, got 0"),
    ("no numbers", _bytes(b"\x93NUMPY"), "arrays: expected numpy's form, got "),
    ("an object", _bytes(_pickled()), "arrays: expected numpy's form, got ValueError: 'Object arrays cannot be loaded"),
    ("a vast claim", _bytes(_claiming(2**50)), "arrays: expected numpy's form, got "),
    *(
        (f"header {text[-8:]!r}", _bytes(_header(text)), "arrays: expected numpy's form, got ")
        for text in (b"{'descr': (", b"'''", b"(((((", b"{'descr': '<f8', 'fortran_order': False, 'shape': (", b"\x00")
    ),
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


@pytest.mark.parametrize("steps", [None, 2.5, 2**40])
def test_a_reply_without_the_steps_that_fednova_counts_is_refused_singly(
    steps: float | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = fl.fednova(client_lr=0.1)
    room = OneRoom(dict(apps(TASK, DATA, algorithm, tmp_path)))
    honest = room.apps[11]

    def without(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        del reply.content["metrics"]["steps"]
        if steps is not None:
            reply.content["metrics"]["steps"] = steps
        return reply

    room.apps[11] = without
    assert deploy(TASK, room, algorithm, rounds=1).history.rounds[0]["admitted"] == 2
    assert (
        f"round 0: fednova: expected a whole number 'steps' up to 1,000,000 in metrics, got {steps}: refused"
        in caplog.text
    )


OWN = fl.fednova(client_lr=0.1).combine
ANYBODYS = [
    (fl.fedavg(client_lr=0.1, client_weight_decay=1e-3), False),
    (fl.fedavg(client_lr=0.1, client_momentum=0.9, client_clip_norm=1.0), False),
    (fl.fedavg(client_lr=0.1, client_optimizer="adam"), False),
    (fl.fedprox(client_lr=0.1, mu=0.1, client_weight_decay=1e-3), True),
    (fl.fedglad(fl.fednova(client_lr=0.1)), True),
    (fl.replace(fl.fedavg(client_lr=0.1), combine=fl.norm_bounding(1.0, base=OWN)), True),
]


@pytest.mark.parametrize(("algorithm", "own"), ANYBODYS, ids=[str(number) for number in range(len(ANYBODYS))])
def test_clients_of_other_make_may_train_as_they_like(algorithm: fl.Algorithm, own: bool) -> None:
    assert wire.needs_own_client(algorithm) == own


def test_what_a_client_says_stays_on_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def forges(message: Message, context: Context) -> Message:
        raise RuntimeError("\nnode 340 (client 1), round 0: out of memory: refused" + "!" * 1000)

    room = OneRoom({907: stock(DATA, 2), 11: forges, 340: stock(DATA, 1)})
    room.apps[907] = broken(lambda content: content.update({"arrays": ArrayRecord({"a\nb": Array(np.zeros(1))})}))
    deploy(TASK, room, fl.fedavg(client_lr=0.1), rounds=1)
    told = [line for line in caplog.messages if line.endswith(": refused")]
    assert [line.split(":")[0] for line in told] == ["node 907 (client 2), round 0", "node 11 (client 0), round 0"]
    assert not any("\n" in line or len(line) > 400 for line in told)


def test_nodes_that_raise_or_never_answer_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def raises(message: Message, context: Context) -> Message:
        raise RuntimeError("the disk is full")

    def silent(message: Message, context: Context) -> Message:
        raise TimeoutError

    room = OneRoom({907: stock(DATA, 2), 11: raises, 340: silent})
    assert deploy(TASK, room, fl.fedavg(client_lr=0.1), rounds=2).history.rounds[1]["admitted"] == 1
    assert "node 11 (client 0), round 1: 'the disk is full': refused" in caplog.text
    assert "node 340 (client 1), round 1: no reply in time: refused" in caplog.text


@pytest.mark.parametrize("min_reports", [1, 3])
def test_a_row_counts_only_once_its_reply_was_admitted(min_reports: int, tmp_path: Path) -> None:
    """Client 0's first reply is lost on its way: its control stays what it was, and all do if the round is void."""
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
    options = {"rounds": 3, "batch_size": 8, "min_reports": min_reports}
    simulated = fl.simulate(TASK, DATA, make(), cohort=3, sampler=first, executor="loop", **options)
    deployed = deploy(TASK, lost, make(), **options)
    assert apart(deployed.now.params, simulated.params) < 1e-12
    assert apart(deployed.now.state.memory, simulated.state.memory) < 1e-12


def test_an_order_cannot_name_a_folder_elsewhere_on_the_device() -> None:
    order = wire.Order("../there", 0, 0, 0, 0, -1, "", 1, False)
    with pytest.raises(fl.FedloomError, match="expected a run of letters and digits"):
        wire.Order.read(RecordDict({wire.ORDER: order.record()}))


def test_an_order_that_lacks_something_says_so() -> None:
    record = wire.Order("a1", 0, 0, 0, 0, -1, "", 1, False).record()
    del record["run"], record["remembered"]
    with pytest.raises(fl.FedloomError, match="expected run, remembered in the record 'fedloom', got none"):
        wire.Order.read(RecordDict({wire.ORDER: record}))


def test_a_client_of_another_algorithm_is_told_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    room = OneRoom(apps(TASK, DATA, fl.fedavg(client_lr=0.1), tmp_path))
    assert deploy(TASK, room, fl.fedavg(client_lr=0.2), rounds=1).history.rounds[0]["admitted"] == 0
    assert "client_app algorithm: expected the server's" in caplog.text


def test_a_model_that_becomes_non_finite_ends_the_run_and_is_not_kept(tmp_path: Path) -> None:
    room = OneRoom({node: stock(DATA, client, rate=1e3) for client, node in enumerate(sorted(NODES))})
    with pytest.raises(fl.Diverged):
        deploy(TASK, room, fl.fedavg(client_lr=0.1, server_lr=1e308), run_dir=tmp_path)
    assert not list(tmp_path.glob("checkpoints/*"))


def test_too_few_replies_leave_the_model_as_it_was(tmp_path: Path) -> None:
    room = OneRoom(
        {11: stock(DATA, 0), 340: broken(_set("last.bias", torch.full((4,), torch.nan))), 907: stock(DATA, 2)}
    )
    deployed = deploy(TASK, room, fl.fedavg(client_lr=0.1), rounds=1, min_reports=3)
    assert deployed.history.rounds[0]["admitted"] == 2
    assert apart(deployed.now.params, fresh().params) == 0


@pytest.mark.parametrize("sampler", ["poisson", "attention"])
def test_cohorts_are_those_of_a_simulation(sampler: str, tmp_path: Path) -> None:
    """Of eight Poisson draws with probability one third some are empty: those rounds are void."""
    options = {"cohort": 1 if sampler == "poisson" else 2, "batch_size": 8, "sampler": sampler, "seed": 1}
    make = dict(CONSTRUCTORS)["fedavg"]
    simulated = fl.simulate(TASK, DATA, make(), rounds=8, executor="loop", **options)
    room = OneRoom(apps(TASK, DATA, make(), tmp_path))
    deployed = deploy(TASK, room, make(), rounds=8, **options)
    assert [record["asked"] for record in deployed.history.rounds] == [r["asked"] for r in simulated.rounds]
    assert (min(len(asked) for asked in room.sent[::2]) == 0) == (sampler == "poisson")
    assert apart(deployed.now.params, simulated.params) < 1e-12


BASE = {"client_lr": 0.1, "weighting": fl.uniform()}
REFUSED = [
    ({"sampler": "multinomial"}, "a sampler that does not draw by the clients' sizes, got 'multinomial'"),
    ({"sampler": fl.sampling.forced("uniform", {0: [1]})}, "cohorts among those who are connected, got forced ones"),
    ({"cohort": 4}, "cohort: expected 1 to 3 clients"),
    ({"population": 0}, "population: expected a whole number of at least 1, got 0"),
    ({"min_reports": 4}, "min_reports: expected at most the cohort, 3, got 4"),
    ({"algorithm": fl.fedavg}, "FlowerStrategy algorithm: expected a Algorithm, got .*: call it"),
    ({"algorithm": fl.central(client_lr=0.1)}, "a federated algorithm, got central, which pools all rows"),
    (
        {"algorithm": fl.private(fl.fedavg(**BASE), clip=1.0, noise_multiplier=1.0, delta=1e-5)},
        "FlowerStrategy sampler: expected 'poisson' with privacy",
    ),
    (
        {"algorithm": fl.fedadam(client_lr=0.1, server_lr=0.1, initial_accumulator="estimate")},
        "initial_accumulator",
    ),
]


@pytest.mark.parametrize(("bad", "told"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_cannot_be_deployed_is_told_at_once(bad: dict[str, Any], told: str) -> None:
    with pytest.raises(fl.FedloomError, match=told):
        FlowerStrategy(**{"algorithm": fl.fedavg(client_lr=0.1), "task": TASK, "population": 3, **bad})


def test_the_apps_in_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```python\n(.*?)```", DEPLOY.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block.replace("num_rounds=20", "num_rounds=2"), DEPLOY.name, "exec"), names)
    room = OneRoom(dict.fromkeys(NODES, names["client"]))
    for partition, context in enumerate(room.contexts.values()):
        context.node_config["partition-id"] = partition
    names["server"](room, room.contexts[11])
    assert json.loads((tmp_path / "runs" / "deployed" / "summary.json").read_text())["final"]["admitted"] == 3
