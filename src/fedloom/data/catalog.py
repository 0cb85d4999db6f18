"""The data sets that have a name, and `load`, which partitions them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.data import natural, pictures, texts, tokens
from fedloom.data import partition as partitioners
from fedloom.data.allocation import Ints, generator
from fedloom.data.federated import FederatedData, federate
from fedloom.data.releases import RELEASES
from fedloom.data.source import Reader, Source
from fedloom.errors import FedloomError, choose

# What a partitioner reads from the data set, by the name of its argument; the user gives the others.
READS: dict[str, Callable[[Source], Any]] = {
    "count": lambda source: len(source.y),
    "labels": lambda source: source.y,
    "fine": lambda source: source.y if source.fine is None else source.fine,
    "coarse": lambda source: source.coarse,
    "owner_ids": lambda source: source.owners,
}
DEFAULT_CLIENTS = 10
WEIGHTS = ("examples", "tokens")


def digits() -> Source:
    """Scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, scaled to [0, 1]: 1,438 to train on and 359 to test.

    A fifth of every class, rounded, is test data: 36, 36, 35, 37, 36, 36, 36, 36, 35, 36 of the digits 0 to 9. Which
    rows they are is part of the definition and does not follow the seed of `load`. Alpaydin and Kaynak 1998, UCI
    Machine Learning Repository.

    >>> source = digits()
    >>> source.x.shape, source.x.dtype, source.test[0].shape
    ((1438, 64), dtype('float32'), (359, 64))
    """
    package = find_spec("sklearn")  # its file alone: importing it takes longer than the training of a quick run
    if package is None or package.origin is None:
        raise FedloomError("digits: expected scikit-learn, which has them, got no such package: install it")
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    x, y = (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int64)
    rng = generator(0)
    held_out = np.zeros(len(y), np.bool_)
    for label in range(10):
        rows = np.flatnonzero(y == label)
        held_out[rng.permutation(rows)[: round(len(rows) / 5)]] = True
    return Source(x[~held_out], y[~held_out], test=(x[held_out], y[held_out]))


READERS: dict[str, Reader] = {
    "20newsgroups": texts.newsgroups,
    "agnews": texts.agnews,
    "cifar10": pictures.cifar10,
    "cifar100": pictures.cifar100,
    "digits": digits,
    "emnist": natural.emnist,
    "fashionmnist": pictures.fashionmnist,
    "mnist": pictures.mnist,
    "qmnist": pictures.qmnist,
    "shakespeare": natural.shakespeare,
    "stackoverflow": natural.stackoverflow,
}
# A reader's `**pixels` and `**words` are the keyword-only arguments of these.
PASSED_ON: dict[str, Callable[..., Any]] = {"pixels": pictures.prepare, "words": texts.vectorise}


def register(name: str) -> Callable[[Reader], Reader]:
    """Adds a function that reads a data set to the catalog; its keyword arguments become options of `load`."""

    def add(reader: Reader) -> Reader:
        READERS[name] = reader
        return reader

    return add


def options_of(name: str) -> set[str]:
    """The options of `load` that are the data set's own.

    >>> sorted(options_of("qmnist"))
    ['crop', 'cutout', 'flip', 'folder', 'jitter', 'normalise', 'style', 'task', 'verify', 'whiten']
    """
    found: set[str] = set()
    for parameter in inspect.signature(READERS[name]).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            passed = inspect.signature(PASSED_ON[parameter.name]).parameters.values()
            found |= {other.name for other in passed if other.kind is inspect.Parameter.KEYWORD_ONLY}
        else:
            found.add(parameter.name)
    return found


def datasets() -> list[str]:
    """The names that `load` knows, sorted.

    >>> "digits" in datasets()
    True
    """
    return sorted(READERS)


def load(
    name: str,
    partition: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    weights: str = "examples",
    **options: Any,
) -> FederatedData:
    """Reads the data set `name` and deals its training rows to `clients` clients (10 unless told).

    `partition` names a function of `fedloom.data.partition`. When it is None, data that come with their clients
    (writers, roles, users) keep them, and any other are dealt `"iid"`. `options` are that function's other arguments
    (alpha, shards_per_client, ...) and the data set's own: `folder` says where its files are ($FEDLOOM_DATA, else the
    user's cache), `verify=False` takes them as they are, and `style`, `task`, ... choose between the papers'
    preprocessing. `weights="tokens"` weighs a client by the targets of its sequences that are no padding.

    >>> data = load("digits", partition="dirichlet", clients=100, alpha=0.1)
    >>> data.population, data.examples.unique(), data.classes
    (100, tensor([14]), 10)
    """
    return Shelf().load(name, partition, clients, seed, weights, **options)


class Shelf:
    """Data sets that are read once: every partition of the same rows has the tensors of the first.

    That is what lets runs on different partitions be trials of one `simulate_trials`.

    >>> shelf = Shelf()
    >>> one, other = (shelf.load("digits", partition="iid", clients=10, seed=seed) for seed in (0, 1))
    >>> one.x is other.x, one.test is other.test, one is shelf.load("digits", partition="iid", clients=10)
    (True, True, True)
    """

    def __init__(self) -> None:
        self._read: dict[str, tuple[Source, FederatedData]] = {}
        self._dealt: dict[str, FederatedData] = {}

    def load(
        self,
        name: str,
        partition: str | None = None,
        clients: int | None = None,
        seed: int = 0,
        weights: str = "examples",
        **options: Any,
    ) -> FederatedData:
        """As `load`, from what was read before where that will do."""
        if name not in READERS:
            raise choose("load, name", name, READERS)
        by_itself = partition is None and name in RELEASES and RELEASES[name].partition == "natural"
        partition = partition or ("natural" if by_itself else "iid")
        if partition not in partitioners.__all__:
            raise choose(f"load({name!r}), partition", partition, partitioners.__all__)
        if weights not in WEIGHTS:
            raise choose(f"load({name!r}), weights", weights, WEIGHTS)
        own = options_of(name)
        _check_options(f"load({name!r}, partition={partition!r})", partition, own, options)
        given = {option: options[option] for option in options if option in own}
        rest = {option: options[option] for option in options if option not in own}
        rows = repr((name, sorted(given.items())))
        dealt = repr((rows, partition, clients, seed, weights, sorted(rest.items())))
        if dealt not in self._dealt:
            source, first = self._read.get(rows) or (READERS[name](**given), None)
            data = _deal(
                name, source, first, "iid" if by_itself and source.owners is None else partition, clients, seed, rest
            )
            self._read.setdefault(rows, (replace(source, x=None, test=(None, None)), data))
            self._dealt[dealt] = replace(data, row_weights=_tokens(data)) if weights == "tokens" else data
        return self._dealt[dealt]


def _deal(
    name: str,
    source: Source,
    first: FederatedData | None,
    partition: str,
    clients: int | None,
    seed: int,
    options: dict[str, Any],
) -> FederatedData:
    """The rows of the source dealt to clients; where `first` has them as tensors already, those are taken."""
    data = federate(
        source.x if first is None else first.x,
        source.y if first is None else first.y,
        _parts(name, source, partition, clients, seed, options),
        test=source.test if first is None else first.test,
        client_test=_client_test(source) if partition == "natural" else None,
        name=name,
        augment=source.augment,
    )
    if first is not None:  # a tuple or a dict of tensors would be a new one
        data = replace(data, x=first.x, y=first.y, test=first.test)
    if partition == "pachinko" and source.test_tree is not None:
        data = replace(data, client_test=_test_clients(*source.test_tree, seed, options), test_strangers=True)
    if partition == "natural" and data.client_test is None and source.test_owners is not None:
        data = replace(data, client_test=_strangers(source.test_owners), test_strangers=True)
    return replace(data, words=source.words, classes=data.classes if source.classes is None else source.classes)


def _tokens(data: FederatedData) -> Tensor:
    """The targets of every row that are no padding."""
    if not isinstance(data.y, Tensor) or data.y.dim() != 2 or data.y.dtype != torch.int64:
        raise FedloomError(f"load({data.name!r}), weights: expected 'examples', got 'tokens': its targets are none")
    return (data.y != tokens.PAD).sum(1)


def _test_clients(fine: Ints, coarse: Ints, seed: int, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Clients to test on, allocated like those to train on but from the test rows (Reddi et al. 2020): 100 of 100."""
    clients = max(1, len(fine) // options["per_client"])
    parts = partitioners.pachinko(fine, coarse, clients, seed=seed, **options)
    offsets = np.cumsum([0, *map(len, parts)])
    return torch.from_numpy(np.concatenate(parts)), torch.from_numpy(offsets)


def _client_test(source: Source) -> list[Ints] | None:
    """The test rows of every client, none where no client has any; those of strangers are left to the common test."""
    if source.test_owners is None:
        return None
    owners, strangers = np.unique(source.owners), np.asarray(source.test_owners)
    place = np.minimum(np.searchsorted(owners, strangers), len(owners) - 1)
    known = np.flatnonzero(owners[place] == strangers)
    order = known[np.argsort(place[known], kind="stable")].astype(np.int64)
    sizes = np.bincount(place[known], minlength=len(owners))
    return np.split(order, np.cumsum(sizes)[:-1]) if known.size else None


def _strangers(owners: Ints) -> tuple[Tensor, Tensor]:
    """Clients to test on, none of whom trains: QMNIST's writers."""
    order = np.argsort(owners, kind="stable").astype(np.int64)
    sizes = np.unique(owners, return_counts=True)[1]
    return torch.from_numpy(order), torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def _parts(
    name: str, source: Source, partition: str, clients: int | None, seed: int, options: dict[str, Any]
) -> list[Ints]:
    partitioner = getattr(partitioners, partition)
    arguments = dict(options)
    for argument in inspect.signature(partitioner).parameters:
        if argument in READS:
            arguments[argument] = READS[argument](source)
            if arguments[argument] is None:
                raise FedloomError(
                    f"load({name!r}), partition={partition!r}: expected a data set with {argument}, got one without: "
                    "choose another partition"
                )
        elif argument == "clients":
            arguments[argument] = DEFAULT_CLIENTS if clients is None else clients
        elif argument == "seed":
            arguments[argument] = seed
    parts: list[Ints] = partitioner(**arguments)
    if clients is not None and len(parts) != clients:
        raise FedloomError(
            f"load({name!r}), clients: expected {len(parts)}, as many as partition={partition!r} makes, got {clients}: "
            "leave clients out"
        )
    return parts


def _check_options(where: str, partition: str, own: set[str], options: dict[str, Any]) -> None:
    """Every option is the data set's or the partitioner's own, and the partitioner lacks none."""
    parameters = inspect.signature(getattr(partitioners, partition)).parameters
    open_to_user = {name: p for name, p in parameters.items() if name not in {*READS, "clients", "seed"}}
    allowed = own | set(open_to_user)
    for option in options:
        if option not in allowed and not allowed:
            raise FedloomError(f"{where}, option: expected none, got {option!r}: leave it out")
        if option not in allowed:
            raise choose(f"{where}, option", option, allowed)
    for option, parameter in open_to_user.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise FedloomError(f"{where}, {option}: expected a value, got none: pass {option}=...")
