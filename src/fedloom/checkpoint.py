"""State on disk: tensors as safetensors, all else as strict JSON, both hashed. No pickle: loading runs no code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fedloom import durable
from fedloom.errors import Damaged, FedloomError
from fedloom.types import State

FORMAT = "fedloom state 2"
TENSORS, SKELETON = "state.safetensors", "state.json"


def pack(value: Any) -> tuple[dict[str, Tensor], Any]:
    """Split nested dicts, tuples and lists into named tensors and a skeleton that strict JSON can hold.

    A tensor is named by its path, and copied: to the processor, contiguous, its storage its own. In the skeleton a JSON
    object always has one key, which says what stands there.

    >>> pack((0.5, {"fc.weight": torch.ones(2)}))
    ({'1/fc.weight': tensor([1., 1.])}, {'tuple': [0.5, {'dict': {'fc.weight': {'tensor': '1/fc.weight'}}}]})
    """
    tensors: dict[str, Tensor] = {}

    def visit(value: Any, path: tuple[str, ...]) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        name = _name(path)
        if isinstance(value, Tensor):
            if value.layout != torch.strided or value.is_complex() or value.is_quantized:
                got = f"{value.dtype} in layout {value.layout}"
                raise FedloomError(f"state {name!r}: expected a dense tensor of real numbers, got {got}")
            tensors[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            return {"tensor": name}
        if isinstance(value, dict):
            for key in value:
                if type(key) is not str:
                    raise FedloomError(f"state {name!r}: expected keys that are strings, got {key!r}")
            return {"dict": {key: visit(item, (*path, key)) for key, item in value.items()}}
        if type(value) in (tuple, list):
            return {type(value).__name__: [visit(item, (*path, str(index))) for index, item in enumerate(value)]}
        expected = "tensors, numbers, strings, None, and dicts, tuples and lists of them"
        raise FedloomError(f"state {name!r}: expected {expected}; got {type(value).__name__}")

    return tensors, visit(value, ())


def unpack(tensors: Mapping[str, Tensor], skeleton: Any) -> Any:
    """What `pack` was given.

    >>> unpack(*pack({"rho": float("inf"), "steps": (1, 2.0)}))
    {'rho': inf, 'steps': (1, 2.0)}
    """
    match skeleton:
        case {"dict": dict(items), **rest} if not rest:
            return {key: unpack(tensors, item) for key, item in items.items()}
        case {"tuple": list(items), **rest} if not rest:
            return tuple(unpack(tensors, item) for item in items)
        case {"list": list(items), **rest} if not rest:
            return [unpack(tensors, item) for item in items]
        case {"float": "inf" | "-inf" | "nan" as shown, **rest} if not rest:
            return float(shown)
        case {"tensor": str(name), **rest} if not rest:
            if name not in tensors:
                raise FedloomError(f"state {name!r}: expected a tensor of this name, got none among {len(tensors)}")
            return tensors[name]
        case None | bool() | int() | float() | str():
            return skeleton
    raise FedloomError(f"state: expected what fedloom.checkpoint.pack returns, got {skeleton!r:.80}")


def state_to_dict(state: State) -> dict[str, Any]:
    """The fields of a server's state by name, for `pack`."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


def state_from_dict(fields: Mapping[str, Any]) -> State:
    """The server's state that `state_to_dict` took apart."""
    expected = {field.name for field in dataclasses.fields(State)}
    if fields.keys() != expected:
        raise FedloomError(f"state: expected {', '.join(sorted(expected))}; got {', '.join(sorted(fields))}")
    return State(**fields)


def save(folder: Path, value: Any, notes: Mapping[str, Any] | None = None) -> None:
    """Write `value` into `folder`, whole or not at all: beside it first, flushed to the disk, then renamed.

    `notes` are strict JSON about it, such as readings of a clock, and apart from it: equal values are equal tensors and
    equal skeletons. A state is written once: what is in its place already is an error.
    """
    if folder.exists():
        raise FedloomError(f"{folder}: expected no state of this name yet, got one: remove it first")
    tensors, skeleton = pack(value)
    content = safetensors.torch.save(tensors)
    told = {"tensors": _digest(content), "skeleton": skeleton, "notes": dict(notes or {})}
    durable.make_folder(folder.parent)
    fresh = durable.aside(folder, "new")
    fresh.mkdir()
    try:
        with durable.named(folder):
            durable.write(fresh / TENSORS, content)
            durable.write(fresh / SKELETON, _strict({"format": FORMAT, "sha256": _digest(_strict(told)), **told}))
            durable.flush(fresh)
            fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    durable.flush(folder.parent)


def load(folder: Path) -> Any:
    """The value that `save` was given; a missing, damaged or foreign file is an error that names it."""
    return read(folder)[0]


def read(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The value and the notes that `save` was given."""
    path = folder / SKELETON
    written = _read(path)
    try:
        document = json.loads(written)
        if written != _strict(document):
            raise ValueError("bytes that were not written so")
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path}: expected JSON, got {str(error)[:200]}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        got = document.get("format") if isinstance(document, dict) else document
        raise Damaged(f"{path}: expected format {FORMAT!r}, got {got!r:.80}")
    told = {name: document.get(name, {}) for name in ("tensors", "skeleton", "notes")}
    _compare(path, document.get("sha256"), _strict(told))
    path = folder / TENSORS
    content = _read(path)
    _compare(path, told["tensors"], content)
    try:
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, KeyError) as error:  # of a dtype that torch does not have, say
        raise Damaged(f"{path}: expected tensors that can be read, got {str(error)[:200]}") from None
    return unpack(tensors, told["skeleton"]), dict(told["notes"])


def _name(path: tuple[str, ...]) -> str:
    """The path as one string; slashes inside a key are escaped, so that two paths never meet in one name."""
    name = "/".join(key.replace("%", "%25").replace("/", "%2F") for key in path)
    return "%__metadata__" if name == "__metadata__" else name  # the one name the file format keeps for itself


def _strict(document: Any) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _compare(path: Path, expected: Any, content: bytes) -> None:
    if (got := _digest(content)) != expected:
        raise Damaged(f"{path}: changed since it was written: expected sha256 {expected!s:.80}, got {got}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path}: expected a readable file, got {error.strerror or error}") from error
