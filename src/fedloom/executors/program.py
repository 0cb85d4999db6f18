"""A stack's step as a program of fixed shape: traced once, compiled where it pays, on a GPU captured as a CUDA graph.

Tracing runs the step's Python once and keeps what it does to tensors; all that varies from step to step or from round
to round is an input in a fixed place: parameters and optimizer, batches, keys, rates, the number of the step. A step
is then one call, on a GPU one launch. What depends on more than those inputs (a transform that reads the round's
number, a forward that looks at values) cannot be traced, and says so.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fedloom import tree
from fedloom.data.federated import Features, take
from fedloom.errors import FedloomError
from fedloom.executors.crew import Crew, members, operations_on, shares
from fedloom.executors.job import Job, Stack
from fedloom.executors.rewriting import hands_on, in_place, subtract_products
from fedloom.executors.vectorized import client_axes, client_step, eager, where_at_work
from fedloom.graphs import NoRound, captured
from fedloom.local import Carry
from fedloom.lowering import convolution, convolution_kernels

Step = Callable[..., Carry]

STILL = ("constants", "computed")
"""What a model has that no step changes, as it is and as a forward in another precision computes with it."""


@dataclass(frozen=True)
class Shape:
    """What a program is for: K clients, at most S steps of at most B rows, and whether some of them are padding."""

    clients: int
    steps: int
    rows: int
    masked: bool
    stacked_runs: bool


class Program:
    """One step of all stacks of one shape; on a CPU a crew may take it, each member for clients of its own."""

    def __init__(
        self,
        job: Job,
        stack: Stack,
        step: Step,
        shape: Shape,
        compiled: bool,
        pool: Any = None,
        crew: Crew | None = None,
    ) -> None:
        began = time.perf_counter()
        self.shape, self.compiled, self.crew = shape, compiled, crew
        device = stack.carry["loss"].device
        members = 1 if crew is None else crew.members

        kernels = convolution.kernels(job.functional.module)

        def room(leaf: Tensor) -> Tensor:
            size = shape.clients, *leaf.shape[1:]
            if leaf.shape[1:] in kernels:
                return convolution_kernels.empty_last(leaf, *size).zero_()
            return leaf.new_zeros(size)

        batches = {"index": (shape.steps, shape.rows), "sizes": (shape.steps,), "keys": (shape.steps,)}
        self.inputs = {
            "carry": tree.map_state(room, stack.carry),
            "own": {
                name: tree.map_state(room if stack.axes[name] == 0 else torch.clone, part)
                for name, part in stack.own.items()
            },
            **{
                name: torch.zeros(shape.clients, *size, dtype=torch.int64, device=device)
                for name, size in batches.items()
            },
            "s": torch.zeros(members, dtype=torch.int64, device=device),
        }
        self.read: set[int] | None = None  # the inputs that the program reads, once that is known
        self._fill(stack)
        leaves, structure = pytree.tree_flatten(self.inputs)
        places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        still = {name: getattr(job.functional, name) for name in STILL}
        fixed = {"x": job.data.x, "y": job.data.y, **still}
        fixed_leaves, fixed_structure = pytree.tree_flatten(fixed)

        def flat(*given: Tensor) -> None:
            inputs = list(leaves)
            for place, tensor in zip(places, given, strict=False):
                inputs[place] = tensor
            rest = pytree.tree_unflatten(list(given[len(places) :]), fixed_structure)
            _take_step(job, stack.axes, step, shape.masked, pytree.tree_unflatten(inputs, structure), rest)

        given = [*(leaves[place] for place in places), *fixed_leaves]
        alike = [part for name, part in self.inputs["own"].items() if stack.axes[name] != 0]
        common = {id(leaf) for leaf in [*_leaves(alike), *fixed_leaves]}  # of all members
        calls: dict[int, Callable[..., Any]] = {}

        def replay(member: int, rows: slice) -> Callable[[], Any]:
            """A step of those clients."""
            s = self.inputs["s"][member : member + 1]
            own = [leaf if id(leaf) in common else s if leaf is self.inputs["s"] else leaf[rows] for leaf in given]
            count = rows.stop - rows.start
            if count not in calls:
                traced = make_fx(flat, tracing_mode="fake")(*own)
                read = [bool(node.users) for node in traced.graph.nodes if node.op == "placeholder"]
                self.read = {id(tensor) for tensor, used in zip(given, read, strict=True) if used}
                calls[count] = _compiled(traced, own) if compiled else in_place(traced)
                if device.type == "cpu" and not compiled:
                    calls[count] = _scripted(calls[count], own)
            call = calls[count]

            def advance() -> None:
                call(*own)
                s.add_(1).remainder_(shape.steps)  # capturing takes more steps than a short plan has

            return advance

        with torch.no_grad(), nullcontext() if crew is None else operations_on(crew.threads):
            self.replays = [replay(member, rows) for member, rows in enumerate(shares(shape.clients, members))]
            if device.type == "cuda":
                self.replays = [captured(self.replays[0], pool)]
            else:
                self.take(1)
        self.seconds = time.perf_counter() - began

    def run(self, stack: Stack) -> Carry:
        """The stack through its steps."""
        with torch.no_grad():
            self._fill(stack)
            self.take(stack.plan.index.shape[1] - stack.begin)
            count = len(stack.plan.clients)
            carry: Carry = tree.map_state(lambda leaf: leaf[:count], self.inputs["carry"])
            # parameters and gradients are read before the next run writes there; the rest is small, and kept longer
            return carry | {name: tree.map_state(torch.clone, carry[name]) for name in ("buffers", "loss", "counted")}

    def take(self, times: int) -> None:
        """So many steps, from where its inputs stand."""
        if self.crew is not None:
            self.crew.repeat(self.replays, times)
            return
        [replay] = self.replays
        for _ in range(times):
            replay()

    def _fill(self, stack: Stack) -> None:
        """Write a stack's beginning and its batches where the program reads them; clients beyond it do nothing."""
        inputs, plan = self.inputs, stack.plan
        count, steps, rows = plan.index.shape
        places, values = _leaves(inputs["carry"]), _leaves(stack.carry)
        for name, part in inputs["own"].items():
            places += _leaves(part)
            values += _leaves(stack.own[name])
        wanted = [index for index, place in enumerate(places) if self.read is None or id(place) in self.read]
        rooms = [places[index][: len(values[index])] if values[index].dim() else places[index] for index in wanted]
        torch._foreach_copy_(rooms, [values[index] for index in wanted], non_blocking=True)
        inputs["index"][:count, :steps, :rows].copy_(_pinned(plan.index, inputs["index"]), non_blocking=True)
        for name in ("sizes", "keys"):
            inputs[name][:count, :steps].copy_(_pinned(getattr(plan, name), inputs[name]), non_blocking=True)
        if count < self.shape.clients:
            inputs["sizes"][count:].zero_()
        inputs["s"].fill_(stack.begin)


class Programs:
    """The programs of a run, made as shapes turn up: the `Runner` of a stack."""

    def __init__(
        self,
        compiled: bool,
        told: Callable[[Program], None] = lambda program: None,
        failed: Callable[[str], None] = lambda reason: None,
        workers: int = 1,
        threads: int | None = None,
    ) -> None:
        self.compiled, self.told, self.failed = compiled, told, failed
        self.made: dict[tuple[Step, Shape], Program] = {}
        self.given_up = False
        self.room: tuple[int, int] | None = None  # most steps, most rows of any client
        self.workers, self.threads, self.crews = workers, threads or torch.get_num_threads(), dict[int, Crew]()
        self.pool: Any = None  # of a GPU's memory: what a step needs for itself is free again when another one begins

    def __call__(self, job: Job, stack: Stack, step: Step) -> Carry:
        if self.given_up:
            return eager(job, stack, step)
        wanted = self._shape(job, stack)
        program = self._fitting(step, wanted)
        if program is None:
            if self.pool is None and stack.carry["loss"].is_cuda:
                self.pool = torch.cuda.graph_pool_handle()
            try:
                program = Program(job, stack, step, wanted, self.compiled, self.pool, self._crew(stack))
            except (FedloomError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # whatever a tracer or a compiler says: the step itself is sound, and runs
                self.given_up = True
                self.failed(shorten(f"{type(error).__name__}: {error}".splitlines()[0], 160, placeholder=" ..."))
                return eager(job, stack, step)
            self.made[step, wanted] = program
            self.told(program)
        return program.run(stack)

    def forget(self) -> None:
        """Let go of all programs and their memory."""
        self.made.clear()
        self.pool = None

    def _shape(self, job: Job, stack: Stack) -> Shape:
        """Room for every client there is; no masks where all clients have whole batches and equally many."""
        if self.room is None:
            _, every = job.batching.counts(job.data.sizes)
            largest = max(1, int(job.data.sizes.max()))
            self.room = int(every.max()), min(job.batching.batch_size or largest, largest)
        count, longest, widest = stack.plan.index.shape
        steps, rows = max(longest, self.room[0]), max(widest, self.room[1])
        full = bool((stack.plan.sizes == rows).all())
        return Shape(count, steps, rows, not full, stack.axes["anchor"] == 0)

    def _crew(self, stack: Stack) -> Crew | None:
        """Those who share a stack of this size, if it is worth more than one."""
        clients = len(stack.plan.clients)
        size = sum(leaf[0].numel() * leaf.element_size() for leaf in stack.carry["params"].values())
        if (count := members(clients, size, self.workers)) == 1:
            return None
        if count not in self.crews:
            self.crews[count] = Crew(count, self.threads)
        return self.crews[count]

    def _fitting(self, step: Step, wanted: Shape) -> Program | None:
        """One that was made for it, or for a few clients more: what is beyond the stack is padding.

        Not for twice as many, or a stack that is narrowed would go on at its full width.
        """
        if (step, wanted) in self.made:
            return self.made[step, wanted]
        slack = 1.5 if self.compiled else 1.25
        padded = [
            shape
            for made, shape in self.made
            if made is step
            and wanted.clients <= shape.clients <= slack * wanted.clients
            and replace(shape, clients=wanted.clients) == replace(wanted, masked=True)
        ]
        return self.made[step, min(padded, key=lambda shape: shape.clients)] if padded else None


def _pinned(values: Tensor, like: Tensor) -> Tensor:
    return values.pin_memory() if like.is_cuda else values


def _leaves(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _take_step(
    job: Job, axes: dict[str, int | None], step: Step, masked: bool, inputs: dict[str, Any], fixed: dict[str, Any]
) -> None:
    """The program's text: gather the batch, step, write everything back in its place."""
    s = inputs["s"]
    index, size, key = (inputs[name].index_select(1, s).squeeze(1) for name in ("index", "sizes", "keys"))
    batch: tuple[Features, Features] = take(fixed["x"], index), take(fixed["y"], index)
    mask = torch.arange(index.shape[1], device=index.device) < size[:, None] if masked else None
    fixed_job = replace(job, functional=replace(job.functional, **{name: fixed[name] for name in STILL}))
    one = client_step(fixed_job, NoRound(), s[0], step)  # type: ignore[arg-type]
    before, own = inputs["carry"], inputs["own"]
    with torch.enable_grad():
        after = torch.func.vmap(one, client_axes(axes, mask))(before, batch, mask, size, key, own)
    after = where_at_work(size > 0, after, before) if masked else after
    places = {_memory(place) for place in _leaves(before)}

    def apart(place: Tensor, value: Tensor) -> Tensor:
        """What is another place's old value is kept before that place is written."""
        return value.clone() if _memory(value) in places - {_memory(place)} else value

    after = tree.map_state(apart, before, after)
    tree.map_state(lambda place, value: place.copy_(value), before, after)


def _memory(leaf: Tensor) -> int:
    return int(leaf.untyped_storage()._cdata)


def _compiled(traced: torch.fx.GraphModule, given: list[Tensor]) -> Callable[..., Any]:
    """Inductor's program for the traced step. `torch.compile` would trace it once more, and stumble over some.

    For a CPU it writes C++, where an integer product that wraps around is undefined, and the hashes that dropout and
    augmentation draw from are made of those: such a step is left as traced. So is one in which a place is given
    another's old value, which Inductor was seen to read after it had been written.
    """
    hashes = given[0].device.type == "cpu" and any(_hashes(node) for node in traced.graph.nodes)
    if hashes or hands_on(traced):
        return traced
    with warnings.catch_warnings():
        # how Inductor splits a sum is its own affair, and none of the user's
        warnings.filterwarnings("ignore", r"\s*Online softmax is disabled", UserWarning)
        return _inductors(subtract_products(traced), given)


def _inductors(traced: torch.fx.GraphModule, given: list[Tensor]) -> Callable[..., Any]:
    """Compiled, a second time if need be: torch 2.11 to 2.13 fuse sums in both directions of a tensor ("mix order"),
    and stop where several that were split have different sizes, as the gradients of ResNet-56's batch norms."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.exc import InductorError

    try:
        compiled: Any = compile_fx(traced, given)
    except InductorError:
        if not (given[0].is_cuda and getattr(config.triton, "mix_order_reduction", False)):
            raise
        compiled = compile_fx(traced, given, config_patches={"triton.mix_order_reduction": False})
    call: Callable[..., Any] = compiled
    return call


def _scripted(call: Callable[..., Any], given: list[Tensor]) -> Callable[..., Any]:
    """The same operations called by torch itself: Python takes as long to call a small one as the one itself takes.

    And threads that run a script do not take turns, as they have to in Python.
    """

    def one_result(*given: Tensor) -> Tensor:
        call(*given)
        return given[0]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.trace.* is deprecated", DeprecationWarning)
        try:
            script: Callable[..., Any] = torch.jit.trace(one_result, tuple(given), check_trace=False)
        except RuntimeError:  # an operation whose arguments a script cannot hold: Python calls them, then
            return call
    return script


def _hashes(node: torch.fx.Node) -> bool:
    """Whether it multiplies whole numbers by one so large that the product wraps around."""
    large = any(isinstance(part, int) and abs(part) > 2**30 for part in node.args)
    return node.target is torch.ops.aten.mul.Tensor and large
