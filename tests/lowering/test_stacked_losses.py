"""Cross-entropy in a stack: torch's numbers and gradients, in operations that need no taking apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stacks import draw
from torch import Tensor
from torch.nn import functional as F

from fedloom.lowering import stacked
from fedloom.lowering.losses import cross_entropy


def classes(*shape: int, ignored: int | None = None) -> Tensor:
    drawn = torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(0))
    return drawn if ignored is None else torch.where(drawn == 1, ignored, drawn)


@pytest.mark.parametrize("positions", [(), (7,), (3, 2)])
@pytest.mark.parametrize("ignored", [None, -100, 4])
def test_values_and_gradients_are_torchs(positions: tuple[int, ...], ignored: int | None) -> None:
    scores, target = draw(3, 6, 5, *positions), classes(3, 6, *positions, ignored=ignored)
    options: dict[str, Any] = {"reduction": "none"} | ({} if ignored is None else {"ignore_index": ignored})

    def total(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        with stacked():
            losses = F.cross_entropy(scores, target, **options)
        return (losses * losses.detach().cos()).sum(), losses

    gradient, losses = torch.func.vmap(torch.func.grad(total, has_aux=True))(scores, target)
    for k in range(3):
        own = scores[k].clone().requires_grad_()
        expected = F.cross_entropy(own, target[k], **options)
        (expected * expected.detach().cos()).sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(losses[k], expected.detach(), rtol=1e-15, atol=0)
        torch.testing.assert_close(gradient[k], own.grad, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize(
    "options",
    [{}, {"reduction": "sum"}, {"weight": torch.ones(5)}, {"label_smoothing": 0.1}, {"reduce": False}],
    ids=lambda options: ", ".join(options) or "mean",
)
def test_all_else_is_left_to_torch(options: dict[str, Any]) -> None:
    given = {"reduction": "none"} | options if options else {}
    assert cross_entropy(torch.zeros(6, 5), classes(6), **given) is None


def test_probabilities_and_single_rows_are_left_to_torch() -> None:
    assert cross_entropy(torch.zeros(6, 5), torch.full((6, 5), 0.2), reduction="none") is None
    assert cross_entropy(torch.zeros(5), classes(), reduction="none") is None
