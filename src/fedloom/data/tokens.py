"""From text to numbers: windows of characters, sentences of words, bags of words (Reddi et al. 2020, appendix B)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
"""TFF's vocabulary of 86 characters, ids 1 to 86; 0 is padding, then come unknown, beginning and end."""
PAD, OOV, BOS, EOS = 0, len(CHARACTERS) + 1, len(CHARACTERS) + 2, len(CHARACTERS) + 3

_TABLE = np.full(256, OOV, np.uint8)
_TABLE[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(1, len(CHARACTERS) + 1)


def character_ids(text: str | bytes) -> npt.NDArray[np.uint8]:
    """The ids of a text's bytes.

    >>> character_ids("dh~").tolist()
    [1, 2, 87]
    """
    raw = text.encode() if isinstance(text, str) else text
    return _TABLE[np.frombuffer(raw, np.uint8)]


def character_windows(lines: Iterable[str | bytes], length: int = 80) -> npt.NDArray[np.uint8]:
    """Each line as beginning, characters, end, padded to a multiple of `length + 1` and cut into such windows.

    >>> character_windows(["dh", "dhlp"], length=3)
    array([[88,  1,  2, 89],
           [88,  1,  2,  3],
           [ 4, 89,  0,  0]], dtype=uint8)
    """
    width = length + 1
    pieces = []
    for line in lines:
        ids = character_ids(line)
        total = -(-(len(ids) + 2) // width) * width
        padded = np.zeros(total, np.uint8)
        padded[0], padded[1 : len(ids) + 1], padded[len(ids) + 1] = BOS, ids, EOS
        pieces.append(padded.reshape(-1, width))
    return np.concatenate(pieces) if pieces else np.zeros((0, width), np.uint8)


def next_token(windows: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Inputs and targets: all but the last and all but the first token of every window."""
    return windows[:, :-1].astype(np.int64), windows[:, 1:].astype(np.int64)


def most_common(counts: Mapping[str, int], size: int) -> list[str]:
    """The `size` most frequent entries, ties in alphabetical order.

    >>> most_common({"b": 2, "a": 2, "c": 5}, 2)
    ['c', 'a']
    """
    return sorted(counts, key=lambda word: (-counts[word], word))[:size]


def numbered(words: Iterable[str]) -> dict[str, int]:
    """The place of every word, from 0 on."""
    return {word: number for number, word in enumerate(words)}


def sentence_ids(sentences: Sequence[str], vocabulary: Mapping[str, int], length: int = 20) -> Ints:
    """Sentences as rows of `length + 1` ids: beginning, at most `length` words, an end where there is room, padding.

    Ids: 0 padding, the words from 1 on, then unknown, beginning, end.

    >>> sentence_ids(["a b a", "a z"], numbered(["a", "b"]), length=3).tolist()
    [[4, 1, 2, 1], [4, 1, 3, 5]]
    """
    unknown, beginning, end = len(vocabulary) + 1, len(vocabulary) + 2, len(vocabulary) + 3
    rows = np.zeros((len(sentences), length + 1), np.int64)
    rows[:, 0] = beginning
    for row, sentence in zip(rows, sentences, strict=True):
        found = [vocabulary.get(word, unknown - 1) + 1 for word in sentence.split()[:length]]
        if len(found) < length:
            found.append(end)
        row[1 : len(found) + 1] = found
    return rows


def bag_ids(texts: Sequence[list[str]], vocabulary: Mapping[str, int]) -> tuple[Ints, Ints, Ints]:
    """Texts as lists of word numbers, one after another: the numbers, where each text begins, and its full length."""
    known = [[vocabulary[word] for word in words if word in vocabulary] for words in texts]
    offsets = np.cumsum([0, *map(len, known)], dtype=np.int64)
    flat = np.fromiter((number for numbers in known for number in numbers), np.int64, int(offsets[-1]))
    return flat, offsets, np.array([len(words) for words in texts], np.int64)


def bags(flat: Ints, offsets: Ints, lengths: Ints, size: int) -> npt.NDArray[np.float32]:
    """Bags of words: the mean of the words' one-hots, unknown words counted in the mean and then left out.

    >>> bags(*bag_ids([["a", "z", "a", "b"]], numbered("abc")), size=3)
    array([[0.5 , 0.25, 0.  ]], dtype=float32)
    """
    result = np.zeros((len(lengths), size), np.float32)
    owner = np.repeat(np.arange(len(lengths)), np.diff(offsets))
    cells, counts = np.unique(owner * size + flat, return_counts=True)
    result.reshape(-1)[cells] = counts / np.maximum(lengths, 1)[cells // size]
    return result


def several_hot(flat: Ints, offsets: Ints, size: int) -> npt.NDArray[np.float32]:
    """A row of ones at the numbers of every text, such as its tags."""
    result = np.zeros((len(offsets) - 1, size), np.float32)
    result[np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), flat] = 1.0
    return result


def count_words(texts: Iterable[Iterable[str]]) -> Counter[str]:
    """How often every word occurs."""
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    return counts
