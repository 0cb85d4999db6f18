"""The data sets that have files: what they are called, their checksums, and where their authors keep them.

Nothing here imports torch or numpy. A path is relative to the data folder; `also` are other names of the same file, and
a path with a star stands for all files that match. A data set may have several layouts: the first that is complete is
read. A checksum of a pattern is SHA-256 of the lines that `sha256sum` prints for its files, sorted by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TFF = "https://storage.googleapis.com/tff-datasets-public"


@dataclass(frozen=True)
class File:
    """A file of a layout; "decoded" as a checksum says that its content is compared after decoding."""

    path: str
    checksum: str | None = None
    also: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Download:
    """A file to fetch; of an archive, the members wanted and the paths they get; `also`: addresses to try next."""

    address: str
    path: str
    checksum: str | None = None
    members: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Release:
    """One data set: a line about it, its layouts, its own options of `load`, and how it is dealt unless told."""

    about: str
    layouts: Mapping[str, tuple[File, ...]] = field(default_factory=dict)
    downloads: tuple[Download, ...] = ()
    options: tuple[str, ...] = ()
    partition: str = "iid"


def _idx(folder: str, checksums: Mapping[str, str]) -> tuple[File, ...]:
    return tuple(
        File(f"{folder}/{name}.gz", f"md5:{md5}", also=(f"{folder}/{name}",)) for name, md5 in checksums.items()
    )


def _direct(files: tuple[File, ...], base: str, *others: str) -> tuple[Download, ...]:
    return tuple(
        Download(f"{base}/{name}", file.path, file.checksum, also=tuple(f"{other}/{name}" for other in others))
        for file in files
        for name in [file.path.rpartition("/")[2]]
    )


def _tff(name: str, folder: str) -> tuple[File, ...]:
    return tuple(File(f"{folder}/{name}_{split}.h5", also=(f"{name}_{split}.h5",)) for split in ("train", "test"))


def _sqlite(name: str, folder: str) -> tuple[File, ...]:
    return (File(f"{folder}/{name}.sqlite", also=(f"{name}.sqlite",)),)


def _archive(name: str, folder: str, checksum: str | None, members: tuple[str, ...]) -> Download:
    wanted = {member: f"{folder}/{member}" for member in members}
    return Download(f"{TFF}/{name}.tar.bz2", f"{folder}/{name}.tar.bz2", checksum, wanted)


_MNIST = _idx(
    "MNIST/raw",
    {
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
_MNIST_ADDRESSES = ("http://yann.lecun.com/exdb/mnist", "https://ossci-datasets.s3.amazonaws.com/mnist")
_FASHION = _idx(
    "FashionMNIST/raw",
    {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)
_WRITERS = _idx(
    "QMNIST/raw",
    {
        "qmnist-train-labels-idx2-int": "0058f8dd561b90ffdd0f734c6a30e5e4",
        "qmnist-test-labels-idx2-int": "5b5b05890a5e13444e108efe57b788aa",
    },
)
_EMNIST = tuple(
    File(f"EMNIST/raw/{name}.gz", also=(f"EMNIST/raw/{name}", f"EMNIST/raw/gzip/{name}.gz"))
    for split in ("train", "test")
    for name in (f"emnist-byclass-{split}-images-idx3-ubyte", f"emnist-byclass-{split}-labels-idx1-ubyte")
)
_CIFAR10 = tuple(
    File(f"cifar-10-batches-bin/{name}.bin", f"sha1:{sha1}")
    for name, sha1 in {
        "data_batch_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "test_batch": "67eb016db431130d61cd03c7ad570b013799c88c",
    }.items()
)
_CIFAR100 = (
    File("cifar-100-binary/train.bin", "sha1:e207cd2e05b73b1393c74c7f5e7bea451d63e08e"),
    File("cifar-100-binary/test.bin", "sha1:8fb6623e830365ff53cf14adec797474f5478006"),
)


def _strips(folder: str) -> tuple[File, ...]:
    return File(f"{folder}/labels.npz", "decoded"), File(f"{folder}/webp/*.webp", "decoded")


def _cifar(name: str, md5: str, files: tuple[File, ...]) -> Download:
    members = {file.path: file.path for file in files}
    return Download(f"https://www.cs.toronto.edu/~kriz/{name}.tar.gz", f"{name}.tar.gz", f"md5:{md5}", members)


_AGNEWS = (
    File("AGNews/train.csv", "md5:b1a00f826fdfbd249f79597b59e1dc12"),
    File("AGNews/test.csv", "md5:d52ea96a97a2d943681189a97654912d"),
)
_NEWS_ADDRESS = "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz"
_NEWS_GZ = "sha256:8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610"
_NEWS_XZ = "sha256:1b30934afe15347d2d62326fb4ec1dbed1d2b1194604f624bc46f7ff6e62100e"
_COUNTS = (
    File("StackOverflow/stackoverflow.word_count", also=("stackoverflow.word_count",), optional=True),
    File("StackOverflow/stackoverflow.tag_count", also=("stackoverflow.tag_count",), optional=True),
)
_FILES = ("folder", "verify")
_PICTURES = (*_FILES, "style", "normalise", "crop", "flip", "jitter", "whiten", "cutout")
_TEXTS = (*_FILES, "layout", "encode", "length", "vocabulary", "min_count", "stop_words")

RELEASES: dict[str, Release] = {
    "digits": Release("scikit-learn's handwritten digits, 8 x 8 pixels, 10 classes; 1,438 to train on, 359 to test"),
    "mnist": Release(
        "MNIST, 28 x 28 handwritten digits, 10 classes; 60,000 to train on, 10,000 to test",
        {"idx": _MNIST},
        _direct(_MNIST, *_MNIST_ADDRESSES),
        _PICTURES,
    ),
    "fashionmnist": Release(
        "Fashion-MNIST, 28 x 28 pictures of clothes, 10 classes; 60,000 to train on, 10,000 to test",
        {"idx": _FASHION},
        _direct(_FASHION, "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
        _PICTURES,
    ),
    "qmnist": Release(
        "MNIST by writer, with QMNIST's labels: 539 writers of 19 to 131 digits; 60,000 to train on, 10,000 to test",
        {"idx": (*_MNIST, *_WRITERS)},
        (
            *_direct(_MNIST, *_MNIST_ADDRESSES),
            *_direct(_WRITERS, "https://raw.githubusercontent.com/facebookresearch/qmnist/master"),
        ),
        (*_PICTURES, "task"),
        "natural",
    ),
    "emnist": Release(
        "EMNIST, 28 x 28 characters, 62 classes, by writer in TFF's files: 3,400 writers, 671,585 / 77,483",
        {"tff": _tff("fed_emnist", "EMNIST"), "sqlite": _sqlite("emnist_all", "EMNIST"), "idx": _EMNIST},
        (
            _archive(
                "fed_emnist",
                "EMNIST",
                "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
                ("fed_emnist_train.h5", "fed_emnist_test.h5"),
            ),
        ),
        (*_FILES, "layout", "task", "writers"),
        "natural",
    ),
    "cifar10": Release(
        "CIFAR-10, 32 x 32 colour pictures, 10 classes; 50,000 to train on, 10,000 to test",
        {"binary": _CIFAR10, "strips": _strips("CIFAR10")},
        (_cifar("cifar-10-binary", "c32a1d4ab5d03f1284b67883e8d87530", _CIFAR10),),
        (*_PICTURES, "layout"),
    ),
    "cifar100": Release(
        "CIFAR-100, 32 x 32 colour pictures, 100 classes under 20 coarse ones; 50,000 to train on, 10,000 to test",
        {"binary": _CIFAR100, "strips": _strips("CIFAR100")},
        (_cifar("cifar-100-binary", "03b5dce01913d631647c71ecec9e9cb8", _CIFAR100),),
        (*_PICTURES, "layout", "target"),
    ),
    "shakespeare": Release(
        "Shakespeare's plays by speaking role, next character out of 90; TFF's 715 roles, LEAF's, or the Moby edition",
        {
            "tff": _tff("shakespeare", "Shakespeare"),
            "sqlite": _sqlite("shakespeare", "Shakespeare"),
            "leaf": (File("Shakespeare/leaf/train/*.json"), File("Shakespeare/leaf/test/*.json")),
            "moby": (
                File(
                    "Shakespeare/moby/*.txt", "sha256:38a758ea83851e1e08a7b489890b551e6b150ca71e2eecc2a57677de986623f9"
                ),
            ),
        },
        (
            _archive(
                "shakespeare",
                "Shakespeare",
                "sha256:0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707",
                ("shakespeare_train.h5", "shakespeare_test.h5"),
            ),
        ),
        (*_FILES, "layout", "length"),
        "natural",
    ),
    "stackoverflow": Release(
        "Stack Overflow by user, next word out of 10,004 or 500 tags; 342,477 users, 135,818,730 / 16,586,035",
        {
            "tff": (*_tff("stackoverflow", "StackOverflow"), *_COUNTS),
            "sqlite": (*_sqlite("stackoverflow", "StackOverflow"), *_COUNTS),
        },
        (
            _archive("stackoverflow", "StackOverflow", None, ("stackoverflow_train.h5", "stackoverflow_test.h5")),
            _archive(
                "stackoverflow.word_count",
                "StackOverflow",
                "sha256:1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
                ("stackoverflow.word_count",),
            ),
            _archive(
                "stackoverflow.tag_count",
                "StackOverflow",
                "sha256:6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d",
                ("stackoverflow.tag_count",),
            ),
        ),
        (*_FILES, "layout", "task", "words", "tags", "length", "cap", "users"),
        "natural",
    ),
    "20newsgroups": Release(
        "20 Newsgroups by date, 20 classes of messages; 11,314 to train on, 7,532 to test",
        {
            "xz": (File("20newsgroups/20news-bydate.tar.xz", _NEWS_XZ),),
            "gz": (File("20newsgroups/20news-bydate.tar.gz", _NEWS_GZ),),
        },
        (Download(_NEWS_ADDRESS, "20newsgroups/20news-bydate.tar.gz", _NEWS_GZ),),
        _TEXTS,
    ),
    "agnews": Release(
        "AG News, 4 classes of news items; 120,000 to train on, 7,600 to test",
        {"csv": _AGNEWS, "subset": (File("AGNews/train_subset_*.csv"), _AGNEWS[1])},
        _direct(_AGNEWS, "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"),
        _TEXTS,
    ),
}
