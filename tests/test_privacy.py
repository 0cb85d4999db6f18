"""Central differential privacy: what is released, what bounds it, what is refused, what a run records."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_federations import EXECUTORS, classification, distance, flat, linear
from test_noise import kolmogorov
from torch import Tensor, nn

import fedloom as fl
from fedloom import cli
from fedloom.errors import Damaged
from fedloom.experiments.schema import read
from fedloom.experiments.tune_file import read_tune
from fedloom.noise import step_of
from fedloom.transforms.base import stateless

ALL_ALIKE: dict[str, Any] = {"client_lr": 0.1, "weighting": fl.uniform()}
POPULATION = 20


def private(
    base: fl.Algorithm | None = None, clip: float | fl.Upload = 0.5, z: float = 1.0, **options: Any
) -> fl.Algorithm:
    options = {"delta": 1e-5, "cohort": 1, "seeded_noise": True, **options}
    return fl.private(base or fl.fedavg(**ALL_ALIKE), clip=clip, noise_multiplier=z, **options)


def cohort(rows: Any, **columns: Any) -> fl.Cohort:
    updates = torch.as_tensor(rows, dtype=torch.float64)
    ids = torch.arange(len(updates))
    return fl.Cohort(**{"clients": ids, "examples": ids + 1, "updates": {"w": updates}, **columns})


def released(algorithm: fl.Algorithm, *chunks: fl.Cohort, size: int = 2) -> Tensor:
    """The pseudo-gradient that FedAvg's server sees: it steps by it, from zero."""
    params = {"w": torch.zeros(size, dtype=torch.float64)}
    return -algorithm.apply(params, algorithm.init(params, POPULATION), chunks)[0]["w"]


# What is released -----------------------------------------------------------------------------------------------------

numbers = st.floats(-1e6, 1e6, allow_subnormal=False)


@settings(max_examples=40, deadline=None)
@given(
    others=st.lists(st.lists(numbers, min_size=3, max_size=3), max_size=4),
    client=st.lists(numbers, min_size=3, max_size=3),
    norm=st.floats(1e-3, 1e3),
    z=st.floats(0.1, 10),
)
def test_one_client_changes_the_sum_by_no_more_than_the_noise_is_scaled_to(
    others: list[list[float]], client: list[float], norm: float, z: float
) -> None:
    """The noise being the same, the difference is the client's: exactly, since sums on the grid are exact."""
    algorithm = private(clip=norm, z=z)
    without = released(algorithm, *([cohort(others)] if others else []), size=3)
    change = released(algorithm, cohort([*others, client]), size=3) - without
    step = step_of(z * norm)
    assert float(change.norm()) <= norm + step * math.sqrt(3)
    assert (change / step).equal((change / step).round())
    whole = torch.tensor(client, dtype=torch.float64)
    expected = whole * min(1.0, norm / max(float(whole.norm()), 1e-300))
    torch.testing.assert_close(change, expected, rtol=1e-12, atol=step)


@pytest.mark.parametrize("z", [1e-3, 1e-9, 1e-300])
def test_little_noise_leaves_the_sum_as_it_is(z: float) -> None:
    found = released(private(z=z), cohort([[3.0, 4.0], [0.1, 0.2]]))
    torch.testing.assert_close(found, torch.tensor([0.4, 0.6], dtype=torch.float64), rtol=0, atol=1e-10 + 5 * z)


@pytest.mark.parametrize("entry", [1e200, 1e-200, 5e-324])
def test_the_bound_holds_for_extreme_updates(entry: float) -> None:
    algorithm = private()
    change = released(algorithm, cohort([[entry, -entry]])) - released(algorithm)
    assert float(change.norm()) <= 0.5 + step_of(0.5) * math.sqrt(2)


def test_the_sum_is_divided_by_the_cohort_that_was_expected() -> None:
    rows = [[0.3, 0.0], [0.0, -0.4], [3.0, 4.0]]  # the last has norm 5
    algorithm = private(cohort=8)
    change = released(algorithm, cohort(rows)) - released(algorithm)
    expected = torch.tensor([0.3 + 0.3, -0.4 + 0.4], dtype=torch.float64) / 8
    torch.testing.assert_close(change, expected, rtol=0, atol=step_of(0.5))


def test_the_released_mean_has_noise_of_z_times_the_norm_over_the_cohort() -> None:
    size = 100_000
    found = released(private(clip=0.5, z=1.6, cohort=4, seeded_noise=False), cohort(torch.ones(1, size)), size=size)
    mean, deviation = 0.5 / math.sqrt(size) / 4, 1.6 * 0.5 / 4
    assert kolmogorov(found, torch.special.ndtr((found - mean) / deviation)) < 4
    assert abs(float(found.std()) / deviation - 1) < 6 / math.sqrt(2 * size)


def test_noise_is_another_one_in_every_round_and_every_leaf() -> None:
    algorithm = private()
    params = {"a": torch.zeros(4, dtype=torch.float64), "b": torch.zeros(4, dtype=torch.float64)}
    state, seen = algorithm.init(params, POPULATION), []
    for _ in range(3):
        after, state, _ = algorithm.apply(params, state, [])
        seen += [after["a"], after["b"]]
    assert len(torch.cat(seen).unique()) == 24


@pytest.mark.parametrize("rows", [[], [[math.nan, 0.0], [0.0, math.inf]]])
def test_a_round_without_anybody_has_noise_and_counts(rows: list[list[float]]) -> None:
    algorithm = private(seeded_noise=False)
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    after, state, report = algorithm.apply(params, algorithm.init(params, POPULATION), cohort(rows) if rows else [])
    assert state.round == 1
    assert bool((after["w"] != 0).all())
    assert report["admitted"] == 0


def test_a_refused_client_counts_as_zero() -> None:
    algorithm, rows = private(cohort=3), [[0.1, 0.2], [0.3, -0.1]]
    refused = released(algorithm, cohort([*rows, [math.nan, 0.0]]))
    assert refused.equal(released(algorithm, cohort(rows)))
    assert refused.equal(released(algorithm, cohort([*rows, [0.0, 0.0]])))


def test_a_client_counts_once_whatever_it_holds_and_however_often_it_was_drawn() -> None:
    algorithm, rows = private(), [[0.1, 0.2], [0.3, -0.1]]
    plain = released(algorithm, cohort(rows))
    assert plain.equal(released(algorithm, cohort(rows, examples=torch.tensor([1000, 1]))))
    assert plain.equal(released(algorithm, cohort(rows, weights=torch.tensor([5.0, 1.0]))))
    assert plain.equal(released(algorithm, cohort(rows, multiplicity=torch.tensor([7, 1]))))


def test_chunks_share_one_noise() -> None:
    algorithm, rows = private(), torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = [cohort(rows[part], clients=part) for part in torch.arange(6).split(2)]
    assert released(algorithm, cohort(rows)).equal(released(algorithm, *parts))


# An adaptive clip norm ------------------------------------------------------------------------------------------------


def test_sum_and_count_together_cost_what_the_noise_multiplier_costs() -> None:
    """Andrew et al. 2021, theorem 1: z_sum = (z^-2 - (2 sigma_b)^-2)^(-1/2)."""
    algorithm = private(clip=fl.adaptive_clip(), z=1.0, cohort=20, count_noise=0.7)
    assert algorithm.privacy is not None
    multiplier = algorithm.privacy.sum_multiplier(algorithm.upload)
    assert multiplier == pytest.approx((1 - 1.4**-2) ** -0.5)
    assert multiplier**-2 + (2 * 0.7) ** -2 == pytest.approx(1.0)
    assert private(clip=fl.adaptive_clip(), cohort=20).privacy.bit_deviation() == 1.0  # type: ignore[union-attr]


def test_noise_on_the_sum_follows_the_adaptive_norm() -> None:
    size = 100_000
    algorithm = private(clip=fl.adaptive_clip(initial=0.25), cohort=4, count_noise=1.0, seeded_noise=False)
    deviation = (1 - 0.5**2) ** -0.5 * 0.25 / 4
    assert abs(float(released(algorithm, size=size).std()) / deviation - 1) < 6 / math.sqrt(2 * size)


def test_the_norm_follows_the_noised_count() -> None:
    """rho' = rho exp(-lr (b - quantile)), b = (sum_k (b_k - 1/2) + N(0, sigma_b^2)) / (q N) + 1/2."""
    algorithm = private(clip=fl.adaptive_clip(quantile=0.5, initial=1.0, lr=0.2), cohort=10, count_noise=2.0)
    params = {"w": torch.zeros(1, dtype=torch.float64)}
    rows, found = cohort([[0.1], [0.2], [5.0], [math.nan]]), []
    begin = algorithm.init(params, POPULATION)
    for round in range(200):
        state = replace(begin, round=round)
        _, after, report = algorithm.apply(params, state, rows)
        found.append(report["unclipped_fraction"])
        assert after.upload["rho"] == pytest.approx(math.exp(-0.2 * (found[-1] - 0.5)), rel=1e-12)
    counts = (torch.tensor(found, dtype=torch.float64) - 0.5) * 10
    # two are below the norm, one is above, one refused
    assert kolmogorov(counts, torch.special.ndtr((counts - 0.5) / 2.0)) < 3


# The server's step is post-processing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base",
    [
        fl.fedavgm(**ALL_ALIKE),
        fl.fedadagrad(**ALL_ALIKE),
        fl.fedadam(**ALL_ALIKE),
        fl.fedyogi(**ALL_ALIKE),
        fl.fedlars(**ALL_ALIKE),
        fl.fedlamb(**ALL_ALIKE),
        fl.normalized_fedavg(**ALL_ALIKE),
        fl.fedsgd(weighting=fl.uniform()),
        fl.replace(fl.fedprox(mu=0.1, **ALL_ALIKE), server=fl.from_torch(torch.optim.SGD, lr=0.5)),
    ],
    ids=lambda base: base.name,
)
def test_a_server_sees_the_released_mean_as_it_would_any_other(base: fl.Algorithm) -> None:
    algorithm, sent = private(base, cohort=2), cohort([[0.3, -0.2], [0.1, 0.4]])
    start = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64)}
    params, state = start, algorithm.init(start, POPULATION)
    plain, plain_state = start, base.init(start, POPULATION)
    for round in range(2):
        mean = private(cohort=2)
        begun = replace(mean.init(start, POPULATION), round=round)
        zero = {"w": torch.zeros(2, dtype=torch.float64)}
        g = -mean.apply(zero, begun, sent)[0]["w"]
        params, state, _ = algorithm.apply(params, state, sent)
        plain, plain_state, _ = base.apply(plain, plain_state, cohort(g.unsqueeze(0)))
        torch.testing.assert_close(params, plain, rtol=1e-12, atol=1e-12)


def test_a_server_part_of_ones_own_is_told_nothing_of_single_clients() -> None:
    seen: list[tuple[int, int, int]] = []

    def look(g: Any, params: Any, info: Any) -> Any:
        seen.append((info.admitted, len(info.squares), len(info.sums)))
        return g

    algorithm = private(fl.replace(fl.fedavg(**ALL_ALIKE), server=stateless("look()", look)), cohort=7)
    released(algorithm, cohort([[0.1, 0.2], [0.3, -0.1]]))
    assert seen == [(7, 0, 0)]


# What is refused ------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: private(fl.fedavg(0.1)), "private: expected weighting=fl.uniform(): all clients count alike; got by_ex"),
    (lambda: private(fl.fedadp(0.1)), "private: expected weighting=fl.uniform(): all clients count alike; got by_an"),
    (lambda: private(fl.fednova(0.1)), "private: expected weighting=fl.uniform(): all clients count alike; got by_eff"),
    (lambda: private(fl.scaffold(0.1)), "private: expected clients that keep nothing between rounds"),
    (lambda: private(fl.feddyn(0.1, alpha=0.1)), "private: expected clients that keep nothing between rounds"),
    (lambda: private(fl.fedglad(fl.fedavg(**ALL_ALIKE))), "private: expected a server step that reads the noised mean"),
    (lambda: fl.fedglad(private()), "private: expected a server step that reads the noised mean alone; got chain(glad"),
    (lambda: private(fl.central(0.1)), "private: expected clients that train by themselves; got central()"),
    (
        lambda: private(fl.fedadam(initial_accumulator="estimate", **ALL_ALIKE)),
        "private: expected a number for initial_accumulator",
    ),
    (lambda: private(clip=fl.keep()), "private: expected an upload that clips, fl.clip(norm) or fl.adaptive_clip(); "),
    (lambda: private(clip=fl.chain(fl.zeroing(), fl.clip(1.0))), "private: expected an upload that clips"),
    (lambda: private(clip=math.inf), "private: expected an upload that clips, fl.clip(norm) or fl.adaptive_clip()"),
    (lambda: private(clip=0.0), "clip norm: expected a positive number, got 0.0"),
    (lambda: fl.replace(private(), upload=fl.keep()), "private: expected an upload that clips"),
    (lambda: private(private()), "private: expected upload=fl.keep(), since it clips by itself; got clip(0.5)"),
    (lambda: private("fedavg"), "private: expected an Algorithm to wrap, got 'fedavg'"),  # type: ignore[arg-type]
    (lambda: private(z=0.0), "private noise_multiplier: expected a positive number, got 0.0"),
    (lambda: private(z=math.inf), "private noise_multiplier: expected a finite number, got inf"),
    (lambda: private(delta=1.0), "private delta: expected a number above 0 and below 1, got 1.0"),
    (lambda: released(private(cohort=None)), "private cohort: expected the number of clients that a round draws"),
    (lambda: released(private(cohort=21)), "private cohort: expected at most the population of 20, got 21"),
    (
        lambda: released(private(clip=fl.adaptive_clip(), cohort=10)),
        "private count_noise: expected above noise_multiplier / 2 = 0.5, got 0.5 (a twentieth of the cohort): set it",
    ),
    (
        lambda: private().init({"w": torch.zeros(1)}, POPULATION, buffers={"norm.mean": torch.zeros(1)}),
        "private buffers: expected a model without, got 'norm.mean'",
    ),
    (lambda: fl.check_algorithm(private()), "check_algorithm: expected an algorithm without noise, got a private one"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_noise_would_not_cover_is_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(fl.FedloomError) as caught:
        build()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


# Runs -----------------------------------------------------------------------------------------------------------------

DATA = classification([8, 5, 9, 4, 7, 6, 8, 5, 3, 10, 6, 7])
RUN: dict[str, Any] = {"rounds": 3, "cohort": 6, "sampler": "poisson", "dtype": torch.float64}


def run(algorithm: fl.Algorithm, **options: Any) -> fl.History:
    pytest.importorskip("dp_accounting")
    return fl.simulate(linear(), DATA, algorithm, **{**RUN, **options})


def for_a_run(**options: Any) -> fl.Algorithm:
    return private(cohort=None, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "uniform"}, "simulate sampler: expected 'poisson' with privacy"),
        ({"sampler": fl.sampling.forced("poisson", {1: [2]})}, "simulate forced: expected no cohorts by choice"),
        ({"cohort": fl.sampling.doubling(2)}, "simulate cohort: expected a number or a fraction with privacy"),
        (
            {"system": fl.System(straggling=1.0, over_selection=1.5)},
            "simulate over_selection: expected 1 with privacy: who is taken must not depend on others; got 1.5",
        ),
        ({"evaluate_on": ["train"]}, "simulate evaluate_on: expected 'test' or 'validation' with privacy"),
        ({"alignment": True}, "simulate alignment: expected false with privacy"),
        ({"cohort": 5}, "simulate cohort: expected private's cohort=6, got 5: leave that out"),
    ],
)
def test_a_run_that_epsilon_would_not_describe_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fl.FedloomError) as caught:
        run(private(cohort=6), **options)
    assert str(caught.value).startswith(message)


def test_batch_norm_is_refused() -> None:
    pytest.importorskip("dp_accounting")
    task = fl.Task(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    with pytest.raises(fl.FedloomError, match="private buffers: expected a model without"):
        fl.simulate(task, DATA, for_a_run(), drop_last=True, batch_size=2, **RUN)


def test_a_run_tells_nothing_of_its_clients_but_what_has_noise(tmp_path: Path) -> None:
    run(for_a_run(seeded_noise=False), run_dir=tmp_path / "fixed")
    run(for_a_run(clip=fl.adaptive_clip(), count_noise=2.0, seeded_noise=False), run_dir=tmp_path / "adaptive")
    known = {"round", "pseudo_gradient_norm", "clip_norm", "epsilon", "test_loss", "test_accuracy", "seconds"}
    for name, keys in (("fixed", known), ("adaptive", known | {"unclipped_fraction"})):
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        assert [set(json.loads(line)) for line in lines] == [keys] * 3


def test_epsilon_is_told_in_every_round_and_in_the_summary(tmp_path: Path) -> None:
    history = run(for_a_run(seeded_noise=False), run_dir=tmp_path / "run")
    expected = [fl.epsilon(1.0, 6 / 12, rounds, 1e-5) for rounds in (1, 2, 3)]
    assert [record["epsilon"] for record in history.rounds] == pytest.approx(expected, rel=1e-12)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["privacy"] == {
        "noise_multiplier": 1.0,
        "sampling_rate": 0.5,
        "delta": 1e-5,
        "seeded_noise": False,
        "charged": 3,
        "epsilon": pytest.approx(expected[-1]),
    }


def lowered(ledger: Path) -> None:
    ledger.write_text(json.dumps(json.loads(ledger.read_text()) | {"charged": 1}))


@pytest.mark.parametrize(("damage", "got"), [(Path.unlink, "nothing there"), (lowered, "1 charged")])
@pytest.mark.parametrize("lost", [None, "metrics.jsonl", "checkpoints/round-000002/state.json"])
def test_a_run_that_goes_on_has_spent_what_its_rounds_have(
    damage: Callable[[Path], None], got: str, lost: str | None, tmp_path: Path
) -> None:
    """Whatever else is lost: a state that is not sound has been one."""
    history = run(for_a_run(seeded_noise=False), rounds=2, run_dir=tmp_path)
    assert history.rounds[-1]["epsilon"] > 0
    (tmp_path / "summary.json").unlink()
    if lost is not None:
        (tmp_path / lost).unlink()
    damage(tmp_path / "privacy.json")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        Damaged, match=f"privacy.json: expected what 2 rounds have spent, .* got {got}: put the file back"
    ):
        run(for_a_run(seeded_noise=False), rounds=2, run_dir=tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_that_was_not_private_does_not_become_it(tmp_path: Path) -> None:
    run(fl.fedavg(**ALL_ALIKE), rounds=2, run_dir=tmp_path)
    (tmp_path / "summary.json").unlink()
    with pytest.raises(Damaged, match="expected what 2 rounds have spent"):
        run(for_a_run(seeded_noise=False), rounds=2, run_dir=tmp_path, resume=True, allow=["algorithm"])


def test_the_seed_of_a_run_tells_neither_its_noise_nor_its_cohorts() -> None:
    noise = [run(for_a_run(seeded_noise=False)) for _ in range(2)]
    assert distance(*noise) > 0.01
    # with next to no noise what is left of the difference is who was drawn
    cohorts = [run(for_a_run(z=1e-9, seeded_noise=False), rounds=5) for _ in range(2)]
    assert distance(*cohorts) > 1e-3


def test_seeded_noise_repeats_itself_and_has_no_epsilon() -> None:
    one, other, another = run(for_a_run()), run(for_a_run()), run(for_a_run(), seed=1)
    assert flat(one).equal(flat(other))
    assert distance(one, another) > 0.01
    assert [record["epsilon"] for record in one.rounds] == [math.inf] * 3


@pytest.mark.parametrize("clip", [0.05, fl.adaptive_clip(initial=0.05)], ids=["fixed", "adaptive"])
def test_executors_and_chunks_come_to_the_same_model(clip: float | fl.Upload) -> None:
    algorithm = for_a_run(clip=clip, count_noise=2.0)
    loop, stacked = (run(algorithm, executor=executor) for executor in EXECUTORS)
    assert distance(loop, stacked) < 1e-9  # of the grid
    assert distance(stacked, run(algorithm, executor="vectorized", chunk=2)) < 1e-9


def test_rounds_that_draw_nobody_count() -> None:
    history = run(for_a_run(seeded_noise=False), cohort=1, rounds=12)
    assert history.state is not None
    assert history.state.round == 12
    assert all(record["pseudo_gradient_norm"] > 0.1 for record in history.rounds)


def test_devices_that_are_away_or_drop_out_leave_the_denominator_alone() -> None:
    history = run(for_a_run(z=1e-9), system=fl.System(availability=0.0), rounds=1)
    assert history.state is not None
    assert history.state.round == 1
    assert history.rounds[0]["pseudo_gradient_norm"] < 1e-6


def test_trials_are_charged_each_by_itself() -> None:
    pytest.importorskip("dp_accounting")
    trials = [{"algorithm": for_a_run(seeded_noise=False)}, {"algorithm": for_a_run(z=2.0, seeded_noise=False)}]
    dear, cheap = fl.simulate_trials(linear(), DATA, trials, **RUN)
    assert dear.rounds[-1]["epsilon"] == pytest.approx(fl.epsilon(1.0, 0.5, 3, 1e-5))
    assert cheap.rounds[-1]["epsilon"] == pytest.approx(fl.epsilon(2.0, 0.5, 3, 1e-5))


def test_a_bar_shows_what_is_spent(capsys: pytest.CaptureFixture[str]) -> None:
    run(for_a_run(seeded_noise=False), progress=True, rounds=2)
    assert f"epsilon {fl.epsilon(1.0, 0.5, 2, 1e-5):.3f}" in capsys.readouterr().out


def test_a_private_run_is_not_tuned_by_a_loss_it_does_not_tell() -> None:
    tune = "[tune]\nselect = 'train_loss'\ngrid = { 'algorithm.client_lr' = [0.1] }"
    with pytest.raises(fl.FedloomError, match=r"^tune.select: expected 'validation' or 'last' with privacy"):
        read_tune(f"{EXPERIMENT}\n{tune}\n")


def test_a_private_run_learns() -> None:
    pytest.importorskip("dp_accounting")
    data = fl.load("digits", partition="iid", clients=200)
    task = fl.Task(lambda: fl.models.Logistic(64, 10))
    algorithm = for_a_run(base=fl.fedavg(client_lr=0.5, weighting=fl.uniform()), clip=1.0, seeded_noise=False)
    history = fl.simulate(task, data, algorithm, rounds=15, cohort=100, sampler="poisson", batch_size=5)
    assert history.rounds[-1]["test_accuracy"] > 0.7


# On the command line --------------------------------------------------------------------------------------------------

EXPERIMENT = """
name = "private"
rounds = 2
cohort = 20
sampler = "poisson"
data = { name = "digits", partition = "iid", clients = 40 }
model = { name = "logistic" }

[[algorithms]]
name = "fedadam"
client_lr = 0.1
server_lr = 0.01
weighting = "uniform"
clip = 0.5
privacy = { noise_multiplier = 1.0, delta = 1e-3 }
"""


def exit_code(*arguments: str) -> Any:
    """The exit code of the program run inside this process."""
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    return stop.value.code


@pytest.mark.usefixtures("blank_pictures")
def test_a_file_with_a_privacy_table_runs_and_says_what_it_spends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dp_accounting")
    monkeypatch.chdir(tmp_path)
    Path("private.toml").write_text(EXPERIMENT)
    assert exit_code("run", "private.toml", "--out", "one") == 0
    spent = f"{fl.epsilon(1.0, 0.5, 2, 1e-3):.4g}"
    assert f"private(fedadam), seed 0, round 2: epsilon {spent} at delta 0.001" in capsys.readouterr().out
    assert exit_code("run", "one/config.toml", "--out", "two", "--seeded-noise") == 0
    assert "it protects nobody, and epsilon is void" in capsys.readouterr().out
    assert json.loads(Path("two/summary.json").read_text())["privacy"]["epsilon"] is None
    assert "seeded_noise = true" in Path("two/config.toml").read_text()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sampler=uniform", "sampler: expected 'poisson' with privacy"),
        ("algorithms.0.weighting=by_examples", "algorithms.0.weighting: expected 'uniform' beside privacy"),
        ("algorithms.0.clip=", "algorithms.0.clip: expected a clip norm beside privacy"),
        ("algorithms.0.zeroing=true", "algorithms.0.zeroing: expected none beside privacy"),
        ("cohort={ initial = 2 }", "cohort: expected a number or a fraction with privacy"),
        ('evaluate_on=["clients"]', "evaluate_on: expected 'test' or 'validation' with privacy"),
    ],
)
def test_a_file_is_held_to_the_same_terms(setting: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "private.toml"
    file.write_text(EXPERIMENT)
    with pytest.raises(fl.FedloomError) as caught:
        read(file, [setting])
    assert message in str(caught.value)


def test_seeded_noise_needs_noise(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", "quickstart", "--seeded-noise") == 2
    assert capsys.readouterr().err == "fedloom: --seeded-noise: expected an algorithm with privacy, got none\n"


def test_a_missing_library_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    (tmp_path / "private.toml").write_text(EXPERIMENT)
    assert exit_code("run", str(tmp_path / "private.toml"), "--out", str(tmp_path / "out")) == 2
    assert "pip install 'fedloom[privacy]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
