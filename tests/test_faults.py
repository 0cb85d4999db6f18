"""Clients that break or attack, in simulation: what they send, and what the server makes of it."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import on_ranks
from small_federations import EXECUTORS, POINT, always, classification, digest, distance, flat, linear, quadratics
from test_cli import exit_code, rounds
from test_executors import BatchNormed, Dense
from torch import Tensor

import fedloom as fl
from fedloom import faults
from fedloom.experiments import schema
from fedloom.experiments.build import build_algorithm, build_options
from fedloom.experiments.robust_sections import RULES, STRONG, FaultSection
from fedloom.faults import ACCIDENTS, ATTACKS, STRENGTHS, Fault, Faults
from fedloom.types import Report

SIZES = [5, 10, 20, 40, 3, 8, 9, 30, 12, 7]
ALL = range(len(SIZES))
SYSTEM = fl.System(straggling=1.0, deadline=60.0)


def play(*given: Fault, algorithm: Any = None, count: int = 3, cohort: int = 8, **options: Any) -> fl.History:
    algorithm = algorithm or fl.fedavg(0.1, weighting=fl.uniform())
    late = any(fault.kind == "lateness" for fault in given)
    settled = {"system": SYSTEM if late else None, "dtype": torch.float64} | options
    return fl.simulate(linear(), classification(SIZES), algorithm, count, cohort, faults=given, **settled)


# The same whatever the executor ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*ACCIDENTS, *ATTACKS])
def test_executors_and_chunks_come_to_the_same_numbers(kind: str) -> None:
    algorithm = fl.scaffold(0.1)
    one, other = (play(Fault(kind, 0.4), algorithm=algorithm, executor=executor) for executor in EXECUTORS)
    cut = play(Fault(kind, 0.4), algorithm=algorithm, executor="vectorized", chunk=3)
    clean = play(algorithm=algorithm)
    assert distance(one, other) < 1e-14 and distance(one, cut) < 1e-14
    assert (distance(one, clean) > 1e-4) == (kind != "double")
    for key in ("admitted", "refused", "train_loss"):
        assert [r[key] for r in one.rounds] == pytest.approx([r[key] for r in cut.rounds], nan_ok=True)


def test_stacked_trials_have_faults_of_their_own() -> None:
    given = [[], [Fault("sign_flip", 0.3)], [Fault("nan", 0.3), Fault("a_little_is_enough", 0.2)]]
    data, algorithm = classification(SIZES), fl.fedavg(0.1)
    options: dict[str, Any] = {"rounds": 3, "cohort": 8, "dtype": torch.float64, "executor": "vectorized"}
    stacked = fl.simulate_trials(
        linear(), data, [{"algorithm": algorithm, "faults": each} for each in given], **options
    )
    for history, each in zip(stacked, given, strict=True):
        assert distance(history, fl.simulate(linear(), data, algorithm, faults=each, **options)) < 1e-14


def test_a_run_repeats_itself_to_the_bit() -> None:
    given = [Fault(kind, 0.1) for kind in (*ACCIDENTS, *ATTACKS)]
    assert digest(play(*given, count=5).params) == digest(play(*given, count=5).params)
    assert digest(play(*given, count=5).params) != digest(play(*given, count=5, sampling_seed=1).params)


# Accidents ------------------------------------------------------------------------------------------------------------


def watch(history: list[Report]) -> Any:
    """An algorithm whose rounds' reports are kept."""
    algorithm = fl.scaffold(0.1)

    class Kept(type(algorithm)):  # type: ignore[misc]
        def open(self, *arguments: Any, **options: Any) -> Any:
            intake = super().open(*arguments, **options)
            close = intake.close

            def closing(also: Any = None) -> Any:
                after = close(also)
                history.append(after.report())
                return after

            intake.close = closing
            return intake

    return Kept(**{field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)})


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan", "non-finite value in update 'weight'"),
        ("wrong_shape", "update 'weight': expected shape (4, 6), got (25,)"),
        ("stale", "stale report: expected one for round {round}, got one for round {before}"),
        ("double", "second report of this client in the round"),
    ],
)
def test_broken_reports_are_refused_with_a_reason(kind: str, reason: str) -> None:
    reports: list[Report] = []
    history = play(Fault(kind, 0.4), algorithm=watch(reports), count=6)
    completed = 0
    for t, report in enumerate(reports):
        struck = Faults([Fault(kind, 0.4)], 0, len(SIZES)).struck(kind, t, report.clients.ids)
        rows = zip(report.clients.ids.tolist(), report.clients.reasons, struck.tolist(), strict=True)
        seen: set[int] = set()
        for client, got, hit in rows:
            refused = hit and not (kind == "stale" and not completed) and (kind != "double" or client in seen)
            assert got == (reason.format(round=completed, before=completed - 1) if refused else None)
            seen.add(client)
        completed += bool(report["admitted"])
    assert sum(record["refused"] for record in history.rounds) > 5


def test_a_second_report_leaves_no_trace() -> None:
    """Neither in the model nor in what clients remember."""
    twice, once = (play(*given, algorithm=fl.scaffold(0.1), count=5) for given in ([Fault("double", 0.7)], []))
    assert digest(twice.params) == digest(once.params)
    assert [r["train_loss"] for r in twice.rounds] == [r["train_loss"] for r in once.rounds]


def test_nobody_hears_of_clients_that_drop_out_and_work_is_lost_in_a_crash() -> None:
    dropped, crashed = (play(Fault(kind, 1.0), count=4) for kind in ("dropout", "crash"))
    untouched = play(count=4, min_reports=8, system=fl.System(dropout=1.0))
    for history in (dropped, crashed):
        assert [record["admitted"] for record in history.rounds] == [0] * 4
        assert digest(history.params) == digest(untouched.params)
    assert dropped.rounds[-1]["examples_processed"] == 0
    assert crashed.rounds[-1]["examples_processed"] == play(count=4).rounds[-1]["examples_processed"]


def test_a_deadline_ends_every_round() -> None:
    """Everybody is late for it: the clock stands at the deadline, the model where it was, and the run ends."""
    history = play(Fault("lateness", 1.0, strength=1e6), count=5)
    assert [record["simulated_seconds"] for record in history.rounds] == [60.0] * 5
    assert [record["admitted"] for record in history.rounds] == [0] * 5
    assert history.state is not None and history.state.round == 0


def test_clients_that_all_send_nan_do_not_end_the_run() -> None:
    history = play(Fault("nan", 1.0), count=6)
    assert len(history.rounds) == 6 and bool(flat(history).isfinite().all())


@pytest.mark.parametrize(
    "make",
    [lambda: fl.scaffold(0.1), lambda: fl.fedadam(0.1), lambda: fl.feddyn(0.1, alpha=0.1), lambda: fl.fedadp(0.1)],
)
def test_a_round_with_too_few_reports_never_was(make: Any) -> None:
    """What clients remember, moments and counters included: the rounds after it go on as if it had not been drawn."""
    enough, few, more = [0, 1, 2, 3], [4, 5], [0, 1, 4, 5]
    options: dict[str, Any] = {"batch_size": 100, "dtype": torch.float64, "min_reports": 3}  # whole batches: no order

    def run(*cohorts: list[int]) -> fl.History:
        data = classification(SIZES)
        return fl.simulate(linear(), data, make(), len(cohorts), 4, sampler=always(*cohorts), **options)

    void, stopped, without = run(enough, few, more), run(enough, few), run(enough, more)
    assert [record["admitted"] for record in void.rounds] == [4, 2, 4]
    assert digest(stopped.params) == digest(run(enough).params)
    assert distance(void, without) < 1e-14
    assert void.state is not None and void.state.round == 2


# Attacks --------------------------------------------------------------------------------------------------------------

CENTRES = [[1.0, 2.0], [3.0, -1.0], [0.5, 0.5], [-2.0, 1.0], [4.0, 4.0]]


def points(*given: Fault, combine: Any = None) -> tuple[Tensor, Tensor]:
    """One step from zero towards five centres: the honest updates -0.1 c_k, and the model after the round."""
    algorithm = fl.fedsgd(server_lr=1.0, weighting=fl.uniform())
    algorithm = algorithm if combine is None else fl.replace(algorithm, combine=combine)
    data = quadratics(CENTRES, [2] * 5)
    history = fl.simulate(POINT, data, algorithm, 1, 5, dtype=torch.float64, faults=given)
    return -torch.tensor(CENTRES, dtype=torch.float64), -flat(history)


@pytest.mark.parametrize(
    ("fault", "sent"),
    [
        (Fault("sign_flip", 0.4), lambda own, honest: -own),
        (Fault("sign_flip", 0.4, 3.0), lambda own, honest: -3 * own),
        (Fault("scaling", 0.4), lambda own, honest: 10 * own),
        (Fault("zero", 0.4), lambda own, honest: 0 * own),
        (Fault("inner_product", 0.4, 2.5), lambda own, honest: own * 0 - 2.5 * honest.mean(0)),
        (Fault("a_little_is_enough", 0.4, 1.5), lambda own, honest: own * 0 + honest.mean(0) - 1.5 * honest.std(0)),
    ],
    ids=lambda value: f"{value.kind}-{value.strength}" if isinstance(value, Fault) else "",
)
def test_what_hostile_clients_send(fault: Fault, sent: Any) -> None:
    updates, got = points(fault)
    rows = updates.numpy().copy()
    hostile = Faults([fault], 0, 5).of(fault.kind).numpy()
    assert len(hostile) == 2
    rows[hostile] = sent(rows[hostile], np.delete(rows, hostile, axis=0))
    np.testing.assert_allclose(got.numpy(), rows.mean(0), rtol=1e-12)


def test_a_little_is_enough_finds_its_own_strength() -> None:
    """Baruch et al. 2019, section 3.2: of 50 workers 24 are corrupted, s = 2, z = 1.43."""
    assert faults.z_max(50, 24) == pytest.approx(1.43, abs=5e-3)
    given, explicit = Fault("a_little_is_enough", 0.4), Fault("a_little_is_enough", 0.4, faults.z_max(5, 2))
    torch.testing.assert_close(points(given)[1], points(explicit)[1])


def test_the_honest_are_those_whose_updates_are_finite() -> None:
    """A client whose own training overflows is no part of what the hostile ones imitate."""
    fault = Fault("inner_product", 0.4, 2.0)
    overflowing = next(client for client in range(5) if client not in Faults([fault], 0, 5).of("inner_product"))
    data = quadratics(
        [[1e200, 0.0] if client == overflowing else centre for client, centre in enumerate(CENTRES)], [2] * 5
    )
    task = dataclasses.replace(POINT, loss=lambda output, target: 0.5 * (output - target).pow(2).sum(1).pow(2))
    algorithm = fl.fedsgd(server_lr=1.0, weighting=fl.uniform())
    history = fl.simulate(task, data, algorithm, 1, 5, dtype=torch.float64, faults=fault)
    assert history.rounds[0]["admitted"] == 4 and history.rounds[0]["refused"] == 1


def test_gaussian_noise_has_its_deviation_and_is_new_every_round() -> None:
    """Everybody sends noise, with a model of 5,000 numbers: the first step is their mean."""
    data, task = classification([2] * 4, features=1249, classes=4), linear(1249, 4)
    steps = []
    for count in (1, 2):
        options: dict[str, Any] = {"dtype": torch.float64, "faults": Fault("gaussian", 1.0, 3.0), "cohort": 4}
        steps.append(flat(fl.simulate(task, data, fl.fedavg(0.1, weighting=fl.uniform()), count, **options)))
    second = steps[1] - steps[0]
    assert float(second.std()) == pytest.approx(3.0 / 4**0.5, rel=0.05) and abs(float(second.mean())) < 0.1
    first = steps[0] - flat(
        fl.simulate(task, data, fl.fedavg(0.1), 1, 4, faults=Fault("zero", 1.0), dtype=torch.float64)
    )
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.06


def test_flipped_labels_are_learnt_and_never_measured() -> None:
    everybody, nobody = play(Fault("label_flip", 1.0), evaluate_on=("train",)), classification(SIZES)
    flipped = fl.federate(nobody.x, 3 - nobody.y, [nobody.indices[a:b] for a, b in spans(nobody)])
    same = fl.simulate(linear(), flipped, fl.fedavg(0.1, weighting=fl.uniform()), 3, 8, dtype=torch.float64)
    assert digest(everybody.params) == digest(same.params)
    logits = nobody.x @ everybody.params["weight"].T + everybody.params["bias"]
    accuracy = float((logits.argmax(1) == nobody.y).double().mean())
    assert everybody.rounds[-1]["trainset_accuracy"] == pytest.approx(accuracy)


def spans(data: fl.FederatedData) -> list[tuple[int, int]]:
    edges = data.offsets.tolist()
    return list(pairwise(edges))


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 1.0])
def test_the_share_of_hostile_clients_is_exact_and_nobody_is_hostile_twice(rate: float) -> None:
    hostile = Faults([Fault("zero", rate), Fault("sign_flip", (1 - rate) / 2)], seed=3, population=1000)
    zero, flip = hostile.of("zero").tolist(), hostile.of("sign_flip").tolist()
    assert len(zero) == 1000 * rate and len(flip) == 1000 * (1 - rate) / 2
    assert not set(zero) & set(flip)


@pytest.mark.parametrize("kind", ACCIDENTS)
def test_accidents_happen_at_their_rate_and_on_their_own(kind: str) -> None:
    drawn = Faults([Fault(kind, 0.3), *(Fault(other, 0.3) for other in ACCIDENTS if other != kind)])
    clients = torch.arange(20_000)
    mine = drawn.struck(kind, 5, clients)
    assert float(mine.double().mean()) == pytest.approx(0.3, abs=0.015)
    assert not torch.equal(mine, drawn.struck(kind, 6, clients))
    other = next(name for name in ACCIDENTS if name != kind)
    assert float((mine & drawn.struck(other, 5, clients)).double().mean()) == pytest.approx(0.09, abs=0.01)


@cache
def accuracy(attack: Fault | None, combine: str | None = None) -> float:
    data = fl.load("digits", partition="iid", clients=20)
    task = fl.Task(model=lambda: fl.models.Logistic(64, 10))
    algorithm = fl.fedavg(0.3)
    if combine is not None:
        algorithm = fl.replace(algorithm, combine=getattr(fl, combine)())
    given = () if attack is None else attack
    return float(fl.simulate(task, data, algorithm, 8, 20, faults=given, eval_every=8).rounds[-1]["test_accuracy"])


@pytest.mark.parametrize("combine", ["multi_krum", "geometric_median"])
@pytest.mark.parametrize(("kind", "strength"), [("sign_flip", 20.0), ("scaling", 1e6), ("gaussian", 50.0)])
def test_a_rule_keeps_what_plain_averaging_loses(kind: str, strength: float, combine: str) -> None:
    attack = Fault(kind, 0.2, strength)
    assert accuracy(attack) < accuracy(None) - 0.1
    assert accuracy(attack, combine) > accuracy(None) - 0.02


# Mistakes, and files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: Fault("sign_flp", 0.1), "fault: expected one of .*; got 'sign_flp': did you mean 'sign_flip'"),
        (lambda: Fault("nan", 1.5), r"nan rate: expected a number in \[0, 1\], got 1.5"),
        (lambda: Fault("nan", 0.5, 2.0), "nan strength: expected none, which it does not have, got 2.0"),
        (lambda: Fault("scaling", 0.5, -2.0), "scaling strength: expected a positive number, got -2.0"),
        (lambda: play(Fault("nan", 0.1), Fault("nan", 0.2)), "faults: expected each kind once, got 'nan' twice"),
        (lambda: play(Fault("zero", 0.6), Fault("gaussian", 0.6)), "sum to at most 1, got 1.2"),
        (lambda: points("nan"), "faults: expected fl.Fault"),
        (lambda: play(Fault("lateness", 0.1), system=None), "lateness: expected something to be late for"),
        (lambda: play(min_reports=9), "min_reports: expected at most the cohort, 8, got 9"),
        (lambda: play(min_reports=0), "min_reports: expected a whole number of at least 1, got 0"),
        (lambda: points(Fault("label_flip", 0.2)), "label_flip: expected data with class labels"),
    ],
)
def test_mistakes_are_one_clear_line(given: Any, message: str) -> None:
    with pytest.raises(fl.FedloomError, match=message):
        given()


def test_sections_follow_faults_and_rules() -> None:
    kinds = FaultSection.model_fields["kind"].annotation
    assert set(kinds.__args__) == {*ACCIDENTS, *ATTACKS}  # type: ignore[union-attr]
    assert set(STRONG) == {*STRENGTHS, "a_little_is_enough"}
    for name, section in RULES.items():
        given = {key: 0.4 for key in section.model_fields if section.model_fields[key].is_required() and key != "rule"}
        table = {"name": "fedavg", "client_lr": 0.1, "combine": {"rule": name, **given}}
        read = schema.read(FILE, [f"algorithms=[{table_toml(table)}]"])
        built = build_algorithm(read.algorithms[0])
        assert repr(built.combine) == repr(getattr(fl, name)(**given))


def table_toml(table: dict[str, Any]) -> str:
    parts = [f"{k} = {table_toml(v) if isinstance(v, dict) else repr(v)}" for k, v in table.items()]
    return "{" + ", ".join(parts) + "}"


FILE = """
name = "hostile"
rounds = 3
cohort = 8
min_reports = 3
data = { name = "digits", partition = "iid", clients = 20 }
model = { name = "logistic" }
algorithms = [
    { name = "fedavg", client_lr = 0.1 },
    { name = "fedavg", client_lr = 0.1, glad = true, combine = { rule = "geometric_median", base = "by_examples" } },
]

[[faults]]
kind = "nan"
rate = 0.2

[[faults]]
kind = "sign_flip"
rate = 0.2
strength = 5.0
"""


@pytest.mark.usefixtures("blank_pictures")
def test_a_file_says_what_goes_wrong(tmp_path: Path) -> None:
    (tmp_path / "hostile.toml").write_text(FILE)
    assert exit_code("run", str(tmp_path / "hostile.toml"), "--out", str(tmp_path / "out"), "--quiet") in (None, 0)
    robust = tmp_path / "out" / "fedglad-fedavg-geometric-median-seed0"
    lines = rounds(robust)
    assert sum(line["refused"] for line in lines) > 0 and lines != rounds(tmp_path / "out" / "fedavg-seed0")
    again = ("run", str(robust / "config.toml"), "--out", str(tmp_path / "again"), "--quiet")
    assert exit_code(*again) in (None, 0)
    assert rounds(tmp_path / "again") == lines


def test_one_table_of_faults_stands_for_a_list_of_one() -> None:
    start = FILE.split("[[faults]]")[0]
    read = schema.read(start + "[faults]\nkind = 'scaling'\nrate = 0.1\n")
    assert build_options(read, fl.load("digits", partition="iid", clients=20))["faults"] == [Fault("scaling", 0.1)]
    assert "faults" not in schema.read(start).to_mapping()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("faults.0.kind=nann", "faults.0.kind: expected one of .*; got 'nann': did you mean 'nan'"),
        ("faults.0.rate=2", r"faults.0.rate: expected a number in \[0, 1\], got 2"),
        ("faults.0.strength=2.0", "faults.0.strength: expected none with kind = 'nan', got 2.0"),
        ("faults=3", r"faults: expected a \[faults\] table, or \[\[faults\]\] tables, got 3"),
        ("min_reports=9", "min_reports: expected at most the cohort of 8, got 9"),
        ("algorithms.1.combine.rule=krum", "algorithms.1.combine.rule: expected one of .*; got 'krum'"),
        ("algorithms.1.combine.iterations=0", "combine.iterations: expected a whole number of at least 1, got 0"),
    ],
)
def test_mistakes_in_a_file_are_one_clear_line(override: str, message: str) -> None:
    with pytest.raises(fl.FedloomError, match=message):
        schema.read(FILE, [override])


def faulty() -> list[object]:
    """Three rounds of every rule with everything that can go wrong: what each came to, and told."""
    rules = [fl.multi_krum(0.3), fl.geometric_median(), fl.centred_clipping(0.05), fl.coordinate_median()]
    rules += [fl.norm_bounding(0.1)]
    given = [fl.Fault("a_little_is_enough", 0.2), fl.Fault("gaussian", 0.1), fl.Fault("inner_product", 0.1)]
    given += [fl.Fault(kind, 0.1) for kind in ("dropout", "crash", "nan", "wrong_shape", "stale", "double")]
    data = classification([20, 9, 31, 20, 5, 14, 7, 12, 40, 3, 18, 22])
    found: list[object] = []
    for rule in rules:
        for model, executor in ((Dense, "vectorized"), (BatchNormed, "loop")):
            history = fl.simulate(
                *(fl.Task(model), data, fl.replace(fl.fedglad(fl.scaffold(0.1)), combine=rule), 3, 12),
                batch_size=8,
                executor=executor,
                drop_last=model is BatchNormed,
                faults=given,
                min_reports=4,
                dtype=torch.float32,
            )
            told = [[record[key] for key in ("admitted", "refused", "mean_update_norm")] for record in history.rounds]
            found.append([repr(rule), digest(history.params), digest(history.buffers), told])
    return found


@pytest.mark.slow
def test_ranks_come_to_the_bits_of_one_process() -> None:
    [alone] = on_ranks(1, faulty)
    for found in on_ranks(3, faulty):
        assert found == alone


def test_nothing_goes_wrong_by_default() -> None:
    assert not Faults().tampers and not bool(Faults().struck("nan", 0, torch.tensor([0, 1])).any())
    assert math.isclose(float(play().rounds[-1]["refused"]), 0)
