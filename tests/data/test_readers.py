"""Readers of files: what they read, what they refuse and how they say it, and what they do with damaged files."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import re
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_releases as small
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import cifar, corpora, plays, tff
from fedloom.data.idx import read_idx, read_labels
from fedloom.errors import FedloomError

LABELS = np.arange(6, dtype=np.uint8)


def says(path: Path, *words: str) -> Any:
    """An error that names the file and says all of the words."""
    pattern = re.escape(str(path)) + "".join(f".*{word}" for word in words)
    return pytest.raises(FedloomError, match=pattern)


# IDX ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(tmp_path: Path, suffix: str) -> None:
    array = np.arange(24, dtype=">i4").reshape(3, 8)
    path = small.put(tmp_path / f"rows{suffix}", small.idx(array, 0x0C))
    assert np.array_equal(read_idx(path, 0x0C, (None, 8)), array)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x00\x00\x08\x03" + small.idx(LABELS)[4:], ["byte 0: expected magic 0x00000801, got 0x00000803"]),
        (small.idx(LABELS)[:3], ["byte 0: expected 4 bytes, got 3"]),
        (small.idx(LABELS)[:6], ["byte 4: expected 4 bytes, got 2"]),
        (struct.pack(">II", 0x801, 2**31) + bytes(6), ["byte 4: expected sizes that", "2147483648, which is 2,147"]),
        (struct.pack(">II", 0x801, 0), ["byte 4: expected size of at least 1 on axis 0, got 0"]),
        (small.idx(LABELS) + b"x", ["byte 14: expected the end after 6 bytes of items, got more"]),
        (small.idx(np.array([1, 10], np.uint8)), ["byte 9: expected a label from 0 to 9, got 10 in row 1"]),
    ],
)
def test_idx_mistakes(tmp_path: Path, suffix: str, content: bytes, words: list[str]) -> None:
    path = small.put(tmp_path / f"labels{suffix}", content)
    with says(path, *words):
        read_labels(path, 10)


def test_idx_truncated(tmp_path: Path) -> None:
    whole = small.put(tmp_path / "whole", small.idx(LABELS)[:-1])
    with says(whole, "byte 4: expected sizes that 13 bytes on disk can hold, got 6"):
        read_labels(whole, 10)
    packed = small.put(tmp_path / "packed.gz", small.idx(LABELS)[:-1])
    with says(packed, "byte 8: expected 6 bytes, got 5"):
        read_labels(packed, 10)
    packed.write_bytes(gzip.compress(small.idx(LABELS))[:-9])
    with says(packed, "expected an IDX file, got EOFError"):
        read_labels(packed, 10)
    with says(tmp_path / "none.gz", "nothing there"):
        read_labels(tmp_path / "none.gz", 10)


def test_a_false_header_costs_no_memory(tmp_path: Path) -> None:
    content = struct.pack(">II", 0x801, 500 << 20) + bytes(600 << 10)
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(content) + bytes(1 << 20))  # large enough on disk for what the header claims
    tracemalloc.start()
    with pytest.raises(FedloomError):
        read_labels(path, 10)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


# CIFAR ----------------------------------------------------------------------------------------------------------------


def test_cifar_records_and_strips_are_the_same(tmp_path: Path) -> None:
    written = small.cifar(tmp_path, "cifar100")
    train, test = written["cifar-100-binary/train.bin"], written["cifar-100-binary/test.bin"]
    small.strips(tmp_path, "cifar100", train, test)
    assert np.array_equal(cifar.read_records("cifar100", tmp_path / "cifar-100-binary" / "train.bin"), train)
    labels, files = tmp_path / "CIFAR100" / "labels.npz", list((tmp_path / "CIFAR100" / "webp").iterdir())
    assert np.array_equal(cifar.read_strips("cifar100", labels, files, "train", verify=False), train)
    pictures, columns = cifar.split_records("cifar100", train)
    assert pictures.shape == (200, 3, 32, 32)
    assert np.array_equal(columns["fine"], train[:, 1])
    with says(tmp_path / "CIFAR100", "expected the release's SHA-1 e207cd2e"):
        cifar.read_strips("cifar100", labels, files, "train")


def test_cifar_mistakes(tmp_path: Path) -> None:
    records = small.cifar_records("cifar10", 3)
    short = small.put(tmp_path / "short.bin", records.tobytes()[:-1])
    with says(short, "byte 6146: expected records of 3073 bytes, got 9,218 bytes"):
        cifar.read_records("cifar10", short)
    records[2, 0] = 10
    wrong = small.put(tmp_path / "wrong.bin", records.tobytes())
    with says(wrong, "byte 6146: expected a label from 0 to 9, got 10 in row 2"):
        cifar.read_records("cifar10", wrong)


def test_strip_mistakes(tmp_path: Path) -> None:
    from PIL import Image

    records = small.cifar_records("cifar10", 4)
    small.strips(tmp_path, "cifar10", records, records)
    labels, strip = tmp_path / "CIFAR10" / "labels.npz", tmp_path / "CIFAR10" / "webp" / "train_000.webp"
    Image.new("RGB", (33, 32)).save(strip, lossless=True)
    with says(strip, r"expected one picture of 32 x \(32 n\) pixels, got 33 x 32"):
        cifar.read_strips("cifar10", labels, [strip], "train", verify=False)
    strip.write_bytes(b"GIF89a")
    with says(strip, "expected a lossless WebP strip"):
        cifar.read_strips("cifar10", labels, [strip], "train", verify=False)
    np.savez(labels, train=np.zeros(10**6, np.int64), test=np.array([{}], object))
    test = tmp_path / "CIFAR10" / "webp" / "test_000.webp"
    with says(labels, "expected 4 labels in train"):
        cifar.read_strips("cifar10", labels, [test.rename(strip)], "train", verify=False)
    with says(labels, "allow_pickle=False|whole numbers"):
        cifar.read_strips("cifar10", labels, [strip.rename(test)], "test", verify=False)


# Texts ----------------------------------------------------------------------------------------------------------------


def test_csv(tmp_path: Path) -> None:
    small.agnews(tmp_path)
    texts, labels = corpora.read_csv(tmp_path / "AGNews" / "test.csv", 4)
    assert labels == [0, 1, 2, 3] * 3
    assert texts[1] == 'title 1 a "quoted" word, and\nanother line'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'"1","a","b"\n"2","a"\n', ["line 2: expected 3 columns, got 2"]),
        (b'"1","a","b"\n"5","a","b"\n', ["line 2: expected a label from 1 to 4, got '5'"]),
        (b'"one","a","b"\n', ["line 1: expected a label from 1 to 4, got 'one'"]),
        (b'"1","a","b', ["expected a CSV file, got Error: unexpected end of data"]),
        (b'"1","a","\xff"\n', ["expected a CSV file in utf-8, got byte 0xff"]),
        (b"", ["expected rows, got none"]),
    ],
)
def test_csv_mistakes(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = small.put(tmp_path / "train.csv", content)
    with says(path, *words):
        corpora.read_csv(path, 4)


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_newsgroups(tmp_path: Path, kind: str) -> None:
    read = corpora.read_newsgroups(small.newsgroups(tmp_path, kind))
    assert read["train"][1:] == ([0, 1], ["alt.atheism", "sci.space"])
    assert read["test"] == (["God", "An orbit unseen"], [0, 1], ["alt.atheism", "sci.space"])
    assert read["train"][0][1].endswith("\xff")


@pytest.mark.parametrize(
    ("member", "info", "words"),
    [
        ("../outside", None, ["expected paths inside the folder, got member '../outside'"]),
        ("/etc/passwd", None, ["expected paths inside the folder"]),
        (None, special("20news-bydate-train/a/1", tarfile.SYMTYPE, "/etc/passwd"), ["plain files and folders"]),
        (None, special("20news-bydate-train/a/1", tarfile.LNKTYPE, "x"), ["plain files and folders"]),
        (None, special("20news-bydate-train/a/1", tarfile.CHRTYPE), ["plain files and folders"]),
        (
            "20news-bydate-dev/a/1",
            None,
            ["expected 20news-bydate-{train,test}/GROUP/NUMBER, got 20news-bydate-dev/a/1"],
        ),
    ],
)
def test_tar_mistakes(tmp_path: Path, member: str | None, info: tarfile.TarInfo | None, words: list[str]) -> None:
    members = [*small.NEWS.items(), *([(member, b"x")] if member else [])]
    path = small.tar(tmp_path / "news.tar.xz", members, "xz", info)
    with says(path, *words):
        corpora.read_newsgroups(path)


def test_a_tar_that_swells_is_refused(tmp_path: Path) -> None:
    path = small.tar(tmp_path / "bomb.tar.xz", [("big", bytes(20 << 20))], "xz")
    assert path.stat().st_size < 10_000
    with says(path, "expected at most 1,048,576 bytes when decompressed, got more"):
        list(corpora.tar_members(path, limit=1 << 20))


def test_a_damaged_header_inside_a_tar_is_no_end(tmp_path: Path) -> None:
    plain = small.tar(tmp_path / "x.tar", [(f"f{k}", bytes(30_000)) for k in range(3)], "")
    content = bytearray(plain.read_bytes())
    content[30_720:30_788] = b"\xff" * 68  # the second header
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(content))
    with says(path, "damaged header"):
        list(corpora.tar_members(path))


def test_plays() -> None:
    said = plays.speeches(small.PLAY)
    assert said == {
        "KING": ["Who's there?\nSpeak!  Now.", "Good.", "Again!"],
        "Fool": ["Nobody.", "Hey ho."],
        "Page": ["My lord."],
    }


def test_roles_with_two_lines_or_more(tmp_path: Path) -> None:
    path = small.put(tmp_path / "play.txt", small.PLAY.encode())
    assert [role.role for role in plays.read_plays([path])] == ["play/KING", "play/Fool"]
    poem = small.put(tmp_path / "poem.txt", b"\tSONNETS\n\nFrom fairest\n")
    with says(poem, "expected plays with speeches"):
        plays.read_plays([poem])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]", ["an object with users and user_data, got list"]),
        (b'{"users": ["a"], "user_data": {}}', ["for user 'a', got none"]),
        (b'{"users": ["a"], "user_data": {"a": {"x": ["ab"], "y": []}}}', ["for user 'a', got 1 and 0"]),
        (b'{"users": ["a"], "user_data": {"a": {"x": ["ab"], "y": ["c"]}}}', [r"80 characters as x\[0\] of 'a'"]),
        (b'{"users": ["a"], "user_data": {"a": {"x": 3, "y": []}}}', ["for user 'a', got none"]),
        (b'{"users": ', ["expected a LEAF file, got JSONDecodeError"]),
        (b"[" * 100_000, ["expected a LEAF file, got RecursionError"]),
    ],
)
def test_leaf_mistakes(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = small.put(tmp_path / "all.json", content)
    with says(path, *words):
        plays.read_leaf([path])


# TFF ------------------------------------------------------------------------------------------------------------------


def test_sqlite(tmp_path: Path) -> None:
    clients = small.emnist_clients()
    small.sqlite(tmp_path / "emnist.sqlite", clients)
    read = dict(tff.read_sqlite(tmp_path / "emnist.sqlite", "train", ("pixels", "label")))
    assert list(read) == ["f1", "f2"]
    assert np.array_equal(np.stack(read["f2"]["pixels"]), clients["train"]["f2"]["pixels"].reshape(3, 784))
    assert list(read["f1"]["label"]) == [0, 1, 2, 3, 4]
    assert len(list(tff.read_sqlite(tmp_path / "emnist.sqlite", "test", ("label",), limit=1))) == 1


def test_sqlite_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    small.sqlite(path, {"train": {"a": {"tokens": [b"x"]}}})
    with says(path, "clients in split 'test', got none"):
        list(tff.read_sqlite(path, "test", ("tokens",)))
    with says(path, r"feature 'title' in an example of client 'a', got \['tokens'\]"):
        list(tff.read_sqlite(path, "train", ("title",)))
    path.write_bytes(b"SQLite format 3\0" + bytes(50))
    with says(path, "an SQLite file of TFF"):
        list(tff.read_sqlite(path, "train", ("tokens",)))
    with says(tmp_path / "none.sqlite", "an SQLite file of TFF"):
        list(tff.read_sqlite(tmp_path / "none.sqlite", "train", ("tokens",)))


def test_examples_are_parsed_as_they_were_written() -> None:
    wanted = {"text": b"a\xff", "one": np.array([-3], np.int64), "many": np.array([0.5, -2.0], np.float32)}
    found = tff.parse_example(small.example(wanted), FedloomError)
    assert found["text"] == [b"a\xff"]
    assert found["one"].tolist() == [-3]
    assert found["many"].tolist() == [0.5, -2.0]


def test_hdf5(tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="reading HDF5 is optional")
    clients = small.emnist_clients()["train"]
    path = tmp_path / "fed_emnist_train.h5"
    small.hdf5(path, clients)
    read = dict(tff.read_hdf5(path, ("pixels", "label")))
    assert list(read) == ["f1", "f2"]
    assert np.array_equal(read["f2"]["pixels"], clients["f2"]["pixels"])
    with says(path, "expected a data set 'examples/f1/snippets', got none"):
        list(tff.read_hdf5(path, ("snippets",)))
    path.write_bytes(path.read_bytes()[:200])
    with says(path, "an HDF5 file of TFF"):
        list(tff.read_hdf5(path, ("pixels",)))


def test_a_heap_of_hdf5_that_never_ends_is_refused(tmp_path: Path) -> None:
    """libhdf5 itself would loop for ever over either."""
    pytest.importorskip("h5py", reason="reading HDF5 is optional")
    path = tmp_path / "x.h5"
    small.hdf5(path, {"a": {"tokens": [b"one two", b"three"]}})
    assert [client for client, _ in tff.read_hdf5(path, ("tokens",))] == ["a"]
    whole = path.read_bytes()
    first = whole.index(b"GCOL") + 16
    for number, size in [(0, 0), (1, 2**64 - 16)]:
        entry = struct.pack("<H6xQ", number, size)
        path.write_bytes(whole[:first] + entry + whole[first + 16 :])
        with says(path, f"byte {first}: expected a heap that ends, got an entry that leads to itself"):
            list(tff.read_hdf5(path, ("tokens",)))


# Damage ---------------------------------------------------------------------------------------------------------------


def idx_gz(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    pictures = small.rng().integers(0, 256, (6, 28, 28), np.uint8)
    return small.put(folder / "x.gz", small.idx(pictures)), lambda path: read_idx(path, 0x08, (None, 28, 28))


def idx_plain(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    return small.put(folder / "x", small.idx(LABELS)), lambda path: read_labels(path, 10)


def cifar_bin(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    records = small.cifar_records("cifar10", 2)
    return small.put(folder / "x.bin", records.tobytes()), lambda path: cifar.read_records("cifar10", path)


def webp(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    records = small.cifar_records("cifar10", 1)
    small.strips(folder, "cifar10", records, records)
    labels = folder / "CIFAR10" / "labels.npz"
    strip = folder / "CIFAR10" / "webp" / "train_000.webp"
    return strip, lambda path: cifar.read_strips("cifar10", labels, [path], "train", verify=False)


def npz(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    records = small.cifar_records("cifar10", 1)
    small.strips(folder, "cifar10", records, records)
    strip = folder / "CIFAR10" / "webp" / "train_000.webp"
    labels = folder / "CIFAR10" / "labels.npz"
    return labels, lambda path: cifar.read_strips("cifar10", path, [strip], "train", verify=False)


def csv(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    small.agnews(folder)
    return folder / "AGNews" / "train.csv", lambda path: corpora.read_csv(path, 4)


def tar_gz(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    return small.newsgroups(folder, "gz"), corpora.read_newsgroups


def tar_xz(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    return small.newsgroups(folder, "xz"), corpora.read_newsgroups


def play(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    return small.put(folder / "play.txt", small.PLAY.encode()), lambda path: plays.read_plays([path])


def json_leaf(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    small.leaf(folder)
    return folder / "Shakespeare" / "leaf" / "train" / "all.json", lambda path: plays.read_leaf([path])


def sqlite(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    small.sqlite(folder / "x.sqlite", {"train": {"a": {"tokens": [b"one two", b"three"]}}})
    return folder / "x.sqlite", lambda path: list(tff.read_sqlite(path, "train", ("tokens",)))


MADE = [idx_gz, idx_plain, cifar_bin, webp, npz, csv, tar_gz, tar_xz, play, json_leaf, sqlite]


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
@given(data=st.data())
@settings(max_examples=30)
def test_a_damaged_file_loads_or_says_so(
    make: Any, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, read = make(tmp_path_factory.mktemp("damage"))
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) * 8 - 1), max_size=4), "flipped bits"):
        content[place // 8] ^= 1 << place % 8
    keep = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))), "bytes kept")
    path.write_bytes(content[:keep])
    try:
        read(path)
    except FedloomError as error:
        assert "\n" not in str(error)
        assert str(path.parent) in str(error)


@given(st.binary(max_size=60))
def test_any_bytes_as_an_example(message: bytes) -> None:
    with contextlib.suppress(FedloomError):
        tff.parse_example(message, FedloomError)


def test_lzma_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.xz"
    path.write_bytes(lzma.compress(b""))
    with says(path, "expected a tar file|messages to train on"):
        corpora.read_newsgroups(path)
