"""The noise of private runs: its source, its distribution, the grid it lies on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedloom.noise import STEPS, gaussian, noised, secure, seeded, step_of
from fedloom.ranks import ALONE

COUNT = 200_000


def kolmogorov(found: Tensor, share_below: Tensor) -> float:
    """The largest distance of the empirical distribution to another, times sqrt(n): beyond 4 once in 10^13."""
    order = found.argsort()
    places = torch.arange(1, len(found) + 1, dtype=torch.float64) / len(found)
    return float((places - share_below[order]).abs().max()) * math.sqrt(len(found))


def test_secure_numbers_are_uniform_and_have_53_bits() -> None:
    found = secure(COUNT)
    assert found.min() >= 0
    assert found.max() < 1
    assert kolmogorov(found, found) < 4
    whole = found * 2.0**53
    assert whole.equal(whole.round())
    assert 0.49 < float((whole % 2).mean()) < 0.51  # the last bit is used too


def test_no_seed_has_a_part_in_secure_numbers() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = secure(64)
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(0)
    assert not one.equal(secure(64))


@pytest.mark.parametrize("source", ["secure", "seeded"])
def test_noise_is_standard_normal(source: str) -> None:
    found = gaussian(COUNT, secure if source == "secure" else seeded(0, 0))
    assert kolmogorov(found, torch.special.ndtr(found)) < 4
    assert abs(float(found.mean())) < 6 / math.sqrt(COUNT)
    assert abs(float(found.var()) - 1) < 6 * math.sqrt(2 / COUNT)
    halves = found.reshape(2, -1)  # the two of a pair lie half a block apart
    assert abs(float((halves[0] * halves[1]).mean())) < 6 / math.sqrt(COUNT / 2)


def test_numbers_in_several_blocks_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.noise._BLOCK", 7)
    found = gaussian(20, seeded(0, 0))
    assert len(found) == len(found.unique()) == 20


def test_a_noised_sum_is_a_whole_number_of_steps_and_hides_its_last_bits() -> None:
    deviation = 0.3
    step = step_of(deviation)
    assert 2.0**STEPS <= deviation / step < 2.0 ** (STEPS + 1)
    total = torch.full((1000,), round(math.pi / step) * step, dtype=torch.float64)
    one = noised(total, deviation, step, seeded(0, 0), ALONE)
    assert (one / step).equal((one / step).round())
    assert one.equal(noised(total + step / 8, deviation, step, seeded(0, 0), ALONE))
    assert (one - noised(total + step, deviation, step, seeded(0, 0), ALONE)).abs().equal(torch.full_like(one, step))


def test_noise_has_the_deviation_asked_for() -> None:
    found = noised(torch.full((COUNT,), 5.0, dtype=torch.float64), 0.3, step_of(0.3), secure, ALONE)
    assert kolmogorov(found, torch.special.ndtr((found - 5) / 0.3)) < 4
