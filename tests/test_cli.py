"""The command line as a user meets it: exit codes, one line for a mistake, what a run prints and leaves."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from fedloom import __main__, __version__, cli, errors
from fedloom.experiments import registry, runner
from fedloom.experiments.algorithm_sections import ALGORITHMS

TINY = """
name = "tiny"
title = "A tiny experiment"
rounds = 3
cohort = 2
data = { name = "digits", partition = "iid", clients = 40 }
model = { name = "logistic" }
algorithms = [{ name = "fedavg", label = "FedAvg", client_lr = 0.1 }]
"""
TWO = "algorithms=[{name='fedavg',client_lr=0.1},{name='fedavgm',client_lr=0.1,server_lr=0.5}]"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An experiment file, in a folder of its own that is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return "tiny.toml"


def program(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedloom.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=120)


def exit_code(*arguments: str) -> Any:
    """The exit code of the program run inside this process."""
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    return stop.value.code


def rounds(folder: Path) -> list[dict[str, Any]]:
    """A run's lines, without the readings of the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


# Mistakes -------------------------------------------------------------------------------------------------------------

MISTAKES = [
    (["runn", "quickstart"], "got 'runn': did you mean 'run'?"),
    (["run"], "EXPERIMENT"),
    (["run", "quickstrat"], "got 'quickstrat': did you mean 'quickstart'?"),
    (["reproduce", "fedadp-table11"], "got 'fedadp-table11': did you mean 'fedadp-table1'?"),
    (["reproduce", "quickstart"], "quickstart: expected a study of a paper's table or figure, got an experiment"),
    (["reproduce", "fedadp-table1", "--scale", "smal"], "scale: expected one of full, short, smoke; got 'smal'"),
    (
        ["reproduce", "fedadp-table1", "--set", "experiment.rounds=0"],
        "rounds: expected a whole number of at least 1, got 0",
    ),
    (["run", "nowhere.toml"], "nowhere.toml: expected an experiment file, got nothing there"),
    (["run", "quickstart", "--ste", "rounds=3"], "No such option"),
    (["run", "quickstart", "--set", "rounds=none"], "rounds: expected a whole number of at least 1, got 'none'"),
    (["run", "quickstart", "--set", "algorithms.0.name=fedavgg"], "got 'fedavgg': did you mean 'fedavg'?"),
    (["run", "quickstart", "--set", "data.name=digts"], "got 'digts': did you mean 'digits'?"),
    (["run", "quickstart", "--set", "model.name=mpl"], "got 'mpl': did you mean 'mlp'?"),
    (["run", "quickstart", "--executor", "lop"], "executor: expected one of auto, loop, vectorized; got 'lop'"),
    (["run", "quickstart", "--device", "gpu"], "device: expected 'cpu', 'cuda', 'cuda:0', 'mps' or 'xpu', got 'gpu'"),
    (["run", "quickstart", "--data", "nowhere"], "--data: expected a folder, got 'nowhere', which is none"),
    (["run", "quickstart", "--out", __file__], "expected a directory for the run, got a file"),
    (["list", "everything"], "everything"),
]


@pytest.mark.parametrize(("arguments", "said"), [MISTAKES[i] for i in (0, 1, 8, 10, 11, 16)])
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = program(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("fedloom: ") and said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_mistake_waits_for_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from fedloom import cli
for arguments in {[arguments for arguments, _ in MISTAKES]!r}:
    try:
        cli.main(arguments)
    except SystemExit as stop:
        print(stop.code, file=sys.stdout)
print(*sorted({{"torch", "matplotlib", "sklearn", "numpy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == ["2"] * len(MISTAKES) + [""]
    lines = done.stderr.splitlines()
    assert len(lines) == len(MISTAKES)
    for line, (_, said) in zip(lines, MISTAKES, strict=True):
        assert line.startswith("fedloom: ") and said in line


def test_a_disk_that_refuses_is_one_line(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", tiny, "--out", "/dev/null/run") == 2
    said = capsys.readouterr()
    assert said.err.startswith("fedloom: /dev/null/run: ") and said.err.count("\n") == 1


def test_a_device_that_is_not_there_leaves_nothing(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", tiny, "--device", "cuda:77") == 2
    assert capsys.readouterr().err.startswith("fedloom: device: expected one of cpu")
    assert not Path("runs").exists()


def test_a_bug_is_not_a_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find", lambda name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["run", "quickstart"])


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("blank_pictures")
def test_a_single_run_is_its_directory_and_can_be_repeated_from_it(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("run", tiny, "--out", "first", "--set", "rounds=2", "--executor", "loop") == 0
    said = capsys.readouterr()
    assert "executor: loop" in said.out and "FedAvg" in said.out and "picture: first/curves.png" in said.out
    assert said.err == ""
    first = tmp_path / "first"
    assert {"config.toml", "metrics.jsonl", "summary.json", "curves.png"} <= {entry.name for entry in first.iterdir()}
    assert [record["round"] for record in rounds(first)] == [0, 1]
    settings = tomllib.loads((first / "config.toml").read_text())
    assert (settings["executor"], settings["device"], settings["batch_size"]) == ("loop", "cpu", 20)

    assert exit_code("run", "first/config.toml", "--out", "again", "--quiet") == 0
    assert rounds(tmp_path / "again") == rounds(first)


def test_several_runs_have_directories_beneath_and_a_summary_on_top(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("run", tiny, "--set", TWO, "--set", "seeds=[0, 1]") == 0
    said = capsys.readouterr().out
    table = [line.split() for line in said.splitlines() if line.startswith("fedavg") and "±" in line]
    assert sorted(row[0] for row in table) == ["fedavg", "fedavgm"]
    assert float(table[0][1]) >= float(table[1][1])
    assert said.count("executor: ") == 1
    folder = Path("runs/tiny")
    names = ["fedavg-seed0", "fedavg-seed1", "fedavgm-seed0", "fedavgm-seed1"]
    assert sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) == names
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["complete"] and [run["directory"] for run in summary["runs"]] == names
    last = rounds(folder / names[3])
    assert summary["runs"][3]["test_accuracy"] == last[-1]["test_accuracy"]
    assert summary["runs"][3]["best_test_accuracy"] == max(r["test_accuracy"] for r in last)
    only = tomllib.loads((folder / names[3] / "config.toml").read_text())
    assert (only["seeds"], [part["name"] for part in only["algorithms"]]) == ([1], ["fedavgm"])
    assert (folder / "curves.png").stat().st_size > 10_000


@pytest.mark.usefixtures("blank_pictures")
def test_quiet_prints_nothing_and_a_taken_name_gets_a_number(tiny: str) -> None:
    for expected in ("runs/tiny", "runs/tiny-2"):
        result = CliRunner().invoke(cli.app, ["run", tiny, "--quiet", "--set", "rounds=1"])
        assert (result.exit_code, result.output) == (0, "")
        assert (Path(expected) / "summary.json").exists()
    with pytest.raises(errors.FedloomError, match="got one with a finished run"):
        CliRunner().invoke(cli.app, ["run", tiny, "--out", "runs/tiny"], catch_exceptions=False)


@pytest.mark.usefixtures("blank_pictures")
def test_a_target_ends_the_run_and_threads_are_put_back(tiny: str) -> None:
    before = torch.get_num_threads()
    assert exit_code("run", tiny, "--quiet", "--set", "target=0.01", "--set", "threads=1") == 0
    assert len(rounds(Path("runs/tiny"))) == 1
    assert tomllib.loads(Path("runs/tiny/config.toml").read_text())["threads"] == 1
    assert torch.get_num_threads() == before


def test_divergence_is_exit_code_4_and_the_others_still_run(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    wild = "algorithms=[{name='fedavg',label='wild',client_lr=0.1,server_lr=1e300},{name='fedavg',client_lr=0.1}]"
    assert exit_code("run", tiny, "--set", wild) == 4
    said = capsys.readouterr()
    assert said.err.startswith("fedloom: round 0, ") and said.err.count("\n") == 1
    assert "1 of 1 diverged" in said.out
    wild_run, calm_run = json.loads(Path("runs/tiny/summary.json").read_text())["runs"]
    assert wild_run["diverged"] and wild_run["test_accuracy"] is None
    assert calm_run["diverged"] is None and calm_run["rounds"] == 3


def test_the_table_is_sorted_and_averages_the_last_ten_tests_or_the_last_fifth_of_few() -> None:
    def result(label: str, seed: int, values: list[float]) -> runner.RunResult:
        records = [{"round": t, "test_accuracy": value, "test_loss": 1 - value} for t, value in enumerate(values)]
        return runner.RunResult(label, seed, Path(label), [*records, {"round": 99}], seconds=2.0)

    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    low, high = [0.9] * 50 + [0.5] * 10, [0.1] * 50 + [0.6] * 10
    few, late = [0.0, 0.1, 0.2, 0.3, 0.7], [0.0] * 4 + [0.4]
    with console.file:
        console.print(runner.summary_table([result("low", 0, low), result("high", 0, high), result("high", 1, low)]))
        console.print(
            runner.summary_table([result("low", 0, low), result("few", 0, few), result("late", 0, late)], 0.6)
        )
        lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[1] == ["high", "55.00", "±", "7.07", "75.00", "0.4500", "2.0"]
    assert lines[2] == ["low", "50.00", "90.00", "0.5000", "2.0"]
    assert lines[3][:4] == ["algorithm", "rounds", "to", "0.6"]  # who needs the fewest is the best
    assert lines[4][:4] == ["low", "1.0", "50.00", "90.00"] and lines[5][:4] == ["few", "5.0", "70.00", "70.00"]
    assert lines[6][:4] == ["late", "-", "40.00", "40.00"]


def test_a_mistake_about_where_to_test_leaves_nothing_in_the_way(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", tiny, "--set", 'evaluate_on=["test", "clients"]') == 2
    assert "evaluate_on 'clients': expected test rows of each client, got none" in capsys.readouterr().err
    assert exit_code("run", tiny) == 0


@pytest.mark.parametrize(
    ("given", "command", "spins"),
    [({}, "run", "1000"), ({}, "bench", None), ({"OMP_WAIT_POLICY": "ACTIVE"}, "run", None)],
)
def test_threads_that_wait_fall_asleep_soon(
    given: dict[str, str], command: str, spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["fedloom", command])
    __main__._wait_asleep()
    assert os.environ.get("GOMP_SPINCOUNT") == spins
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    __main__._wait_asleep()
    assert os.environ["GOMP_SPINCOUNT"] == "7"


# What there is --------------------------------------------------------------------------------------------------------


def test_list_as_json_is_json_alone() -> None:
    result = CliRunner().invoke(cli.app, ["list", "--json"])
    found = json.loads(result.output)
    assert set(found) == {"experiments", "algorithms", "datasets", "models"}
    assert "quickstart" in [experiment["id"] for experiment in found["experiments"]]
    assert set(found["algorithms"]) == {*ALGORITHMS, "fedglad"}
    assert "digits" in found["datasets"] and {"logistic", "mlp"} <= set(found["models"])


def test_list_shows_names_and_keywords() -> None:
    said = CliRunner().invoke(cli.app, ["list"]).output
    for word in ("quickstart", "fedavgm", "momentum = 0.9", "dirichlet", "digits", "mlp"):
        assert word in said


def test_doctor_says_what_there_is() -> None:
    found = json.loads(CliRunner().invoke(cli.app, ["doctor", "--json"]).output)
    assert found["torch"] == torch.__version__ and found["threads"] == torch.get_num_threads()
    assert found["devices"][0] == "cpu" and found["extras"]["dev"]["missing"] == []
    assert torch.__version__ in CliRunner().invoke(cli.app, ["doctor"]).output


def test_a_missing_extra_comes_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["torch>=2", "no-such-package>=1; extra == 'deploy'", 'pytest>=8 ; extra == "deploy"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: wanted)
    state = {"missing": ["no-such-package"], "install": "pip install 'fedloom[deploy]'"}
    assert json.loads(CliRunner().invoke(cli.app, ["doctor", "--json"]).output)["extras"] == {"deploy": state}
    assert "missing no-such-package: pip install 'fedloom[deploy]'" in CliRunner().invoke(cli.app, ["doctor"]).output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--version"], f"fedloom {__version__}\n"),
        ([], "fedloom run quickstart"),
        (["--help"], "fedloom run quickstart"),
        (["run", "--help"], "fedloom run quickstart --set rounds=20 --set data.alpha=1.0"),
    ],
)
def test_help_and_version(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*arguments) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("known", [True, False])
def test_the_program_asks_the_c_library_to_keep_memory(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be asked is left as it is."""
    asked: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *option: asked.append(option)) if known else SimpleNamespace()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    __main__._keep_freed_memory()
    assert asked == ([(-1, 2**31 - 1), (-3, 2**31 - 1)] if known else [])
