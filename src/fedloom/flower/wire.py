"""What travels between the server and a node: leaves as Flower's arrays, orders to a client, a row of the cohort back.

A message has the model's whole `state_dict` under "arrays", which is what Flower's own strategies send. What only
fedloom's ClientApp reads lies in records of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedloom import gate
from fedloom.aggregate import require
from fedloom.algorithm import Algorithm
from fedloom.batches import Batching
from fedloom.errors import FedloomError, cut
from fedloom.executors.job import Trained
from fedloom.types import Cohort, Params

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"  # the names that Flower's own strategies and clients use
ORDER, SHARED, UPDATE, BUFFERS, EXTRA = (
    "fedloom",
    "fedloom.shared",
    "fedloom.update",
    "fedloom.buffers",
    "fedloom.extra.",
)
MOST_STEPS = 1_000_000
"""Local steps that a client may claim: FedNova's server goes through them one by one."""
EXAMPLES, STEPS, LOSS, COUNTED = "num-examples", "steps", "train_loss", "counted."


def to_arrays(leaves: Params) -> ArrayRecord:
    """Leaves as Flower's arrays; numpy has no bfloat16, of which float32 holds every value.

    >>> sorted(to_arrays({"w": torch.ones(2, dtype=torch.bfloat16)}).to_torch_state_dict().items())
    [('w', tensor([1., 1.]))]
    """

    def portable(leaf: Tensor) -> Tensor:
        leaf = leaf.detach().cpu().contiguous()
        return leaf.float() if leaf.dtype == torch.bfloat16 else leaf

    return ArrayRecord({name: portable(leaf) for name, leaf in leaves.items()})


def from_arrays(record: ArrayRecord) -> Params:
    """The leaves of a record that came over the wire: whatever is wrong with its bytes is one line."""
    try:
        return dict(record.to_torch_state_dict())
    except Exception as error:  # the bytes are a stranger's, and numpy's parsing of them may raise anything
        raise FedloomError(f"arrays: expected numpy's form, got {type(error).__name__}: {quoted(str(error))}") from None


def quoted(said: str) -> str:
    """What a client said, fit for one line of a log: longer than a name, as errors say what to do at their end.

    >>> quoted("the disk is full" + chr(10) + "round 7: all is well")
    "'the disk is full\\\\nround 7: all is well'"
    """
    return repr(said if len(said) <= 300 else f"{said[:297]}...")


@dataclass(frozen=True)
class Order:
    """What one client is told beside the model."""

    run: str  # whose memory the client's rows belong to
    client: int
    round: int
    server_round: int
    seed: int
    remembered: int  # the last round in which its reply was admitted; -1: none
    work: str  # what clients are to do, to be compared with what this one does
    epochs: int
    drop_last: bool
    steps: int | None = None
    batch_size: int | None = None

    @property
    def batching(self) -> Batching:
        return Batching(self.epochs, self.steps, self.batch_size, self.drop_last)

    def record(self) -> ConfigRecord:
        return ConfigRecord({name: value for name, value in asdict(self).items() if value is not None})

    @staticmethod
    def read(content: RecordDict) -> Order:
        if ORDER not in content.config_records:
            raise FedloomError(
                f"client_app: expected a record {ORDER!r} in the message, got {', '.join(content)}: "
                "use fedloom.flower.FlowerStrategy in the ServerApp"
            )
        given = content.config_records[ORDER]
        lacking = [field.name for field in fields(Order) if field.default is MISSING and field.name not in given]
        if lacking:
            raise FedloomError(
                f"client_app: expected {', '.join(lacking)} in the record {ORDER!r}, got none: "
                "install the server's version of fedloom on the device"
            )
        if not str(given["run"]).isalnum():  # it becomes the name of a folder on the device
            raise FedloomError(f"client_app: expected a run of letters and digits, got {given['run']!r}")
        return Order(**{field.name: given[field.name] for field in fields(Order) if field.name in given})  # type: ignore[arg-type]


def clients_work(algorithm: Algorithm) -> str:
    """What the clients do: names show every setting of a part, rates included."""
    return f"{algorithm.work!r}, {algorithm.client!r}, {algorithm.memory!r}"


def needs_own_client(algorithm: Algorithm) -> bool:
    """Whether clients do more than train as they like: take a full gradient, correct their steps, remember, count."""
    asked = algorithm.client.corrects or algorithm.memory is not None or algorithm.combine.reads_steps
    return algorithm.work.name == "full_gradient" or asked


def to_reply(trained: Trained) -> RecordDict:
    """What fedloom's client sends: its raw pseudo-gradient, and the numbers of its training."""
    cohort = trained.cohort
    assert cohort.steps is not None and cohort.losses is not None
    metrics: dict[str, int | float | list[int] | list[float]] = {
        EXAMPLES: int(cohort.examples[0]),
        STEPS: int(cohort.steps[0]),
        LOSS: float(cohort.losses[0]),
    }
    metrics |= {f"{COUNTED}{name}": sums[0].tolist() for name, sums in trained.counted.items()}
    records: dict[str, ArrayRecord | MetricRecord] = {UPDATE: to_arrays(_alone(cohort.updates))}
    if cohort.buffers is not None:
        records[BUFFERS] = to_arrays(_alone(cohort.buffers))
    records |= {f"{EXTRA}{kind}": to_arrays(_alone(leaves)) for kind, leaves in (cohort.extra or {}).items()}
    return RecordDict({**records, METRICS: MetricRecord(metrics)})


def counted(content: RecordDict) -> dict[str, list[float]]:
    """What the client measured on the batches it trained on: numerator and denominator of each metric."""
    metrics = content.metric_records.get(METRICS) or MetricRecord()
    pairs = {name: sums for name, sums in metrics.items() if isinstance(sums, list) and len(sums) == 2}
    return {
        name.removeprefix(COUNTED): [float(part) for part in sums]
        for name, sums in pairs.items()
        if name.startswith(COUNTED)
    }


def _alone(leaves: Params) -> Params:
    return {name: leaf[0] for name, leaf in leaves.items()}


def to_row(
    content: RecordDict, client: int, algorithm: Algorithm, params: Params, buffers: Params, names: Mapping[str, str]
) -> Cohort:
    """A reply as a cohort of one, whoever's ClientApp sent it; an error that says why it is none.

    `names`: keys of the model's `state_dict` -> its leaves.
    """
    metrics = {name: value for record in content.metric_records.values() for name, value in record.items()}
    examples = metrics.get(EXAMPLES)
    if not isinstance(examples, int | float):
        raise FedloomError(f"metrics: expected a number {EXAMPLES!r}, got {cut(repr(examples))}")
    sent, extra = content.array_records, None
    sends = () if algorithm.memory is None else algorithm.memory.sends
    if UPDATE in sent:
        update = _restored(from_arrays(sent[UPDATE]), params)
        own = _restored(from_arrays(sent[BUFFERS]), buffers) if BUFFERS in sent else {}
        extra = {
            kind: _restored(from_arrays(sent[f"{EXTRA}{kind}"]), params) for kind in sends if f"{EXTRA}{kind}" in sent
        }
    else:
        if needs_own_client(algorithm):
            raise FedloomError(f"{algorithm.name}: expected a reply of fedloom.flower.client_app, got one without it")
        if len(sent) != 1:
            raise FedloomError(f"reply: expected one record of arrays, got {len(sent)}")
        leaves = {names.get(key, key): leaf for key, leaf in from_arrays(next(iter(sent.values()))).items()}
        final = _restored(leaves, params)
        update = {name: x - final[name] for name, x in params.items()}
        own = _restored(leaves, buffers)
    steps, loss = metrics.get(STEPS), metrics.get(LOSS)
    if algorithm.combine.reads_steps and not (isinstance(steps, int) and 0 <= steps <= MOST_STEPS):
        expected = f"a whole number {STEPS!r} up to {MOST_STEPS:,} in metrics"
        raise FedloomError(f"{algorithm.name}: expected {expected}, got {cut(repr(steps))}")
    row = Cohort(
        clients=torch.tensor([client]),
        examples=torch.tensor([examples], dtype=torch.float64),
        updates=_stacked(update),
        steps=torch.tensor([steps]) if isinstance(steps, int) else None,
        losses=torch.tensor([loss], dtype=torch.float64) if isinstance(loss, float) else None,
        buffers=_stacked(own) or None,
        extra={kind: _stacked(part) for kind, part in extra.items()} if extra else None,
    )
    gate.check(row, params, buffers)
    if buffers and row.buffers is None:
        raise FedloomError(f"reply: expected the buffers {', '.join(sorted(buffers))}, got none")
    return require(row, algorithm.name, sends)


def _stacked(leaves: Params) -> Params:
    return {name: leaf.unsqueeze(0) for name, leaf in leaves.items()}


def _restored(leaves: Params, like: Params) -> Params:
    """Those of the leaves that `like` has, in its dtypes; one that is missing or of another kind is an error."""
    restored = {}
    for name, model in like.items():
        if name not in leaves:
            got = cut(", ".join(repr(other) for other in sorted(leaves))) or "none"
            raise FedloomError(f"reply, {name!r}: expected this leaf, got {got}")
        leaf = leaves[name]
        if leaf.shape != model.shape:
            raise FedloomError(f"reply, {name!r}: expected shape {tuple(model.shape)}, got {tuple(leaf.shape)}")
        if leaf.is_floating_point() != model.is_floating_point():
            raise FedloomError(f"reply, {name!r}: expected {model.dtype}, got {leaf.dtype}")
        restored[name] = leaf.to(model.dtype)
    return restored
