"""Sequence models: padding is masked as Keras masks it, and the LSTM is the one Keras has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedloom import models


def keras_lstm(lstm: nn.LSTM, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    """Keras's cell, step by step, with one bias; a masked step repeats the output and carries the state through."""
    kernel, recurrent, bias = (getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih"))
    hidden = cell = output = x.new_zeros(len(x), lstm.hidden_size)
    outputs = []
    for step in range(x.shape[1]):
        i, f, c, o = (x[:, step] @ kernel.T + hidden @ recurrent.T + bias).chunk(4, 1)
        next_cell = f.sigmoid() * cell + i.sigmoid() * c.tanh()
        next_hidden = o.sigmoid() * next_cell.tanh()
        real = mask[:, step, None]
        output = torch.where(real, next_hidden, output)
        hidden, cell = torch.where(real, next_hidden, hidden), torch.where(real, next_cell, cell)
        outputs.append(output)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("name", ["shakespeare", "stackoverflow"])
def test_outputs_are_those_of_masked_keras_layers(name: str) -> None:
    torch.manual_seed(0)
    model = models.ShakespeareLSTM(12) if name == "shakespeare" else models.StackOverflowLSTM(12)
    x = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 0, 0, 0], [0, 0, 0, 0, 0]])
    with torch.no_grad():
        states, mask = model.embedding(x), x != 0
        for layer in range(model.lstm.num_layers):
            states = keras_lstm(model.lstm, layer, states, mask)
        if isinstance(model, models.StackOverflowLSTM):
            states = model.projection(states)
        made = model(x)
        assert made.shape == (3, 12, 5)
        torch.testing.assert_close(made, model.out(states).transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_padding_changes_nothing_before_it() -> None:
    model, x = models.ShakespeareLSTM(), torch.randint(1, 90, (1, 6))
    with torch.no_grad():
        alone, padded = model(x), model(nn.functional.pad(x, (0, 4)))
    torch.testing.assert_close(padded[:, :, :6], alone)
    torch.testing.assert_close(padded[:, :, 6:], alone[:, :, 5:].expand(-1, -1, 4))


def test_the_state_at_the_last_word_decides() -> None:
    torch.manual_seed(0)
    model = models.BiLSTM(20, 3).eval()
    x = torch.tensor([[5, 6, 7, 0, 0], [1, 2, 3, 4, 5], [0, 0, 0, 0, 0]])
    with torch.no_grad():
        states, _ = model.lstm(model.embedding(x))
        expected = model.out(torch.stack([states[0, 2], states[1, 4], torch.zeros(600)]))
        torch.testing.assert_close(model(x), expected)


def test_word_vectors_are_those_given_and_stay() -> None:
    vectors = torch.randn(20, 7)
    model = models.BiLSTM(vectors, 3)
    assert torch.equal(model.embedding.weight, vectors) and not model.embedding.weight.requires_grad
    assert model.lstm.input_size == 7
    drawn = models.BiLSTM(20, 3).embedding.weight
    assert drawn.shape == (20, 300) and not drawn[0].any() and not drawn.requires_grad
