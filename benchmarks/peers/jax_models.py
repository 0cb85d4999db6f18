"""The workloads' models and loss in JAX. Parameters have PyTorch's names and JAX's layout: (in, out), HWIO."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from workloads import Arrays, Workload

Params = dict[str, Array]


def from_torch(params: Arrays) -> Params:
    """PyTorch's layout to JAX's."""
    return {name: jnp.asarray(_turned(name, array, back=False)) for name, array in params.items()}


def to_torch(params: Params) -> Arrays:
    """JAX's layout to PyTorch's."""
    return {name: np.ascontiguousarray(_turned(name, np.asarray(leaf), back=True)) for name, leaf in params.items()}


def _turned(name: str, array: np.ndarray, back: bool) -> np.ndarray:
    if name.startswith("conv") and array.ndim == 4:  # OIHW <-> HWIO
        return array.transpose(3, 2, 0, 1) if back else array.transpose(2, 3, 1, 0)
    if name == "hidden.weight":  # its inputs are 64 x 12 x 12 there, 12 x 12 x 64 here
        if back:
            return array.reshape(12, 12, 64, 128).transpose(3, 2, 0, 1).reshape(128, 9216)
        return array.reshape(128, 64, 12, 12).transpose(2, 3, 1, 0).reshape(9216, 128)
    return array.T if array.ndim == 2 and not name.startswith("embedding") else array


def data(workload: Workload, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images with channels last, whole numbers in 32 bits."""
    if workload.model == "cnn":
        return np.ascontiguousarray(np.moveaxis(x, -3, -1)), y.astype(np.int32)
    return x.astype(np.int32) if workload.model == "lstm" else x, y.astype(np.int32)


def loss(workload: Workload, params: Params, x: Array, y: Array, key: Array) -> Array:
    """The mean cross-entropy over a batch, and over the characters in it."""
    scores = _SCORES[workload.model](params, x, key if workload.dropout else None)
    chosen = jnp.take_along_axis(scores, y[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(scores, -1) - chosen).mean()


def _cnn(params: Params, x: Array, key: Array | None) -> Array:
    first, second = (None, None) if key is None else jax.random.split(key)
    x = jax.nn.relu(_convolve(x, params["conv1.weight"]) + params["conv1.bias"])
    x = jax.nn.relu(_convolve(x, params["conv2.weight"]) + params["conv2.bias"])
    n, height, width, channels = x.shape
    x = x.reshape(n, height // 2, 2, width // 2, 2, channels).max((2, 4))
    x = _drop(x, 0.25, first).reshape(n, -1)
    x = _drop(jax.nn.relu(x @ params["hidden.weight"] + params["hidden.bias"]), 0.5, second)
    return x @ params["out.weight"] + params["out.bias"]


def _regression(params: Params, x: Array, key: Array | None) -> Array:
    return x @ params["out.weight"] + params["out.bias"]


def _lstm(params: Params, x: Array, key: Array | None) -> Array:
    hidden = params["embedding.weight"][x].swapaxes(0, 1)  # time first
    for layer in ("l0", "l1"):
        bias = params[f"lstm.bias_ih_{layer}"] + params[f"lstm.bias_hh_{layer}"]
        inputs = hidden @ params[f"lstm.weight_ih_{layer}"] + bias
        zero = jnp.zeros((inputs.shape[1], 256), jnp.float32)
        _, hidden = lax.scan(_cell(params[f"lstm.weight_hh_{layer}"]), (zero, zero), inputs)
    return hidden.swapaxes(0, 1) @ params["out.weight"] + params["out.bias"]


def _cell(recurrent: Array):
    def step(carry: tuple[Array, Array], inputs: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, cell = carry
        enter, forget, new, leave = jnp.split(inputs + hidden @ recurrent, 4, -1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(leave) * jnp.tanh(cell)
        return (hidden, cell), hidden

    return step


def _convolve(x: Array, kernel: Array) -> Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _drop(x: Array, rate: float, key: Array | None) -> Array:
    if key is None:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


_SCORES = {"cnn": _cnn, "regression": _regression, "lstm": _lstm}
