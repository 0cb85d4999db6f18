"""Checked once, decoded once: checksums, the cache, and what happens when it cannot be written or is damaged."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_releases as small

from fedloom.data import catalog, decoded, pictures, places, releases
from fedloom.data.catalog import load
from fedloom.errors import FedloomError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MNIST in small, with checksums of its own in the table, and an empty cache."""
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "data"))
    small.mnist(tmp_path / "data")
    files = []
    for file in releases.RELEASES["mnist"].layouts["idx"]:
        content = (tmp_path / "data" / file.path).read_bytes()
        files.append(releases.File(file.path, f"md5:{hashlib.md5(content).hexdigest()}", file.also))
    table = {**releases.RELEASES, "mnist": releases.Release("MNIST in small", {"idx": tuple(files)})}
    for module in (catalog, decoded, places):
        monkeypatch.setattr(module, "RELEASES", table)
    return tmp_path


def count_readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read: list[str] = []
    original = pictures.read_idx

    def counted(path: Path, *rest: Any) -> Any:
        read.append(path.name)
        return original(path, *rest)

    monkeypatch.setattr(pictures, "read_idx", counted)
    return read


def test_decoded_once_and_mapped_from_then_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = count_readings(monkeypatch)
    first = load("mnist").fingerprint()
    assert len(read) == 2
    assert load("mnist", style="glad").fingerprint() == first
    assert len(read) == 2
    kept = [path for path in (folder / "cache").iterdir() if path.name.startswith("mnist-")]
    assert len(kept) == 1 and {path.suffix for path in kept[0].iterdir()} == {".npy", ".json"}
    layout, found = places.locate("mnist")
    arrays = decoded.decode("mnist", layout, found, dict, {})
    assert all(isinstance(array, np.memmap) for array in arrays.values())


def test_another_file_is_decoded_again(folder: Path) -> None:
    before = load("mnist", verify=False).fingerprint()
    path = folder / "data" / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    small.put(path, small.idx(np.arange(40, dtype=np.uint8)[::-1] % 10))
    assert load("mnist", verify=False).fingerprint() != before
    advice = r"remove it and fetch it again; fl\.load\(\.\.\., verify=False\) takes it as it is"
    with pytest.raises(FedloomError, match=f"{path}: expected md5 .*, got .*: {advice}"):
        load("mnist")


def test_sums_are_remembered_until_the_file_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "data" / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    os.utime(path, (1e9, 1e9))
    taken: list[Path] = []
    original = decoded._digest
    monkeypatch.setattr(decoded, "_digest", lambda p, kinds: taken.append(p) or original(p, kinds))  # type: ignore[func-returns-value]
    sums = [decoded.digests(path, "md5") for _ in range(2)]
    assert sums[0] == sums[1] == decoded.digests(path) and taken == [path]
    path.write_bytes(b"another")
    assert decoded.digests(path)["sha256"] == hashlib.sha256(b"another").hexdigest()
    assert len(taken) == 2
    decoded.digests(path)
    assert len(taken) == 3  # too young to be remembered


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", bytes(200)])
def test_a_damaged_cache_is_made_anew(folder: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load("mnist").fingerprint()
    for path in (folder / "cache").rglob("*.npy"):
        path.write_bytes(damage)
    read = count_readings(monkeypatch)
    assert load("mnist").fingerprint() == before
    assert load("mnist").fingerprint() == before
    assert len(read) == 2


def test_a_cache_that_cannot_be_written_only_costs_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load("mnist").fingerprint()
    (folder / "file").write_text("")
    monkeypatch.setenv("FEDLOOM_CACHE", str(folder / "file"))  # no folder can be made beneath a file
    with pytest.warns(UserWarning, match="mnist is decoded at every start: set FEDLOOM_CACHE") as said:
        assert load("mnist").fingerprint() == before
    assert len(said) == 1 and "\n" not in str(said[0].message)


def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        load("mnist")
    assert not [path for path in (folder / "cache").iterdir() if path.name.startswith("mnist-")]


def test_an_unknown_checksum_is_one_line(tmp_path: Path) -> None:
    small.put(tmp_path / "Shakespeare" / "leaf" / "test" / "x.json", b"{}")
    small.leaf(tmp_path)
    (tmp_path / "Shakespeare" / "leaf" / "test" / "x.json").unlink()
    with pytest.warns(
        UserWarning, match=r"shakespeare: no checksum is known for .*json, .*json: read as found"
    ) as said:
        load("shakespeare", folder=tmp_path)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load("shakespeare", folder=tmp_path, verify=False)


def test_an_unpacked_copy_has_no_known_checksum(tmp_path: Path) -> None:
    small.mnist(tmp_path, suffix="")
    with pytest.warns(UserWarning, match="no checksum is known for train-images-idx3-ubyte"):
        load("mnist", folder=tmp_path)


def test_a_pattern_has_one_checksum(tmp_path: Path) -> None:
    small.put(tmp_path / "Shakespeare" / "moby" / "play.txt", small.PLAY.encode())
    with pytest.raises(FedloomError, match=r"moby: expected sha256 38a758ea.*, got .*: remove it and fetch it again"):
        load("shakespeare", folder=tmp_path)


def test_missing_files_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    small.put(tmp_path / "AGNews" / "test.csv", b"x")
    with pytest.raises(FedloomError) as caught:
        load("agnews")
    said = str(caught.value)
    assert said.startswith(
        f"agnews: expected AGNews/train.csv in {tmp_path} (or the files of layout subset), got nothing"
    )
    assert "fedloom data get agnews" in said and "\n" not in said


def test_where_files_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEDLOOM_DATA", "FEDLOOM_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr("sys.platform", "linux")
    assert places.data_folder() == tmp_path / "fedloom"
    assert places.cache_folder() == tmp_path / "fedloom" / "decoded"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert places.user_cache() == Path.home() / ".cache" / "fedloom"
    monkeypatch.setattr("sys.platform", "darwin")
    assert places.user_cache() == Path.home() / "Library" / "Caches" / "fedloom"
    monkeypatch.setattr("sys.platform", "win32")
    assert places.user_cache() == tmp_path / "local" / "fedloom"
    monkeypatch.setenv("FEDLOOM_DATA", "there")
    assert places.data_folder() == Path("there") and places.data_folder("here") == Path("here")
