"""Initial values as Keras and TensorFlow draw them. PyTorch's own differ: Keras's normal initialisers are truncated."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.init import _calculate_fan_in_and_fan_out

# The standard deviation of a standard normal that is cut at two standard deviations.
TRUNCATED_STD = 0.87962566103423978


def truncated_normal_(leaf: Tensor, std: float) -> Tensor:
    """TensorFlow's `truncated_normal`: N(0, std^2) without what lies beyond 2 std; its own deviation is 0.88 std."""
    return nn.init.trunc_normal_(leaf, std=std, a=-2 * std, b=2 * std)


def glorot_normal_(leaf: Tensor) -> Tensor:
    """Keras's `glorot_normal`: truncated at two deviations and widened to variance 2 / (fan_in + fan_out)."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(leaf)
    return truncated_normal_(leaf, math.sqrt(2 / (fan_in + fan_out)) / TRUNCATED_STD)


def he_normal_(leaf: Tensor) -> Tensor:
    """Keras's `he_normal`: truncated at two deviations and widened to variance 2 / fan_in."""
    fan_in, _ = _calculate_fan_in_and_fan_out(leaf)
    return truncated_normal_(leaf, math.sqrt(2 / fan_in) / TRUNCATED_STD)


def kernels_(module: nn.Module, draw: Callable[[Tensor], Tensor]) -> None:
    """Draw the kernel of every convolution and dense layer, and set their biases to zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            draw(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def keras_lstm_(lstm: nn.LSTM, draw: Callable[[Tensor], Tensor]) -> None:
    """Keras's LSTM: a kernel by `draw`, an orthogonal recurrent kernel, a bias of 1 for the forget gate, 0 elsewhere.

    PyTorch adds a second bias to every gate. Here it is zero and frozen: it neither trains nor travels. Both libraries
    order the gates as input, forget, cell, output.
    """
    for name, leaf in lstm.named_parameters():
        if name.startswith("weight_ih"):
            draw(leaf)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(leaf)
        else:
            nn.init.zeros_(leaf)
            if name.startswith("bias_ih"):
                nn.init.ones_(leaf.detach()[lstm.hidden_size : 2 * lstm.hidden_size])
            else:
                leaf.requires_grad_(False)
