"""Vectors of words from a file in GloVe's format."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.errors import FedloomError, cut


def word_vectors(path: str | PathLike[str], words: Sequence[str]) -> Tensor:
    """The file's vectors of these words in rows 1, 2, ...: what `BiLSTM` takes as `embedding`.

    A line of the file is a word and its numbers with spaces between them, as in `glove.6B.300d.txt` (Pennington et al.
    2014) and, after a line of two counts, in word2vec's. Row 0, for padding, and words that the file lacks are zero.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+") as file:
    ...     print("the 0.5 1.5\\ncat -1 2", file=file, flush=True)
    ...     word_vectors(file.name, ["cat", "fedloom"])
    tensor([[ 0.,  0.],
            [-1.,  2.],
            [ 0.,  0.]])
    """
    path = Path(path)
    with _opened(path) as file:
        stat = os.fstat(file.fileno())
    return _read(path, (stat.st_mtime_ns, stat.st_size), tuple(words)).clone()


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise FedloomError(
            f"word vectors: expected a file such as glove.6B.300d.txt, got {str(path)!r}: {error.strerror}"
        ) from None


@lru_cache(maxsize=1)  # a study's runs have the same, and a file of them is up to a gigabyte
def _read(path: Path, stamp: tuple[int, int], words: tuple[str, ...]) -> Tensor:
    rows = {word.encode(errors="surrogatepass"): row for row, word in enumerate(words, start=1)}
    found = set()
    with _opened(path) as lines:
        [(width, _)] = Counter(len(line.split()) - 1 for line in islice(lines, 100)).most_common(1) or [(0, 0)]
        matrix = np.zeros((len(words) + 1, max(width, 0)), np.float32)
        lines.seek(0)
        for number, line in enumerate(lines, start=1):
            word, _, rest = line.partition(b" ")
            if word not in rows:
                continue
            numbers = rest.split()
            if len(numbers) > width or (number == 1 and len(numbers) == 1 < width):
                continue  # another word, with a space in it; how many words there are, in word2vec's files
            vector = _vector(numbers)
            if not vector.size or vector.size != width or not np.isfinite(vector).all():
                raise FedloomError(
                    f"{path}, line {number}: expected a word and {width or 'its'} numbers, "
                    f"got {cut(line.decode(errors='replace').strip())}"
                )
            matrix[rows[word]] = vector
            found.add(word)
    if not found:
        raise FedloomError(f"{path}: expected the vector of one of {len(words):,} words at least, got none")
    return torch.from_numpy(matrix)


def _vector(numbers: list[bytes]) -> npt.NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            return np.array(numbers, np.float32)
    except ValueError:
        return np.empty(0, np.float32)
