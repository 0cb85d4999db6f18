"""Partitioners: which client owns which rows. Each returns one int64 array of row numbers per client, disjoint.

Labels may be a tensor, an array or a list, of numbers or of names; classes are the distinct labels in sorted order. The
same seed gives the same partition on any machine. A partition that cannot be made raises a `FedloomError`: no client is
left short or empty in silence.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedloom.data.allocation import (
    Floats,
    Ints,
    Pools,
    choose_classes,
    draw_classes,
    draw_tree,
    generator,
    log_gamma,
    renormalise,
    round_shares,
    spread_blocks,
    stable_order,
    take_or_reassign,
)
from fedloom.errors import FedloomError, choose

if TYPE_CHECKING:
    from torch import Tensor

Labels: TypeAlias = "npt.ArrayLike | Tensor"

__all__ = ["blocks", "class_mix", "dirichlet", "dirichlet_fednlp", "iid", "natural", "pachinko", "shards"]


def iid(count: int, clients: int, seed: int = 0) -> list[Ints]:
    """Deals `count` rows at random; every row has an owner and sizes differ by at most one (McMahan et al. 2017).

    >>> [len(part) for part in iid(count=10, clients=3, seed=0)]
    [4, 3, 3]
    """
    count = _whole("iid", "count", count)
    clients = _clients("iid", clients, count)
    rows = _generator("iid", seed).permutation(count).astype(np.int64, copy=False)
    return np.array_split(rows, clients)


def natural(owner_ids: Labels) -> list[Ints]:
    """Gives every row to its owner: one client per distinct id, in sorted order (Caldas et al. 2018, LEAF).

    >>> [part.tolist() for part in natural(["romeo", "juliet", "romeo"])]
    [[1], [0, 2]]
    """
    owners = _classes("natural", owner_ids)
    return np.split(stable_order(owners), np.cumsum(np.bincount(owners))[:-1])


def dirichlet(
    labels: Labels,
    clients: int,
    alpha: float,
    seed: int = 0,
    concentration: Literal["alpha*p", "alpha"] = "alpha*p",
    prior: Literal["uniform", "frequency"] | npt.ArrayLike = "uniform",
) -> list[Ints]:
    """Equal clients whose class mix is q_k ~ Dir(alpha p): small alpha, one class each; large alpha, all alike.

    Hsu, Qi and Brown 2019, arXiv 1909.06335. Each client gets m = floor(rows / clients) rows, one class draw c ~ q_k at
    a time; a class that runs out leaves every q_k, which is renormalised. The rows left over have no owner.

    `concentration`: `"alpha*p"` is the paper's Dir(alpha p), p a distribution; `"alpha"` is the other common reading,
    entries alpha on average (alpha C p), C times as large. `prior` is p: one entry per class, `"uniform"`, or the
    classes' `"frequency"`. `alpha=0`: one class per client, clients per class in proportion to p. `alpha=inf`: q_k = p.

    >>> [sorted(part.tolist()) for part in dirichlet([0, 0, 0, 1, 1, 1], clients=2, alpha=0) if 0 in part]
    [[0, 1, 2]]
    """
    classes = _classes("dirichlet", labels)
    clients = _clients("dirichlet", clients, classes.size)
    rng = _generator("dirichlet", seed)
    pools = Pools.shuffled(classes, int(classes.max()) + 1, rng)
    p = _prior(prior, pools.sizes)
    if concentration not in ("alpha*p", "alpha"):
        raise choose("partition.dirichlet, concentration", concentration, ["alpha*p", "alpha"])
    alpha = _number("dirichlet", "alpha", alpha, zero=True, infinite=True)
    q = _mixes(alpha * p.size if concentration == "alpha" else alpha, p, clients, rng)
    return pools.deal(draw_classes(q, classes.size // clients, pools.sizes, rng), rng)


def dirichlet_fednlp(labels: Labels, clients: int, alpha: float, seed: int = 0) -> list[Ints]:
    """FedNLP's Dirichlet split with reassigning: q_k ~ Dir(alpha p), p the class frequencies, shares rounded.

    Lin et al. 2022, arXiv 2104.08815; used by FedGLAD. Each client takes round(q_c m) rows of every class,
    m = floor(rows / clients); what a class lacks is taken from the others in proportion to what they have. Every row
    has an owner: the last client absorbs the remainder.

    >>> [len(part) for part in dirichlet_fednlp([0, 1] * 11, clients=4, alpha=0.5, seed=0)]
    [5, 5, 5, 7]
    """
    classes = _classes("dirichlet_fednlp", labels)
    clients = _clients("dirichlet_fednlp", clients, classes.size)
    alpha = _number("dirichlet_fednlp", "alpha", alpha)
    rng = _generator("dirichlet_fednlp", seed)
    pools = Pools.shuffled(classes, int(classes.max()) + 1, rng)
    unused = pools.sizes.copy()
    q = _mixes(alpha, unused / unused.sum(), clients - 1, rng)
    wants = round_shares(q, classes.size // clients)
    counts = [take_or_reassign(want, unused) for want in wants]
    return pools.deal(np.stack([*counts, unused]), rng)


def pachinko(
    fine: Labels, coarse: Labels, clients: int, per_client: int, alpha: float = 0.1, beta: float = 10.0, seed: int = 0
) -> list[Ints]:
    """Pachinko allocation: a client draws coarse labels from Dir(alpha), and under each its fine labels from Dir(beta).

    Reddi et al. 2020, arXiv 2003.00295, Algorithms 5 and 6; CIFAR-100 is 500 clients of 100. alpha and beta are the
    Dirichlets' entries, one per label that survives: an exhausted one leaves the tree, its siblings are renormalised.

    >>> [len(part) for part in pachinko(fine=[0, 1, 2, 3] * 5, coarse=[0, 0, 1, 1] * 5, clients=3, per_client=6)]
    [6, 6, 6]
    """
    leaves, parents = _classes("pachinko", fine), _classes("pachinko", coarse)
    slots, shape = _tree(leaves, parents)
    clients = _clients("pachinko", clients, leaves.size)
    per_client = _whole("pachinko", "per_client", per_client)
    _enough("pachinko", clients, per_client, leaves.size)
    alpha, beta = _number("pachinko", "alpha", alpha), _number("pachinko", "beta", beta)
    rng = _generator("pachinko", seed)
    pools = Pools.shuffled(slots, shape[0] * shape[1], rng)
    counts = draw_tree(alpha, beta, clients, per_client, pools.sizes.reshape(shape), rng)
    return pools.deal(counts.reshape(clients, -1), rng)


def class_mix(
    labels: Labels,
    iid: int = 3,
    skewed: int = 7,
    classes: int | Sequence[int] = 1,
    per_client: int = 600,
    seed: int = 0,
    case: int | None = None,
    repeat: bool = True,
) -> list[Ints]:
    """`iid` clients with rows of every class, then `skewed` ones with rows of `classes` random classes only.

    `classes` may be a list, one number for each of the skewed.

    Wu and Wang 2021, FedAdp, arXiv 2012.00661. A client draws its classes, which others may draw too, and then
    `per_client` unused rows uniformly from their union. Classes that hold too few unused rows are redrawn.
    `repeat=False`: no class has a second skewed client before every class has one, no third before every has two, as
    far as the classes' rows allow.
    `case=1`: ten clients whose numbers of classes are a permutation of 1..10. `case=2`: five with 1 to 5 classes and
    five with 6 to 10, uniformly. A case takes the place of `iid`, `skewed` and `classes`.

    >>> [len(set(part % 4)) for part in class_mix([0, 1, 2, 3] * 50, iid=1, skewed=2, classes=1, per_client=20)]
    [4, 1, 1]
    """
    ids = _classes("class_mix", labels)
    if not isinstance(repeat, bool):
        raise FedloomError(f"partition.class_mix, repeat: expected True or False, got {repeat!r}")
    per_client = _whole("class_mix", "per_client", per_client)
    rng = _generator("class_mix", seed)
    pools = Pools.shuffled(ids, int(ids.max()) + 1, rng)
    if case is None:
        numbers = _mix_numbers(iid, skewed, classes, pools.sizes.size)
    else:
        numbers = _case_numbers(case, (iid, skewed, classes), pools.sizes.size, rng)
    _enough("class_mix", len(numbers), per_client, ids.size)
    unused, counts = pools.sizes.copy(), np.zeros((len(numbers), pools.sizes.size), np.int64)
    owners = np.zeros_like(unused)
    for k, number in enumerate(numbers):
        chosen = choose_classes(number, per_client, unused, rng, None if repeat else owners)
        if chosen is None:
            most = int(np.sort(unused)[-number:].sum())
            raise FedloomError(
                f"partition.class_mix, client {k}: expected {number} classes that hold {per_client} unused rows, "
                f"got at most {most}: lower per_client, or ask for fewer clients"
            )
        counts[k, chosen] = rng.multivariate_hypergeometric(unused[chosen], per_client)
        unused -= counts[k]
        owners[chosen] += 1
    return pools.deal(counts, rng)


def shards(labels: Labels, clients: int, shards_per_client: int = 2, seed: int = 0) -> list[Ints]:
    """Sorts by label, cuts into equal shards and deals each client a few at random (McMahan et al. 2017).

    Where the rows are not a multiple of the shards, the remainder, drawn at random, has no owner.

    >>> [sorted(part.tolist()) for part in shards([1, 1, 1, 0, 0, 0], clients=2, shards_per_client=1) if 3 in part]
    [[3, 4, 5]]
    """
    classes = _classes("shards", labels)
    rng = _generator("shards", seed)
    pieces = _sorted_pieces("shards", classes, clients, shards_per_client, rng)
    hands = rng.permutation(len(pieces)).reshape(clients, shards_per_client)
    return list(pieces[hands].reshape(clients, -1))


def blocks(labels: Labels, clients: int, blocks_per_client: int = 1, seed: int = 0) -> list[Ints]:
    """Sorts by label, cuts into equal blocks and deals each client blocks of different classes (Zhao et al. 2018).

    One block each is the one-class split, two the two-class split. A block's class is that of its middle row, for it
    may hold a few rows of the next. Where the rows are not a multiple of the blocks, the remainder, drawn at random,
    has no owner.

    >>> [len(set(part // 5)) for part in blocks([0] * 5 + [1] * 5, clients=5, blocks_per_client=2)]
    [2, 2, 2, 2, 2]
    """
    classes = _classes("blocks", labels)
    rng = _generator("blocks", seed)
    pieces = _sorted_pieces("blocks", classes, clients, blocks_per_client, rng)
    kinds = classes[pieces[:, pieces.shape[1] // 2]]
    pools = Pools.shuffled(kinds, int(classes.max()) + 1, rng)
    if pools.sizes.max() > clients:
        raise FedloomError(
            f"partition.blocks, class {int(pools.sizes.argmax())}: expected at most {clients} blocks, one per client, "
            f"got {int(pools.sizes.max())} of {len(pieces)}: lower blocks_per_client, or use shards"
        )
    hands = pools.deal(spread_blocks(pools.sizes, clients, blocks_per_client, rng), rng)
    return [pieces[hand].ravel() for hand in hands]


def _mixes(alpha: float, p: Floats, clients: int, rng: np.random.Generator) -> Floats:
    """The class mixes q_k, clients x classes, with both limits of alpha."""
    if math.isinf(alpha):
        return np.tile(p, (clients, 1))
    if alpha == 0:
        return np.asarray(np.eye(p.size)[rng.permutation(_apportion(clients, p, rng))])
    draw = log_gamma(np.tile(alpha * p, (clients, 1)), rng)
    return renormalise(draw, np.broadcast_to(p > 0, draw.shape))


def _apportion(clients: int, p: Floats, rng: np.random.Generator) -> Ints:
    """A class for each client: floor(clients p_c) of class c, the rest to the largest remainders, ties at random."""
    whole = np.floor(clients * p + 1e-9).astype(np.int64)
    shuffle = rng.permutation(p.size)
    remainder = np.round(clients * p - whole, 9)[shuffle]
    whole[shuffle[np.argsort(-remainder, kind="stable")[: clients - int(whole.sum())]]] += 1
    return np.repeat(np.arange(p.size), whole)


def _prior(prior: str | npt.ArrayLike, sizes: Ints) -> Floats:
    if isinstance(prior, str):
        if prior == "uniform":
            return np.full(sizes.size, 1 / sizes.size)
        if prior == "frequency":
            return np.asarray(sizes / sizes.sum())
        raise choose("partition.dirichlet, prior", prior, ["uniform", "frequency"])
    p = np.asarray(prior, np.float64)
    if p.shape != sizes.shape or not np.isfinite(p).all() or (p < 0).any() or p.sum() <= 0:
        raise FedloomError(
            f"partition.dirichlet, prior: expected {sizes.size} non-negative numbers, one per class, "
            f"not all zero; got {np.array2string(p, threshold=12)}: list the classes in sorted order"
        )
    return np.asarray(p / p.sum())


def _tree(leaves: Ints, parents: Ints) -> tuple[Ints, tuple[int, int]]:
    """Every row's slot in a table of coarse x children, and the table's shape; short rows have empty slots."""
    if leaves.size != parents.size:
        raise FedloomError(
            f"partition.pachinko, coarse: expected {leaves.size} labels, as many as fine, got {parents.size}: "
            "give both labels of every row"
        )
    parent = np.zeros(int(leaves.max()) + 1, np.int64)
    parent[leaves] = parents
    stray = np.flatnonzero(parent[leaves] != parents)
    if stray.size:
        raise FedloomError(
            f"partition.pachinko, row {int(stray[0])}: expected one coarse label for every fine label, "
            "got a fine label under two: check that fine and coarse are in the same order"
        )
    order = np.argsort(parent, kind="stable")
    children = np.bincount(parent)
    width = int(children.max())
    slot = np.empty_like(parent)
    slot[order] = parent[order] * width + np.arange(parent.size) - np.repeat(np.cumsum(children) - children, children)
    return slot[leaves], (children.size, width)


def _mix_numbers(iid: int, skewed: int, classes: int | Sequence[int], available: int) -> list[int]:
    """How many classes each client of "a IID + b non-IID (x)" has; an IID client has them all."""
    iid, skewed = _whole("class_mix", "iid", iid, least=0), _whole("class_mix", "skewed", skewed, least=0)
    if iid + skewed == 0:
        raise FedloomError("partition.class_mix, iid + skewed: expected at least 1 client, got 0: ask for some")
    each = list(classes) if isinstance(classes, Sequence) else [classes] * skewed
    each = [_whole("class_mix", "classes", number) for number in each]
    if len(each) != skewed:
        raise FedloomError(f"partition.class_mix, classes: expected {skewed} numbers, one per skewed, got {len(each)}")
    if (most := max(each, default=1)) > available:
        raise FedloomError(
            f"partition.class_mix, classes: expected at most {available}, as many as the labels have, got {most}"
        )
    return [available] * iid + each


def _case_numbers(
    case: int, mix: tuple[int, int, int | Sequence[int]], available: int, rng: np.random.Generator
) -> list[int]:
    """How many classes each of the ten clients has in FedAdp's two named cases."""
    if case not in (1, 2):
        raise FedloomError(f"partition.class_mix, case: expected 1, 2 or None, got {case!r}")
    if mix != (3, 7, 1):
        raise FedloomError(
            f"partition.class_mix, case={case}: expected no iid, skewed or classes beside it, "
            f"got iid={mix[0]}, skewed={mix[1]}, classes={mix[2]}: give the one or the other"
        )
    if available < 10:
        raise FedloomError(f"partition.class_mix, case={case}: expected at least 10 classes in labels, got {available}")
    if case == 1:
        return [int(number) for number in rng.permutation(np.arange(1, 11))]
    return [int(number) for low in (1, 6) for number in rng.integers(low, low + 5, size=5)]


def _sorted_pieces(where: str, classes: Ints, clients: int, each: int, rng: np.random.Generator) -> Ints:
    """The rows, stably sorted by label and cut into clients * each equal pieces: pieces x rows."""
    clients, each = _whole(where, "clients", clients), _whole(where, f"{where}_per_client", each)
    pieces, size = clients * each, classes.size // (clients * each)
    if size == 0:
        raise FedloomError(
            f"partition.{where}, clients: expected at most {classes.size} {where} of a row each, got {clients} clients "
            f"x {each} {where}: ask for fewer"
        )
    # Cutting the remainder off the end would take it all from the last label.
    rows = np.sort(rng.permutation(classes.size)[: pieces * size])
    return rows[stable_order(classes[rows])].reshape(pieces, size).astype(np.int64, copy=False)


def _classes(where: str, labels: Labels) -> Ints:
    """The class number of every row: the place of its label among the distinct labels, sorted."""
    array = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels)
    if array.ndim != 1 or array.size == 0:
        raise FedloomError(
            f"partition.{where}, labels: expected one label per row, got shape {array.shape}: "
            "pass a vector, such as one_hot.argmax(1)"
        )
    return np.unique(array, return_inverse=True)[1].astype(np.int64, copy=False)


def _whole(where: str, name: str, value: Any, least: int = 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise FedloomError(f"partition.{where}, {name}: expected a whole number, {least} or more, got {value!r}")
    return number


def _number(where: str, name: str, value: float, zero: bool = False, infinite: bool = False) -> float:
    expected = f"{'0 or more' if zero else 'more than 0'}{'' if infinite else ' and finite'}"
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or number < 0 or (number == 0 and not zero) or (math.isinf(number) and not infinite):
        raise FedloomError(f"partition.{where}, {name}: expected a number, {expected}, got {value!r}")
    return number


def _clients(where: str, clients: int, rows: int) -> int:
    clients = _whole(where, "clients", clients)
    if clients > rows:
        raise FedloomError(
            f"partition.{where}, clients: expected at most {rows}, a row for each, got {clients}: ask for fewer clients"
        )
    return clients


def _enough(where: str, clients: int, per_client: int, rows: int) -> None:
    if clients * per_client > rows:
        raise FedloomError(
            f"partition.{where}, per_client: expected at most {rows // clients} ({rows} rows over {clients} clients), "
            f"got {per_client}: lower it, or ask for fewer clients"
        )


def _generator(where: str, seed: int) -> np.random.Generator:
    return generator(_whole(where, "seed", seed, least=0))
