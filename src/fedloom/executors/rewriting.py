"""Rewrites of a traced step that leave its numbers as they are, and take fewer passes over memory.

A step ends by writing every result back in its place. Both rewrites have to do with `place.copy_(place - step)`: as
traced, the place is changed where it lies; before it is compiled, the plain step of a dense layer, or of a convolution
by patches, becomes one product that is subtracted there. Its gradient is as large as the weights, and would be written
and read beside them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

_ATEN = torch.ops.aten
_FRESH = (_ATEN.mul.Tensor, _ATEN.mul_.Tensor, _ATEN.add.Tensor, _ATEN.div.Tensor)
_PRODUCTS = (_ATEN.bmm.default, _ATEN.mm.default)
_VIEWS = (_ATEN.transpose.int, _ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.t.default, _ATEN.permute.default)


def in_place(traced: GraphModule) -> GraphModule:
    """The same bits: a gradient is scaled, and a place updated, where it lies."""
    graph = traced.graph
    for node in list(graph.nodes):
        if node.target is _ATEN.mul.Tensor and _own_product(node.args[0]) and _alike(node, node.args[0]):
            node.target = _ATEN.mul_.Tensor
    for copy in _copies(graph):
        place = copy.args[0]
        step = _subtracted(place, copy.args[1])
        # a step that is a result of its own shares no memory with any place
        if step is not None and step.target in _FRESH and _alike(step, place):
            with graph.inserting_before(copy):
                graph.call_function(_ATEN.sub_.Tensor, (place, step))
            graph.erase_node(copy)
    return _cleaned(traced)


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

    With clients that have finished, `where(active, ..., place)`, both their factors are zero: one may not be finite.
    """
    graph = traced.graph
    copies = _copies(graph)
    written = {copy.args[0] for copy in copies}
    for copy in copies:
        active: Any = None
        place, value = copy.args
        if isinstance(value, Node) and value.target is _ATEN.where.self and value.args[2] is place:
            active, value = (value.args[0], value.args[1]) if len(value.users) == 1 else (None, None)
        found = _product(place, value)
        if found is None or any(_root(node) in written for node in (*found, active)):
            continue
        a, b, rate = found
        if active is not None and 2 * b.meta["val"].numel() > place.meta["val"].numel():
            continue  # as long a pass as the one it would save
        with graph.inserting_before(copy):
            a = graph.call_function(_ATEN.mul.Tensor, (a, _by_client(graph, rate)))
            if active is not None:
                at_work = _by_client(graph, active)
                a, b = (graph.call_function(_ATEN.where.ScalarOther, (at_work, each, 0)) for each in (a, b))
            graph.call_function(torch.ops.fedloom.subtract_product.default, (place, a, b))
        graph.erase_node(copy)
    return _cleaned(traced)


def hands_on(traced: GraphModule) -> bool:
    """Whether a place is given what another one held."""
    kept = [_root(copy.args[1]) for copy in _copies(traced.graph)]
    sources = [_root(node.args[0]) for node in kept if isinstance(node, Node) and node.target is _ATEN.clone.default]
    return any(isinstance(source, Node) and source.op == "placeholder" for source in sources)


def _cleaned(traced: GraphModule) -> GraphModule:
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _copies(graph: Graph) -> list[Any]:
    """What is written to the program's inputs, and read by nobody afterwards."""
    nodes = [node for node in graph.nodes if node.target is _ATEN.copy_.default and not node.users]
    return [node for node in nodes if isinstance(node.args[0], Node) and node.args[0].op == "placeholder"]


def _subtracted(place: Node, value: Any) -> Node | None:
    """The step, where the value is `place - step`, for this place alone."""
    if not isinstance(value, Node) or value.target is not _ATEN.sub.Tensor or len(value.users) != 1 or value.kwargs:
        return None
    before, step = value.args
    return step if before is place and isinstance(step, Node) else None


def _product(place: Any, value: Any) -> tuple[Node, Node, Node] | None:
    """a, b and the clients' rates, where the value is `place - rate * (a @ b)` and nobody reads what is between."""
    step = _subtracted(place, value)
    if step is None or step.target is not _ATEN.mul.Tensor or len(step.users) != 1:
        return None
    gradient: Any
    rate: Any
    gradient, rate = step.args
    if not _own_product(gradient) or not isinstance(rate, Node):
        return None
    product = gradient
    while product.target in _VIEWS:
        product = product.args[0]
    a, b = product.args
    whole, there, here, rates = (node.meta["val"] for node in (product, gradient, place, rate))
    as_it_lies = whole.is_contiguous() and there.shape == here.shape and there.stride() == here.stride()
    clients = here.shape[0]
    by_client = whole.dim() == 3 and whole.shape[0] == clients and rates.dim() == here.dim()
    one_each = by_client and rates.shape[0] in (1, clients) and all(size == 1 for size in rates.shape[1:])
    alike = whole.dtype == here.dtype == rates.dtype
    smaller = 2 * a.meta["val"].numel() <= whole.numel()
    return (a, b, rate) if as_it_lies and one_each and alike and smaller else None


def _own_product(node: Any) -> bool:
    """Whether it is a matrix product, seen through views or not, that nobody else reads."""
    while isinstance(node, Node) and len(node.users) == 1:
        if node.target in _PRODUCTS:
            return True
        if node.target not in _VIEWS:
            return False
        node = node.args[0]
    return False


def _root(node: Any) -> Any:
    """What a view is a view of."""
    while isinstance(node, Node) and isinstance(node.target, torch._ops.OpOverload):
        result = node.target._schema.returns[:1]
        if node.target is not _ATEN._unsafe_view.default and not (result and result[0].alias_info is not None):
            return node
        node = node.args[0]
    return node


def _by_client(graph: Graph, node: Node) -> Node:
    return graph.call_function(_ATEN.view.default, (node, [-1, 1, 1]))


def _alike(one: Any, other: Any) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return bool(a.shape == b.shape and a.dtype == b.dtype)
