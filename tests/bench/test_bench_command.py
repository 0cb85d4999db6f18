"""`fedloom bench` as a user meets it: the JSON's keys, the tables, mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedloom import cli
from fedloom.bench import command, growth, peers, report
from fedloom.bench.measure import Timing
from fedloom.bench.request import EXECUTORS, Request

MACHINE = {"fedloom", "torch", "python", "device", "device_name", "threads", "cores", "quick"}
WORKLOAD = {"workload", "about", "parameters", "population", "cohort", "steps", "batch_size", "plain", "ours", "auto"}
TIMING = set(Timing.__dataclass_fields__)
MISTAKES = [
    (["--workloads", "W9"], "--workloads: expected one of W1, W2, W3, W4, W5, W5-50, W6; got 'W9'"),
    (["--workloads", ""], "--workloads: expected one of W1"),
    (["--executor", "auto,lop"], "got 'lop': did you mean 'loop'?"),
    (["--device", "gpu"], "--device: expected 'cpu', 'cuda', 'cuda:0', 'mps' or 'xpu', got 'gpu'"),
    (["--rounds", "0"], "--rounds: expected a whole number of at least 1, got 0"),
    (["--rounds", "few"], "--rounds"),
    (["--growth", "client"], "got 'client': did you mean 'clients'?"),
    (["--growth", "model", "--workloads", "W1"], "--growth: expected it without --workloads"),
    (["--growth", "model", "--peers"], "--growth: expected it alone, got --peers too"),
    (["--growth", "model", "--executor", "loop", "--executor", "auto"], "expected one --executor, got loop, auto"),
    (["--growth", "model", "--out", __file__], "--out: expected a folder, got the file"),
    (["--trials", "--executor", "loop,auto"], "--trials: expected one --executor"),
    (["--out", "somewhere"], "--out: expected with --growth"),
    (["--peers", "--workloads", "W5,W6"], "--peers: expected one of W1, W2, W3, W4, got W5, W6 alone"),
    (["--fast"], "No such option"),
]


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, ["bench", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_json_is_one_object_with_the_documented_keys() -> None:
    found = json.loads(invoke("--quick", "--workloads", "W2", "--json", "--device", "cpu", "--rounds", "1"))
    assert set(found) == MACHINE | {"workloads"}
    (workload,) = found["workloads"]
    assert set(workload) == WORKLOAD and workload["auto"] is None
    assert (workload["workload"], workload["parameters"], workload["steps"]) == ("W2", 7850, 10)
    assert set(workload["plain"]) == TIMING
    (ours,) = workload["ours"]
    assert set(ours) == TIMING | {"asked", "executor", "chunk", "why", "ratio", "program", "program_seconds"}
    assert (ours["asked"], ours["rounds"]) == ("auto", 1) and ours["executor"] in EXECUTORS
    words = report.__doc__ or ""
    documented = set(found) | set(workload) | set(ours) | {"at", "plain_seconds", "plain_memory_mib"}
    assert {key for key in documented if f"`{key}`" not in words} == set()


def timing(seconds: float) -> dict[str, Any]:
    return dict.fromkeys(TIMING, seconds) | {"rounds": 2, "memory_mib": 1234.5}


def test_the_table_has_a_line_for_each_and_says_what_auto_chose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = [
        {"asked": "loop", "executor": "loop", "why": "asked for", "ratio": 0.5, **timing(0.2)},
        {"asked": "auto", "executor": "vectorized", "why": "a stack fills it", "ratio": 2.0, **timing(0.05)},
        {"asked": "vectorized", "executor": None, "why": "out of memory", "ratio": None, **dict.fromkeys(TIMING)},
    ]
    auto = {"chose": "vectorized", "fastest": "vectorized", "within_20_percent": True}
    row = {"workload": "W1", "about": "a CNN", "plain": timing(0.1), "ours": ours, "auto": auto}
    machine = dict.fromkeys(MACHINE, "x") | {"quick": False}
    monkeypatch.setattr(command, "bench", lambda *_: {**machine, "workloads": [row]})
    monkeypatch.setattr(peers, "script", lambda: Path("compare.py"))
    other = {"peer": "other", "workload": "W1", "what": "other 1.0", "how": "2 x 1", "seconds": 0.3, "ratio": 6.0}
    other |= {"startup": 4.0, "memory_mb": 900.0, "same": True, "failed": None}
    broken = dict.fromkeys(other) | {"peer": "broken", "workload": "W1", "failed": "Traceback"}
    monkeypatch.setattr(peers, "measure", lambda *_: [other, broken])
    command.run(Request(peers=True))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["W1", "a", "CNN", "100", "ms", "200", "ms", "0.50", "x", "loop", "200", "ms", "1,234", "MiB"] in lines
    assert lines[3][:-2] == ["W1", "a", "CNN", "100", "ms", "50", "ms", "2.00", "x", "auto:", "vectorized", "50", "ms"]
    assert ["W1", "a", "CNN", "100", "ms", "-", "-", "vectorized", "-", "-"] in lines
    said = [" ".join(line) for line in lines]
    assert "W1: auto: vectorized: a stack fills it" in said and "W1: auto chose vectorized, the fastest" in said
    assert "W1: vectorized: out of memory" in said and not any("asked for" in line for line in said)
    assert "W1 other other 1.0 2 x 1 300 ms 6.00 x 4,000 ms 900 MB yes" in said
    assert "W1 broken - - - - - - failed" in said


def test_growth_is_a_table_and_a_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(growth, "POOL", 50)
    said = invoke("--growth", "clients", "--quick", "--rounds", "1", "--device", "cpu", "--out", str(tmp_path / "new"))
    rows = [line.split()[0] for line in said.splitlines() if " ms " in line]
    assert rows == ["10", "100"] and "clients a round" in said
    picture = tmp_path / "new" / "growth-clients.png"
    assert f"picture: {picture}" in said and picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_growths_have_the_sizes_they_name() -> None:
    def built(kind: str) -> list[Any]:
        return [growth.GROWTHS[kind][1](size) for size in growth.GROWTHS[kind][2]]

    assert [workload.cohort for workload in built("clients")] == [10, 100, 1000, 10_000]
    assert [(w.population, w.cohort) for w in built("population")] == [(10**n, 100) for n in (3, 4, 5, 6)]
    sizes = [sum(leaf.numel() for leaf in w.model().parameters()) for w in built("model")]
    assert sizes == [12_730, 127_210, 1_272_010, 10_176_010]


def test_mistakes_are_one_line_each_and_do_not_wait_for_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from fedloom import cli
from fedloom.bench import peers
peers.script = lambda: Path("compare.py")
for arguments in {[arguments for arguments, _ in MISTAKES]!r}:
    try:
        cli.main(["bench", *arguments])
    except SystemExit as stop:
        print(stop.code)
print(*sorted({{"torch", "matplotlib", "numpy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == ["2"] * len(MISTAKES) + [""]
    lines = done.stderr.splitlines()
    assert len(lines) == len(MISTAKES)
    for line, (_, said) in zip(lines, MISTAKES, strict=True):
        assert line.startswith("fedloom: ") and said in line
    assert "--fast" in lines[-1]  # some versions of the parser quote it
    assert list(tmp_path.iterdir()) == []


def test_peers_without_their_scripts_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "PLACE", Path("benchmarks/peers/no-such.py"))
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "--peers"])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and "clone the repository" in said


def test_a_device_that_is_not_there_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "--device", "cuda:77"])
    assert stop.value.code == 2 and capsys.readouterr().err.startswith("fedloom: device: expected one of cpu")


def test_trials_are_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "workload": "W1",
        "trials": "5 seeds",
        "rounds": 12,
        "stacked_seconds": 0.1,
        "one_after_the_other_seconds": 0.25,
        "share": 0.4,
        "stacked_run_seconds": 2.0,
        "one_after_the_other_run_seconds": 8.0,
        "run_share": 0.25,
    }
    asked = []
    monkeypatch.setattr(command, "compare_trials", lambda workload, *_: asked.append(workload.name) or [found])
    last = invoke("--trials", "--device", "cpu").splitlines()[-1]
    assert " ".join(last.split()) == "W1 5 seeds 250 ms 100 ms 0.40 12 rounds 8,000 ms 2,000 ms 0.25"
    assert json.loads(invoke("--trials", "--device", "cpu", "--workloads", "W2", "--json"))["trials"] == [found]
    assert asked == ["W1", "W2"]


def test_executors_are_those_of_experiments() -> None:
    assert {"auto", "loop", "vectorized"} <= set(EXECUTORS)
