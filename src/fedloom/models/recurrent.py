"""Recurrent models of characters and words. They take (batch, time) whole numbers; 0 is padding, at the right end only.

Keras masks padding in its LSTM (`mask_zero`): a masked step changes neither the state nor the output, which repeats.
With padding at the right end that is what an ordinary LSTM gives at all other positions; at padded ones the last real
output is put in. A loss that leaves padded targets out never sees those, one that counts them sees what Keras shows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.models import initial
from fedloom.models.layers import check_sizes, tokens


class ShakespeareLSTM(nn.Module):
    """The next character in Shakespeare's plays: Reddi et al. (2020), Charles et al. (2021).

    Takes (batch, time), returns scores (batch, vocabulary, time). Embedding to 8, two LSTM layers of 256, dense
    `vocabulary`: 86 characters, padding 0, and three marks; 820,522 trainable parameters. Uniform(-0.05, 0.05)
    embedding, He normal kernels, orthogonal recurrent kernels, forget biases 1, Glorot normal dense kernel, other
    biases 0. PyTorch's second LSTM biases stand at zero, frozen, because Keras has none. Charles et al. write "80
    units" for the last layer, meaning 80 positions: the code has 90 outputs.

    >>> sum(leaf.numel() for leaf in ShakespeareLSTM().parameters() if leaf.requires_grad)
    820522
    """

    def __init__(self, vocabulary: int = 90) -> None:
        super().__init__()
        check_sizes("ShakespeareLSTM", vocabulary=vocabulary)
        self.embedding = nn.Embedding(vocabulary, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.out = nn.Linear(256, vocabulary)
        _draw(self, self.embedding, self.lstm)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens("ShakespeareLSTM", x)))
        scores: Tensor = self.out(_repeat_last(states, x))
        return scores.transpose(1, 2)


class StackOverflowLSTM(nn.Module):
    """The next word on Stack Overflow: Reddi et al. (2020), Charles et al. (2021).

    Takes (batch, time), returns scores (batch, vocabulary, time). Embedding to 96, LSTM of 670, dense 96 without an
    activation, dense `vocabulary`: 10,000 words, padding 0, and three marks; 4,050,748 trainable parameters. It starts
    as `ShakespeareLSTM` does, and its second LSTM bias is frozen at zero too.

    >>> sum(leaf.numel() for leaf in StackOverflowLSTM().parameters() if leaf.requires_grad)
    4050748
    """

    def __init__(self, vocabulary: int = 10_004) -> None:
        super().__init__()
        check_sizes("StackOverflowLSTM", vocabulary=vocabulary)
        self.embedding = nn.Embedding(vocabulary, 96)
        self.lstm = nn.LSTM(96, 670, batch_first=True)
        self.projection = nn.Linear(670, 96)
        self.out = nn.Linear(96, vocabulary)
        _draw(self, self.embedding, self.lstm)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens("StackOverflowLSTM", x)))
        scores: Tensor = self.out(self.projection(_repeat_last(states, x)))
        return scores.transpose(1, 2)


class BiLSTM(nn.Module):
    """A text's class from word vectors that do not train: FedGLAD (Yang et al. 2023), 20News and AGNews.

    Takes (batch, time), returns logits (batch, classes). `embedding`: the matrix of word vectors, row 0 for padding,
    or a number of words, which get 300 random numbers each. One LSTM layer of 300 each way (PyTorch's, with two
    biases; 1,444,800 parameters with 300 numbers a word), the output at the last word, dropout 0.2, dense `classes`
    (12,020 for 20 classes, 2,404 for 4). PyTorch's default initial values.

    As in the paper's code the LSTM runs over the padding too, so that of the text the backward half of that output has
    read the last word alone. A text without a word has the bias for its logits.

    >>> sum(leaf.numel() for leaf in BiLSTM(50, 20).parameters() if leaf.requires_grad)
    1456820
    """

    def __init__(self, embedding: Tensor | int, classes: int) -> None:
        super().__init__()
        check_sizes("BiLSTM", classes=classes)
        if isinstance(embedding, Tensor):
            if embedding.dim() != 2 or not embedding.is_floating_point():
                raise FedloomError(
                    "BiLSTM embedding: expected a matrix of floating-point numbers, one row per word, got shape "
                    f"{tuple(embedding.shape)} of type {str(embedding.dtype).split('.')[-1]}"
                )
            self.embedding = nn.Embedding.from_pretrained(embedding.detach())
        else:
            check_sizes("BiLSTM", embedding=embedding)
            self.embedding = nn.Embedding(embedding, 300, padding_idx=0).requires_grad_(False)
        self.lstm = nn.LSTM(self.embedding.embedding_dim, 300, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(600, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens("BiLSTM", x)))
        logits: Tensor = self.out(self.dropout(_last(states, x)))
        return logits


def _last(states: Tensor, x: Tensor) -> Tensor:
    """Each row's state at its last token that is no padding; zero where there is none."""
    here = torch.arange(x.shape[1], device=x.device) == (x != 0).sum(1, keepdim=True) - 1
    return (states * here.unsqueeze(2)).sum(1)


def _repeat_last(states: Tensor, x: Tensor) -> Tensor:
    """The states, with the last real one in all padded places."""
    return torch.where((x != 0).unsqueeze(2), states, _last(states, x).unsqueeze(1))


def _draw(model: nn.Module, embedding: nn.Embedding, lstm: nn.LSTM) -> None:
    nn.init.uniform_(embedding.weight, -0.05, 0.05)
    initial.keras_lstm_(lstm, initial.he_normal_)
    initial.kernels_(model, initial.glorot_normal_)
