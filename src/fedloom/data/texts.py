"""Labelled texts as numbers: AG News and 20 Newsgroups, as rows of word numbers, bags of words, or BERT's pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.data import tokens, wordpiece
from fedloom.data.corpora import read_csv, read_newsgroups
from fedloom.data.decoded import Arrays, decode, digests
from fedloom.data.places import Found, locate, named_place
from fedloom.data.source import Source
from fedloom.errors import FedloomError, choose

Folder = str | PathLike[str] | None
NEWS = ("World", "Sports", "Business", "Sci/Tech")
ENCODINGS = ("words", "bag", "wordpiece")
BAG = 10_000
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


def agnews(folder: Folder = None, verify: bool = True, layout: str | None = None, **words: Any) -> Source:
    """AG News (Zhang et al. 2015): title and text of 4 classes. Layout "subset" has a part of the training rows."""
    layout, found = locate("agnews", folder, layout)
    train = next(paths[0] for path, paths in found.items() if "train" in path)
    splits = {"train": train, "test": found["AGNews/test.csv"][0]}
    return _source("agnews", layout, found, lambda split: read_csv(splits[split], len(NEWS)), words, verify, folder)


def newsgroups(folder: Folder = None, verify: bool = True, layout: str | None = None, **words: Any) -> Source:
    """20 Newsgroups by date (Lang 1995): whole messages, headers included, of 20 groups in alphabetical order."""
    layout, found = locate("20newsgroups", folder, layout)
    read: dict[str, Any] = {}

    def texts(split: str) -> tuple[list[str], list[int]]:
        if not read:
            read.update(read_newsgroups(next(iter(found.values()))[0]))
        return read[split][0], read[split][1]

    return _source("20newsgroups", layout, found, texts, words, verify, folder)


def _source(
    name: str, layout: str, found: Found, texts: Any, words: dict[str, Any], verify: bool, folder: Folder
) -> Source:
    options = _checked(name, folder, **words)

    def read() -> Arrays:
        (train, labels), (test, test_labels) = texts("train"), texts("test")
        arrays = vectorise(train, test, **options)
        return {**arrays, "train_y": np.array(labels, np.int64), "test_y": np.array(test_labels, np.int64)}

    named = dict(options)
    if isinstance(options["vocabulary"], str | PathLike):
        named["vocabulary"] = digests(Path(options["vocabulary"]))["sha256"]
    arrays = decode(name, layout, found, read, named, verify)
    x, x_test = (_features(arrays, split, options) for split in ("train", "test"))
    known = tuple(arrays["words"].tolist()) if "words" in arrays else None
    return Source(x, arrays["train_y"], test=(x_test, arrays["test_y"]), words=known)


def _features(arrays: Arrays, split: str, options: dict[str, Any]) -> Any:
    if options["encode"] != "bag":
        return arrays[f"{split}_x"].astype(np.int64)
    bags = arrays[f"{split}_x"]
    if isinstance(bags, np.memmap) and bags.filename is not None:
        # mapped once more, so that torch may take it for writable: a page that is written to becomes a copy
        bags = np.memmap(bags.filename, bags.dtype, "c", bags.offset, bags.shape)
    return torch.from_numpy(bags)


def _checked(name: str, folder: Folder, **words: Any) -> dict[str, Any]:
    """The options with their defaults, each looked at before any file is."""
    defaults = {"encode": "words", "length": 128, "vocabulary": None, "min_count": 5, "stop_words": True}
    options = {**defaults, **words}
    if options["encode"] not in ENCODINGS:
        raise choose(f"load({name!r}), encode", options["encode"], ENCODINGS)
    for key, least in (("length", 2), ("min_count", 1)):
        if not isinstance(options[key], int) or options[key] < least:
            raise FedloomError(
                f"load({name!r}), {key}: expected a whole number of at least {least}, got {options[key]!r}"
            )
    vocabulary, file = options["vocabulary"], options["encode"] == "wordpiece"
    if file and isinstance(vocabulary, str | PathLike):
        vocabulary = options["vocabulary"] = named_place(vocabulary, folder)
    if file and not (isinstance(vocabulary, str | PathLike) and Path(vocabulary).is_file()):
        raise FedloomError(
            f"load({name!r}), vocabulary: expected BERT's vocab.txt for encode='wordpiece', got "
            f"{words.get('vocabulary')!r}: name the file, or put it in the data folder"
        )
    if not file and vocabulary is not None and (not isinstance(vocabulary, int) or vocabulary < 1):
        raise FedloomError(f"load({name!r}), vocabulary: expected a number of words of at least 1, got {vocabulary!r}")
    return options


def vectorise(
    train: Sequence[str],
    test: Sequence[str],
    *,
    encode: str = "words",
    length: int = 128,
    vocabulary: int | str | PathLike[str] | None = None,
    min_count: int = 5,
    stop_words: bool = True,
) -> Arrays:
    """Texts as numbers.

    "words": the first `length` words as numbers, the most frequent being 1, padded with 0. Stop words, and words that
    the training texts have fewer than `min_count` times, are left out (FedGLAD's BiLSTM), and so are all but the
    `vocabulary` most frequent where that is a number. "bag": the mean of the words' one-hots, over the same vocabulary
    of at most 10,000 words. "wordpiece": BERT's pieces, `vocabulary` being its vocab.txt, a path
    that may begin in the data folder.
    """
    splits = {"train": train, "test": test}
    if encode == "wordpiece":
        ids = wordpiece.read_vocabulary(Path(vocabulary))  # type: ignore[arg-type]
        return {f"{key}_x": wordpiece.encode(texts, ids, length).astype(np.int32) for key, texts in splits.items()}
    dropped = _stop_words() if stop_words else frozenset()
    split = {key: [_words(text, dropped) for text in texts] for key, texts in splits.items()}
    counts = {word: count for word, count in tokens.count_words(split["train"]).items() if count >= min_count}
    size = vocabulary if isinstance(vocabulary, int) else BAG if encode == "bag" else len(counts)
    chosen = tokens.most_common(counts, size)
    if not chosen:
        raise FedloomError(f"min_count: expected words that occur {min_count} times, got none: lower min_count")
    if encode == "bag":
        known = tokens.numbered(chosen)
        return {f"{key}_x": tokens.bags(*tokens.bag_ids(texts, known), len(chosen)) for key, texts in split.items()}
    numbers = {word: number for number, word in enumerate(chosen, start=1)}
    rows = {f"{key}_x": _rows(texts, numbers, length) for key, texts in split.items()}
    return {**rows, "words": np.array(chosen)}


def _rows(texts: list[list[str]], numbers: dict[str, int], length: int) -> Any:
    rows = np.zeros((len(texts), length), np.int32)
    for row, words in zip(rows, texts, strict=True):
        found = [numbers[word] for word in words if word in numbers][:length]
        row[: len(found)] = found
    return rows


def _words(text: str, dropped: frozenset[str]) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in dropped]


def _stop_words() -> frozenset[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS  # slow to import

    return frozenset(ENGLISH_STOP_WORDS)
