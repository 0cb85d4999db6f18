"""The catalog: digits, its fixed split, and options checked by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedloom.data import catalog
from fedloom.data.catalog import Source, datasets, load
from fedloom.errors import FedloomError


def test_digits() -> None:
    data = load("digits")
    assert data.test is not None
    (x, y), (x_test, y_test) = (data.x, data.y), data.test
    assert isinstance(x, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    assert isinstance(x_test, torch.Tensor)
    assert isinstance(y_test, torch.Tensor)
    assert x.shape == (1438, 64)
    assert x_test.shape == (359, 64)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert x.min() == 0
    assert x.max() == 1
    assert torch.bincount(y_test).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert torch.bincount(y).tolist() == [142, 146, 142, 146, 145, 146, 145, 143, 139, 144]
    assert (data.name, data.classes, data.population) == ("digits", 10, 10)
    assert data.examples.tolist() == [144] * 8 + [143] * 2


@pytest.mark.parametrize(("weights", "got"), [("tokens", "its targets are none"), ("words", "examples, tokens")])
def test_only_sequences_have_tokens_to_weigh_by(weights: str, got: str) -> None:
    with pytest.raises(FedloomError, match=rf"load\('digits'\), weights: expected .*{got}"):
        load("digits", weights=weights)


def test_the_split_does_not_follow_the_seed() -> None:
    one, two = load("digits", seed=1), load("digits", seed=2)
    assert torch.equal(one.x, two.x)  # type: ignore[arg-type]
    assert one.test is not None
    assert two.test is not None
    assert torch.equal(one.test[0], two.test[0])  # type: ignore[arg-type]
    assert not torch.equal(one.indices, two.indices)
    assert one.fingerprint() == load("digits", seed=1).fingerprint() != two.fingerprint()


@pytest.mark.parametrize(
    ("partition", "options", "sizes"),
    [
        ("iid", {"clients": 7}, {205, 206}),
        ("dirichlet", {"clients": 20, "alpha": 0.1, "concentration": "alpha", "prior": "frequency"}, {71}),
        ("dirichlet_fednlp", {"alpha": 1.0}, {143, 151}),
        ("class_mix", {"iid": 2, "skewed": 3, "classes": 2, "per_client": 60}, {60}),
        ("class_mix", {"clients": 5, "iid": 2, "skewed": 3, "classes": 2, "per_client": 60}, {60}),
        ("shards", {"clients": 10, "shards_per_client": 3}, {141}),
        ("blocks", {"clients": 10, "blocks_per_client": 2}, {142}),
    ],
)
def test_partitions_by_name(partition: str, options: dict[str, Any], sizes: set[int]) -> None:
    data = load("digits", partition=partition, seed=3, **options)
    assert set(data.examples.tolist()) == sizes
    assert not torch.equal(data.indices, load("digits", partition=partition, seed=4, **options).indices)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "load, name: .* got 'digit': did you mean 'digits'"),
        ("digits", {"partition": "dirichlets"}, "partition: .* did you mean 'dirichlet'"),
        ("digits", {"partition": "dirichlet", "alhpa": 1}, "option: expected one of .* did you mean 'alpha'"),
        ("digits", {"partition": "dirichlet", "labels": [1]}, "option: expected one of alpha, concentration, prior"),
        ("digits", {"partition": "dirichlet"}, "alpha: expected a value, got none: pass alpha"),
        ("digits", {"alpha": 1}, "option: expected none, got 'alpha'"),
        ("digits", {"partition": "natural"}, "expected a data set with owner_ids, got one without"),
        ("digits", {"partition": "pachinko", "per_client": 10}, "expected a data set with coarse, got one without"),
        (
            "digits",
            {"partition": "class_mix", "clients": 4, "per_client": 50},
            "clients: expected 10, as many as .* got 4",
        ),
    ],
)
def test_mistakes(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedloomError, match=message):
        load(name, **options)


def test_a_new_data_set_plugs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "READERS", dict(catalog.READERS))

    @catalog.register("pairs")
    def pairs(repeat: int = 1) -> Source:
        x, owners = np.zeros((4 * repeat, 2)), np.tile(["b", "a"], 2 * repeat)
        fine = np.tile([0, 1, 2, 3], repeat)
        return Source(x, fine, test=(x, fine), coarse=fine // 2, owners=owners)

    assert "pairs" in datasets()
    natural = load("pairs", partition="natural", repeat=2)
    assert natural.rows(0).tolist() == [1, 3, 5, 7]
    tree = load("pairs", partition="pachinko", clients=2, per_client=3, repeat=3)
    assert tree.examples.tolist() == [3, 3]
    with pytest.raises(FedloomError, match=r"option: .* did you mean 'repeat'"):
        load("pairs", repeats=2)
