"""Batch norm over the real rows of a padded batch, local response norm, and the norms that `vmap` handles itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from stacks import assert_close, assert_same, assert_same_on_gpu, draw, operators, program
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedloom.lowering import stacked
from fedloom.lowering.convolution import Form

Leaves = dict[str, Tensor]


def kinds() -> list[tuple[nn.Module, tuple[int, ...]]]:
    return [
        (nn.BatchNorm1d(3), (3,)),
        (nn.BatchNorm1d(3, affine=False, momentum=0.3), (3, 4)),
        (nn.BatchNorm2d(3, eps=1e-3), (3, 4, 5)),
        (nn.BatchNorm2d(3, track_running_stats=False), (3, 2, 2)),
    ]


IDS = ["1d", "sequence", "2d", "untracked"]


def objective(
    module: nn.Module, mask: Tensor | None, params: Leaves, buffers: Leaves, x: Tensor, form: Form | None = None
) -> tuple[Tensor, Leaves]:
    buffers = {name: leaf.clone() for name, leaf in buffers.items()}
    with stacked(mask, form):
        y = functional_call(module, {**params, **buffers}, (x,))
    coefficients = torch.cos(torch.arange(y[0].numel(), dtype=y.dtype)).reshape(y.shape[1:])
    rows = (y * coefficients + y.pow(3)).flatten(1).sum(1)
    return (rows if mask is None else torch.where(mask, rows, 0.0)).sum(), buffers


@pytest.mark.parametrize("form", [None, "kernel"])
@pytest.mark.parametrize(("module", "shape"), kinds(), ids=IDS)
def test_padded_rows_change_nothing(module: nn.Module, shape: tuple[int, ...], form: Form | None) -> None:
    module = module.double()
    sizes = torch.tensor([3, 5, 4])  # of two rows the gradient by x cancels
    mask = torch.arange(5) < sizes[:, None]
    x = draw(3, 5, *shape)
    x[0, 3] = 1e6  # padding
    params = {name: draw(3, *leaf.shape, seed=2) for name, leaf in module.named_parameters()}
    buffers = {
        name: leaf.expand(3, *leaf.shape) + (draw(3, *leaf.shape, seed=3).abs() if leaf.is_floating_point() else 0)
        for name, leaf in module.named_buffers()
    }

    def one(mask: Tensor, params: Leaves, buffers: Leaves, x: Tensor) -> tuple[Tensor, tuple[Leaves, Tensor], Leaves]:
        (found, (_, after)) = torch.func.grad_and_value(
            lambda p, x: objective(module, mask, p, buffers, x, form), argnums=(0, 1), has_aux=True
        )(params, x)
        return found[1], (found[0], after), after

    stack = torch.func.vmap(one)
    program = make_fx(stack, tracing_mode="fake")(mask, params, buffers, x)
    for by_x, (by_params, after), _ in (stack(mask, params, buffers, x), program(mask, params, buffers, x)):
        for k, size in enumerate(sizes.tolist()):
            own = {name: leaf[k].detach().requires_grad_() for name, leaf in params.items()}
            rows = x[k, :size].detach().requires_grad_()
            value, expected = objective(module, None, own, {n: leaf[k] for n, leaf in buffers.items()}, rows)
            found = torch.autograd.grad(value, [rows, *own.values()])
            got = [by_x[k, :size], *[leaf[k] for leaf in by_params.values()]]
            assert_close(got, list(found), 1e-12)
            assert_close([after[name][k] for name in expected], [leaf.double() for leaf in expected.values()], 1e-12)
            assert not by_x[k, size:].any()


class Residual(nn.Module):
    """As in ResNet: what two convolutions and norms make of the input is added to it, or to what a third makes."""

    def __init__(self, shortcut: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(4, 3, 3, padding=1, bias=False)
        self.norm1, self.norm2 = (nn.BatchNorm2d(size, track_running_stats=False) for size in (4, 3))
        self.shortcut = nn.Sequential()
        if shortcut:
            self.shortcut = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3, track_running_stats=False))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.first(x)))
        y = self.norm2(self.second(y))
        return F.relu(self.shortcut(x) + y)


@pytest.mark.parametrize("shortcut", [False, True])
def test_a_norm_and_what_follows_it_are_one(shortcut: bool) -> None:
    """In a program: the sum and the ReLU are done where the norm is, and neither is written by itself."""
    x = draw(3, 4, 3, 5, 5)
    traced = program(Residual(shortcut), x)
    assert operators(traced).count("normalise") == 2 + shortcut
    assert "aten.relu" not in traced.code and "aten.add.Tensor(normalise" not in traced.code
    assert_same(Residual(shortcut), x, "kernel", traced=True)


class Changed(nn.Module):
    """Sums and ReLUs of something else than the last norm's result as it was."""

    def __init__(self, last: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.last = last
        self.norm = nn.BatchNorm2d(3, track_running_stats=False)
        self.product = nn.Conv2d(3, 3, 3, padding=1)  # its result lies as the kernels want it

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        broadcast = F.relu(y + y[:, :1]) + (y + x.float())
        doubled = torch.add(y, x, alpha=2)
        z = self.norm(2 * x)
        total = z + (other := x * x)
        other = other.mul_(2)
        after = F.relu(total)
        w = self.norm(3 * x)
        apart = F.relu(w.mul_(2)) + F.relu(F.relu(y) + x)
        made = self.product(x)
        cut = (made * 1).detach()
        frozen = F.batch_norm(cut, None, None, training=True)
        cut = cut.mul_(2).add_(1)  # what it was computed from
        return broadcast + doubled + after + other + apart + self.last(frozen, x) + cut + made


@pytest.mark.parametrize("last", [lambda y, _: F.relu(y), lambda y, x: F.relu(y + x)], ids=["relu", "sum"])
def test_what_a_norm_is_followed_by_is_respected(last: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, module = draw(3, 4, 3, 5, 5), Changed(last)
    assert_same(module, x, "kernel", traced=True)
    assert operators(program(module, x)).count("normalise") == 4  # and no other


def first_of(kept: Tensor, changed: Tensor) -> Tensor:
    return kept


class Viewed(nn.Module):
    """As tutorials have it: what the convolutions make is viewed as vectors."""

    def __init__(self, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, track_running_stats=False)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        y = 2 * self.norm(self.conv(x))
        flat = y.view(-1, y[0].numel())
        return self.change(y, flat).reshape(len(x), -1) + flat.view(len(x), 2, -1).flatten(1)


def _sees_bits() -> bool:
    """Whether `vmap` has a rule for numbers seen as others of their size: not in every torch."""
    try:
        torch.func.vmap(lambda x: x.view(torch.int64))(draw(2, 3))
    except RuntimeError:
        return False
    return True


SEES_BITS = pytest.mark.skipif(not _sees_bits(), reason="this torch's vmap has no rule for view(dtype)")


@pytest.mark.parametrize(
    "change",
    [
        lambda y, flat: y + 1,
        lambda y, flat: flat.mul_(2) + 1,
        pytest.param(lambda y, flat: flat.view(torch.int64) * 0.0, marks=SEES_BITS),
        pytest.param(lambda y, flat: flat.view(dtype=torch.int64) * 0.0, marks=SEES_BITS),
        lambda y, flat: y.view(size=(len(y), -1)),
    ],
)
def test_a_view_of_what_lies_otherwise_is_a_copy(change: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert_same(Viewed(change), draw(3, 4, 3, 5, 5), "kernel", traced=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda y, flat: flat.mul_(2) + y.flatten(1),
        lambda y, flat: y.mul_(2).flatten(1) + flat,
        lambda y, flat: torch.cat([first_of(y, F.relu(flat, inplace=True))] * 2)[: len(y)],
        lambda y, flat: first_of(flat, y.mul_(2)) + 1,
        lambda y, flat: first_of(y, y[:, :2].view(len(y), -1).mul_(2)) + 1,
    ],
    ids=["the view", "what is viewed", "in a list", "a part", "of a part"],
)
def test_a_view_that_is_changed_for_both_cannot_be_stacked(change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Never a wrong number: the model is left to the loop, with this reason."""
    with pytest.raises(RuntimeError, match="a view that is changed in place and read from elsewhere"):
        assert_same(Viewed(change), draw(3, 4, 3, 5, 5), "kernel")


def test_there_is_no_second_derivative_of_a_stack_of_images() -> None:
    def twice(x: Tensor) -> Tensor:
        def once(x: Tensor) -> Tensor:
            with stacked(form="kernel"):
                return F.batch_norm(x, None, None, training=True).pow(3).sum()

        return torch.func.grad(once)(x).pow(2).sum()

    with pytest.raises(NotImplementedError, match="first derivatives alone"):
        torch.func.vmap(torch.func.grad(twice))(draw(2, 4, 3, 5, 5))


def test_one_real_value_is_finite() -> None:
    module = nn.BatchNorm1d(2).double()
    mask = torch.tensor([True, False, False])
    with stacked(mask):
        y = module(draw(3, 2))
    assert y.isfinite().all() and module.running_var.isfinite().all()
    with stacked(mask & False):
        assert module(draw(3, 2)).isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shortcut", [False, True])
def test_a_norm_and_what_follows_it_on_a_gpu(shortcut: bool) -> None:
    assert_same_on_gpu(Residual(shortcut), draw(3, 40, 3, 19, 19), traced=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu() -> None:
    x, mask = draw(3, 5, 2, 4, 4).float(), torch.arange(5) < torch.tensor([[2], [5], [4]])

    def normed(x: Tensor, mask: Tensor) -> Tensor:
        with stacked(mask):
            return F.batch_norm(x, None, None, training=True)

    y = torch.func.vmap(normed)(x.cuda(), mask.cuda()).cpu()
    for k in range(3):
        real = x[k, mask[k]].double()
        torch.testing.assert_close(
            y[k, mask[k]].double(), F.batch_norm(real, None, None, training=True), rtol=0, atol=1e-5
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("module", "shape"), kinds(), ids=IDS)
def test_without_a_mask_on_a_gpu(module: nn.Module, shape: tuple[int, ...]) -> None:
    """There torch's own goes to a library for images: values, gradients and running statistics are a CPU's."""
    x = draw(2, 5, *shape).float()
    params = {name: draw(2, *leaf.shape, seed=2).float() for name, leaf in module.named_parameters()}
    buffers = {name: torch.stack([leaf, leaf]) for name, leaf in module.named_buffers()}

    def one(params: Leaves, buffers: Leaves, x: Tensor) -> tuple[Leaves, Leaves]:
        def value(params: Leaves) -> tuple[Tensor, Leaves]:
            after = {name: leaf.clone() for name, leaf in buffers.items()}
            with stacked():
                return functional_call(module, {**params, **after}, (x,)).pow(3).sum(), after

        return torch.func.grad(value, has_aux=True)(params)

    here = torch.func.vmap(one)(params, buffers, x)
    there = torch.func.vmap(one)(*torch.utils._pytree.tree_map(torch.Tensor.cuda, (params, buffers, x)))
    for found, expected in zip(there, here, strict=True):
        assert_close([found[name].cpu() for name in expected], [leaf.double() for leaf in expected.values()], 1e-3)


def test_without_a_mask_or_in_evaluation_it_is_left_alone() -> None:
    module, x = nn.BatchNorm1d(2).double(), draw(4, 2)
    with stacked(), pytest.raises(ValueError, match="more than 1 value"):
        module(x[:1])
    module.eval()
    with stacked(torch.tensor([True, True, False, False])):
        masked = module(x)
    assert torch.equal(masked, module(x))


class Embedded(nn.Module):
    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3, padding_idx=padding)

    def forward(self, x: Tensor) -> Tensor:
        words = (x.detach() * 100).long().abs() % 7
        return self.embedding(words) * x.unsqueeze(-1)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.GroupNorm(2, 4), (5, 4, 3, 3)),
        (nn.LayerNorm(4), (5, 4)),
        (Embedded(None), (4, 5)),
        (Embedded(0), (4, 5)),
    ],
    ids=["group", "layer", "embedding", "embedding with padding"],
)
def test_what_vmap_does_well(module: nn.Module, shape: tuple[int, ...]) -> None:
    functorch = torch._C._functorch
    allowed = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        assert_same(module, draw(3, *shape), traced=True)
    finally:
        functorch._set_vmap_fallback_enabled(allowed)


@pytest.mark.parametrize("form", [None, "kernel"])
def test_a_mask_of_other_rows_is_refused(form: Form | None) -> None:
    """A kernel would read past its end."""
    mask = torch.tensor([True, False])
    with stacked(mask, form), pytest.raises(ValueError, match="batch norm of 6 rows made of a batch of 2"):
        nn.BatchNorm2d(3)(draw(6, 3, 2, 2).float())
