"""Epsilon beside published values, and the ledger of what is spent."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

import fedloom as fl
from fedloom.accounting import LEDGER, Ledger
from fedloom.errors import Damaged
from fedloom.privacy import Privacy

PUBLISHED = {
    # Abadi et al. 2016, Deep learning with differential privacy, section 5.1: the moments accountant, 100 epochs
    "DP-SGD": (4.0, 0.01, 10_000, 1e-5, 1.26),
    # TensorFlow Privacy, tutorials/README.md, two rows of its table: MNIST, batches of 256; 60 epochs, and 10
    "MNIST, 60 epochs": (1.12, 256 / 60_000, 60 * 60_000 // 256, 1e-5, 2.92),
    "MNIST, 10 epochs": (1.2, 256 / 60_000, 10 * 60_000 // 256, 1e-5, 1.20),
}


def divergence(noise_multiplier: float, q: float, order: int) -> float:
    """Mironov, Talwar and Zhang 2019, section 3.3: Rényi divergence of the sampled Gaussian at a whole order."""
    terms = [
        math.log(math.comb(order, k))
        + (order - k) * math.log1p(-q)
        + k * math.log(q)
        + (k * k - k) / (2 * noise_multiplier**2)
        for k in range(order + 1)
    ]
    largest = max(terms)
    return (largest + math.log(sum(math.exp(term - largest) for term in terms))) / (order - 1)


@pytest.mark.parametrize("setting", PUBLISHED)
def test_epsilon_of_published_settings(setting: str) -> None:
    """The papers convert by Mironov's proposition 3; the library's conversion (Canonne et al. 2020) is tighter."""
    rdp = pytest.importorskip("dp_accounting.rdp")
    import dp_accounting

    noise_multiplier, q, rounds, delta, published = PUBLISHED[setting]
    ours = fl.epsilon(noise_multiplier, q, rounds, delta)
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(noise_multiplier))
    library = rdp.RdpAccountant().compose(dp_accounting.SelfComposedDpEvent(event, rounds)).get_epsilon(delta)
    assert ours == pytest.approx(library, rel=1e-12)
    spent = {order: rounds * divergence(noise_multiplier, q, order) for order in range(2, 257)}
    classical = min(rdp_ + math.log(1 / delta) / (order - 1) for order, rdp_ in spent.items())
    assert classical == pytest.approx(published, abs=0.01)
    tighter = min(r + math.log1p(-1 / order) - math.log(delta * order) / (order - 1) for order, r in spent.items())
    assert ours == pytest.approx(tighter, rel=0.01)  # the library also tries orders between whole ones
    assert ours < tighter + 1e-9 < published


def test_epsilon_grows_with_rounds_and_falls_with_noise() -> None:
    pytest.importorskip("dp_accounting")
    spent = [fl.epsilon(1.0, 0.1, rounds, 1e-5) for rounds in (0, 1, 10, 100)]
    assert spent[0] == 0
    assert spent == sorted(spent)
    assert fl.epsilon(2.0, 0.1, 10, 1e-5) < spent[2]
    assert fl.epsilon(1.0, 0.1, 10, 1e-4) < spent[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0.0, 0.1, 1, 1e-5), "epsilon noise_multiplier: expected a positive number, got 0.0"),
        ((1.0, 1.1, 1, 1e-5), "epsilon sampling_rate: expected a number above 0 and up to 1, got 1.1"),
        ((1.0, 0.1, 1, 0.0), "epsilon delta: expected a number above 0 and below 1, got 0.0"),
    ],
)
def test_settings_without_an_epsilon(settings: tuple[float, float, int, float], message: str) -> None:
    with pytest.raises(fl.FedloomError, match=f"^{message}$"):
        fl.epsilon(*settings)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(fl.FedloomError, match=r"pip install 'fedloom\[privacy\]'"):
        fl.epsilon(1.0, 0.1, 1, 1e-5)


def test_a_charge_is_on_disk_before_anything_else_happens(tmp_path: Path) -> None:
    ledger = Ledger(Privacy(1.0, 1e-5, cohort=10), 100, tmp_path)
    for count in (1, 2):
        ledger.charge()
        assert json.loads((tmp_path / LEDGER).read_text())["charged"] == count
    later = Ledger(Privacy(1.0, 1e-5, cohort=10), 100, tmp_path)
    later.charge()
    assert later.charged == 3


def test_a_ledger_of_other_settings_is_refused(tmp_path: Path) -> None:
    Ledger(Privacy(1.0, 1e-5, cohort=10), 100, tmp_path).charge()
    with pytest.raises(fl.FedloomError, match=r"'noise_multiplier': expected 2.0, got 1.0: start another run$"):
        Ledger(Privacy(2.0, 1e-5, cohort=10), 100, tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected JSON, got a mistake in it"),
        ("[]", "expected a JSON object, got list"),
        ("{}", "expected how many rounds the run has spent, got None"),
        ('{"charged": "many"}', "expected how many rounds the run has spent, got 'many'"),
        ('{"charged": 1e400}', "expected how many rounds the run has spent, got inf"),
        ('{"charged": 3000000000}', "expected how many rounds the run has spent, got 3000000000"),
        ('{"charged": -1}', "expected how many rounds the run has spent, got -1"),
        ('{"charged": true}', "expected how many rounds the run has spent, got True"),
    ],
)
def test_a_ledger_that_cannot_be_read_is_damage(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / LEDGER).write_text(text)
    with pytest.raises(Damaged, match=f"{LEDGER}: {told}"):
        Ledger(Privacy(1.0, 1e-5, cohort=10), 100, tmp_path)


def test_noise_that_can_be_repeated_has_no_epsilon() -> None:
    ledger = Ledger(Privacy(1.0, 1e-5, cohort=10, seeded_noise=True), 100)
    ledger.charge()
    assert ledger.epsilon == math.inf
