"""How examples leave the class pools: the draws, the exhaustion rules and the dealing that the partitioners share.

A partitioner first settles *how many* examples of each class every client gets, a table `counts` of clients x classes,
and only then *which*. Each pool is shuffled once, so that "the next unused example of class c" is a uniformly random
one, and `Pools.deal` turns the table into rows. Nothing here walks over examples: a client costs a few vector
operations, and an emptied class one more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SMALLEST = 1e-200  # a Dirichlet draw of this concentration is one-hot to the last bit; anything less would overflow 1/a
LOWEST = np.finfo(np.float64).min


def generator(seed: int) -> np.random.Generator:
    """The one source of randomness of a partition: the same seed gives the same stream on any machine."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))


@dataclass(frozen=True)
class Pools:
    """The rows of every class, shuffled: those of class c are `rows[sizes[:c].sum():][:sizes[c]]`."""

    rows: Ints
    sizes: Ints

    @classmethod
    def shuffled(cls, classes: Ints, count: int, rng: np.random.Generator) -> Pools:
        """Pools of the rows 0..n-1 whose class numbers, each below `count`, are `classes`."""
        rows = group(classes, rng)
        return cls(rows, np.bincount(classes, minlength=count).astype(np.int64))

    def deal(self, counts: Ints, rng: np.random.Generator) -> list[Ints]:
        """Gives client k the next `counts[k, c]` rows of every class c, its rows in random order."""
        clients, classes = counts.shape
        starts = np.cumsum(self.sizes) - self.sizes
        place = np.arange(self.rows.size) - np.repeat(starts, self.sizes)
        rows = self.rows[place < np.repeat(counts.sum(0), self.sizes)]
        owners = np.repeat(np.tile(np.arange(clients), classes), counts.T.ravel())
        return np.split(rows[group(owners, rng)], np.cumsum(counts.sum(1))[:-1])


def group(keys: Ints, rng: np.random.Generator) -> Ints:
    """The positions of `keys` sorted by key, in random order where keys are equal."""
    shuffle = rng.permutation(keys.size)
    return shuffle[stable_order(keys[shuffle])].astype(np.int64, copy=False)


def stable_order(keys: Ints) -> Ints:
    """`keys.argsort(kind="stable")` for whole numbers from 0: numpy sorts 16 bits by radix, ten times as fast as 64."""
    small = keys.size == 0 or keys.max() < 2**16
    return (keys.astype(np.uint16) if small else keys).argsort(kind="stable").astype(np.int64, copy=False)


def log_gamma(shape: Floats, rng: np.random.Generator) -> Floats:
    """Logarithms of Gamma(a) variates, made as Gamma(a) = Gamma(a + 1) U^(1/a).

    At a = 0.001 every other Gamma variate is below the smallest double: only its logarithm can be compared with others.
    """
    shape = np.maximum(shape, SMALLEST)
    return np.asarray(np.log(rng.standard_gamma(shape + 1)) + np.log1p(-rng.random(shape.shape)) / shape)


def renormalise(log_theta: Floats, alive: Bools) -> Floats:
    """RENORMALISE (Reddi et al. 2020, Algorithm 6): drops what is not alive and divides the rest of a row by its sum.

    In logarithms the sum cannot underflow to zero. A row in which nothing is alive is zero.

    >>> renormalise(np.log([0.2, 0.3, 0.5]), np.array([True, False, True])).round(4).tolist()
    [0.2857, 0.0, 0.7143]
    """
    kept = np.where(alive, log_theta, -np.inf)
    theta = np.exp(kept - np.maximum(kept.max(axis=-1, keepdims=True), LOWEST))
    return np.asarray(theta / np.maximum(theta.sum(axis=-1, keepdims=True), 1.0))  # the largest entry is 1, if any


def draw_classes(q: Floats, size: int, sizes: Ints, rng: np.random.Generator) -> Ints:
    """Counts of Hsu et al.'s process: client after client, `size` draws c ~ q_k, each taking one example of class c.

    The paper's draws come one at a time, and a class that runs out is set to zero and the row renormalised. Drawing
    from a renormalised row is the same as drawing from the old one and ignoring the draws that meet an empty class.
    Whether a draw is ignored depends only on how often its own class was drawn before, not on the order among classes:
    so a block of draws may come as one multinomial, min(drawn, unused) of it is taken, and what was ignored is drawn
    again. A block never exceeds what the client still needs, so it never overshoots; a second block means that a class
    ran out, so over all clients there are at most as many of them as classes.

    A row is read at its client's turn, so zeroing it waits until then; one that has become all-zero is reset to the
    distribution of the examples that remain.
    """
    unused, counts = sizes.copy(), np.zeros(q.shape, np.int64)
    for k, row in enumerate(q):
        need = size
        while need:
            row = np.where(unused > 0, row, 0.0)
            row = row if row.any() else unused.astype(np.float64)
            row /= row.sum()
            taken = np.minimum(rng.multinomial(need, row), unused)
            counts[k] += taken
            unused -= taken
            need -= int(taken.sum())
    return counts


def draw_tree(alpha: float, beta: float, clients: int, size: int, tree: Ints, rng: np.random.Generator) -> Ints:
    """Counts of the pachinko process, clients x coarse x fine, from a `tree` of counts: a row of children per coarse.

    A Dirichlet draw is Gamma variates over their sum, so leaving out the exhausted labels before dividing gives both a
    later client's Dirichlet of reduced dimension and RENORMALISE within a client. As in `draw_classes`, a block of
    draws stands for single ones: first how often each coarse label is drawn, then, for all of them at once, how often
    each of their fine labels. A fine label that runs out sends its draws back to its own parent only; a coarse label
    that runs out sends them back to the root.
    """
    unused, counts = tree.copy(), np.zeros((clients, *tree.shape), np.int64)
    roots = log_gamma(np.full((clients, tree.shape[0]), alpha), rng)
    leaves = log_gamma(np.full(counts.shape, beta), rng)
    for k in range(clients):
        need = size
        while need:
            supply = unused.sum(1)
            wanted = np.minimum(rng.multinomial(need, renormalise(roots[k], supply > 0)), supply)
            need -= int(wanted.sum())
            while wanted.any():
                taken = np.minimum(rng.multinomial(wanted, renormalise(leaves[k], unused > 0)), unused)
                counts[k] += taken
                unused -= taken
                wanted -= taken.sum(1)
    return counts


def round_shares(q: Floats, size: int) -> Ints:
    """FedNLP's rounding: round(q_c size) of each class in index order while there is room, the rest from the last.

    >>> round_shares(np.array([[0.5, 0.26, 0.24]]), 10).tolist()
    [[5, 3, 2]]
    """
    filled: Ints = np.minimum(np.cumsum(np.rint(q * size), axis=1), size).astype(np.int64)
    filled[:, -1] = size
    filled[:, 1:] -= filled[:, :-1]
    return filled


def reassign(need: int, unused: Ints) -> Ints:
    """FedNLP's REASSIGN: `need` examples from the classes that have some, in proportion, the scarcest class first.

    The original goes over the classes a second time for what its floating-point shares left over. In whole numbers the
    rounded-up shares always add up to `need`, or to everything there is.

    >>> reassign(2, np.array([0, 3, 1])).tolist()
    [0, 1, 1]
    """
    order = unused.argsort(kind="stable")
    have = unused[order]
    share = np.minimum(-(-have * need // max(int(have.sum()), 1)), have)
    given = np.minimum(share.cumsum(), need)  # what the classes up to each one give together
    given[1:] -= given[:-1]
    result = np.empty_like(unused)
    result[order] = given
    return result


def take_or_reassign(want: Ints, unused: Ints) -> Ints:
    """Takes `want` out of `unused`, in place; what a class lacks is reassigned before the next class has its turn."""
    before, start = unused.copy(), 0
    while (short := want[start:] > unused[start:]).any():
        stop = start + int(short.argmax())
        unused[start:stop] -= want[start:stop]
        missing = int(want[stop] - unused[stop])
        unused[stop] = 0
        unused -= reassign(missing, unused)
        start = stop + 1
    unused[start:] -= want[start:]
    return before - unused


def choose_classes(
    number: int, need: int, unused: Ints, rng: np.random.Generator, owners: Ints | None = None
) -> Ints | None:
    """`number` distinct classes that together hold `need` unused examples, or None where no classes do.

    Any classes at first, or with `owners` any of those that fewest have; if they hold too few, one after another among
    those that still leave enough in the best case, of which again those that fewest have: a redraw that never needs
    another.
    """
    if owners is None:
        chosen = rng.choice(unused.size, number, replace=False)
    else:
        chosen = np.argsort(owners + rng.random(owners.size))[:number]
    if unused[chosen].sum() >= need:
        return chosen
    free, held = np.ones(unused.size, np.bool_), 0
    for turn in range(number):
        rest = number - turn - 1
        richest = np.sort(unused[free])[::-1]
        best = held + richest[:rest].sum() + np.minimum(unused, richest[rest])
        candidates = np.flatnonzero(free & (best >= need))
        if not candidates.size:
            return None
        if owners is not None:
            candidates = candidates[owners[candidates] == owners[candidates].min()]
        chosen[turn] = rng.choice(candidates)
        free[chosen[turn]] = False
        held += int(unused[chosen[turn]])
    return chosen


def spread_blocks(blocks: Ints, clients: int, each: int, rng: np.random.Generator) -> Ints:
    """Which classes each client gets a block of: `each` different ones, `blocks[c]` clients for class c, at random.

    A class that has as many blocks as there are clients left must give one to each of them; the others are drawn in
    proportion to their blocks (the first arrivals of independent exponential clocks). No choice leads to a dead end.
    """
    left, hands = blocks.copy(), np.zeros((clients, blocks.size), np.int64)
    for k in range(clients):
        arrival = np.where(left > 0, rng.standard_exponential(left.size) / np.maximum(left, 1), np.inf)
        arrival[left == clients - k] = -1.0
        chosen = np.argpartition(arrival, each - 1)[:each]
        hands[k, chosen] = 1
        left[chosen] -= 1
    return rng.permutation(hands)
