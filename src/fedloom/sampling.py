"""Who takes part in a round: a function of (sampling seed, round), and for attention of what earlier rounds told."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedloom import random
from fedloom.errors import FedloomError, choose
from fedloom.noise import secure
from fedloom.ranks import Ranks
from fedloom.types import Needs, PartState, Report


@dataclass(frozen=True)
class Drawn:
    """A cohort, ascending; `multiplicity` where a client can be drawn more than once."""

    clients: Tensor
    multiplicity: Tensor | None = None

    def only(self, mask: Tensor) -> Drawn:
        """Those under the mask."""
        return Drawn(self.clients[mask], None if self.multiplicity is None else self.multiplicity[mask])


def _no_state(population: int) -> PartState:
    return {}


def _no_observe(state: PartState, report: Report) -> PartState:
    return state


@dataclass(frozen=True)
class Sampler:
    """`draw(key, size, examples, state)`; `observe(state, report)` where it learns from the round.

    A client without examples, or away (then `examples` has a zero there), is never drawn.
    """

    name: str
    draw: Callable[[Tensor, int, Tensor, PartState], Drawn]
    init: Callable[[int], PartState] = _no_state
    observe: Callable[[PartState, Report], PartState] = _no_observe
    needs: Needs = "meta"
    each_draw_counts: bool = False  # weight 1 / M per draw, whatever the client's size
    forced: Mapping[int, Tensor] = field(default_factory=dict)  # cohorts of single rounds, drawn by nobody

    @property
    def observes(self) -> bool:
        """Whether a draw depends on what earlier rounds told."""
        return self.observe is not _no_observe

    def cohort(self, t: int, key: Tensor, size: int, examples: Tensor, state: PartState) -> Drawn:
        """Round t's: a draw, or the one that was forced."""
        if t not in self.forced:
            return self.draw(key, size, examples, state)
        clients, last = self.forced[t], len(examples) - 1
        if len(clients) and not 0 <= int(clients[0]) <= int(clients[-1]) <= last:
            raise FedloomError(f"round {t}, forced cohort: expected ids in 0..{last}, got {clients.tolist()}")
        return Drawn(clients)


def uniform() -> Sampler:
    """M distinct clients, uniformly without replacement.

    Where the population is large it is not shuffled: clients are drawn with replacement, those that can take part are
    kept, and the first M different ones are the cohort; the time depends on M alone.
    """

    def draw(key: Tensor, size: int, examples: Tensor, state: PartState) -> Drawn:
        population = len(examples)
        count = 2 * size + 16
        while count < population:
            drawn = (random.uniform(key, count) * population).long()
            first = list(dict.fromkeys(drawn[examples[drawn] > 0].tolist()))
            if len(first) >= size:
                return Drawn(torch.tensor(sorted(first[:size]), dtype=torch.int64))
            count *= 4
        order = random.permutation(key, population)
        return Drawn(order[examples[order] > 0][:size].sort().values)

    return Sampler("uniform", draw)


def multinomial() -> Sampler:
    """M draws with replacement, a client's probability its share of the weight, which is its examples unless its rows
    weigh otherwise; each draw counts 1 / M.
    """

    def draw(key: Tensor, size: int, examples: Tensor, state: PartState) -> Drawn:
        edges = examples.double().cumsum(0)
        if not edges[-1] > 0:
            return Drawn(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        drawn = torch.searchsorted(edges, random.uniform(key, size) * edges[-1], right=True)
        clients, multiplicity = drawn.clamp(max=len(examples) - 1).unique(return_counts=True)
        return Drawn(clients, multiplicity)

    return Sampler("multinomial", draw, each_draw_counts=True)


def poisson() -> Sampler:
    """Every client on its own with probability M / N: the cohort's size varies, and may be zero."""

    def draw(key: Tensor, size: int, examples: Tensor, state: PartState) -> Drawn:
        population = len(examples)
        here = random.uniform(key, population) < size / population
        return Drawn(torch.nonzero(here & (examples > 0)).flatten())

    return Sampler("poisson", draw)


def secret_poisson(ranks: Ranks) -> Sampler:
    """`poisson` from the system's secure source: privacy counts on nobody's knowing who was drawn.

    The first rank draws for all.
    """

    def draw(key: Tensor, size: int, examples: Tensor, state: PartState) -> Drawn:
        population = len(examples)
        here = (secure(population) < size / population).to(ranks.device, torch.uint8)
        return Drawn(torch.nonzero(ranks.broadcast(here).to(examples.device).bool() & (examples > 0)).flatten())

    return Sampler("poisson", draw)


def attention(decay: float = 0.9) -> Sampler:
    """AdaFL's attention (Chen et al. 2021): clients farther from the cohort's mean are drawn more often.

    a_k <- decay a_k + (1 - decay) A dist_k / sum_S dist_j for the cohort S, A its mass: the total stays one.
    """

    def draw(key: Tensor, size: int, examples: Tensor, state: PartState) -> Drawn:
        # the largest of u^(1/a) are a draw without replacement with probabilities a (Efraimidis and Spirakis 2006)
        race = random.uniform(key, len(examples)).clamp(min=2.0**-53).log() / state["attention"]
        here = examples > 0
        race = torch.where(here, race, -torch.inf)
        return Drawn(race.topk(min(size, int(here.sum()))).indices.sort().values)

    def observe(state: PartState, report: Report) -> PartState:
        clients = report.clients
        if clients.distance is None:  # nobody was admitted
            return state
        ids = clients.ids.cpu()[clients.admitted]
        distance = clients.distance[clients.admitted]
        if not len(ids) or not float(distance.sum()) > 0:
            return state
        old = state["attention"]
        share = distance / distance.max()  # first, so that tiny distances do not vanish in the products
        new = decay * old[ids] + (1 - decay) * old[ids].sum() * (share / share.sum())
        mass = old.index_copy(0, ids, new)
        return {"attention": mass / mass.sum()}

    def init(population: int) -> PartState:
        return {"attention": torch.full((population,), 1 / population, dtype=torch.float64)}

    return Sampler("attention", draw, init, observe, "alignment")


SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "uniform": uniform,
    "multinomial": multinomial,
    "poisson": poisson,
    "attention": attention,
}


def forced(sampler: str | Sampler, cohorts: Mapping[int, Sequence[int]]) -> Sampler:
    """The same sampler, but with the given clients in the given rounds: a bad draw, say, at a time of one's choosing.

    >>> forced("uniform", {40: [3, 1]}).forced
    {40: tensor([1, 3])}
    """
    fixed = {round: torch.tensor(sorted(set(clients)), dtype=torch.int64) for round, clients in cohorts.items()}
    return replace(as_sampler(sampler), forced=fixed)


def doubling(initial: int = 50, every: int = 300, most: int = 800) -> Callable[[int], int]:
    """A cohort that doubles every so many rounds (Charles et al. 2021, 5.3); never more than the population is drawn.

    >>> [doubling()(t) for t in (0, 299, 300, 1499)]
    [50, 50, 100, 800]
    """
    return lambda t: min(initial * 2 ** (t // every), most)


def as_sampler(sampler: str | Sampler) -> Sampler:
    if isinstance(sampler, Sampler):
        return sampler
    if sampler not in SAMPLERS:
        raise choose("sampler", sampler, SAMPLERS)
    return SAMPLERS[sampler]()


def cohort_size(
    cohort: int | float | Callable[[int], int], population: int, t: int = 0, most: float | None = None
) -> int:
    """A number of clients, a fraction of the population, or a function of the round (then at most the population).

    `most` bounds a number; a sampler that draws with replacement has no bound.

    >>> cohort_size(10, 50), cohort_size(0.1, 50)
    (10, 5)
    """
    most = population if most is None else most
    if callable(cohort):
        return max(1, min(operator.index(cohort(t)), population))
    if isinstance(cohort, float) and 0 < cohort <= 1:
        return max(1, round(cohort * population))
    whole = hasattr(cohort, "__index__") and not isinstance(cohort, bool)  # numpy's whole numbers too
    if not whole or not 1 <= cohort <= most:
        raise FedloomError(
            f"cohort: expected 1 to {population} clients (the population), or a fraction as a float, got {cohort!r}"
        )
    return int(cohort)
