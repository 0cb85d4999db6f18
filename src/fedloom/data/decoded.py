"""Files are checked once and decoded once: the arrays they hold are kept in a cache and memory-mapped from then on.

The cache only saves time. Where it cannot be written, or what it holds is damaged, the files are read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.data.bounded import CHUNK, DAMAGE
from fedloom.data.places import Found, cache_folder
from fedloom.data.releases import RELEASES, File
from fedloom.errors import FedloomError

Arrays = dict[str, npt.NDArray[Any]]
VERSION = 3  # of all readers: a new one decodes everything again
_RACY = 2.0  # seconds; a file younger than this may change again without a new time stamp


def decode(
    name: str, layout: str, found: Found, make: Callable[[], Arrays], options: Mapping[str, object], verify: bool = True
) -> Arrays:
    """What `make` reads out of the files of `name`, checked, from the cache where it is there."""
    sums = check(name, layout, found, verify)
    request = json.dumps([VERSION, name, layout, sums, {key: repr(options[key]) for key in sorted(options)}, verify])
    folder = cache_folder() / f"{name}-{hashlib.sha256(request.encode()).hexdigest()[:32]}"
    kept = _load(folder)
    if kept is not None:
        return kept
    arrays = make()
    try:
        _save(folder, arrays)
    except OSError as error:
        warnings.warn(
            f"{cache_folder()}: expected a folder to keep decoded data in, got {error.strerror or error}; "
            f"{name} is decoded at every start: set FEDLOOM_CACHE to another folder",
            stacklevel=2,
        )
        return arrays
    return _load(folder) or arrays


def check(name: str, layout: str, found: Found, verify: bool = True) -> dict[str, str]:
    """SHA-256 of every file; a known checksum that differs is an error, an unknown one a line."""
    sums: dict[str, str] = {}
    unknown: list[str] = []
    for file in RELEASES[name].layouts[layout]:
        if file.path not in found:
            continue
        sums[file.path] = _one(file, found[file.path], verify)
        named = found[file.path][0].name if "*" not in file.path else file.path
        if file.checksum is None or (file.checksum != "decoded" and _other_name(file, found[file.path])):
            unknown.append(named)
    if verify and unknown:
        warnings.warn(
            f"{name}: no checksum is known for {', '.join(unknown)}: "
            "read as found (fl.load(..., verify=False) leaves this out)",
            stacklevel=2,
        )
    return sums


def _one(file: File, paths: list[Path], verify: bool) -> str:
    kind, _, wanted = (file.checksum or "").partition(":")
    if "*" in file.path:
        lines = "".join(f"{digests(path)['sha256']}  {path.name}\n" for path in paths)
        got = {"sha256": hashlib.sha256(lines.encode()).hexdigest()}
    else:
        got = digests(paths[0], kind if wanted else "sha256")
    if verify and wanted and not _other_name(file, paths) and got[kind] != wanted:
        raise FedloomError(
            f"{paths[0] if '*' not in file.path else paths[0].parent}: expected {kind} {wanted}, got {got[kind]}: "
            "remove it and fetch it again; fl.load(..., verify=False) takes it as it is"
        )
    return got["sha256"]


def _other_name(file: File, paths: list[Path]) -> bool:
    """An unpacked copy is there instead of the compressed file that the checksum is of."""
    return "*" not in file.path and file.path.endswith(".gz") and paths[0].suffix != ".gz"


def digests(path: Path, kind: str = "sha256") -> dict[str, str]:
    """A file's SHA-256 and its `kind` of checksum, remembered for as long as its size and time stay the same."""
    stat = path.stat()
    stamp = {"path": str(path.resolve()), "size": stat.st_size, "time": stat.st_mtime_ns}
    memo = cache_folder() / "checksums" / f"{hashlib.sha256(str(stamp['path']).encode()).hexdigest()[:32]}.json"
    known = _remembered(memo, stamp)
    if not {"sha256", kind} <= set(known):
        known = {**known, **_digest(path, {"sha256", kind})}
        if time.time() - stat.st_mtime > _RACY:
            _remember(memo, {**stamp, "sums": known})
    return known


def _digest(path: Path, kinds: set[str]) -> dict[str, str]:
    hashes = {kind: hashlib.new(kind) for kind in kinds}
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            for one in hashes.values():
                one.update(piece)
    return {kind: one.hexdigest() for kind, one in hashes.items()}


def _remembered(memo: Path, stamp: dict[str, object]) -> dict[str, str]:
    try:
        kept = json.loads(memo.read_text())
        if {key: kept[key] for key in stamp} == stamp:
            return {str(kind): str(value) for kind, value in kept["sums"].items()}
    except (*DAMAGE, TypeError, AttributeError):
        pass
    return {}


def _remember(memo: Path, content: dict[str, object]) -> None:
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=memo.parent)
        with os.fdopen(handle, "w") as stream:
            json.dump(content, stream)
        Path(temporary).replace(memo)
    except OSError:
        pass  # the sum is taken again next time


def _load(folder: Path) -> Arrays | None:
    """The arrays of a finished folder; None where there is none, or what it holds cannot be read."""
    try:
        shapes = json.loads((folder / "arrays.json").read_text())
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in shapes}
        if all([list(arrays[name].shape), arrays[name].dtype.str] == shapes[name] for name in shapes):
            return arrays
    except (*DAMAGE, TypeError, AttributeError):
        pass
    return None


def _save(folder: Path, arrays: Arrays) -> None:
    """Writes to a temporary folder first: a folder that has its name is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        shapes = {name: [list(array.shape), array.dtype.str] for name, array in arrays.items()}
        (temporary / "arrays.json").write_text(json.dumps(shapes))
        if _load(folder) is None:  # else another process was faster
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
