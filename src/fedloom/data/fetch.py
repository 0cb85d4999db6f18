"""Downloads that can be interrupted: a part is kept beside its goal, gone on with, and checked before it is renamed."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from fedloom import __version__
from fedloom.data.bounded import CHUNK, damaged, reading
from fedloom.data.releases import Download
from fedloom.errors import FedloomError

Progress = Callable[[int, int | None], None]
"""`f(bytes so far, bytes in all)`, the latter where the server tells."""
TIMEOUT = 30.0
ATTEMPTS = 4  # a connection that breaks is taken up again as long as it brings something


class Unreachable(FedloomError):
    """The address did not answer, or stopped answering."""


class Spoilt(FedloomError):
    """What came has another checksum."""


def fetch(
    download: Download, folder: Path, progress: Progress = lambda done, total: None, base: str = ""
) -> list[Path]:
    """Downloads a file into `folder` and unpacks what is wanted of an archive; the paths that are there now.

    `base` is another address that has the same files. Without it, the addresses of the table are tried in their order.
    """
    name = download.address.rpartition("/")[2]
    addresses = [f"{base.rstrip('/')}/{name}"] if base else [download.address, *download.also]
    goal = folder / download.path
    goal.parent.mkdir(parents=True, exist_ok=True)
    while not goal.is_file():
        try:
            _bring(addresses[0], goal, download.checksum, progress)
        except (Unreachable, Spoilt):
            if len(addresses) == 1:
                raise
            addresses.pop(0)
    if not download.members:
        return [goal]
    found = unpack(goal, {member: folder / path for member, path in download.members.items()})
    goal.unlink()
    return found


def _bring(address: str, goal: Path, checksum: str | None, progress: Progress) -> None:
    if urlsplit(address).scheme not in ("http", "https"):
        raise FedloomError(f"{address}: expected an http or https address")
    part = goal.with_name(f"{goal.name}.part")
    resumed = part.is_file()
    _download(address, part, progress)
    if resumed and not _right(part, checksum):  # the part may be of another version of the file
        part.unlink()
        _download(address, part, progress)
    _check(part, address, checksum)
    part.replace(goal)


def _download(address: str, part: Path, progress: Progress) -> None:
    failure = "nothing came"
    for _ in range(ATTEMPTS):
        before = part.stat().st_size if part.is_file() else 0
        try:
            _go_on(address, part, before, progress)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416 and before:  # nothing is left to send
                return
            raise Unreachable(f"{address}: expected the file, got {error.code} {error.reason}") from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            failure = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
        if (part.stat().st_size if part.is_file() else 0) == before:
            break
    have = part.stat().st_size if part.is_file() else 0
    kept = f" after {have:,} bytes, which are kept: run the same again to go on" if have else ""
    raise Unreachable(f"{address}: expected an answer, got {failure}{kept}")


def _go_on(address: str, part: Path, have: int, progress: Progress) -> None:
    headers = {"User-Agent": f"fedloom/{__version__}", **({"Range": f"bytes={have}-"} if have else {})}
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status != 206:
            have = 0  # the server sends the whole file
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else None
        with part.open("ab" if have else "wb") as stream:
            progress(have, total)
            while piece := answer.read(CHUNK):
                stream.write(piece)
                have += len(piece)
                progress(have, total)
    if total is not None and have < total:
        raise http.client.IncompleteRead(b"", total - have)


def _sum(path: Path, kind: str) -> str:
    digest = hashlib.new(kind)
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def _right(path: Path, checksum: str | None) -> bool:
    kind, _, wanted = (checksum or "").partition(":")
    return not wanted or _sum(path, kind) == wanted


def _check(part: Path, address: str, checksum: str | None) -> None:
    kind, _, wanted = (checksum or "").partition(":")
    if wanted and (got := _sum(part, kind)) != wanted:
        part.unlink()
        raise Spoilt(f"{address}: expected {kind} {wanted}, got {got}: it was thrown away, try again")


def unpack(archive: Path, members: Mapping[str, Path]) -> list[Path]:
    """Writes the members of a tar or zip file that are asked for; anything else in it is left alone."""
    left = dict(members)
    with reading(archive, "an archive"):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                for name in set(packed.namelist()) & set(left):
                    with packed.open(name) as stream:
                        _write(stream, left.pop(name))
        else:
            with tarfile.open(archive, "r|*") as tar:
                for member in tar:
                    if member.name in left:
                        content = tar.extractfile(member) if member.isreg() else None
                        if content is None:
                            raise damaged(archive, f"a plain file {member.name!r}", f"type {member.type!r}")
                        _write(content, left.pop(member.name))
    if left:
        raise damaged(archive, f"members {', '.join(sorted(left))}", "none of that name")
    return list(members.values())


def _write(stream: IO[bytes], goal: Path) -> None:
    goal.parent.mkdir(parents=True, exist_ok=True)
    part = goal.with_name(f"{goal.name}.part")
    with part.open("wb") as out:
        shutil.copyfileobj(stream, out, CHUNK)
    part.replace(goal)
