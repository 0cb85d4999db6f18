"""Work on tensors in fixed places, recorded once and replayed: on a GPU a CUDA graph, one launch for all of it.

Whatever is recorded keeps the Python numbers it met, so nothing that changes from round to round may be one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch

Outcome = TypeVar("Outcome")


class Untraceable(RuntimeError):
    """The work's Python depends on something that is not an input."""


class NoRound:
    """Stands for the number of the round while work is recorded: whoever reads it would have it fixed for ever."""

    def _refuse(self, *_: object) -> NoReturn:
        raise Untraceable("a transform reads the number of the round")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = __mod__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __int__ = __float__ = __index__ = __bool__ = _refuse
    __pow__ = __rpow__ = __neg__ = __hash__ = __str__ = __repr__ = __format__ = _refuse


def captured(call: Callable[[], Outcome], pool: Any = None) -> Callable[[], Outcome]:
    """The call as one launch; its outcome lies where it lay when it was captured.

    Graphs that share a `pool` may use the same memory in between: an outcome is read before another one is replayed.
    On a stream of its own it is captured there, since libraries have working memory by stream.
    """
    here = torch.cuda.current_stream()
    side = torch.cuda.Stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        for _ in range(2):  # kernels are compiled and chosen, workspaces taken
            call()
    here.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=None if here == torch.cuda.default_stream() else here):
        outcome = call()

    def replay(kept: Callable[[], Outcome] = call) -> Outcome:  # what it holds, constants of a trace, the graph reads
        graph.replay()
        return outcome

    return replay
