"""A stack of clients under a module's stacked forms, against a loop over clients with the ordinary module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedloom.lowering import stacked
from fedloom.lowering.convolution import Form

CLIENTS = 3
Leaves = dict[str, Tensor]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def leaves(module: nn.Module, clients: int = CLIENTS) -> Leaves:
    """Each client's own parameters, of the size that keeps layers of any width out of saturation."""
    named = list(module.named_parameters())
    widths = [leaf[0].numel() if leaf.dim() > 1 else 1 for _, leaf in named]
    return {
        name: draw(clients, *leaf.shape, seed=1 + k) / width**0.5
        for k, ((name, leaf), width) in enumerate(zip(named, widths, strict=True))
    }


def outputs(result: Any) -> list[Tensor]:
    """All tensors of a module's result, in order."""
    if isinstance(result, Tensor):
        return [result]
    return [leaf for part in result for leaf in outputs(part)]


def loss(module: nn.Module, params: Leaves, x: Tensor) -> Tensor:
    """A sum in which every number of the output has a coefficient of its own."""
    total = x.new_zeros(())
    for k, y in enumerate(outputs(functional_call(module, params, (x,)))):
        coefficients = torch.cos(torch.arange(y.numel(), dtype=y.dtype, device=y.device) + k)
        total = total + (y * coefficients.reshape(y.shape)).sum() + 0.1 * y.square().sum()
    return total


def gradient(module: nn.Module, form: Form | None = None) -> Callable[[Leaves, Tensor], Any]:
    """(params, x) -> ((gradient by params, by x), loss), with a client axis everywhere."""

    def objective(params: Leaves, x: Tensor) -> Tensor:
        with stacked(form=form):
            return loss(module, params, x)

    return torch.func.vmap(torch.func.grad_and_value(objective, argnums=(0, 1)))


def program(module: nn.Module, x: Tensor) -> GraphModule:
    """The stack's gradient as it is traced, without what nobody reads."""
    traced = make_fx(gradient(module.double(), "kernel"), tracing_mode="fake")(leaves(module), x)
    traced.graph.eliminate_dead_code()
    return traced


def operators(traced: GraphModule) -> list[str]:
    """The names of those of our own, in their order."""
    names = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    return [name.split(".")[1] for name in names if name.startswith("fedloom.")]


def ordinary(module: nn.Module, params: Leaves, x: Tensor) -> list[Any]:
    """The same by a loop over clients, one at a time."""
    pieces = []
    for k in range(len(x)):
        own = {name: leaf[k].detach().requires_grad_() for name, leaf in params.items()}
        features = x[k].detach().requires_grad_()
        value = loss(module, own, features)
        found = torch.autograd.grad(value, [*own.values(), features])
        pieces.append([*found, value.detach()])
    return [torch.stack(piece) for piece in zip(*pieces, strict=True)]


def flattened(result: Any) -> list[Tensor]:
    (by_params, by_x), value = result
    return [*by_params.values(), by_x, value]


def assert_close(got: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        scale = max(float(b.abs().max()), 1e-300)
        assert float((a.cpu().double() - b).abs().max()) <= tolerance * scale


def assert_same(module: nn.Module, x: Tensor, form: Form | None = None, traced: bool = False) -> None:
    """Loss and all gradients of the stack are the loop's; with `traced`, those of the traced program too."""
    module = module.double()
    params = leaves(module)
    expected = ordinary(module, params, x)
    stack = gradient(module, form)
    assert_close(flattened(stack(params, x)), expected, 1e-12)
    if traced:
        program = make_fx(stack, tracing_mode="fake")(params, x)
        assert_close(flattened(program(params, x)), expected, 1e-12)


def assert_same_on_gpu(
    module: nn.Module, x: Tensor, form: Form | None = None, tolerance: float = 5e-5, traced: bool = False
) -> None:
    """In float32 on the GPU, as a traced program or not, against the loop in float64 on the CPU."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        params = {name: leaf.float().double() for name, leaf in leaves(module).items()}
        x = x.float().double()
        expected = ordinary(module.double(), params, x)
        moved = {name: leaf.float().cuda() for name, leaf in params.items()}
        stack = gradient(module.float().cuda(), form)
        given = moved, x.float().cuda()
        found = make_fx(stack, tracing_mode="fake")(*given)(*given) if traced else stack(*given)
        assert_close(flattened(found), expected, tolerance)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
