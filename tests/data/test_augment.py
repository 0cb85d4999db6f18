"""Augmentation: the same in the loop and in the stack, row by row, and as the papers describe it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.data.augment import Augmentation, cutout, whiten
from fedloom.data.pictures import CHANNELS, STYLES
from fedloom.random import key

RECIPES = {f"{name}-{style}": recipe for name, styles in STYLES.items() for style, recipe in styles.items()}
RANDOM = {label: recipe for label, recipe in RECIPES.items() if recipe.random}


def pictures(*shape: int) -> Tensor:
    return torch.rand(*shape, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def test_which_styles_leave_it_to_chance() -> None:
    assert set(RANDOM) == {"cifar10-hsu", "cifar10-glad", "cifar100-reddi"}


@pytest.mark.parametrize("label", RANDOM)
def test_a_stack_of_batches_is_the_batches_one_by_one(label: str) -> None:
    recipe, x, keys = RANDOM[label], pictures(5, 7), key(0, 2, torch.arange(5), "augment")
    stacked = torch.func.vmap(recipe)(x, keys)
    single = torch.stack([recipe(batch, one) for batch, one in zip(x, keys, strict=True)])
    torch.testing.assert_close(stacked, single, rtol=1e-6, atol=1e-6)
    shared = torch.func.vmap(recipe, in_dims=(None, 0))(x[0], keys)
    torch.testing.assert_close(shared[0], single[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("label", RANDOM)
def test_a_row_does_not_depend_on_the_rows_that_follow(label: str) -> None:
    recipe, x, one = RANDOM[label], pictures(9), key(0, 0, 1, "augment")
    torch.testing.assert_close(recipe(x, one)[:4], recipe(x[:4], one), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(recipe(x, one), recipe(x, one), rtol=0, atol=0)
    assert not torch.equal(recipe(x, one), recipe(x, key(0, 1, 1, "augment")))


@pytest.mark.parametrize("label", RANDOM)
def test_gradients_pass(label: str) -> None:
    x = pictures(2).requires_grad_()
    RANDOM[label](x, torch.tensor(5)).square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_every_crop_and_both_flips_come_up() -> None:
    place = torch.arange(32.0 * 32).reshape(1, 1, 32, 32).expand(4000, 1, 32, 32)
    corners = Augmentation(crop=24, flip=True)(place, torch.tensor(11))
    windows = corners[:, 0, :, :2]
    flipped = windows[:, 0, 0] > windows[:, 0, 1]
    assert 0.45 < flipped.float().mean() < 0.55
    left_top = corners[~flipped][:, 0, 0, 0]
    assert set(left_top.long().tolist()) == {32 * row + column for row in range(9) for column in range(9)}
    assert torch.equal(corners[flipped][0, 0].flip(1)[0].diff(), torch.ones(23))


def test_padding_is_black_and_crops_stay_whole() -> None:
    x = torch.ones(500, 3, 32, 32)
    cropped = Augmentation(pad=4, crop=32)(x, torch.tensor(2))
    assert cropped.shape == x.shape
    kept = cropped[:, 0].sum((1, 2)) / 32**2
    assert kept.min() == (28 / 32) ** 2 and kept.max() == 1


def test_cutout_is_a_square_cut_off_at_the_edge() -> None:
    holes = cutout(torch.ones(3000, 1, 32, 32), torch.randint(2**62, (3000, 2)), 16) == 0
    rows, columns = holes.any(3).sum(2).flatten(), holes.any(2).sum(2).flatten()
    assert torch.equal(holes.sum((1, 2, 3)), rows * columns)
    assert rows.min() == columns.min() == 8 and rows.max() == columns.max() == 16


def test_whitening_has_the_same_bits_on_every_processor() -> None:
    """The root of a variance is the nearest number, as NumPy's is and torch's own is on some processors only."""
    x = torch.rand(200, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    centred = x - x.mean((1, 2, 3), keepdim=True)
    root = np.sqrt(centred.square().mean((1, 2, 3), keepdim=True).numpy())
    assert np.array_equal(whiten(x).numpy(), centred.numpy() / root)


def test_whitening_of_a_flat_picture_is_zero() -> None:
    x = torch.cat([torch.full((1, 3, 24, 24), 0.3), pictures(3)[..., :24, :24]])
    white = whiten(x)
    assert white[0].abs().max() < 1e-2
    torch.testing.assert_close(white[1:].mean((1, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(white[1:].std((1, 2, 3), correction=0), torch.ones(3))
    low = torch.zeros(1, 1, 2, 2)
    low[0, 0, 0, 0] = 1 / 255  # TensorFlow's: pixels 1, 0, 0, 0 have a deviation of 0.433, raised to 1 / sqrt(4)
    torch.testing.assert_close(whiten(low).flatten(), torch.tensor([1.5, -0.5, -0.5, -0.5]))


def test_what_a_test_sees() -> None:
    x = pictures(2)
    assert torch.equal(Augmentation(crop=24).plain(x), x[..., 4:28, 4:28])
    mean, std = (torch.tensor(part)[:, None, None] for part in CHANNELS["cifar10"])
    torch.testing.assert_close(STYLES["cifar10"]["glad"].plain(x), (x - mean) / std)


def test_jitter_stays_within_its_bounds() -> None:
    x = torch.full((2000, 3, 8, 8), 0.5)
    x[..., 0] = 0.7
    moved = Augmentation(jitter=True)(x, torch.tensor(1))
    shift = moved.mean((1, 2, 3)) - x.mean()
    assert shift.abs().max() <= 63 / 255 + 1e-5 and shift.abs().max() > 0.24
    contrast = (moved[..., 0] - moved[..., 1]).mean((1, 2)) / 0.2
    assert 0.19 < contrast.min() < 0.22 and 1.78 < contrast.max() < 1.81


def test_double_stays_double() -> None:
    for recipe in RANDOM.values():
        assert recipe(pictures(2).double(), torch.tensor(1)).dtype == torch.float64


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
def test_compiled_as_one_graph() -> None:
    recipe, x, keys = RANDOM["cifar10-glad"], pictures(3, 4), key(0, 2, torch.arange(3), "augment")
    stacked = torch.func.vmap(lambda batch, one: recipe(batch, one))
    torch.testing.assert_close(torch.compile(stacked, fullgraph=True)(x, keys), stacked(x, keys))


@pytest.mark.parametrize("name", list(RANDOM))
def test_training_is_the_same_in_the_loop_and_in_the_stack(name: str) -> None:
    """Clients of different sizes, so that rows are padded; the model sees what the recipe makes of them."""
    recipe = RANDOM[name]
    x = pictures(27).double()
    y = torch.arange(27) % 3
    parts = [list(range(4)), list(range(4, 16)), list(range(16, 27))]
    data = fl.federate(x, y, parts, test=(recipe.plain(x), y), augment=recipe)
    flat = recipe.plain(x).flatten(1).shape[1]
    task = fl.Task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(flat, 3)))
    runs = [
        fl.simulate(task, data, fl.fedavg(0.01), 2, 3, batch_size=5, executor=executor, dtype=torch.float64)
        for executor in ("loop", "vectorized")
    ]
    assert runs[1].resolved["executor"] == "vectorized"
    torch.testing.assert_close(runs[0].params, runs[1].params, rtol=1e-9, atol=1e-12)
    plain = fl.simulate(
        task, fl.federate(recipe.plain(x), y, parts), fl.fedavg(0.01), 2, 3, batch_size=5, dtype=torch.float64
    )
    assert not torch.allclose(plain.params["1.weight"], runs[0].params["1.weight"])
