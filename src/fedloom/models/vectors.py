"""Vectors of words from a file in GloVe's format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from fedloom.errors import FedloomError, cut


def word_vectors(path: str | PathLike[str], words: Sequence[str]) -> Tensor:
    """The file's vectors of these words in rows 1, 2, ...: what `BiLSTM` takes as `embedding`.

    A line of the file is a word and its numbers with spaces between them, as in `glove.6B.300d.txt` (Pennington et al.
    2014). Row 0, for padding, and words that the file lacks are zero.

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
    return _read(path, (stat.st_mtime_ns, stat.st_size), tuple(words))


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise FedloomError(
            f"word vectors: expected a file such as glove.6B.300d.txt, got {str(path)!r}: {error.strerror}"
        ) from None


@lru_cache(maxsize=1)  # a study's runs have the same, and a file of them is up to a gigabyte
def _read(path: Path, stamp: tuple[int, int], words: tuple[str, ...]) -> Tensor:
    rows = {word.encode(): row for row, word in enumerate(words, start=1)}
    matrix = None
    with _opened(path) as lines:
        for number, line in enumerate(lines, start=1):
            word, _, numbers = line.partition(b" ")
            if word not in rows:
                continue
            try:
                vector = np.array(numbers.split(), np.float32)
            except ValueError:
                vector = np.empty(0, np.float32)
            if matrix is None and vector.size:
                matrix = np.zeros((len(words) + 1, vector.size), np.float32)
            if matrix is None or vector.size != matrix.shape[1]:
                expected = "numbers" if matrix is None else f"{matrix.shape[1]} numbers"
                raise FedloomError(
                    f"{path}, line {number}: expected a word and {expected}, got {cut(line.decode(errors='replace'))}"
                )
            matrix[rows[word]] = vector
    if matrix is None:
        raise FedloomError(f"{path}: expected the vector of one of {len(words):,} words at least, got none")
    return torch.from_numpy(matrix)
