"""Picture data sets: MNIST and its kin, QMNIST's writers, CIFAR, EMNIST; what each paper does to the pixels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data import cifar
from fedloom.data.augment import Augmentation
from fedloom.data.bounded import damaged
from fedloom.data.decoded import Arrays, decode
from fedloom.data.idx import read_idx, read_labels
from fedloom.data.places import Found, locate
from fedloom.data.source import Source
from fedloom.errors import FedloomError, choose

Folder = str | PathLike[str] | None
CHANNELS = {
    "mnist": ((0.1307,), (0.3081,)),
    "qmnist": ((0.1307,), (0.3081,)),
    "fashionmnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768)),
    "cifar100": ((0.50707516, 0.48654887, 0.44091784), (0.26733429, 0.25643846, 0.27615047)),
}
_DIGITS = {
    "plain": Augmentation(),
    "glad": Augmentation(),
    "symmetric": Augmentation(normalise=((0.5,), (0.5,))),  # pixels in [-1, 1]
}
STYLES: dict[str, dict[str, Augmentation]] = {
    **{
        name: {**_DIGITS, "fedadp": Augmentation(normalise=CHANNELS[name])}
        for name in ("mnist", "qmnist", "fashionmnist")
    },
    "cifar10": {
        "plain": Augmentation(),
        "hsu": Augmentation(crop=24, flip=True, jitter=True, whiten=True),
        "glad": Augmentation(pad=4, crop=32, flip=True, normalise=CHANNELS["cifar10"], cutout=16),
    },
    "cifar100": {
        "plain": Augmentation(),
        "reddi": Augmentation(crop=24, flip=True, whiten=True),
        "cohort": Augmentation(whiten=True),  # after the central crop
    },
}
_CHUNK = 256
_CENTRAL = {("cifar100", "cohort"): 24}


def prepare(
    name: str,
    train: npt.NDArray[np.uint8],
    test: npt.NDArray[np.uint8],
    *,
    style: str = "plain",
    normalise: bool | None = None,
    crop: int | None = None,
    flip: bool | None = None,
    jitter: bool | None = None,
    whiten: bool | None = None,
    cutout: int | None = None,
) -> tuple[Tensor, Tensor, Augmentation | None]:
    """Training pictures, test pictures, and what chance does to a batch, as a paper's `style` has it.

    An argument that is not None takes the place of the style's own. Without chance the pixels are made ready here; with
    it, training pictures stay in [0, 1] and the augmentation does the rest.
    """
    if style not in STYLES[name]:
        raise choose(f"load({name!r}), style", style, STYLES[name])
    recipe = STYLES[name][style]
    given = {"crop": crop, "flip": flip, "jitter": jitter, "whiten": whiten, "cutout": cutout}
    recipe = replace(recipe, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
    if crop is not None:
        recipe = replace(recipe, pad=0)
    if normalise is not None:
        recipe = replace(recipe, normalise=CHANNELS[name] if normalise else None)
    side = min(train.shape[-2:])
    if recipe.crop is not None and not 0 < recipe.crop <= side + 2 * recipe.pad:
        raise FedloomError(f"load({name!r}), crop: expected a whole number from 1 to {side}, got {crop!r}")
    if not 0 <= recipe.cutout <= side:
        raise FedloomError(f"load({name!r}), cutout: expected a whole number from 0 to {side}, got {cutout!r}")
    central = _CENTRAL.get((name, style)) if crop is None else None
    by_chance = recipe.random
    x = _numbers(_centre(train, central), Augmentation() if by_chance else recipe)
    return x, _numbers(_centre(test, central), recipe), recipe if by_chance else None


def _centre(pixels: npt.NDArray[np.uint8], size: int | None) -> npt.NDArray[np.uint8]:
    if size is None:
        return pixels
    top, left = (pixels.shape[-2] - size) // 2, (pixels.shape[-1] - size) // 2
    return pixels[..., top : top + size, left : left + size]


def _numbers(pixels: npt.NDArray[np.uint8], recipe: Augmentation) -> Tensor:
    """Bytes as numbers in [0, 1], then as a test sees them; a few at a time, which stay in the processor's cache."""
    pixels = _centre(pixels, None if recipe.pad else recipe.crop)
    result = torch.empty(pixels.shape)
    for start in range(0, len(pixels), _CHUNK):
        part = result[start : start + _CHUNK]
        np.divide(pixels[start : start + _CHUNK], np.float32(255), out=part.numpy())
        if recipe != Augmentation():
            part.copy_(recipe.plain(part))
    return result


def _one_channel(arrays: Mapping[str, npt.NDArray[Any]], split: str) -> npt.NDArray[np.uint8]:
    pictures: npt.NDArray[np.uint8] = arrays[f"{split}_x"][:, None]
    return pictures


def _read_mnist(found: Found, folder: str) -> Arrays:
    arrays: Arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = (found[f"{folder}/raw/{prefix}-{kind}-ubyte.gz"][0] for kind in ("images-idx3", "labels-idx1"))
        arrays[f"{split}_x"] = read_idx(images, 0x08, (None, 28, 28))
        arrays[f"{split}_y"] = read_labels(labels, 10)
        _same_length(labels, arrays[f"{split}_y"], arrays[f"{split}_x"])
    return arrays


def _same_length(path: Path, labels: npt.NDArray[Any], pictures: npt.NDArray[Any]) -> None:
    if len(labels) != len(pictures):
        raise damaged(path, f"{len(pictures)} labels, one per picture", f"{len(labels)}")


def _pictures(name: str, arrays: Arrays, pixels: dict[str, Any], **more: Any) -> Source:
    x, x_test, augment = prepare(name, _one_channel(arrays, "train"), _one_channel(arrays, "test"), **pixels)
    y, y_test = (arrays[f"{split}_y"].astype(np.int64) for split in ("train", "test"))
    return Source(x, y, test=(x_test, y_test), augment=augment, **more)


def _mnist_like(name: str, title: str) -> Callable[..., Source]:
    def read(
        folder: Folder = None,
        verify: bool = True,
        **pixels: Any,
    ) -> Source:
        layout, found = locate(name, folder)
        arrays = decode(name, layout, found, lambda: _read_mnist(found, title), {}, verify)
        return _pictures(name, arrays, pixels)

    read.__doc__ = f"{title}'s four IDX files, gzipped or not, pixels in [0, 1] unless `style` says otherwise."
    return read


mnist = _mnist_like("mnist", "MNIST")
fashionmnist = _mnist_like("fashionmnist", "FashionMNIST")


def qmnist(
    folder: Folder = None,
    verify: bool = True,
    task: str = "digits",
    **pixels: Any,
) -> Source:
    """MNIST's pictures with QMNIST's extended labels, whose third column is the writer (Yadav and Bottou 2019).

    `task="autoencoder"`: 784 numbers on a background of 0, which are their own target, as `emnist` has them.

    The writers of the 10,000 test pictures are others than the 539 of the training pictures: no client has test rows of
    its own, and those 297 are clients to test on.
    """
    if task not in ("digits", "autoencoder"):
        raise choose("load('qmnist'), task", task, ["digits", "autoencoder"])
    layout, found = locate("qmnist", folder)
    arrays = decode("qmnist", layout, found, lambda: _read_qmnist(found), {"writers": "both"}, verify)
    source = _pictures("qmnist", arrays, pixels, owners=arrays["train_writers"], test_owners=arrays["test_writers"])
    if task == "digits":
        return source
    x, x_test = source.x.flatten(1), source.test[0].flatten(1)
    return replace(source, x=x, y=x, test=(x_test, x_test))


def _read_qmnist(found: Found) -> Arrays:
    arrays = _read_mnist(found, "MNIST")
    for split in ("train", "test"):
        path = found[f"QMNIST/raw/qmnist-{split}-labels-idx2-int.gz"][0]
        table = read_idx(path, 0x0C, (None, 8))
        digits = arrays[f"{split}_y"]
        if len(table) < len(digits):
            raise damaged(path, f"at least {len(digits)} rows, one per picture of MNIST", f"{len(table)}")
        wrong = np.flatnonzero(table[: len(digits), 0] != digits)
        if wrong.size:
            row = int(wrong[0])
            raise damaged(path, f"class {digits[row]}, as MNIST has it, in row {row}", table[row, 0], 12 + 32 * row)
        arrays[f"{split}_writers"] = table[: len(digits), 2].astype(np.int32)
    return arrays


def cifar10(
    folder: Folder = None,
    verify: bool = True,
    layout: str | None = None,
    **pixels: Any,
) -> Source:
    """CIFAR-10. `style`: "plain" (pixels in [0, 1]), "hsu" (24 x 24, jitter, whitening), "glad" (32 x 32, Cutout)."""
    arrays = _cifar_arrays("cifar10", folder, layout, verify)
    x, x_test, augment = prepare("cifar10", arrays["train_x"], arrays["test_x"], **pixels)
    y, y_test = (arrays[f"{split}_label"].astype(np.int64) for split in ("train", "test"))
    return Source(x, y, test=(x_test, y_test), augment=augment)


def cifar100(
    folder: Folder = None,
    verify: bool = True,
    layout: str | None = None,
    target: str = "fine",
    **pixels: Any,
) -> Source:
    """CIFAR-100 with its fine or coarse labels as `target`; pachinko allocation reads both.

    `style`: "plain" (pixels in [0, 1]); "reddi" (random 24 x 24 crop and flip, whitening); "cohort" (central crop,
    whitening). Tests always see the central crop.
    """
    if target not in ("fine", "coarse"):
        raise choose("load('cifar100'), target", target, ["fine", "coarse"])
    arrays = _cifar_arrays("cifar100", folder, layout, verify)
    x, x_test, augment = prepare("cifar100", arrays["train_x"], arrays["test_x"], **pixels)
    y, y_test = (arrays[f"{split}_{target}"].astype(np.int64) for split in ("train", "test"))
    fine, coarse = (arrays[f"train_{label}"].astype(np.int64) for label in ("fine", "coarse"))
    below = arrays["test_fine"].astype(np.int64), arrays["test_coarse"].astype(np.int64)
    return Source(x, y, test=(x_test, y_test), coarse=coarse, fine=fine, test_tree=below, augment=augment)


def _cifar_arrays(name: str, folder: Folder, layout: str | None, verify: bool) -> Arrays:
    layout, found = locate(name, folder, layout)

    def read() -> Arrays:
        arrays: Arrays = {}
        for split in ("train", "test"):
            if layout == "strips":
                title = name.upper()
                strips = found[f"{title}/webp/*.webp"]
                records = cifar.read_strips(name, found[f"{title}/labels.npz"][0], strips, split, verify)
            else:
                paths = [paths[0] for path, paths in found.items() if ("test" in path) == (split == "test")]
                records = np.concatenate([cifar.read_records(name, path) for path in paths])
            pictures, labels = cifar.split_records(name, records)
            arrays[f"{split}_x"] = pictures
            arrays |= {f"{split}_{label}": column for label, column in labels.items()}
        return arrays

    return decode(name, layout, found, read, {}, verify)
