"""The real files, where $FEDLOOM_DATA has them."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom.data import cifar, corpora, places, plays
from fedloom.data.catalog import load
from fedloom.data.federated import FederatedData
from fedloom.data.skew import label_counts
from fedloom.errors import FedloomError


def real(name: str) -> Path:
    """The folder with the data, or a reason to skip."""
    folder = os.environ.get("FEDLOOM_DATA")
    if not folder:
        pytest.skip("FEDLOOM_DATA is not set")
    try:
        places.locate(name)
    except FedloomError as error:
        pytest.skip(str(error))
    return Path(folder)


def labels(data: FederatedData) -> tuple[list[int], list[int]]:
    assert data.test is not None and isinstance(data.y, Tensor) and isinstance(data.test[1], Tensor)
    return torch.bincount(data.y).tolist(), torch.bincount(data.test[1]).tolist()


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        (
            "mnist",
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
        ("fashionmnist", [6000] * 10, [1000] * 10),
    ],
)
def test_mnist(name: str, train: list[int], test: list[int]) -> None:
    real(name)
    data = load(name, partition="dirichlet", clients=100, alpha=0.1)
    assert labels(data) == (train, test)
    assert set(data.examples.tolist()) == {600}
    assert isinstance(data.x, Tensor)
    assert data.x.shape == (60_000, 1, 28, 28) and data.x.min() == 0 and data.x.max() == 1


def test_mnist_has_its_known_mean() -> None:
    real("mnist")
    data = load("mnist", style="fedadp")
    assert isinstance(data.x, Tensor)
    assert abs(float(data.x.mean())) < 1e-3 and abs(float(data.x.std()) - 1) < 1e-3


def test_qmnist_writers() -> None:
    real("qmnist")
    data = load("qmnist")
    assert data.population == 539 and len(data.indices) == 60_000
    assert (int(data.examples.min()), int(data.examples.max())) == (19, 131)
    assert labels(data)[0][:3] == [5923, 6742, 5958]
    assert label_counts(data).sum() == 60_000
    assert data.client_test is not None and data.client_test[1].numel() - 1 == 297


def test_the_second_start_is_quick() -> None:
    real("mnist")
    load("mnist")
    begin = time.process_time()
    load("mnist")
    assert time.process_time() - begin < 1


def test_a_strip_holds_pictures_of_the_release() -> None:
    folder = real("cifar100")
    strip = folder / "CIFAR100" / "webp" / "test_000.webp"
    if not strip.is_file():
        pytest.skip(f"{strip} is not there")
    pixels = cifar._strip(strip)
    assert pixels.shape == (500, 3072) and 100 < pixels.mean() < 130


@pytest.mark.slow
def test_cifar100_is_the_release() -> None:
    real("cifar100")
    arrays = load("cifar100", partition="pachinko", clients=500, per_client=100)
    assert arrays.client_test is not None
    rows, offsets = arrays.client_test
    assert offsets.diff().tolist() == [100] * 100 and len(rows.unique()) == 10_000  # clients of their own to test on
    assert labels(arrays) == ([500] * 100, [100] * 100)
    assert set(arrays.examples.tolist()) == {100}
    distinct = (label_counts(arrays) > 0).sum(1)
    assert 15 < np.median(distinct) < 30
    layout, found = places.locate("cifar100")
    if layout == "strips":
        path, strips = found["CIFAR100/labels.npz"][0], found["CIFAR100/webp/*.webp"]
        records = cifar.read_strips("cifar100", path, strips, "test", verify=False)
        assert hashlib.sha1(records.tobytes()).hexdigest() == "8fb6623e830365ff53cf14adec797474f5478006"


def test_shakespeare_roles() -> None:
    folder = real("shakespeare")
    paths = list((folder / "Shakespeare" / "moby").glob("*.txt"))
    if not paths:
        pytest.skip("the Moby edition is not there")
    roles, every = plays.read_plays(paths), plays.read_plays(paths, least=1)
    assert (len(every), len(roles), sum(len(role.lines) for role in every)) == (1362, 1129, 31_070)
    assert not [role.role for role in every if "/SCENE" in role.role or "/ACT" in role.role]
    data = load("shakespeare", layout="moby")
    assert data.population == 1129 and data.client_test is not None
    assert int(data.client_test[1].diff().min()) >= 1


def test_leaf_format() -> None:
    folder = real("shakespeare")
    paths = list((folder / "Shakespeare" / "leaf" / "test").glob("*.json"))
    if not paths:
        pytest.skip("no LEAF file is there")
    users = plays.read_leaf(paths)
    assert (len(users), sum(len(x) for _, x, _ in users)) == (10, 3881)


def test_newsgroups() -> None:
    folder = real("20newsgroups")
    path = next((folder / "20newsgroups").glob("20news-bydate.tar.*"))
    read = corpora.read_newsgroups(path)
    assert (len(read["train"][0]), len(read["test"][0]), len(read["train"][2])) == (11_314, 7_532, 20)
    assert np.bincount(read["train"][1])[:3].tolist() == [480, 584, 591]


@pytest.mark.slow
def test_newsgroups_as_numbers() -> None:
    real("20newsgroups")
    data = load("20newsgroups", partition="dirichlet_fednlp", clients=100, alpha=0.1)
    assert data.examples.tolist() == [113] * 99 + [127]


def test_agnews() -> None:
    folder = real("agnews")
    _, found = corpora.read_csv(folder / "AGNews" / "test.csv", 4)
    assert np.bincount(found).tolist() == [1900] * 4
    data = load("agnews", verify=False)
    assert labels(data)[1] == [1900] * 4 and len(data.indices) in (12_000, 120_000)
