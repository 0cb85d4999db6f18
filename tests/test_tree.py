"""Trees of tensors: sums that do not see their neighbours, and the flat matrix a stack becomes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedloom import tree
from fedloom.tree import Layout


def randn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


sizes = st.integers(1, 70) | st.sampled_from([127, 128, 129, 1000, 4097])
dtypes = st.sampled_from([torch.float32, torch.float64])


@given(seed=st.integers(0, 10**6), size=sizes, rows=st.integers(1, 9), dtype=dtypes, data=st.data())
def test_a_rows_total_does_not_see_the_other_rows(
    seed: int, size: int, rows: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    """Alone, in any stack, in any order, over more axes or fewer: the same bits."""
    x = randn(seed, rows, size, dtype=dtype)
    totals = tree.total(x, lead=1)
    assert totals.shape == (rows,)
    for row, total in zip(x, totals, strict=True):
        assert same_bits(tree.total(row), total)
    order = torch.tensor(data.draw(st.permutations(range(rows))))
    assert same_bits(tree.total(x[order], lead=1), totals[order])
    part = data.draw(st.integers(1, rows))
    assert same_bits(tree.total(x[:part], lead=1), totals[:part])
    assert same_bits(tree.total(x.unsqueeze(0), lead=2)[0], totals)
    assert same_bits(torch.func.vmap(tree.total)(x), totals)
    strided = torch.stack([x, x], dim=-1)[..., 0]
    assert same_bits(tree.total(strided, lead=1), totals)


@given(seed=st.integers(0, 10**6), size=sizes)
def test_totals_are_sums(seed: int, size: int) -> None:
    x = randn(seed, size)
    exact = math.fsum(x.tolist())
    assert float(tree.total(x)) == pytest.approx(exact, rel=1e-12, abs=1e-13 * size)
    assert same_bits(tree.total(x.reshape(1, size, 1)), tree.total(x))


@given(count=st.integers(0, 300))
def test_totals_of_integers_are_exact(count: int) -> None:
    """No entry is lost or counted twice at any length."""
    x = torch.tensor([2.0**0] * count + [3.0], dtype=torch.float64)
    assert float(tree.total(x)) == count + 3
    assert float(tree.total(torch.arange(count, dtype=torch.float64))) == count * (count - 1) / 2


def test_totals_do_not_depend_on_threads() -> None:
    x = randn(0, 8, 100_001)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = tree.total(x, lead=1)
        torch.set_num_threads(2)
        assert same_bits(tree.total(x, lead=1), alone)
        for row, total in zip(x, alone, strict=True):
            assert same_bits(tree.total(row), total)
    finally:
        torch.set_num_threads(threads)


def test_totals_leave_their_argument_alone() -> None:
    for size in (1, 2, 3, 7):
        x = randn(1, 2, size)
        before = x.clone()
        tree.total(x, lead=1)
        assert same_bits(x, before)


def test_totals_of_nothing_and_of_one_number() -> None:
    assert float(tree.total(torch.zeros(0))) == 0
    assert tree.total(torch.zeros(2, 0), lead=1).tolist() == [0, 0]
    assert float(tree.total(torch.tensor(3.0))) == 3
    assert tree.total(torch.tensor([3.0, 4.0]), lead=1).tolist() == [3, 4]


def test_map_dot_and_norm() -> None:
    a = {"w": torch.tensor([[3.0, 0.0]]), "b": torch.tensor(4.0)}
    b = {"b": torch.tensor(2.0), "w": torch.tensor([[1.0, 5.0]])}
    assert float(tree.dot(a, b)) == 11
    assert float(tree.norm(a)) == 5
    assert list(tree.map(torch.add, a, b)) == ["w", "b"]
    assert tree.map(torch.add, a, b)["w"].tolist() == [[4.0, 5.0]]
    assert float(tree.norm({})) == 0
    zeros = tree.zeros_like(a)
    assert float(tree.norm(zeros)) == 0
    assert {name: leaf.shape for name, leaf in zeros.items()} == {name: leaf.shape for name, leaf in a.items()}


def test_map_state_reaches_every_tensor() -> None:
    state = ({"m": {"w": torch.ones(2)}, "count": 3}, (), {"rho": 0.5, "none": None}, torch.tensor(1.0))
    doubled = tree.map_state(lambda x: 2 * x, state)
    assert doubled[0]["m"]["w"].tolist() == [2, 2]
    assert doubled[0]["count"] == 3
    assert doubled[1:3] == ((), {"rho": 0.5, "none": None})
    assert float(doubled[3]) == 2
    chosen = tree.map_state(lambda x, y: torch.where(torch.tensor(True), x, y), state, doubled)
    assert chosen[0]["m"]["w"].tolist() == [1, 1]


def test_first_nonfinite_names_the_leaf() -> None:
    good = {"w": torch.ones(2), "n": torch.tensor(3)}
    assert tree.first_nonfinite(good) is None
    assert tree.first_nonfinite(good | {"b": torch.tensor([1.0, math.nan])}) == "b"
    assert tree.first_nonfinite({"a": torch.tensor(math.inf)} | good) == "a"


shapes = st.dictionaries(
    st.sampled_from(["w", "b", "s", "conv.weight"]), st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1
)


@given(shapes=shapes, rows=st.integers(0, 4), seed=st.integers(0, 1000), dtype=dtypes)
def test_a_stack_becomes_a_matrix_and_back(
    shapes: dict[str, tuple[int, ...]], rows: int, seed: int, dtype: torch.dtype
) -> None:
    """Leaves without an axis of their own included."""
    stack = {name: randn(seed + i, rows, *shape, dtype=dtype) for i, (name, shape) in enumerate(shapes.items())}
    layout = Layout({name: torch.Size(shape) for name, shape in shapes.items()})
    assert layout.size == sum(math.prod(shape) for shape in shapes.values())
    flat = layout.flatten(dict(reversed(stack.items())))
    assert flat.dtype == torch.float64
    assert flat.shape == (rows, layout.size)
    for name, leaf in layout.unflatten(flat).items():
        assert same_bits(leaf, stack[name].double())
    squares = layout.squares(flat)
    for column, leaf in zip(squares.T, stack.values(), strict=True):
        torch.testing.assert_close(column, (leaf.double().reshape(rows, math.prod(leaf.shape[1:])) ** 2).sum(1))
    if rows:
        for name, leaf in layout.unflatten(flat[0]).items():
            assert same_bits(leaf, stack[name][0].double())


def test_layout_of_parameters_keeps_their_order() -> None:
    layout = Layout.of({"b": torch.zeros(2), "a": torch.zeros(1)})
    assert layout.flatten({"a": torch.tensor([[3.0]]), "b": torch.tensor([[1.0, 2.0]])}).tolist() == [[1, 2, 3]]


def test_flattening_lets_go_of_the_graph() -> None:
    stack = {"w": torch.ones(2, 3, requires_grad=True)}
    assert not Layout({"w": torch.Size([3])}).flatten(stack).requires_grad
