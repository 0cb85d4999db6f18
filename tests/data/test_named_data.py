"""Every named data set, from small files in its official format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_releases as small
import torch
from pydantic import ValidationError
from torch import Tensor

from fedloom.data import catalog, tokens
from fedloom.data.augment import Augmentation
from fedloom.data.catalog import load
from fedloom.data.federated import FederatedData
from fedloom.data.releases import RELEASES
from fedloom.errors import FedloomError
from fedloom.experiments.data_sections import Dirichlet


def small_load(name: str, folder: Path, **options: Any) -> FederatedData:
    return load(name, folder=folder, verify=False, **options)


def tensors(data: FederatedData) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert data.test is not None
    found = (data.x, data.y, *data.test)
    assert all(isinstance(part, Tensor) for part in found)
    return found  # type: ignore[return-value]


def test_the_table_of_options_is_the_readers() -> None:
    assert set(RELEASES) == set(catalog.READERS)
    for name, release in RELEASES.items():
        assert set(release.options) == catalog.options_of(name), name


def test_an_experiment_file_may_have_a_data_sets_own_keys() -> None:
    keys = {"name": "cifar10", "partition": "dirichlet", "clients": 10, "alpha": 0.1}
    section = Dirichlet.model_validate({**keys, "style": "glad", "cutout": 8})
    assert section.options() == {
        "alpha": 0.1,
        "concentration": "alpha*p",
        "prior": "uniform",
        "style": "glad",
        "cutout": 8,
    }
    with pytest.raises(ValidationError, match="unknown key"):
        Dirichlet.model_validate({**keys, "name": "digits", "style": "glad"})


# Pictures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize(("name", "title"), [("mnist", "MNIST"), ("fashionmnist", "FashionMNIST")])
def test_mnist(tmp_path: Path, name: str, title: str, suffix: str) -> None:
    pictures, labels = small.mnist(tmp_path, title, suffix)
    data = small_load(name, tmp_path, partition="shards", clients=4)
    x, y, x_test, _ = tensors(data)
    assert torch.equal(x, torch.from_numpy(pictures / np.float32(255))[:, None])
    assert y.tolist() == labels.tolist()
    assert (x_test.shape, data.classes, data.population, data.augment) == ((10, 1, 28, 28), 10, 4, None)
    shifted, *_ = tensors(small_load(name, tmp_path, style="fedadp"))
    mean, std = {"mnist": (0.1307, 0.3081), "fashionmnist": (0.2860, 0.3530)}[name]
    torch.testing.assert_close(shifted, (x - mean) / std)
    assert torch.equal(tensors(small_load(name, tmp_path, style="glad"))[0], x)
    assert torch.equal(tensors(small_load(name, tmp_path, normalise=True))[0], shifted)
    torch.testing.assert_close(tensors(small_load(name, tmp_path, style="symmetric"))[0], 2 * x - 1)


def test_qmnist_is_by_writer(tmp_path: Path) -> None:
    small.qmnist(tmp_path)
    data = small_load("qmnist", tmp_path)
    assert data.population == 4
    assert data.rows(1).tolist() == list(range(10, 20))
    assert data.client_test is not None  # the writers of the test rows, of whom none trains
    assert [part.tolist() for part in data.client_test] == [list(range(10)), [0, 10]]
    assert small_load("qmnist", tmp_path, partition="iid", clients=5).population == 5
    twice = small_load("qmnist", tmp_path, task="autoencoder")
    assert twice.x.shape[1:] == (784,) and torch.equal(twice.x, twice.y) and twice.population == data.population
    table = np.zeros((40, 8), ">i4")
    path = small.put(tmp_path / "QMNIST" / "raw" / "qmnist-train-labels-idx2-int.gz", small.idx(table, 0x0C))
    with pytest.raises(FedloomError, match=f"{path}, byte 44: expected class 1, as MNIST has it, in row 1, got 0"):
        small_load("qmnist", tmp_path)


def test_pictures_and_labels_that_do_not_match(tmp_path: Path) -> None:
    small.mnist(tmp_path)
    small.put(tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz", small.idx(np.zeros(39, np.uint8)))
    with pytest.raises(FedloomError, match=r"train-labels-idx1-ubyte.gz: expected 40 labels, one per picture, got 39"):
        small_load("mnist", tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(tmp_path: Path, name: str) -> None:
    written = small.cifar(tmp_path, name)
    train = np.concatenate([records for path, records in written.items() if "test" not in path])
    width = 1 if name == "cifar10" else 2
    x, y, x_test, _ = tensors(small_load(name, tmp_path))
    assert np.array_equal(x.flatten(1).numpy(), train[:, width:] / np.float32(255))
    assert y.tolist() == train[:, width - 1].tolist()
    test = next(records for path, records in written.items() if "test" in path)
    small.strips(tmp_path, name, train, test)
    again = small_load(name, tmp_path, layout="strips")
    assert again.fingerprint() == small_load(name, tmp_path, layout="binary").fingerprint()
    assert x_test.shape == (len(test), 3, 32, 32)


def test_cifar10_styles(tmp_path: Path) -> None:
    small.cifar(tmp_path, "cifar10")
    plain = tensors(small_load("cifar10", tmp_path))
    hsu = small_load("cifar10", tmp_path, style="hsu")
    x, _, x_test, _ = tensors(hsu)
    assert torch.equal(x, plain[0]) and x_test.shape == (6, 3, 24, 24)
    assert hsu.augment is not None and hsu.augment(x[:2], torch.tensor(1)).shape == (2, 3, 24, 24)
    assert hsu.fingerprint() != small_load("cifar10", tmp_path, style="hsu", flip=False).fingerprint()
    glad = small_load("cifar10", tmp_path, style="glad", cutout=0)
    assert isinstance(glad.augment, Augmentation)
    assert (glad.augment.pad, glad.augment.crop, glad.augment.cutout) == (4, 32, 0)
    assert tensors(glad)[2].shape == (6, 3, 32, 32)


def test_cifar100_styles_and_labels(tmp_path: Path) -> None:
    written = small.cifar(tmp_path, "cifar100")
    train = written["cifar-100-binary/train.bin"]
    cohort = small_load("cifar100", tmp_path, style="cohort")
    x, *_ = tensors(cohort)
    assert x.shape == (200, 3, 24, 24) and cohort.augment is None
    torch.testing.assert_close(x.std((1, 2, 3), correction=0), torch.ones(200))
    reddi = small_load("cifar100", tmp_path, style="reddi", partition="pachinko", clients=5, per_client=20)
    assert reddi.augment is not None and tensors(reddi)[0].shape == (200, 3, 32, 32)
    torch.testing.assert_close(tensors(reddi)[2], tensors(cohort)[2])
    coarse = small_load("cifar100", tmp_path, target="coarse", partition="pachinko", clients=5, per_client=20)
    assert tensors(coarse)[1].tolist() == train[:, 0].tolist()
    assert torch.equal(coarse.indices, reddi.indices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "hsu"}, "style: expected one of fedadp, glad, plain, symmetric; got 'hsu'"),
        ({"crop": 40}, "crop: expected a whole number from 1 to 28, got 40"),
        ({"cutout": -1}, "cutout: expected a whole number from 0 to 28, got -1"),
        ({"styl": "plain"}, "did you mean 'style'"),
    ],
)
def test_picture_mistakes(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    small.mnist(tmp_path)
    with pytest.raises(FedloomError, match=message):
        small_load("mnist", tmp_path, **options)


# Data with clients ----------------------------------------------------------------------------------------------------


def emnist_files(folder: Path, layout: str) -> dict[str, Any]:
    clients = small.emnist_clients()
    if layout == "sqlite":
        small.sqlite(folder / "EMNIST" / "emnist_all.sqlite", clients)
    else:
        pytest.importorskip("h5py", reason="reading HDF5 is optional")
        for split in small.SPLITS:
            small.hdf5(folder / f"fed_emnist_{split}.h5", clients[split])
    return clients


@pytest.mark.parametrize("layout", ["sqlite", "tff"])
def test_emnist_by_writer(tmp_path: Path, layout: str) -> None:
    clients = emnist_files(tmp_path, layout)
    data = small_load("emnist", tmp_path)
    x, y, x_test, _ = tensors(data)
    assert data.population == 2 and data.examples.tolist() == [5, 3]
    assert np.array_equal(x[data.rows(1)][:, 0].numpy(), clients["train"]["f2"]["pixels"])
    assert y[data.rows(0)].tolist() == [0, 1, 2, 3, 4]
    assert len(x_test) == 4 and data.client_test is not None
    assert [part.tolist() for part in data.client_test] == [[0, 1, 2], [0, 2, 3]]
    auto, target, *_ = tensors(small_load("emnist", tmp_path, task="autoencoder"))
    torch.testing.assert_close(auto, 1 - x.flatten(1))
    assert torch.equal(auto, target) and auto.shape == (8, 784)
    one = small_load("emnist", tmp_path, writers=1)
    assert (one.population, one.classes) == (1, 62)


def test_emnist_without_writers(tmp_path: Path) -> None:
    pictures = small.rng().integers(0, 256, (8, 28, 28), np.uint8)
    for split in small.SPLITS:
        stem = f"EMNIST/raw/emnist-byclass-{split}"
        small.put(tmp_path / f"{stem}-images-idx3-ubyte.gz", small.idx(pictures))
        small.put(tmp_path / f"{stem}-labels-idx1-ubyte.gz", small.idx(np.arange(54, 62, dtype=np.uint8)))
    data = small_load("emnist", tmp_path, clients=4)
    x, _, _, y_test = tensors(data)
    torch.testing.assert_close(x[0, 0], 1 - torch.from_numpy(pictures[0].T / np.float32(255)))
    assert (data.population, data.classes, y_test.max()) == (4, 62, 61)


def test_emnist_mistakes(tmp_path: Path) -> None:
    emnist_files(tmp_path, "sqlite")
    for options, message in (
        ({"task": "digits"}, "task: expected one of autoencoder, characters"),
        ({"writers": 0}, "writers: expected a whole number of at least 1, got 0"),
        ({"layout": "h5"}, "layout: expected one of idx, sqlite, tff"),
        ({"layout": "tff"}, "expected EMNIST/fed_emnist_train.h5, EMNIST/fed_emnist_test.h5 in"),
    ):
        with pytest.raises(FedloomError, match=message):
            small_load("emnist", tmp_path, **options)
    clients = small.emnist_clients()
    clients["test"]["f1"]["label"] = np.array([3, 62])
    (tmp_path / "EMNIST" / "emnist_all.sqlite").unlink()
    small.sqlite(tmp_path / "EMNIST" / "emnist_all.sqlite", clients)
    with pytest.raises(FedloomError, match="expected a label from 0 to 61, got 62 in row 1"):
        small_load("emnist", tmp_path)


@pytest.mark.parametrize("layout", ["sqlite", "tff"])
def test_shakespeare_of_tff(tmp_path: Path, layout: str) -> None:
    rows = {s: {c: {"snippets": lines} for c, lines in who.items()} for s, who in small.SNIPPETS.items()}
    if layout == "sqlite":
        small.sqlite(tmp_path / "Shakespeare" / "shakespeare.sqlite", rows)
    else:
        pytest.importorskip("h5py", reason="reading HDF5 is optional")
        for split in small.SPLITS:
            small.hdf5(tmp_path / "Shakespeare" / f"shakespeare_{split}.h5", rows[split])
    data = small_load("shakespeare", tmp_path)
    x, y, x_test, _ = tensors(data)
    assert data.examples.tolist() == [2, 2] and x.shape == (4, 80)
    ids = tokens.character_ids("x" * 100).tolist()
    assert x[data.rows(0)[0]].tolist() == [tokens.BOS, *ids[:79]]
    assert y[data.rows(0)[0]].tolist() == ids[:80]
    assert x[data.rows(1)[0], :7].tolist() == [tokens.BOS, *tokens.character_ids("To be").tolist(), tokens.EOS]
    assert len(x_test) == 2 and data.client_test is not None


def test_shakespeare_windows_lose_nothing() -> None:
    lines = ["a" * 79, "b" * 80, "", "c" * 300]
    windows = tokens.character_windows(lines)
    flat = windows.reshape(-1)
    kept = flat[flat != tokens.PAD]
    spoken = [[tokens.BOS, *tokens.character_ids(line).tolist(), tokens.EOS] for line in lines]
    assert kept.tolist() == [token for line in spoken for token in line]
    assert windows.shape == (1 + 2 + 1 + 4, 81)
    assert len(set(tokens.CHARACTERS)) == 86 and tokens.EOS == 89


def test_shakespeare_of_the_moby_edition(tmp_path: Path) -> None:
    small.put(tmp_path / "Shakespeare" / "moby" / "play.txt", small.PLAY.encode())
    data = small_load("shakespeare", tmp_path)
    assert data.examples.tolist() == [1, 2]  # Fool, KING: the last line of each is test data
    assert data.client_test is not None and data.client_test[1].tolist() == [0, 1, 2]
    assert tensors(data)[3][1, :6].tolist() == tokens.character_ids("Again!").tolist()
    said = [(tensors(data)[1][data.rows(client)] != tokens.PAD).sum().item() for client in (0, 1)]
    weighed = small_load("shakespeare", tmp_path, weights="tokens").weights
    assert data.weights is None and weighed is not None and weighed.tolist() == said


def test_shakespeare_of_leaf(tmp_path: Path) -> None:
    small.leaf(tmp_path)
    data = small_load("shakespeare", tmp_path)
    x, y, *_ = tensors(data)
    assert data.population == 2
    assert x[data.rows(1)[1]].tolist() == tokens.character_ids("b" * 80).tolist()
    assert y[data.rows(1)[1], -1] == tokens.OOV and y[data.rows(0)[0], -1] == tokens.character_ids("q")[0]


@pytest.mark.parametrize("layout", ["sqlite", "tff"])
def test_stackoverflow(tmp_path: Path, layout: str) -> None:
    if layout == "sqlite":
        small.sqlite(tmp_path / "StackOverflow" / "stackoverflow.sqlite", small.questions())
    else:
        pytest.importorskip("h5py", reason="reading HDF5 is optional")
        for split in small.SPLITS:
            small.hdf5(tmp_path / "StackOverflow" / f"stackoverflow_{split}.h5", small.questions()[split])
    words = small_load("stackoverflow", tmp_path, words=2, length=3)  # a (3 times), b
    x, y, *_ = tensors(words)
    assert words.population == 2
    assert x[words.rows(1)].tolist() == [[4, 3, 1], [4, 1, 1]]
    assert y[words.rows(1)].tolist() == [[3, 1, 3], [1, 1, 2]]
    assert y[words.rows(0)].tolist() == [[3, 3, 5]]
    assert small_load("stackoverflow", tmp_path, words=2, length=3, cap=1).examples.tolist() == [1, 1]
    assert small_load("stackoverflow", tmp_path, users=1).population == 1
    small.put(tmp_path / "stackoverflow.word_count", b"loop 9\na 3\nuse 1\n")
    small.put(tmp_path / "stackoverflow.tag_count", b'{"python": 1, "c": 5, "loops": 1}')
    tags = small_load("stackoverflow", tmp_path, task="tags", words=2, tags=2)
    x, y, *_ = tensors(tags)
    torch.testing.assert_close(x[tags.rows(1)], torch.tensor([[2 / 5, 1 / 5], [0, 2 / 4]]))
    assert y[tags.rows(1)].tolist() == [[1, 0], [1, 0]] and y[tags.rows(0)].tolist() == [[0, 1]]
    small.put(tmp_path / "stackoverflow.word_count", b"loop 9\na\n")
    with pytest.raises(FedloomError, match=r"word_count, line 2: expected a word and its count, got a"):
        small_load("stackoverflow", tmp_path, task="tags", words=2, tags=2)


# Texts ----------------------------------------------------------------------------------------------------------------


def test_newsgroups(tmp_path: Path) -> None:
    small.newsgroups(tmp_path)
    data = small_load("20newsgroups", tmp_path, clients=2, min_count=2, length=4)
    x, y, x_test, y_test = tensors(data)
    assert y.tolist() == [0, 1] and y_test.tolist() == [0, 1] and data.classes == 2
    assert x.tolist() == [[1, 1, 0, 0], [2, 2, 1, 0]]  # reason, three times, then orbit
    assert x_test.tolist() == [[0, 0, 0, 0], [2, 0, 0, 0]]
    assert data.words == ("reason", "orbit") == data.to(dtype=torch.float64).words


def test_agnews(tmp_path: Path) -> None:
    small.agnews(tmp_path)
    x, y, *_ = tensors(small_load("agnews", tmp_path, clients=3, encode="bag", min_count=1, stop_words=False))
    assert x.shape[0] == 12 and y.tolist() == [0, 1, 2, 3] * 3
    assert small_load("agnews", tmp_path, clients=3, encode="bag", min_count=1, stop_words=False).words is None
    torch.testing.assert_close(x.sum(1), torch.ones(12))
    limited, *_ = tensors(small_load("agnews", tmp_path, encode="bag", min_count=1, stop_words=False, vocabulary=3))
    assert limited.shape == (12, 3)


def test_wordpiece(tmp_path: Path) -> None:
    small.agnews(tmp_path)
    vocabulary = small.put(tmp_path / "vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\ntitle\nquote\n##d\nword")
    options = {"encode": "wordpiece", "vocabulary": vocabulary, "length": 12}
    x, *_ = tensors(small_load("agnews", tmp_path, **options))
    assert x[0].tolist() == [2, 4, 1, 1, 1, 5, 6, 1, 7, 1, 1, 3]
    found, *_ = tensors(small_load("agnews", tmp_path, **options | {"vocabulary": "vocab.txt"}))
    assert torch.equal(found, x)  # in the data folder
    with pytest.raises(FedloomError, match=r"vocabulary: expected BERT's vocab.txt for encode='wordpiece', got None"):
        small_load("agnews", tmp_path, encode="wordpiece")
    vocabulary.write_text("a\n")
    with pytest.raises(FedloomError, match=r"vocab.txt: expected a line \[PAD\], got none"):
        small_load("agnews", tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encode": "word"}, "encode: expected one of bag, wordpiece, words; got 'word'"),
        ({"length": 1}, "length: expected a whole number of at least 2, got 1"),
        ({"vocabulary": "x"}, "vocabulary: expected a number of words of at least 1, got 'x'"),
        ({"min_count": 99}, "min_count: expected words that occur 99 times, got none"),
    ],
)
def test_text_mistakes(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    small.agnews(tmp_path)
    with pytest.raises(FedloomError, match=message):
        small_load("agnews", tmp_path, **options)
