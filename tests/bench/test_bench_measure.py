"""How rounds are counted and what comes of them; no test asserts a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom.bench import measure, peers
from fedloom.bench.measure import Effort, Timing, bench, measure_ours, measure_plain
from fedloom.bench.trials import compare_trials
from fedloom.bench.workloads import WORKLOADS, Workload, patterns

CPU = torch.device("cpu")
TIMING = set(Timing.__dataclass_fields__)


def _dense() -> torch.nn.Module:
    return fl.models.Logistic(8, 3)


TINY = Workload("tiny", "a tiny one", _dense, patterns(8, classes=3), 6, 3, 5, 0.1, 10)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Workload:
    monkeypatch.setitem(measure.WORKLOADS, "tiny", TINY)
    return TINY


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[fl.History]:
    """What `fl.simulate` returned."""
    seen: list[fl.History] = []
    simulate = fl.simulate

    def kept(*arguments: Any, **settings: Any) -> fl.History:
        seen.append(simulate(*arguments, **settings))
        return seen[-1]

    monkeypatch.setattr(fl, "simulate", kept)
    return seen


@pytest.mark.parametrize(("rounds", "warm"), [(1, 1), (3, 2)])
def test_warm_rounds_are_not_among_the_measured(rounds: int, warm: int, runs: list[fl.History]) -> None:
    found, _ = measure_ours(TINY, TINY.data(), "loop", CPU, Effort(rounds=rounds, warm=warm))
    assert len(runs[0].rounds) == rounds + warm and found["rounds"] == rounds
    assert (found["asked"], found["executor"]) == ("loop", "loop")
    assert all(found[key] > 0 for key in TIMING)
    plain = measure_plain(TINY, TINY.data(), CPU, Effort(rounds=rounds, warm=warm))
    assert plain is not None and plain.rounds == rounds


def test_the_run_ends_where_the_budget_does(runs: list[fl.History]) -> None:
    found, _ = measure_ours(TINY, TINY.data(), "loop", CPU, Effort(budget=0.0, warm=2))
    assert found["rounds"] == 2 and len(runs[0].rounds) == 4
    found, _ = measure_ours(TINY, TINY.data(), "loop", CPU, Effort(budget=1e9, warm=2, most=5))
    assert found["rounds"] == 5 and len(runs[1].rounds) == 7


def test_the_random_state_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    measure_plain(TINY, TINY.data(), CPU, Effort(rounds=1, warm=1))
    assert torch.random.get_rng_state().equal(before)


def test_executors_are_compared_and_auto_is_judged(tiny: Workload, runs: list[fl.History]) -> None:
    found = bench(["tiny"], ["loop", "vectorized"], CPU, quick=True)["workloads"][0]
    assert [ours["asked"] for ours in found["ours"]] == ["loop", "vectorized"]
    assert found["plain"]["seconds"] / found["ours"][0]["seconds"] == found["ours"][0]["ratio"]
    assert found["auto"]["chose"] == runs[-1].resolved["executor"] and len(runs[-1].rounds) == 1
    fastest = min(found["ours"], key=lambda ours: ours["seconds"])
    assert found["auto"]["fastest"] == fastest["executor"]
    (chosen,) = (ours for ours in found["ours"] if ours["executor"] == found["auto"]["chose"])
    assert found["auto"]["within_20_percent"] == (chosen["seconds"] <= 1.2 * fastest["seconds"])


def test_what_auto_chose_may_not_have_been_measured(tiny: Workload) -> None:
    timed = {"asked": "other", "executor": "other", "seconds": 1.0}
    judged = measure._judge_auto(TINY, TINY.data(), [timed], CPU)
    assert judged is not None and judged["fastest"] == "other" and judged["within_20_percent"] is None


def test_too_little_memory_is_a_result(tiny: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("fedloom.executors.vectorized.train", full)
    monkeypatch.setattr("fedloom.executors.loop.train", full)
    found = bench(["tiny"], ["vectorized", "loop"], device=CPU, quick=True)["workloads"][0]
    assert len(found["ours"]) == 2
    for ours in found["ours"]:
        assert (ours["why"], ours["seconds"], ours["ratio"]) == ("out of memory", None, None)
    assert found["plain"]["seconds"] > 0


def test_the_plain_loop_gets_the_precision_ours_had(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backend:
        fp32_precision = "ieee"

    backend = Backend()
    monkeypatch.setattr(measure, "precision", lambda: [(backend, "fp32_precision", backend.fp32_precision)])
    seen = []
    monkeypatch.setitem(measure.WORKLOADS, "tiny", TINY)
    monkeypatch.setattr(measure, "measure_plain", lambda *_: seen.append(backend.fp32_precision))
    simulate = fl.simulate

    def with_tf32(*arguments: Any, **settings: Any) -> fl.History:
        backend.fp32_precision = "tf32"
        history = simulate(*arguments, **settings)
        backend.fp32_precision = "ieee"
        return history

    monkeypatch.setattr(fl, "simulate", with_tf32)
    bench(["tiny"], device=CPU, quick=True)
    assert (seen, backend.fp32_precision) == (["tf32"], "ieee")


def test_without_a_choice_a_cpu_gets_the_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(measure, "_compare", lambda workload, *_: seen.append(workload.name))
    monkeypatch.setattr(measure, "machine", lambda device: {})
    bench(device=CPU)
    assert seen == ["W1", "W2", "W3"]
    bench(device=torch.device("cuda"))
    assert seen[3:] == list(WORKLOADS)


def test_trials_are_run_together_and_apart(runs: list[fl.History], monkeypatch: pytest.MonkeyPatch) -> None:
    stacked: list[list[fl.History]] = []
    simulate_trials = fl.simulate_trials

    def kept(*arguments: Any, **settings: Any) -> list[fl.History]:
        stacked.append(simulate_trials(*arguments, **settings))
        return stacked[-1]

    monkeypatch.setattr(fl, "simulate_trials", kept)
    [found] = compare_trials(TINY, "vectorized", CPU, Effort(rounds=2, warm=1))
    assert [[len(run.rounds) for run in together] for together in stacked] == [[1] * 5, [1] * 5, [3] * 5]
    assert [len(run.rounds) for run in runs] == [1] * 5 + [3] * 5
    for together, alone in zip(stacked[-1], runs[-5:], strict=True):
        torch.testing.assert_close(together.params, alone.params)
    assert (found["workload"], found["trials"], found["rounds"]) == (TINY.name, "5 seeds", 3)
    assert found["run_share"] == found["stacked_run_seconds"] / found["one_after_the_other_run_seconds"]


def test_peers_are_asked_through_their_script(tmp_path: Path) -> None:
    script = tmp_path / peers.PLACE
    script.parent.mkdir(parents=True)
    (script.parent / "beside_compare.py").write_text("NAME = 'one'\n")
    script.write_text(
        "from beside_compare import NAME\n"
        "def measure(workloads, peers, rounds, *, device, wait, say):\n"
        "    say('asked')\n"
        "    return [{'peer': NAME, 'workload': w, 'given': (peers, rounds, device, wait)} for w in workloads]\n"
    )
    assert peers.script(tmp_path) == script
    said: list[str] = []
    found = peers.measure(["W1", "W5", "W2"], 4, "cuda", False, said.append, script)
    assert [row["workload"] for row in found] == ["W1", "W2"] and said == ["asked"]
    assert found[0]["peer"] == "one" and found[0]["given"] == (None, 4, "cuda", True)
    assert peers.measure(["W1"], quick=True, path=script)[0]["given"] == (None, 2, "cpu", False)
    with pytest.raises(fl.FedloomError, match=r"--peers: expected benchmarks.peers.compare.py in a source checkout"):
        peers.script(tmp_path / "elsewhere")


def test_quick_leaves_out_who_is_not_in_the_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Workload] = []
    monkeypatch.setattr(measure, "_compare", lambda workload, *_: seen.append(workload))
    bench(["W2"], device=CPU, quick=True)
    bench(["W2"], device=CPU)
    assert [(workload.population, workload.cohort) for workload in seen] == [(100, 100), (1000, 100)]
