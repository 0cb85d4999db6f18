"""Rules for the combine slot that a minority of hostile clients cannot lead astray.

Clients count alike unless a rule is given a `base`: nobody gains influence by claiming many examples. A client drawn
twice counts twice. Distances are taken row against row in float64, never as differences of large products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom import rows as row_sums
from fedloom import tree
from fedloom.errors import FedloomError, fraction, positive
from fedloom.types import Evidence, PartState, Rows
from fedloom.weighting import Weighed, Weighting, base_weight, uniform


def multi_krum(attackers: float = 0.2, selected: int | None = None) -> Weighting:
    """Multi-Krum (Blanchard et al. 2017): the mean of the m updates with the least sums of squared distances to others.

    Of n updates f = ceil(`attackers` n) may be hostile; an update's score adds up its n - f - 2 nearest (one, if that
    is less), and m is `selected`, or n - f. `selected=1` is Krum. Equal scores: the lower client first.
    """
    _share("multi_krum attackers", attackers)
    if selected is not None:
        _count("multi_krum selected", selected)

    def weigh(evidence: Evidence, state: PartState) -> Weighed:
        order = evidence.clients.argsort()
        count = evidence.multiplicity[order]
        n = tree.total(count)
        f = _of(attackers, n)
        apart = _rows(evidence).pairs()[order][:, order]
        nearest, place = apart.sort(1)
        near = _within(
            (count - torch.eye(len(count), device=count.device)).gather(1, place), 1, 0, (n - f - 2).clamp(min=1)
        )
        scores = tree.total(torch.where(near > 0, nearest * near, 0.0), lead=1)  # a distance may have overflowed
        best = scores.argsort(stable=True)
        m = (n - f).clamp(min=1) if selected is None else n.clamp(max=selected)
        chosen = torch.zeros_like(count).index_copy(0, order[best], _within(count[best], 0, 0, m) / m)
        return chosen, torch.ones_like(chosen), state

    shown = "" if selected is None else f", selected={selected}"
    return Weighting(f"multi_krum({attackers:g}{shown})", weigh, needs="rows")


def geometric_median(iterations: int = 10, smoothing: float = 1e-6, base: Weighting | None = None) -> Weighting:
    """The point with the least sum of distances to the updates, by smoothed Weiszfeld steps (Pillutla et al. 2022).

    p_k proportional to alpha_k / max(`smoothing`, ||g_k - z||), z = sum_k p_k g_k, alpha_k the `base` weights. z starts
    at the mean of the updates clipped at their median norm: no step is spent on the way back from a far one.
    """
    _count("geometric_median iterations", iterations)
    positive("geometric_median smoothing", smoothing)
    size = base_weight(base or uniform())

    def weigh(evidence: Evidence, state: PartState) -> Weighed:
        alpha = _normalized(size(evidence))
        p = alpha * _clipped(evidence.norms, evidence.norms.median())
        for _ in range(iterations):
            p = _normalized(alpha / _rows(evidence).distances(p).clamp(min=smoothing))
        return p, torch.ones_like(p), state

    shown = f"geometric_median({iterations}, {smoothing:g}{_shown(base)})"
    return Weighting(shown, weigh, needs="rows", reads_steps=base is not None and base.reads_steps)


def centred_clipping(radius: float, iterations: int = 1, base: Weighting | None = None) -> Weighting:
    """Centred clipping (Karimireddy et al. 2021): v <- v + sum_k alpha_k (g_k - v) min(1, `radius` / ||g_k - v||).

    v starts at the pseudo-gradient of the last round, at zero in the first.
    """
    positive("centred_clipping radius", radius)
    _count("centred_clipping iterations", iterations)
    size = base_weight(base or uniform())

    def weigh(evidence: Evidence, state: PartState) -> Weighed:
        alpha = _normalized(size(evidence))
        share = torch.zeros_like(alpha)  # of each update in v; the rest is the centre's
        for _ in range(iterations):
            pull = alpha * _clipped(_rows(evidence).distances(share), radius)
            share = share * (1 - tree.total(pull)) + pull
        return alpha, share / alpha, state

    shown = f"centred_clipping({radius:g}, {iterations}{_shown(base)})"
    return Weighting(shown, weigh, needs="rows", centred=True, reads_steps=base is not None and base.reads_steps)


def coordinate_median() -> Weighting:
    """The median of every coordinate (Yin et al. 2018); of an even number of clients the mean of the middle two."""

    def column(rows: Tensor, evidence: Evidence) -> Tensor:
        n = tree.total(evidence.multiplicity)
        return _trimmed(rows, evidence.multiplicity, ((n - 1) / 2).floor())

    return Weighting("coordinate_median()", uniform().weigh, needs="rows", column=column)


def trimmed_mean(share: float = 0.2) -> Weighting:
    """The mean of every coordinate without the ceil(`share` n) largest and as many smallest (Yin et al. 2018)."""
    _share("trimmed_mean share", share)

    def column(rows: Tensor, evidence: Evidence) -> Tensor:
        n = tree.total(evidence.multiplicity)
        return _trimmed(rows, evidence.multiplicity, _of(share, n).minimum(((n - 1) / 2).floor()))

    return Weighting(f"trimmed_mean({share:g})", uniform().weigh, needs="rows", column=column)


def norm_bounding(bound: float, base: Weighting | None = None) -> Weighting:
    """sum_k p_k g_k min(1, `bound` / ||g_k||) (Sun et al. 2019): no client moves the model farther than its share."""
    positive("norm_bounding bound", bound)
    size = base_weight(base or uniform())

    def local(evidence: Evidence) -> tuple[Tensor, Tensor]:
        return size(evidence), _clipped(evidence.norms, bound)

    def weigh(evidence: Evidence, state: PartState) -> Weighed:
        weight, scale = local(evidence)
        return _normalized(weight), scale, state

    shown = f"norm_bounding({bound:g}{_shown(base)})"
    return Weighting(shown, weigh, local=local, reads_steps=base is not None and base.reads_steps)


def _normalized(weights: Tensor) -> Tensor:
    """In the same proportions, with the sum one."""
    return weights / tree.total(weights)


def _clipped(lengths: Tensor, most: float | Tensor) -> Tensor:
    """min(1, most / length), a zero length included."""
    return torch.where(lengths > most, most / lengths, 1.0)


def _trimmed(rows: Tensor, count: Tensor, cut: Tensor) -> Tensor:
    """The mean of each column without its `cut` largest and `cut` smallest, a row standing there `count` times."""
    ordered, place = rows.sort(0)
    n = tree.total(count)
    kept = _within(count[place], 0, cut, n - cut)
    ones = torch.ones(1, len(rows), dtype=torch.float64, device=rows.device)
    return row_sums.add(None, ordered * kept, ones)[0] / (n - 2 * cut)


def _within(count: Tensor, axis: int, low: float | Tensor, high: Tensor) -> Tensor:
    """How many of each lie at places `low` to `high` of a line in which each stands `count` times."""
    end = count.cumsum(axis)
    return (end.clamp(max=high) - (end - count).clamp(min=low)).clamp(min=0)


def _of(share: float, count: Tensor) -> Tensor:
    """So many of `count`, rounded up; 7 % of 100 are 7, whatever the last bit says."""
    return (share * count - 1e-9).ceil()


def _rows(evidence: Evidence) -> Rows:
    assert evidence.rows is not None, "a rule that needs rows is given them"
    return evidence.rows


def _shown(base: Weighting | None) -> str:
    return "" if base is None else f", base={base!r}"


def _share(what: str, value: float) -> None:
    fraction(what, value)
    if value >= 0.5:
        raise FedloomError(f"{what}: expected a share below 0.5, a minority, got {value!r}")


def _count(what: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise FedloomError(f"{what}: expected a whole number of at least 1, got {value!r}")
