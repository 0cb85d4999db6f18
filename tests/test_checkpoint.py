"""State on disk: what goes in comes out, to the bit; what was damaged is named; a half-written folder is never seen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from algorithm_table import UNWRAPPED, Row, ready
from hypothesis import given
from hypothesis import strategies as st

import fedloom as fl
from fedloom import checkpoint
from fedloom.checkpoint import load, pack, save, state_from_dict, state_to_dict, unpack

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]

tensors = st.builds(
    lambda shape, dtype, seed: (
        (1000 * torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 500).to(dtype)
        if dtype != torch.uint8
        else torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    ),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.integers(0, 1000),
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(exclude_categories=["Cs"])), tensors
)
keys = st.text(st.sampled_from("ab/%._0"), max_size=3) | st.sampled_from(["__metadata__", "dict", "tensor", "float"])
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type, order and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _bytes(one) == _bytes(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one == other and repr(one) == repr(other))
    return bool(one == other)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


@given(value=values)
def test_pack_and_unpack_through_strict_json(value: Any) -> None:
    named, skeleton = pack(value)
    assert all(tensor.is_contiguous() for tensor in named.values())
    written = json.loads(json.dumps(skeleton, allow_nan=False))
    assert same(unpack(named, written), value)
    assert same(unpack(safetensors.torch.load(safetensors.torch.save(named)), written), value)


def test_names_are_paths() -> None:
    state = {"server": ({"m": {"fc.weight": torch.ones(2)}, "count": 3},), "rho": 0.5}
    named, _ = pack(state)
    assert list(named) == ["server/0/m/fc.weight"]


def test_paths_never_meet_in_one_name() -> None:
    state = {
        "a/b": torch.tensor(1),
        "a": {"b": torch.tensor(2)},
        "a%2Fb": torch.tensor(3),
        "__metadata__": torch.tensor(4),
    }
    named, skeleton = pack(state)
    assert len(named) == 4
    assert same(unpack(named, skeleton), state)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, -0.0, 5e-324, 0.1, 1e308, 2**80, True, None, "inf"])
def test_numbers_keep_their_type_and_bits(number: Any) -> None:
    _, skeleton = pack([number])
    [back] = unpack({}, json.loads(json.dumps(skeleton, allow_nan=False)))
    assert type(back) is type(number)
    assert repr(back) == repr(number)


def test_shared_and_strided_tensors(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    value = {"whole": whole, "row": whole[1], "turned": whole.t(), "again": whole, "wide": torch.ones(1).expand(5)}
    save(tmp_path / "state", value)
    assert same(load(tmp_path / "state"), value)


def test_pack_copies() -> None:
    value = {"w": torch.zeros(2), "p": torch.nn.Parameter(torch.ones(2))}
    named, skeleton = pack(value)
    value["w"] += 1
    assert named["w"].tolist() == [0, 0]
    assert type(unpack(named, skeleton)["p"]) is torch.Tensor


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"server": ({"m": {1, 2}},)}, ("server/0/m", "set")),
        ({"a": [torch.ones(1), object()]}, ("a/1", "object")),
        ({"a": {3: 1.0}}, ("'a'", "keys that are strings", "3")),
        ({"a": np.float64(1.0)}, ("'a'", "float64")),
        ({"a": np.zeros(2)}, ("'a'", "ndarray")),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, ("'a'", "complex64")),
        ({"a": torch.eye(2).to_sparse()}, ("'a'", "sparse")),
        ({"a": lambda: 0}, ("'a'", "function")),
        (1j, ("''", "complex")),
    ],
)
def test_anything_else_is_an_error_that_names_the_path(value: Any, told: tuple[str, ...]) -> None:
    with pytest.raises(fl.FedloomError) as error:
        pack(value)
    for part in told:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("skeleton", "told"),
    [
        ({"tensor": "m/w"}, "'m/w'"),
        ({"pickle": "gASVDQ=="}, "pickle"),
        ({"dict": {}, "list": []}, "dict"),
        ({"float": "1e3"}, "1e3"),
        ({"dict": [1]}, "dict"),
        ([1, 2], "[1, 2]"),
        ({}, "{}"),
    ],
)
def test_a_foreign_skeleton_is_an_error(skeleton: Any, told: str) -> None:
    with pytest.raises(fl.FedloomError) as error:
        unpack({}, skeleton)
    assert told in str(error.value)


@pytest.mark.parametrize("row", UNWRAPPED, ids=[row[0] for row in UNWRAPPED])
def test_every_algorithms_state_on_disk(row: Row, tmp_path: Path) -> None:
    algorithm = ready(row[1])
    params = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    state = algorithm.init(params, 3, buffers={"n": torch.tensor([1])}, examples=torch.tensor([5, 6, 7]))
    updates = {name: torch.full((2, *leaf.shape), 0.25) for name, leaf in params.items()}
    cohort = fl.Cohort(
        torch.tensor([0, 2]), torch.tensor([5, 7]), updates, steps=torch.tensor([1, 2]), extra={"control": updates}
    )
    _, state, _ = algorithm.apply(params, state, cohort)
    save(tmp_path / "round-000001", state_to_dict(state))
    back = state_from_dict(load(tmp_path / "round-000001"))
    assert same(state_to_dict(back), state_to_dict(state))


def test_a_state_with_other_fields_is_an_error() -> None:
    fields = state_to_dict(fl.fedavg(client_lr=0.1).init({"w": torch.ones(1)}, 1))
    for wrong in ({**fields, "extra": 1}, {name: value for name, value in fields.items() if name != "round"}):
        with pytest.raises(fl.FedloomError, match=r"expected buffers, combine, .*got"):
            state_from_dict(wrong)


STATE = {"m": {"w": torch.arange(6.0)}, "round": 3, "rho": math.inf}


def test_a_folder_holds_two_files_and_no_leftovers(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "round-000003"
    save(folder, STATE)
    assert sorted(path.name for path in folder.iterdir()) == ["state.json", "state.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["round-000003"]
    json.loads((folder / "state.json").read_text(), parse_constant=lambda name: pytest.fail(f"not strict: {name}"))
    assert list(safetensors.torch.load_file(folder / "state.safetensors")) == ["m/w"]


def test_equal_states_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name, {"m": {k: torch.arange(4.0) for k in "zyx"}, "n": torch.tensor(3), "rho": 0.1})
    for file in ("state.json", "state.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_state_is_written_once(tmp_path: Path) -> None:
    save(tmp_path / "s", STATE)
    with pytest.raises(fl.FedloomError, match="expected no state of this name yet"):
        save(tmp_path / "s", {"round": 4})
    assert same(load(tmp_path / "s"), STATE)


def test_notes_are_kept_apart(tmp_path: Path) -> None:
    """Readings of a clock leave the tensors, and what is said of them, as they are."""
    for name, seconds in (("a", 1.5), ("b", 2.5)):
        save(tmp_path / name, STATE, {"seconds": seconds})
    one, other = (json.loads((tmp_path / name / "state.json").read_text()) for name in "ab")
    assert one["skeleton"] == other["skeleton"] and one["tensors"] == other["tensors"]
    assert checkpoint.read(tmp_path / "b")[1] == {"seconds": 2.5}


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


DAMAGES: list[tuple[str, Callable[[Path], Any], tuple[str, ...]]] = [
    ("a flipped bit", lambda f: _flip(f / "state.safetensors"), ("state.safetensors", "changed", "expected sha256")),
    ("cut short", lambda f: (f / "state.safetensors").write_bytes(b"1234"), ("state.safetensors", "changed")),
    ("no tensors", lambda f: (f / "state.safetensors").unlink(), ("state.safetensors", "No such file")),
    ("no skeleton", lambda f: (f / "state.json").unlink(), ("state.json", "No such file")),
    (
        "a number changed",
        lambda f: _edit(f / "state.json", '"round":3', '"round":4'),
        ("state.json", "changed since it was written"),
    ),
    ("not JSON", lambda f: (f / "state.json").write_text("{"), ("state.json", "expected JSON")),
    ("not text", lambda f: (f / "state.json").write_bytes(b"\xff\xfe\x00"), ("state.json", "expected JSON")),
    (
        "the same in other bytes",
        lambda f: _edit(f / "state.json", '"round":3', '"round": 3'),
        ("state.json", "bytes that were not written so"),
    ),
    ("another format", lambda f: _edit(f / "state.json", checkpoint.FORMAT, "other 9"), ("state.json", "'other 9'")),
    ("a list", lambda f: (f / "state.json").write_text("[1]"), ("state.json", "expected format", "[1]")),
    (
        "no hashes",
        lambda f: (f / "state.json").write_text(json.dumps({"format": checkpoint.FORMAT}, separators=(",", ":"))),
        ("state.json", "changed", "expected sha256 None"),
    ),
]


@pytest.mark.parametrize(("damage", "told"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES])
def test_damage_is_told(damage: Callable[[Path], Any], told: tuple[str, ...], tmp_path: Path) -> None:
    save(tmp_path / "s", STATE)
    damage(tmp_path / "s")
    with pytest.raises(fl.FedloomError) as error:
        load(tmp_path / "s")
    for part in told:
        assert part in str(error.value)
