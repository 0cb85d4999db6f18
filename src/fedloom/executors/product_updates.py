"""Plain steps of dense layers, in a traced program, as one product each that is subtracted where the weights lie.

A dense layer's gradient is a matrix product as large as its weights, and so is that of a convolution by patches.
Written out, it costs a stack of clients a pass over memory to write and another to read, beside those over the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

_ATEN = torch.ops.aten
_VIEWS = (_ATEN.transpose.int, _ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.permute.default)


@torch.library.custom_op("fedloom::subtract_product", mutates_args=("place",))
def subtract_product(place: Tensor, a: Tensor, b: Tensor) -> None:
    """`place -= a @ b` for each client of a stack, the place seen as the matrix that it is in memory."""
    clients, rows, columns = a.shape[0], a.shape[1], b.shape[2]
    place.as_strided((clients, rows, columns), (rows * columns, columns, 1)).baddbmm_(a, b, alpha=-1)


@subtract_product.register_fake
def _(place: Tensor, a: Tensor, b: Tensor) -> None:
    return None


def subtract_products(traced: GraphModule) -> GraphModule:
    """`place.copy_(place - rate * (a @ b))` becomes `place -= (rate * a) @ b`, where `a` is the smaller by far.

    With clients that have finished, `where(active, ..., place)`, theirs is zero.
    """
    graph = traced.graph
    for copy in [node for node in graph.nodes if node.target is _ATEN.copy_.default]:
        place, value = copy.args
        active = None
        chosen = _read(value, _ATEN.where.self)
        if chosen[-1] is place:
            active, value, _ = chosen
        found = _step(place, value)
        if found is None:
            continue
        a, b, rate = found
        with graph.inserting_before(copy):
            a = graph.call_function(_ATEN.mul.Tensor, (a, _by_client(graph, rate)))
            if active is not None:
                a = graph.call_function(_ATEN.where.ScalarOther, (_by_client(graph, active), a, 0))
            graph.call_function(torch.ops.fedloom.subtract_product.default, (place, a, b))
        graph.erase_node(copy)
    graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _by_client(graph: Graph, node: Node) -> Node:
    return graph.call_function(_ATEN.view.default, (node, [-1, 1, 1]))


def _step(place: Any, value: Any) -> tuple[Node, Node, Node] | None:
    """a, b and the rates, where the value is `place - rate * (a @ b)` and nobody else reads what is between."""
    before, scaled = _read(value, _ATEN.sub.Tensor)
    if before is not place or place.op != "placeholder" or value.kwargs:
        return None
    gradient, rate = _read(scaled, _ATEN.mul.Tensor)
    product = gradient
    while (seen := _read(product, *_VIEWS)[0]) is not None:
        product = seen
    a, b = _read(product, _ATEN.bmm.default)
    if a is None or not isinstance(rate, Node):
        return None
    whole, there, here, rates = (node.meta["val"] for node in (product, gradient, place, rate))
    as_it_lies = whole.is_contiguous() and there.shape == here.shape and there.stride() == here.stride()
    by_client = all(size == 1 for size in rates.shape[1:])
    alike = whole.dtype == here.dtype == rates.dtype
    smaller = 2 * a.meta["val"].numel() <= whole.numel()
    return (a, b, rate) if as_it_lies and by_client and alike and smaller else None


def _read(node: Any, *targets: Any) -> Any:
    """What an operation reads, where it is one of these and a single one reads its result; else two times nothing."""
    found = isinstance(node, Node) and node.target in targets and len(node.users) == 1
    return node.args if found else (None, None)
