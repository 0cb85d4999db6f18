"""Word vectors are the file's, word by word, whatever is between them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedloom.errors import FedloomError
from fedloom.models.vectors import word_vectors

TEXT = "the 0.5 1.5 2\n, 7 7 7\nnaïve -1 0 1e-3\ncat 1 2 3\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "glove.6B.3d.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_row_for_every_word_and_one_for_padding(file: Path) -> None:
    expected = [[0, 0, 0], [1, 2, 3], [0, 0, 0], [-1, 0, 1e-3], [0.5, 1.5, 2]]
    torch.testing.assert_close(word_vectors(file, ["cat", "dog", "naïve", "the"]), torch.tensor(expected))


def test_a_file_that_changed_is_read_again(file: Path) -> None:
    assert word_vectors(file, ["cat"])[1].tolist() == [1, 2, 3]
    file.write_text("cat 4 5 6 7\n")
    assert word_vectors(file, ["cat"])[1].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    "text",
    ["3 3\ncat 1 2 3\ndog 4 5 6\n", "cat 1 2 3\ndog 4 5 6\ncat got 7 8 9\n", "cat got 7 8 9\ncat 1 2 3\ndog 4 5 6\n"],
)
def test_counts_in_the_first_line_and_words_with_spaces_are_no_vectors(file: Path, text: str) -> None:
    """word2vec's files have the one, GloVe's of 840 billion words the other."""
    file.write_text(text)
    assert word_vectors(file, ["3", "cat", "dog"]).tolist() == [[0] * 3, [0] * 3, [1, 2, 3], [4, 5, 6]]


def test_what_a_caller_does_to_them_is_his_own(file: Path) -> None:
    word_vectors(file, ["cat"]).zero_()
    assert word_vectors(file, ["cat"])[1].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cat 1 2 3\ndog 1 2\n", r"3d.txt, line 2: expected a word and 3 numbers, got dog 1 2"),
        ("cat 1 two\n", r"3d.txt, line 1: expected a word and 2 numbers, got cat 1 two$"),
        ("cow 1 2\ncat 1 nan\n", r"3d.txt, line 2: expected a word and 2 numbers, got cat 1 nan"),
        ("cow 1 2\ncat 1e39 1\n", r"3d.txt, line 2: expected a word and 2 numbers, got cat 1e39 1"),
        ("cow 1 2 3\n\n", r"3d.txt: expected the vector of one of 3 words at least, got none"),
        ("cat \n", r"3d.txt, line 1: expected a word and its numbers, got cat"),
        ("", r"3d.txt: expected the vector of one of 3 words at least, got none"),
    ],
)
def test_what_is_no_file_of_vectors_is_told(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(FedloomError, match=said):
        word_vectors(file, ["cat", "dog", "naïve"])


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        FedloomError, match=r"word vectors: expected a file such as glove.6B.300d.txt, got '.*none.txt'"
    ):
        word_vectors(tmp_path / "none.txt", ["cat"])
    with pytest.raises(FedloomError, match="Is a directory"):
        word_vectors(tmp_path, ["cat"])
