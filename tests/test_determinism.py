"""The same bits again: what `deterministic` sets and takes back, and that nothing else decides about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_federations import classification, digest, linear
from torch import Tensor, nn

import fedloom as fl
from fedloom.determinism import WORKSPACE, deterministic
from fedloom.experiments.schema import read

DOUBLE = {"dtype": torch.float64}
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "determinism" / "determinism.py"


def settings() -> tuple[bool, bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
    )


SEEN: set[tuple[bool, ...]] = set()


class Watching(nn.Module):
    """Notes what torch was told while it trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        SEEN.add((*settings(), os.environ.get(WORKSPACE) == ":4096:8"))
        return self.layer(x)


def test_torch_is_told_and_told_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = settings()
    SEEN.clear()
    task = fl.Task(Watching)
    history = fl.simulate(
        task, classification([6, 6]), fl.fedavg(0.1), 1, 2, executor="loop", **DOUBLE, deterministic=True
    )
    assert {(True, False, True, False, True)} == SEEN
    assert settings() == before
    assert history.resolved["program"] != "compiled"


def test_it_changes_nothing_on_a_cpu() -> None:
    data = classification([20, 9, 31, 5])
    runs = [
        fl.simulate(linear(), data, fl.scaffold(0.1), 3, 3, executor=executor, **DOUBLE, deterministic=wanted)
        for executor in ("loop", "vectorized")
        for wanted in (False, True)
    ]
    assert digest(runs[0].params) == digest(runs[1].params)
    assert digest(runs[2].params) == digest(runs[3].params)


def test_settings_are_told_back_after_a_mistake() -> None:
    before = settings()
    with (
        pytest.raises(fl.FedloomError, match=r"deterministic: .* got one that does not: put_ does not have"),
        deterministic(True),
    ):
        raise RuntimeError("put_ does not have a deterministic implementation, but you set ...")
    with pytest.raises(RuntimeError, match="something else"), deterministic(True):
        raise RuntimeError("something else")
    assert settings() == before


def test_another_workspace_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE, ":0:0")
    with pytest.raises(fl.FedloomError, match=r"expected CUBLAS_WORKSPACE_CONFIG to be :4096:8 or :16:8.* got ':0:0'"):
        fl.simulate(linear(), classification([6, 6]), fl.fedavg(0.1), 1, 2, deterministic=True)


def test_a_compiler_chooses_by_the_clock() -> None:
    with pytest.raises(fl.FedloomError, match="compile: expected none beside deterministic, got True"):
        fl.simulate(linear(), classification([6, 6]), fl.fedavg(0.1), 1, 2, deterministic=True, compile=True)


def test_files_and_the_command_line_have_it() -> None:
    from fedloom.experiments.registry import find

    assert read(find("quickstart")).deterministic is False
    assert read(find("quickstart"), ["deterministic=true"]).deterministic is True


@pytest.mark.slow
def test_ranks_orders_and_hash_seeds_do_not_matter(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    subprocess.run([sys.executable, str(SCRIPT), "--runs", "2", "--out", str(out)], check=True, timeout=240)
    found = json.loads(out.read_text())
    assert (found["same"], found["of"]) == (2, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_bits_from_run_to_run(tmp_path: Path) -> None:
    """In processes of their own: CUDA must start with its workspace fixed."""
    out = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), "--runs", "3", "--device", "cuda", "--out", str(out)]
    subprocess.run(command, check=True, timeout=600)
    found = json.loads(out.read_text())
    assert (found["same"], found["of"]) == (3, 3)
