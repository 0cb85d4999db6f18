"""BERT's uncased WordPiece tokenizer (Devlin et al. 2019), as DistilBERT uses it, from its `vocab.txt`."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedloom.data.bounded import damaged, read_limited, reading

LONGEST = 100  # characters of a word that is taken apart; a longer one is unknown
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def read_vocabulary(path: Path) -> dict[str, int]:
    """The ids of the pieces: the numbers of their lines."""
    with reading(path, "a vocabulary, one piece per line"):
        pieces = read_limited(path, 1 << 26).decode("utf-8").splitlines()
    ids = {piece: number for number, piece in enumerate(pieces)}
    for piece in SPECIAL:
        if piece not in ids:
            raise damaged(path, f"a line {piece}", "none")
    return ids


def encode(texts: Sequence[str], ids: dict[str, int], length: int = 128) -> npt.NDArray[np.int64]:
    """[CLS], the pieces of a text, [SEP], then padding; at most `length` ids in all.

    >>> ids = {p: n for n, p in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##fold", "!"])}
    >>> encode(["Unfold yourself!"], ids, length=7).tolist()
    [[2, 4, 5, 1, 6, 3, 0]]
    """
    pad, unknown, begin, end = (ids[piece] for piece in SPECIAL)
    rows = np.full((len(texts), length), pad, np.int64)
    known: dict[str, list[int]] = {}
    for row, text in zip(rows, texts, strict=True):
        found = [begin]
        for word in words(text):
            if word not in known:
                known[word] = _pieces(word, ids, unknown)
            found += known[word]
            if len(found) >= length:
                break
        found = [*found[: length - 1], end]
        row[: len(found)] = found
    return rows


def words(text: str) -> list[str]:
    """Lower case without accents, split at spaces and around every punctuation mark.

    >>> words("Où est-il?")
    ['ou', 'est', '-', 'il', '?']
    """
    spaced = []
    for char in unicodedata.normalize("NFD", text.lower()):
        category = unicodedata.category(char)
        if category == "Mn" or char in "\0\ufffd" or (category.startswith("C") and char not in "\t\n\r"):
            continue
        spaced.append(f" {char} " if _alone(char, category) else char)
    return "".join(spaced).split()


def _alone(char: str, category: str) -> bool:
    """Punctuation, all of ASCII's that is no letter or digit, and CJK ideographs are words of their own."""
    code = ord(char)
    if 33 <= code <= 126:
        return not char.isalnum()
    return category.startswith("P") or 0x4E00 <= code <= 0x9FFF or 0x3400 <= code <= 0x4DBF or 0xF900 <= code <= 0xFAFF


def _pieces(word: str, ids: dict[str, int], unknown: int) -> list[int]:
    """The longest pieces from the left; unknown where any part has none."""
    if len(word) > LONGEST:
        return [unknown]
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        stop = next((stop for stop in range(len(word), start, -1) if prefix + word[start:stop] in ids), None)
        if stop is None:
            return [unknown]
        found.append(ids[prefix + word[start:stop]])
        start = stop
    return found
