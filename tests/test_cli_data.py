"""`fedloom data` as a user meets it."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fedloom import cli
from fedloom.data import commands, decoded, places, releases
from fedloom.data.releases import Download, File, Release


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "data"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str, str]:
    """Exit code, what was printed, what was said on stderr."""
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", *arguments])
    said = capsys.readouterr()
    return stop.value.code, said.out, said.err


def content(items: bytes, *sizes: int) -> bytes:
    header = struct.pack(f">{len(sizes) + 1}I", 0x0800 + len(sizes), *sizes)
    return gzip.compress(header + items, mtime=0)


FILES = {
    "train-images-idx3-ubyte.gz": content(bytes(range(256)) * 49 * 2, 32, 28, 28),
    "train-labels-idx1-ubyte.gz": content(bytes(range(10)) * 3 + b"\0\1", 32),
    "t10k-images-idx3-ubyte.gz": content(bytes(784 * 4), 4, 28, 28),
    "t10k-labels-idx1-ubyte.gz": content(bytes(range(4)), 4),
}


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with a small MNIST, whose checksums are in the table."""
    served = tmp_path / "served"
    served.mkdir()
    for name, body in FILES.items():
        (served / name).write_bytes(body)
    files = tuple(File(f"MNIST/raw/{name}", f"md5:{hashlib.md5(body).hexdigest()}") for name, body in FILES.items())
    downloads = tuple(Download(f"http://127.0.0.1:9/{Path(f.path).name}", f.path, f.checksum) for f in files)
    table = {**releases.RELEASES, "mnist": Release("MNIST in small", {"idx": files}, downloads)}
    for module in (commands, decoded, places):
        monkeypatch.setattr(module, "RELEASES", table)
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_get_check_list_and_show(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "get", "mnist", "--from", address)
    assert (code, out, err) == (0, f"mnist: is here now, in {tmp_path / 'data'}\n", "")
    assert {path.name for path in (tmp_path / "data" / "MNIST" / "raw").iterdir()} == set(FILES)
    assert run(capsys, "get", "mnist")[1].startswith("mnist: is here already, in ")

    code, out, _ = run(capsys, "check", "mnist")
    assert code == 0 and out.count("as released, sha256 ") == 4
    assert out.endswith("mnist: 32 to train on, 4 to test, 10 classes\n")

    code, out, _ = run(capsys, "list", "--json")
    found = json.loads(out)["datasets"]
    assert found["mnist"]["layout"] == "idx" and found["cifar10"]["layout"] is None
    code, out, _ = run(capsys, "list")
    assert code == 0 and "fedloom data get cifar10" in out

    code, out, err = run(capsys, "show", "mnist", "--partition", "shards", "--clients", "4", "--out", "mix.png")
    assert (code, err) == (0, "") and "4 clients of 8 to 8 examples" in out and "mean label entropy: " in out
    assert "mean KL divergence: " in out and "mean total variation: " in out
    assert Path("mix.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_corrupted_download_is_an_error(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "served" / "train-labels-idx1-ubyte.gz").write_bytes(b"<html>")
    code, _, err = run(capsys, "get", "mnist", "--from", address)
    assert code == 2 and err.count("\n") == 1 and "train-labels-idx1-ubyte.gz: expected md5" in err
    here = {path.name for path in (tmp_path / "data" / "MNIST" / "raw").iterdir()}
    assert here == {"train-images-idx3-ubyte.gz"}
    (tmp_path / "served" / "train-labels-idx1-ubyte.gz").write_bytes(FILES["train-labels-idx1-ubyte.gz"])
    assert run(capsys, "get", "mnist", "--from", address)[0] == 0


def test_without_a_network_one_line_says_what_to_put_where(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "get", "mnist")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "http://127.0.0.1:9/train-images-idx3-ubyte.gz: expected an answer, got " in err
    assert all(f"MNIST/raw/{name}" in err for name in FILES) and f"in {tmp_path / 'data'} by hand" in err


def test_a_file_that_is_not_the_releases(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "get", "mnist", "--from", address)
    path = tmp_path / "data" / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(content(b"\1\2\3\4", 4))
    code, _, err = run(capsys, "check", "mnist")
    assert code == 2 and err.startswith(f"fedloom: {path}: expected md5 ") and err.count("\n") == 1


def test_show_draws_digits(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--partition", "dirichlet", "--clients", "30", "--alpha", "0.1", "--set", 'concentration="alpha"']
    code, out, _ = run(capsys, "show", "digits", *settings)
    assert code == 0 and out.endswith("picture: digits-dirichlet.png\n")
    assert Path("digits-dirichlet.png").stat().st_size > 20_000
    assert run(capsys, "check", "digits")[1].endswith("digits: 1,438 to train on, 359 to test, 10 classes\n")


MISTAKES = [
    (["show", "digts"], "data set: expected one of .* got 'digts': did you mean 'digits'"),
    (["get", "nothing"], "data set: expected one of"),
    (["lst"], "No such command 'lst'"),
    (["show", "digits", "--data", "nowhere"], None),
    (["list", "--data", "nowhere"], "--data: expected a folder, got 'nowhere', which is none"),
    (["show", "digits", "--set", "alpha"], "--set: expected KEY=VALUE, got 'alpha'"),
    (
        ["show", "digits", "--set", "clients=5"],
        "--set: expected an option that has no place .* 'clients': give --clients",
    ),
    (["show", "digits", "--set", "name=x"], "got 'name': give NAME"),
    (["show", "digits", "--set", "folder=x"], "got 'folder': give --data"),
    (["show", "digits", "--set", "per_client=" + "1" * 5000], "--set per_client: expected whole numbers of 64 bits"),
    (["show", "digits", "--set", "per_client=" + "[" * 3000], "--set per_client: expected .* at most 32 deep"),
    (["show", "digits", "--out", "no/where.png"], "--out: expected a folder that exists, got 'no'"),
    (["check", "mnist"], "mnist: expected MNIST/raw/train-images-idx3-ubyte.gz, .* got nothing there"),
    (["show"], "NAME"),
]


@pytest.mark.parametrize(("arguments", "said"), [pair for pair in MISTAKES if pair[1]])
def test_a_mistake_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(said, err)


def test_no_mistake_waits_for_torch(tmp_path: Path) -> None:
    wrong = [["data", *arguments] for arguments, said in MISTAKES if said]
    code = f"""
import sys
from fedloom import cli
for arguments in {[*wrong, ["data"], ["data", "list"], ["data", "get", "digits"]]!r}:
    try:
        cli.main(arguments)
    except SystemExit:
        pass
print(*sorted({{"torch", "matplotlib", "sklearn", "numpy"}} & set(sys.modules)), "loaded")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].strip() == "loaded"
    assert len(done.stderr.splitlines()) == len(wrong)
