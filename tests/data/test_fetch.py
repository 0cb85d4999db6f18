"""Downloads from a real server on this machine: resumed, checked, unpacked."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import small_releases as small

from fedloom.data import fetch as fetching
from fedloom.data.fetch import Unreachable, fetch, unpack
from fedloom.data.releases import Download
from fedloom.errors import FedloomError

BODY = bytes(range(256)) * 5000


class Server(ThreadingHTTPServer):
    """Serves BODY; `cut` closes the connection after so many bytes of an answer, `ranges` False ignores Range."""

    cut: list[int]
    ranges: bool
    body: bytes
    asked: list[str | None]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if self.path != "/file.bin":
            self.send_error(404)
            return
        start = int(wanted[6:-1]) if wanted and self.server.ranges else 0
        if start >= len(self.server.body):
            self.send_error(416)
            return
        rest = self.server.body[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: self.server.cut.pop(0)] if self.server.cut else rest)
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Answer) as running:
        running.cut, running.ranges, running.body, running.asked = [], True, BODY, []
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def wanted(path: str = "set/file.bin", body: bytes = BODY, **more: Any) -> Download:
    checksum = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return Download("http://authors.example/set/file.bin", path, checksum, **more)


def test_a_file_and_its_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    done = fetch(wanted(), tmp_path, lambda *now: seen.append(now), server.address + "/")
    assert done == [tmp_path / "set" / "file.bin"] and done[0].read_bytes() == BODY
    assert seen[0] == (0, len(BODY)) and seen[-1] == (len(BODY), len(BODY))
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["file.bin"]
    fetch(wanted(), tmp_path, base=server.address)
    assert len(server.asked) == 1  # it is there


def test_a_broken_connection_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.cut = [100_000, 200_000]
    fetch(wanted(), tmp_path, base=server.address)
    assert (tmp_path / "set" / "file.bin").read_bytes() == BODY
    assert server.asked == [None, "bytes=100000-", "bytes=300000-"]


def test_an_interrupted_download_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.cut = [1000] * fetching.ATTEMPTS
    with pytest.raises(Unreachable, match="after 4,000 bytes, which are kept: run the same again to go on"):
        fetch(wanted(), tmp_path, base=server.address)
    assert (tmp_path / "set" / "file.bin.part").stat().st_size == 4000
    fetch(wanted(), tmp_path, base=server.address)
    assert server.asked[-1] == "bytes=4000-"
    assert (tmp_path / "set" / "file.bin").read_bytes() == BODY


def test_a_server_without_ranges_sends_all_of_it(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    small.put(tmp_path / "set" / "file.bin.part", b"x" * 100)
    fetch(wanted(), tmp_path, base=server.address)
    assert (tmp_path / "set" / "file.bin").read_bytes() == BODY


@pytest.mark.parametrize("part", [b"another version", BODY + b"more", BODY])
def test_a_part_of_another_file_is_thrown_away(server: Server, tmp_path: Path, part: bytes) -> None:
    small.put(tmp_path / "set" / "file.bin.part", part)
    fetch(wanted(), tmp_path, base=server.address)
    assert (tmp_path / "set" / "file.bin").read_bytes() == BODY


def test_a_corrupted_body_is_thrown_away(server: Server, tmp_path: Path) -> None:
    server.body = BODY[:-1] + b"\0"
    with pytest.raises(FedloomError, match=r"file.bin: expected sha256 .*, got .*: it was thrown away, try again"):
        fetch(wanted(), tmp_path, base=server.address)
    assert list((tmp_path / "set").iterdir()) == []


def test_addresses_that_do_not_answer(server: Server, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"other.bin: expected the file, got 404 Not Found"):
        fetch(Download(f"{server.address}/other.bin", "other.bin"), tmp_path)
    with pytest.raises(Unreachable, match="expected an answer, got"):
        fetch(Download("http://127.0.0.1:9/file.bin", "file.bin"), tmp_path)
    with pytest.raises(FedloomError, match="expected an http or https address"):
        fetch(Download("file:///etc/passwd", "file.bin"), tmp_path)


def test_the_next_address_is_tried(server: Server, tmp_path: Path) -> None:
    right = f"{server.address}/file.bin"
    for number, wrong in enumerate(["http://127.0.0.1:9/file.bin", f"{server.address}/gone.bin"]):
        checksum = f"md5:{hashlib.md5(BODY).hexdigest()}"
        fetch(Download(wrong, f"{number}.bin", checksum, also=(right,)), tmp_path)
        assert (tmp_path / f"{number}.bin").read_bytes() == BODY


def test_an_archive_is_unpacked(server: Server, tmp_path: Path) -> None:
    packed = small.tar(tmp_path / "x.tar.bz2", [("a.h5", b"A"), ("b.h5", b"B"), ("../c", b"C")], "bz2")
    server.body = packed.read_bytes()
    goal = tmp_path / "data"
    found = fetch(wanted("set.tar.bz2", server.body, members={"a.h5": "S/a.h5"}), goal, base=server.address)
    assert found == [goal / "S" / "a.h5"] and found[0].read_bytes() == b"A"
    assert sorted(path.name for path in goal.rglob("*")) == ["S", "a.h5"]


def test_archives_that_lack_what_is_wanted(tmp_path: Path) -> None:
    link = tarfile.TarInfo("a")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    packed = small.tar(tmp_path / "x.tar.gz", [("b", b"B")], "gz", link)
    with pytest.raises(FedloomError, match="expected a plain file 'a'"):
        unpack(packed, {"a": tmp_path / "out"})
    with pytest.raises(FedloomError, match="expected members c, got none of that name"):
        unpack(packed, {"c": tmp_path / "out"})
    packed.write_bytes(packed.read_bytes()[:40])
    with pytest.raises(FedloomError, match="expected an archive, got"):
        unpack(packed, {"b": tmp_path / "out"})
    assert not (tmp_path / "out").exists()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("gzip/a", b"A")
    (tmp_path / "x.zip").write_bytes(content.getvalue())
    unpack(tmp_path / "x.zip", {"gzip/a": tmp_path / "out"})
    assert (tmp_path / "out").read_bytes() == b"A"
