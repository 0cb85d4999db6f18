"""Settings out of bounds, in files and in `--set`: one short line with the key's path and what it may be, exit code 2.

The mistakes are answered before torch is imported and before anything is written.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom import cli

EXPERIMENT = """
name = "tiny"
rounds = 3
cohort = 2
{top}

[data]
name = "digits"
partition = "dirichlet"
clients = 40
alpha = 0.5

[model]
name = "mlp"
hidden = [10]

[[algorithms]]
name = "fedavg"
client_lr = 0.1
"""
GRID = """
[tune]
select = "last"
[tune.grid]
"""
STUDY = """
id = "small"
paper = "Nobody 2020, table 1"
title = "A table"
{top}

[experiment]
rounds = 3
cohort = 2
data = {{ name = "digits", partition = "iid", clients = 10 }}
model = {{ name = "logistic" }}
algorithm = {{ name = "fedavg", client_lr = 0.1 }}

[[measures]]
name = "accuracy"
kind = "final"
"""
DEEP = "expected tables and lists at most 32 deep"
BIG = "from -2^63 to 2^63 - 1, got 9223372036854775808"


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line of a command that must be refused."""
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.count("\n") == 1
    assert len(said) < 1000
    return said


def changed(**keys: str) -> str:
    """The experiment with other values; what has no line yet gets one at the top."""
    text = EXPERIMENT.format(top="")
    for key, value in keys.items():
        lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in text.split("\n")]
        text = (
            "\n".join(lines) if f"\n{key} = " in text else text.replace("cohort = ", f"{key} = {value}\ncohort = ", 1)
        )
    return text


VALUES = [
    ("rounds", "nan", "rounds: expected a whole number of at least 1, got nan"),
    ("rounds", "-1", "rounds: expected a whole number of at least 1, got -1"),
    ("rounds", "1e400", "rounds: expected a number between -1.8e308 and 1.8e308, got 1e400"),
    ("rounds", "9223372036854775808", BIG),
    ("rounds", "9223372036854775807", "rounds: expected a whole number from 1 to 2147483647"),
    ("rounds", '"3"', "rounds: expected a whole number of at least 1, got '3'"),
    ("rounds", "true", "rounds: expected a whole number of at least 1, got true"),
    ("rounds", "[1]", "rounds: expected a whole number of at least 1, got [1]"),
    ("rounds", "9" * 5000, "expected whole numbers of 64 bits"),
    ("rounds", "[" * 100_000 + "]" * 100_000, DEEP),
    ("rounds", "{ a = " * 40 + "1" + "}" * 40, f"rounds.a.a: {DEEP}"),
    ("cohort", "41", "cohort: expected at most data.clients = 40, got 41"),
    ("cohort", "-2", "cohort: expected a whole number of clients"),
    ("clients", "1000000000000", "data.clients: expected a whole number from 1 to 2147483647"),
    ("alpha", "1e400", "data.alpha: expected a number between"),
    ("alpha", "nan", "data.alpha: expected a number of at least 0, or inf, got nan"),
    ("client_lr", "-0.1", "algorithms.0.client_lr: expected a number of at least 0"),
    ("hidden", "[9223372036854775808]", f"model.hidden.0: expected a whole number {BIG}"),
    ("seeds", "[9223372036854775808]", "seeds.0: expected a whole number"),
    ("seeds", str(list(range(2000))), "seeds: expected at most 1,000 of them"),
    ("threads", "100000", "threads: expected a whole number from 1 to 1024, got 100000"),
    ("title", f'"{"x" * 1_000_000}"', "title: expected a text of at most 10,000 letters, got 1,000,000"),
    ("partition", f'"{"x" * 9_000}"', "data.partition: expected one of"),
    ("name", f'"{"x" * 200}"', "100 of them at most"),
    ("roundz", "3", "roundz: unknown key"),
    ("x" * 1_000_000, "3", "expected a key of at most 10,000 letters, got 1,000,000"),
    ("a" + ".a" * 100_000, "3", DEEP),
    ('"a b"' + '."a b"' * 100_000, "3", DEEP),
    ("client_lr = 0.1\nclient_lr", "0.2", "Cannot overwrite a value"),
    ("deterministic", "true\ncompile = true", "compile: expected none beside deterministic = true"),
]


@pytest.mark.parametrize(("key", "value", "says"), VALUES, ids=[f"{key} {value}"[:24] for key, value, _ in VALUES])
def test_a_file(key: str, value: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(changed(**{key: value}))
    assert says in refusal(capsys, "run", str(file), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


SET = [
    (["rounds=1e400"], "--set rounds: expected a number between -1.8e308 and 1.8e308, got 1e400"),
    (["rounds=9223372036854775808"], f"--set rounds: expected a whole number {BIG}"),
    (["rounds=" + "9" * 100_000], "--set rounds: expected whole numbers of 64 bits"),
    (["rounds=" + "[" * 30_000], f"--set rounds: {DEEP}"),
    (["title=" + "x" * 100_000], "--set title: expected a text of at most 10,000 letters, got 100,000"),
    (["a" + ".a" * 40_000 + "=1"], "expected a key of at most 32 parts, got more"),
    (["x" * 100_000], "--set: expected KEY=VALUE"),
    (["rounds=3", "rounds=4"], "--set rounds: expected a key once, got it 2 times"),
]


@pytest.mark.parametrize(("given", "says"), SET, ids=[given[0][:24] for given, _ in SET])
@pytest.mark.parametrize("command", ["run", "tune", "reproduce"])
def test_set(command: str, given: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.toml"
    grid = GRID + "'algorithm.client_lr' = [0.1]" if command == "tune" else ""
    file.write_text(STUDY.format(top="") if command == "reproduce" else EXPERIMENT.format(top="") + grid)
    options = [part for each in given for part in ("--set", each)]
    assert says in refusal(capsys, command, str(file), "--out", str(tmp_path / "out"), *options)


TENTHS = str([round(0.001 * n, 3) for n in range(1, 101)])
TUNED = [
    ("'algorithm.client_lr' = { decades = [-400, 400] }", "two exponents of ten from -300 to 300"),
    ("'algorithm.client_lr' = { decades = [-1e300, 1e300] }", "two exponents of ten from -300 to 300"),
    ("'algorithm.client_lr' = { decades = [-1, 1], per_decade = 100000000 }", "a whole number from 1 to 100"),
    (f"'algorithm.client_lr' = {[n / 10_000 for n in range(2_000)]}", "at most 1,000 values, got 2,000"),
    (f"'algorithm.client_lr' = {TENTHS}\n'algorithm.server_lr' = {TENTHS}\nbatch_size = [1, 2]", "at most 10,000"),
    ("'algorithm.client_lr' = [1e400]", "tune.grid.algorithm.client_lr.0: expected a number between"),
    ("'algorithm.client_lr' = [-1]", "algorithms.0.client_lr: expected a number of at least 0"),
    ("cohort = [41]", "cohort: expected at most data.clients = 40, got 41"),
    ("rounds = [9223372036854775808]", BIG),
]


@pytest.mark.parametrize(("grid", "says"), TUNED, ids=[grid[:40] for grid, _ in TUNED])
def test_a_tune_file(grid: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(EXPERIMENT.format(top="") + GRID + grid)
    assert says in refusal(capsys, "tune", str(file), "--out", str(tmp_path / "out"))


AXES = [f"{{ name = 'a{k}', key = 'rounds', values = {list(range(1, 101))} }}" for k in range(5)]
STUDIES = [
    (f"axes = [{', '.join(AXES)}]", "axes: expected at most 100,000 cells, got 100 x 100 x 100 x 100 x 100"),
    (f"notes = ['{'x' * 1_000_000}']", "notes.0: expected a text of at most 10,000 letters, got 1,000,000"),
    (f"notes = {'[' * 100_000}", DEEP),
    (f"like = '{'x' * 9_000}'", "like: "),
    ("title = 'twice'", "Cannot overwrite a value"),
    ("foo = 1", "foo: unknown key"),
]


@pytest.mark.parametrize(("top", "says"), STUDIES, ids=[top[:24] for top, _ in STUDIES])
def test_a_study_file(top: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.toml"
    file.write_text(STUDY.format(top=top))
    assert says in refusal(capsys, "reproduce", str(file), "--out", str(tmp_path / "out"))


def test_a_file_of_megabytes_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text("# long\n" * 1_000_000)
    assert "at most 1,048,576 bytes, got more" in refusal(capsys, "run", str(file))
