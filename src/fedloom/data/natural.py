"""Data sets that come with their clients: EMNIST by writer, Shakespeare by role, Stack Overflow by user."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data import tff, tokens
from fedloom.data.bounded import damaged, read_limited, reading
from fedloom.data.decoded import Arrays, decode
from fedloom.data.idx import check_labels, read_idx, read_labels
from fedloom.data.places import Found, locate
from fedloom.data.plays import read_leaf, read_plays
from fedloom.data.source import Source
from fedloom.errors import FedloomError, choose

Folder = str | PathLike[str] | None
CHARACTERS, HELD_OUT = 62, 0.1
CAPS = {"words": 128, "tags": 500}  # examples of a user; Reddi et al. 2020


def emnist(
    folder: Folder = None,
    verify: bool = True,
    layout: str | None = None,
    task: str = "characters",
    writers: int | None = None,
) -> Source:
    """EMNIST's 62 characters: by writer in TFF's files, without writers in the IDX files (Cohen et al. 2017).

    `task="characters"`: pictures (1, 28, 28) on a background of 1, as TFF has them. `task="autoencoder"`: 784 numbers
    on a background of 0, which are their own target. `writers`: only the first so many, by name.
    """
    if task not in ("characters", "autoencoder"):
        raise choose("load('emnist'), task", task, ["characters", "autoencoder"])
    _count("emnist", "writers", writers)
    layout, found = locate("emnist", folder, layout)
    limit = None if layout == "idx" else writers
    arrays = decode("emnist", layout, found, lambda: _read_emnist(layout, found, limit), {"writers": limit}, verify)
    pixels = {split: torch.from_numpy(_paper(arrays[f"{split}_x"])) for split in ("train", "test")}
    labels = {split: arrays[f"{split}_y"].astype(np.int64) for split in ("train", "test")}
    owners, test_owners = (_owners(arrays, split) if layout != "idx" else None for split in ("train", "test"))
    if task == "autoencoder":
        x, x_test = ((1 - pixels[split]).flatten(1) for split in ("train", "test"))
        return Source(x, x, test=(x_test, x_test), owners=owners, test_owners=test_owners)
    x, x_test = pixels["train"], pixels["test"]
    tested = (x_test, labels["test"])
    return Source(x, labels["train"], test=tested, owners=owners, test_owners=test_owners, classes=CHARACTERS)


def _paper(pixels: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """(N, 1, 28, 28) on a background of 1: TFF's numbers as they are, bytes of ink turned into paper."""
    if pixels.dtype == np.uint8:
        paper: npt.NDArray[np.float32] = np.divide(pixels, np.float32(-255), dtype=np.float32)[:, None]
        paper += 1
        return paper
    return np.array(pixels[:, None], np.float32)


def _read_emnist(layout: str, found: Found, writers: int | None) -> Arrays:
    arrays: Arrays = {}
    for split in ("train", "test"):
        if layout == "idx":
            stem = f"EMNIST/raw/emnist-byclass-{split}"
            images, labels = (found[f"{stem}-{kind}-ubyte.gz"][0] for kind in ("images-idx3", "labels-idx1"))
            pictures = read_idx(images, 0x08, (None, 28, 28))
            arrays[f"{split}_x"] = np.ascontiguousarray(
                pictures.transpose(0, 2, 1)
            )  # the files have them on their side
            arrays[f"{split}_y"] = read_labels(labels, CHARACTERS)
            if len(arrays[f"{split}_y"]) != len(pictures):
                raise damaged(labels, f"{len(pictures)} labels, one per picture", len(arrays[f"{split}_y"]))
        else:
            arrays |= _emnist_clients(split, *_clients("emnist", layout, found, split, ("pixels", "label"), writers))
    return arrays


def _emnist_clients(split: str, path: Path, clients: Iterator[tuple[str, tff.Features]]) -> Arrays:
    names, sizes, pictures, labels = [], [], [], []
    for client, features in clients:
        pixels = np.asarray(features["pixels"], np.float32)
        if pixels.size != 784 * len(pixels):
            raise damaged(path, f"28 x 28 pixels of client {client!r}", f"shape {pixels.shape}")
        label = np.asarray(features["label"]).reshape(-1)
        if label.dtype.kind not in "iu" or len(label) != len(pixels) or not np.isfinite(pixels).all():
            raise damaged(path, f"finite pixels and a whole label each for client {client!r}", f"{label.dtype}")
        check_labels(path, label, 0, CHARACTERS - 1)
        names.append(client)
        sizes.append(len(pixels))
        pictures.append(pixels.reshape(-1, 28, 28))
        labels.append(label.astype(np.uint8))
    arrays: Arrays = {f"{split}_x": np.concatenate(pictures), f"{split}_y": np.concatenate(labels)}
    return {**arrays, **_named(split, names, sizes)}


def shakespeare(folder: Folder = None, verify: bool = True, layout: str | None = None, length: int = 80) -> Source:
    """Shakespeare by speaking role, the next of 90 characters at each of `length` positions; targets of 0 are padding.

    TFF's and LEAF's files have a split of their own. Of the Moby edition, roles with two lines or more are clients, a
    line being a speech, and the last tenth of a role's lines, one at least, is its test data.
    """
    _count("shakespeare", "length", length)
    layout, found = locate("shakespeare", folder, layout)

    def read() -> Arrays:
        if layout == "leaf":
            return _leaf_windows(found, length)
        if layout == "moby":
            return _moby_windows(found["Shakespeare/moby/*.txt"], length)
        arrays: Arrays = {}
        for split in ("train", "test"):
            _, clients = _clients("shakespeare", layout, found, split, ("snippets",), None)
            lines = [(client, list(features["snippets"])) for client, features in clients]
            arrays |= _windows(split, lines, length)
        return arrays

    arrays = decode("shakespeare", layout, found, read, {"length": length}, verify)
    x, y = tokens.next_token(arrays["train_windows"])
    test = tokens.next_token(arrays["test_windows"])
    return Source(x, y, test=test, owners=_owners(arrays, "train"), test_owners=_owners(arrays, "test"))


def _moby_windows(paths: Sequence[Path], length: int) -> Arrays:
    train, test = [], []
    for role in read_plays(paths):
        kept = len(role.lines) - max(1, round(HELD_OUT * len(role.lines)))
        train.append((role.role, role.lines[:kept]))
        test.append((role.role, role.lines[kept:]))
    return {**_windows("train", train, length), **_windows("test", test, length)}


def _leaf_windows(found: Found, length: int) -> Arrays:
    arrays: Arrays = {}
    for split in ("train", "test"):
        users = sorted(read_leaf(found[f"Shakespeare/leaf/{split}/*.json"], length))
        rows = [tokens.character_ids("".join(c if c.isascii() else "\0" for c in w + f)) for _, x, y in users
                for w, f in zip(x, y, strict=True)]  # fmt: skip
        arrays[f"{split}_windows"] = np.stack(rows)
        arrays |= _named(split, [user for user, _, _ in users], [len(x) for _, x, _ in users])
    return arrays


def _windows(split: str, lines: Iterable[tuple[str, Sequence[str | bytes]]], length: int) -> Arrays:
    found = [(role, tokens.character_windows(said, length)) for role, said in sorted(lines)]
    arrays = {f"{split}_windows": np.concatenate([windows for _, windows in found])}
    return {**arrays, **_named(split, [role for role, _ in found], [len(windows) for _, windows in found])}


def stackoverflow(
    folder: Folder = None,
    verify: bool = True,
    layout: str | None = None,
    task: str = "words",
    words: int = 10_000,
    tags: int = 500,
    length: int = 20,
    cap: int | None = None,
    users: int | None = None,
) -> Source:
    """Stack Overflow by user, from TFF's files. All of it is 135 million examples: `users` takes the first so many.

    `task="words"`: the next word at each of `length` positions; ids are 0 padding, the most frequent `words`, unknown,
    beginning, end. `task="tags"`: a bag of words, the question's title included, and which of the most frequent `tags`
    it has. `cap`: the most examples of a user, 128 for words and 500 for tags unless told. Frequencies are those of
    TFF's `stackoverflow.word_count` and `stackoverflow.tag_count`, or, without these files, of the users that are read.
    """
    if task not in CAPS:
        raise choose("load('stackoverflow'), task", task, CAPS)
    options = {"words": words, "tags": tags, "length": length, "cap": CAPS[task] if cap is None else cap}
    for key, value in {**options, "users": users}.items():
        _count("stackoverflow", key, value)
    layout, found = locate("stackoverflow", folder, layout)
    arrays = decode(
        "stackoverflow",
        layout,
        found,
        lambda: _read_stackoverflow(layout, found, task, options, users),
        {**options, "task": task, "users": users},
        verify,
    )
    owners, test_owners = _owners(arrays, "train"), _owners(arrays, "test")
    if task == "words":
        inputs, targets = tokens.next_token(arrays["train_ids"])
        test = tokens.next_token(arrays["test_ids"])
        return Source(inputs, targets, test=test, owners=owners, test_owners=test_owners)
    (x, y), tested = (_tagged(arrays, split, words, tags) for split in ("train", "test"))
    return Source(x, y, test=tested, owners=owners, test_owners=test_owners)


def _tagged(arrays: Arrays, split: str, words: int, tags: int) -> tuple[Tensor, Tensor]:
    flat, starts, lengths = (arrays[f"{split}_{name}"] for name in ("words", "word_starts", "lengths"))
    marked = tokens.several_hot(arrays[f"{split}_tags"], arrays[f"{split}_tag_starts"], tags)
    return torch.from_numpy(tokens.bags(flat, starts, lengths, words)), torch.from_numpy(marked)


def _read_stackoverflow(layout: str, found: Found, task: str, options: dict[str, int], users: int | None) -> Arrays:
    """A user at a time: once to count words and tags, where no file of counts is there, and once to encode."""
    wanted = ("tokens",) if task == "words" else ("tokens", "title", "tags")

    def questions(split: str) -> Iterator[tuple[str, list[list[str]]]]:
        for client, features in _clients("stackoverflow", layout, found, split, wanted, users)[1]:
            columns = [[_text(value) for value in features[name][: options["cap"]]] for name in wanted]
            yield client, [list(row) for row in zip(*columns, strict=True)]

    def most_frequent(kind: str, parts: Callable[[list[str]], list[str]]) -> dict[str, int]:
        size = options[f"{kind}s"]
        counted = (parts(row) for _, rows in questions("train") for row in rows)
        chosen = _frequent(found, kind, size) or tokens.most_common(tokens.count_words(counted), size)
        return tokens.numbered(chosen)

    words = most_frequent("word", lambda row: row[0].split())
    tags = most_frequent("tag", lambda row: row[2].split("|")) if task == "tags" else {}
    arrays: Arrays = {}
    for split in ("train", "test"):
        read = [
            (
                client,
                len(rows),
                _sentences(rows, words, options["length"]) if task == "words" else _bags(rows, words, tags),
            )
            for client, rows in questions(split)
        ]
        arrays |= _named(split, [client for client, _, _ in read], [size for _, size, _ in read])
        arrays |= {f"{split}_{key}": np.concatenate([part[key] for _, _, part in read]) for key in read[0][2]}
    for name in [name for name in arrays if name.endswith("_counts")]:
        counts = arrays.pop(name)
        arrays[name.removesuffix("counts") + "starts"] = np.cumsum([0, *counts], dtype=np.int64)
    return arrays


def _sentences(rows: list[list[str]], words: dict[str, int], length: int) -> Arrays:
    return {"ids": tokens.sentence_ids([row[0] for row in rows], words, length).astype(np.int32)}


def _bags(rows: list[list[str]], words: dict[str, int], tags: dict[str, int]) -> Arrays:
    flat, starts, lengths = tokens.bag_ids([f"{row[0]} {row[1]}".split() for row in rows], words)
    marks, mark_starts, _ = tokens.bag_ids([row[2].split("|") for row in rows], tags)
    bag = {"words": flat, "word_counts": np.diff(starts), "lengths": lengths}
    return {**bag, "tags": marks, "tag_counts": np.diff(mark_starts)}


def _frequent(found: Found, kind: str, size: int) -> list[str]:
    """The most frequent words or tags in TFF's file of counts, none where it is not there."""
    paths = found.get(f"StackOverflow/stackoverflow.{kind}_count")
    if not paths:
        return []
    with reading(paths[0], f"{kind} counts"):
        text = read_limited(paths[0], 1 << 30).decode("utf-8")
        if kind == "tag":
            counts = json.loads(text)
            if not isinstance(counts, dict) or not all(isinstance(count, int) for count in counts.values()):
                raise damaged(paths[0], "an object of tags and their counts", f"{text[:60]!r}")
            return sorted(counts, key=lambda tag: -counts[tag])[:size]
        lines = [line.split() for line in text.splitlines()[:size]]
        for number, parts in enumerate(lines, start=1):
            if len(parts) != 2 or not parts[1].isdigit():
                raise damaged(paths[0], "a word and its count", " ".join(parts)[:60] or "nothing", number, "line")
        return [parts[0] for parts in lines]


def _clients(
    name: str, layout: str, found: Found, split: str, features: tuple[str, ...], limit: int | None
) -> tuple[Path, Iterator[tuple[str, tff.Features]]]:
    """The clients of a split in TFF's files, and the file that they are read from."""
    paths = [paths[0] for path, paths in found.items() if not path.endswith("_count")]
    if layout == "sqlite":
        return paths[0], tff.read_sqlite(paths[0], split, features, limit)
    path = next(path for path in paths if path.stem.endswith(split))
    return path, tff.read_hdf5(path, features, limit)


def _named(split: str, names: list[str], sizes: list[int]) -> Arrays:
    return {f"{split}_names": np.array(names), f"{split}_sizes": np.array(sizes, np.int64)}


def _owners(arrays: Arrays, split: str) -> npt.NDArray[np.int64]:
    """The place of every row's owner among the sorted names of all splits: numbers sort faster than names."""
    everybody = np.unique(np.concatenate([arrays["train_names"], arrays["test_names"]]))
    return np.repeat(np.searchsorted(everybody, arrays[f"{split}_names"]), arrays[f"{split}_sizes"])


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _count(name: str, option: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise FedloomError(f"load({name!r}), {option}: expected a whole number of at least 1, got {value!r}")
