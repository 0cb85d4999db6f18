"""Experiment files: what may stand in them, what a mistake is answered with, what they are built into."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError

from fedloom import algorithms, models, schedule, upload
from fedloom.data import catalog, partition
from fedloom.errors import FedloomError
from fedloom.experiments import algorithm_sections, registry
from fedloom.experiments.algorithm_sections import ALGORITHMS, SCHEDULES, TORCH_OPTIMIZERS, AlgorithmSection
from fedloom.experiments.build import build_algorithm, build_data, build_task, check_device
from fedloom.experiments.data_sections import DATASETS, PARTITIONS, DataSection
from fedloom.experiments.model_sections import MODELS
from fedloom.experiments.schema import Experiment, read
from fedloom.experiments.section import Section
from fedloom.transforms import corrections

TEXT = """
name = "small"
rounds = 3
cohort = 2
seeds = [0, 1]
data = { name = "digits", partition = "dirichlet", clients = 6, alpha = 1.0 }
model = { name = "mlp", hidden = [5] }

[[algorithms]]
name = "fedavg"
client_lr = 0.1

[[algorithms]]
name = "fedavg"
client_lr = { schedule = "geometric", base = 0.1 }
glad = true
"""
NEEDED: dict[str, dict[str, Any]] = {"fedprox": {"mu": 0.1}, "feddyn": {"alpha": 0.1}, "fedsgd": {}}
SLOTS = {"name", "label", "clip", "adaptive_clip", "zeroing", "glad", "combine", "server", "privacy"}


def needed(name: str) -> dict[str, Any]:
    """The keywords a constructor cannot do without."""
    return ({} if name == "fedsgd" else {"client_lr": 0.1}) | NEEDED.get(name, {})


def section(name: str, **keys: Any) -> AlgorithmSection:
    made = ALGORITHMS[name].model_validate({"name": name, **needed(name), **keys})
    assert isinstance(made, AlgorithmSection)
    return made


def own_parameters(function: Any) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    return {name: p for name, p in found.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}


def assert_same_defaults(model: type[Section], parameters: dict[str, inspect.Parameter]) -> None:
    for name, parameter in parameters.items():
        field = model.model_fields[name]
        if parameter.default is inspect.Parameter.empty:
            assert field.is_required(), name
        else:
            default = tuple(field.default) if isinstance(field.default, list) else field.default
            assert default == parameter.default, name


# The sections and what they stand for ---------------------------------------------------------------------------------


def test_every_constructor_has_a_section() -> None:
    constructors = {
        name
        for name, value in vars(algorithms).items()
        if inspect.isfunction(value) and value.__module__ == algorithms.__name__ and not name.startswith("_")
    }
    assert constructors - {"fedglad", "private"} == set(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_section_has_the_constructors_keywords_and_defaults(name: str) -> None:
    constructor = getattr(algorithms, name)
    parameters = own_parameters(constructor)
    takes_options = len(parameters) < len(inspect.signature(constructor).parameters)
    options = set(algorithms.Options.__annotations__) if takes_options else set()
    assert set(ALGORITHMS[name].model_fields) - SLOTS == set(parameters) | options
    assert_same_defaults(ALGORITHMS[name], {key: p for key, p in parameters.items() if key != "weighting"})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_section_builds_what_the_constructor_builds(name: str) -> None:
    built, direct = build_algorithm(section(name)), getattr(algorithms, name)(**needed(name))
    assert [repr(built.client), repr(built.server), repr(built.memory), built.work, built.name] == [
        repr(direct.client),
        repr(direct.server),
        repr(direct.memory),
        direct.work,
        direct.name,
    ]
    plain = [repr(part.combine).replace(", base=by_examples()", "") for part in (built, direct)]
    assert plain[0] == plain[1]


def test_client_optimizers_are_those_of_the_library() -> None:
    for optimizer in algorithms.CLIENT_OPTIMIZERS:
        assert build_algorithm(section("fedavg", client_optimizer=optimizer)).client
    with pytest.raises(ValidationError):
        section("fedavg", client_optimizer="rmsprop")


@pytest.mark.parametrize(
    ("name", "key", "good", "bad"),
    [
        ("fedavg", "client_lr", [0.0, 1], [-0.1, float("nan"), float("inf"), "fast", True]),
        ("fedavg", "server_lr", [0.0, 2.0], [-1, "x"]),
        ("fedavg", "client_clip_norm", [0.5], [0.0, -1.0]),
        ("fedavg", "client_momentum", [0.0, 0.99], [1.0, -0.1]),
        ("fedavgm", "momentum", [0.0, 0.99], [1.0, -0.1]),
        ("fedavgm", "variant", ["nesterov", "ema"], ["heavy"]),
        ("fedadagrad", "beta1", [0.0], [1.0]),
        ("fedadagrad", "initial_accumulator", [0, 0.1, "estimate"], [-1.0, "guess"]),
        ("fedadam", "beta1", [0.0], [1.0]),
        ("fedadam", "beta2", [0.0], [1.0]),
        ("fedadam", "tau", [0.0], [-1e-9]),
        ("fedyogi", "bias_correction", ["keras", "torch"], ["adam"]),
        ("fedlars", "beta", [0.0], [1.0]),
        ("fedlamb", "beta2", [0.0], [1.0]),
        ("fedprox", "mu", [0.0], [-1.0]),
        ("scaffold", "option", ["I", "gradmean"], ["III"]),
        ("feddyn", "alpha", [0.5], [0.0, -1.0]),
        ("fedadp", "smoothing", ["round"], ["none"]),
    ],
)
def test_section_and_constructor_agree_on_what_is_allowed(name: str, key: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        getattr(algorithms, name)(**(needed(name) | {key: value}))
        section(name, **{key: value})
    for value in bad:
        with pytest.raises(FedloomError):
            getattr(algorithms, name)(**(needed(name) | {key: value}))
        with pytest.raises(ValidationError):
            section(name, **{key: value})


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_sections(name: str) -> None:
    parameters = own_parameters(getattr(schedule, name))
    assert set(SCHEDULES[name].model_fields) == {"schedule", *parameters}
    assert_same_defaults(SCHEDULES[name], parameters)


def test_every_schedule_has_a_section() -> None:
    made = {
        name
        for name, value in vars(schedule).items()
        if inspect.isfunction(value) and value.__module__ == schedule.__name__ and name != "as_schedule"
    }
    assert made == set(SCHEDULES)


@pytest.mark.parametrize("name", PARTITIONS)
def test_partition_sections(name: str) -> None:
    parameters = own_parameters(getattr(partition, name))
    given = {key: p for key, p in parameters.items() if key not in catalog.READS}
    assert set(PARTITIONS[name].model_fields) == {"name", "partition", "clients", "seed", "weights"} | set(given)
    assert_same_defaults(PARTITIONS[name], given)


def test_every_partition_data_set_and_model_has_a_section() -> None:
    assert set(PARTITIONS) == set(partition.__all__)
    assert set(DATASETS) == set(catalog.READERS)
    assert get_args(DataSection.model_fields["weights"].annotation) == catalog.WEIGHTS
    assert set(MODELS) == set(models.MODELS)


@pytest.mark.parametrize("name", models.MODELS)
def test_model_sections_and_entries(name: str) -> None:
    entry = models.MODELS[name]
    parameters = own_parameters(entry.load())
    assert set(parameters) == {*entry.sizes, *dict(entry.options)}
    options = {key: p for key, p in parameters.items() if key not in entry.sizes}
    assert set(MODELS[name].model_fields) == {"name", *options}
    assert_same_defaults(MODELS[name], options)
    assert {key: p.default for key, p in options.items()} == dict(entry.options)


@pytest.mark.parametrize(
    ("model", "function"),
    [
        (algorithm_sections.AdaptiveClip, upload.adaptive_clip),
        (algorithm_sections.Zeroing, upload.zeroing),
        (algorithm_sections.Glad, corrections.glad),
    ],
)
def test_slot_sections(model: type[Section], function: Any) -> None:
    assert set(model.model_fields) == set(own_parameters(function))
    assert_same_defaults(model, own_parameters(function))


def test_privacy_has_the_keywords_that_other_keys_do_not_settle() -> None:
    """`clip` and `adaptive_clip` stand beside the table, and a run knows its cohort."""
    parameters = own_parameters(algorithms.private)
    own = {name: parameters[name] for name in parameters.keys() - {"algorithm", "clip", "cohort"}}
    assert set(algorithm_sections.PrivacySection.model_fields) == set(own)
    assert_same_defaults(algorithm_sections.PrivacySection, own)


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_torch_optimizers_take_these_options(name: str) -> None:
    switches = {"params", "foreach", "maximize", "capturable", "differentiable", "fused"}
    assert set(TORCH_OPTIMIZERS[name]) == set(own_parameters(getattr(torch.optim, name))) - switches


# Reading --------------------------------------------------------------------------------------------------------------


def test_defaults_and_one_epoch() -> None:
    experiment = read(TEXT)
    assert (experiment.epochs, experiment.steps, experiment.batch_size, experiment.sampler) == (1, None, 20, "uniform")
    assert read(TEXT, ["steps=4"]).epochs is None


def test_a_complete_file_gives_the_experiment_back() -> None:
    experiment = read(TEXT, ["cohort=1.0", "steps=2", "target=0.5", "algorithms.0.zeroing=true", "algorithms.0.clip=1"])
    text = experiment.to_toml()
    assert "batch_size = 20" in text and "grouping" in text
    assert read(text) == experiment
    assert isinstance(read(text).cohort, float)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_survives_being_written(name: str) -> None:
    clip = {} if name == "central" else {"adaptive_clip": True}
    experiment = read(TEXT).model_copy(update={"algorithms": [section(name, **clip, label="a")]})
    assert read(experiment.to_toml()) == experiment


def test_nested_schedules_are_read_written_and_built() -> None:
    rate = "{ schedule = 'warmup', rounds = 4, rate = { schedule = 'within_round', rate = 0.2 } }"
    experiment = read(TEXT, [f"algorithms.*.client_lr={rate}"])
    assert read(experiment.to_toml()) == experiment
    algorithm = build_algorithm(experiment.algorithms[0])
    assert repr(algorithm.client_rates) == "warmup(within_round(0.2, 0.06), 4)"


def test_overrides_reach_into_lists_take_words_and_remove() -> None:
    experiment = read(
        TEXT,
        ["algorithms.1.client_lr=0.3", "algorithms.*.label=same", "sampler=poisson", "data.alpha=inf", "seeds=[7]"],
    )
    assert [part.label for part in experiment.algorithms] == ["same", "same"]
    assert [part.model_dump()["client_lr"] for part in experiment.algorithms] == [0.1, 0.3]
    assert (experiment.sampler, experiment.seeds, experiment.data.options()["alpha"]) == ("poisson", [7], float("inf"))
    changed = read(TEXT, ["data.alpha=", "data.partition=shards", "data.shards_per_client=3"])
    assert changed.data.options() == {"shards_per_client": 3}


def test_runs_have_one_algorithm_one_seed_and_a_name_of_their_own() -> None:
    runs = read(TEXT).runs()
    assert [run.slug for run in runs] == [
        *("fedavg-seed0", "fedavg-seed1", "fedglad-fedavg-seed0", "fedglad-fedavg-seed1")
    ]
    again = read(runs[3].experiment.to_toml())
    assert again == runs[3].experiment
    assert [run.slug for run in again.runs()] == ["fedglad-fedavg-seed1"]


def test_equal_and_similar_labels_are_told_apart() -> None:
    labels = ["algorithms.0.label=Big rate!", "algorithms.1.label=big-rate"]
    assert {run.slug for run in read(TEXT, labels).runs()} == {
        *("big-rate-seed0", "big-rate-seed1", "big-rate-2-seed0", "big-rate-2-seed1")
    }
    same = read(TEXT, ["algorithms.*.label=x", "seeds=[0]"]).runs()
    assert [(run.label, run.slug) for run in same] == [("x", "x-seed0"), ("x (2)", "x-2-seed0")]


# Mistakes -------------------------------------------------------------------------------------------------------------

MISTAKES = {
    "rounds=-3": "rounds: expected a whole number of at least 1, got -3",
    "rounds=ten": "rounds: expected a whole number of at least 1, got 'ten'",
    "rounds=2.5": "rounds: expected a whole number of at least 1, got 2.5",
    "batch_size=true": "batch_size: expected a whole number of at least 1, got true",
    "rounds=": "rounds: expected a whole number of at least 1, got nothing",
    "rouns=3": "rouns: unknown key: expected one of … got 'rouns': did you mean 'rounds'?",
    "cohort=0": "cohort: expected … got 0",
    "cohort=1.5": "cohort: expected … got 1.5",
    "cohort=7": "cohort: expected at most data.clients = 6, got 7",
    "seeds=3": "seeds: expected a list of different whole numbers of at least 0, such as [0, 1, 2], got 3",
    "seeds=[1, 1]": "seeds: expected a list of different whole numbers of at least 0, such as [0, 1, 2], got [1, 1]",
    "seeds=[]": "seeds: expected a list of different whole numbers of at least 0, such as [0, 1, 2], got []",
    "sampler=unifrom": "sampler: expected one of attention, multinomial, poisson, uniform; "
    "got 'unifrom': did you mean 'uniform'?",
    "executor=vectorised": "executor: expected one of auto, loop, vectorized; "
    "got 'vectorised': did you mean 'vectorized'?",
    "dtype=float16": "dtype: expected one of bfloat16, float32, float64; got 'float16': did you mean 'bfloat16'?",
    "device=gpu": "device: expected 'cpu', 'cuda', 'cuda:0', 'mps' or 'xpu', got 'gpu'",
    "drop_last=yes": "drop_last: expected true or false, got 'yes'",
    "target=1.5": "target: expected a test accuracy above 0 and up to 1, got 1.5",
    "name=a/b": "name: expected a name of letters, digits, '.', '_' and '-', that a folder can have: 100 of them "
    "at most, got 'a/b'",
    "data=3": "data: expected a table, got 3",
    "data=": "data: expected a [data] table with name, partition and clients, got nothing",
    "data.name=digit": "data.name: expected one of … got 'digit': did you mean 'digits'?",
    "data.partition=dirichle": "data.partition: expected one of … got 'dirichle': did you mean 'dirichlet'?",
    "data.partition=": "data.partition: expected one of …; got nothing",
    "data.alpha=-1": "data.alpha: expected a number of at least 0, or inf, got -1",
    "data.alpah=1": "data.alpah: unknown key: expected one of … got 'alpah': did you mean 'alpha'?",
    "data.clients=": "data.clients: expected a whole number of at least 1, got nothing",
    "data.concentration=beta": "data.concentration: expected one of alpha, alpha*p; got 'beta'",
    "model.name=nlp": "model.name: expected one of … got 'nlp': did you mean 'mlp'?",
    "model.hidden=5": "model.hidden: expected a list of whole numbers, one per hidden layer, such as [200, 200], got 5",
    "algorithms=[]": "algorithms: expected at least one [[algorithms]] table, got []",
    "algorithms=": "algorithms: expected at least one [[algorithms]] table, got nothing",
    "algorithms.0=3": "algorithms.0: expected a table, got 3",
    "algorithms.0.name=fedavgg": "algorithms.0.name: expected one of … got 'fedavgg': did you mean 'fedavg'?",
    "algorithms.0.name=fedglad": "algorithms.0.name: expected the algorithm that FedGLAD wraps, got 'fedglad': "
    "name that one, and add glad = true",
    "algorithms.0.name=fedprox": "algorithms.0.mu: expected a number of at least 0, got nothing",
    "algorithms.1.client_lrr=1": "algorithms.1.client_lrr: unknown key: expected one of … "
    "got 'client_lrr': did you mean 'client_lr'?",
    "algorithms.*.client_lr=-1": "algorithms.0.client_lr: expected a number of at least 0, or a table such as "
    "{ schedule = 'geometric', base = 0.1, factor = 0.995 }, got -1",
    "algorithms.1.client_lr.base=x": "algorithms.1.client_lr.base: expected a number of at least 0, got 'x'",
    "algorithms.1.client_lr.bass=1": "algorithms.1.client_lr.bass: unknown key: "
    "expected one of base, factor, schedule; got 'bass': did you mean 'base'?",
    "algorithms.1.client_lr.schedule=geo": "algorithms.1.client_lr.schedule: expected one of constant, geometric, … "
    "got 'geo'",
    "algorithms.0.client_optimizer=sdg": "algorithms.0.client_optimizer: expected one of … "
    "got 'sdg': did you mean 'sgd'?",
    "algorithms.0.weighting=equal": "algorithms.0.weighting: expected one of by_examples, uniform; got 'equal'",
    "algorithms.1.glad={ beta = 2 }": "algorithms.1.glad.beta: expected a number in [0, 1], got 2",
    "algorithms.0.clip=0": "algorithms.0.clip: expected a number above 0, got 0",
    "algorithms.0.server={ torch = 'SGD', lrr = 1 }": "algorithms.0.server.lrr: unknown key: expected one of … "
    "got 'lrr': did you mean 'lr'?",
    "algorithms.0.server={ torch = 'SGd' }": "algorithms.0.server.torch: expected one of … "
    "got 'SGd': did you mean 'SGD'?",
    "algorithms.0.server={ torch = 'SGD', lr = 'x' }": "algorithms.0.server.lr: expected a number, true or false, "
    "or a list of numbers, got 'x'",
    "algorithms.5.clip=1": "--set algorithms.5.clip: expected an index of 0 to 1, or *; got '5'",
    "algorithms.fedavg.clip=1": "--set algorithms.fedavg.clip: expected an index of 0 to 1, or *; got 'fedavg'",
    "algorithms.0=": "--set algorithms.0: expected a value, got none: only a key of a table can be taken out",
    "rounds.first=1": "--set rounds.first: expected a table to hold it, got 3 there",
    "rounds": "--set: expected KEY=VALUE, such as rounds=20 or data.alpha=0.1; got 'rounds'",
    "=3": "--set: expected KEY=VALUE, such as rounds=20 or data.alpha=0.1; got '=3'",
    "a\nb=3": "'a\\nb': unknown key: expected one of … got 'a\\nb'",
}


def assert_line(got: str, expected: str) -> None:
    """`expected` may leave out, with an ellipsis, a list of names that grows."""
    before, left_out, after = expected.partition("…")
    assert "\n" not in got
    assert got.startswith(before) and got.endswith(after), got
    assert left_out or got == expected


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_one_line(override: str) -> None:
    with pytest.raises(FedloomError) as caught:
        read(TEXT, [override])
    assert_line(str(caught.value), MISTAKES[override])


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["epochs=1", "steps=2"], "steps: expected none beside epochs = 1: give one of them, got 2"),
        (
            ["algorithms.0.clip=1", "algorithms.0.adaptive_clip=true"],
            "algorithms.0.clip: expected none beside adaptive_clip, got 1.0",
        ),
        (
            ["algorithms.0.server_lr=2", "algorithms.0.server={ torch = 'SGD', lr = 1 }"],
            "algorithms.0.server_lr: expected none beside server, which has its own lr, got 2.0",
        ),
        (
            ["algorithms.0.client_optimizer=adam", "algorithms.0.client_momentum=0.5"],
            "algorithms.0.client_momentum: expected none with client_optimizer = 'adam', got 0.5",
        ),
    ],
)
def test_keys_that_do_not_go_together(overrides: list[str], line: str) -> None:
    with pytest.raises(FedloomError) as caught:
        read(TEXT, overrides)
    assert str(caught.value) == line


def test_a_file_is_named_unless_the_mistake_is_in_an_override(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(TEXT)
    with pytest.raises(FedloomError, match=r"^rounds: expected"):
        read(file, ["rounds=0"])
    with pytest.raises(
        FedloomError, match=r"^mine\.toml: data\.alpha: unknown key.*; --set data\.alpha= takes it out$"
    ):
        read(file, ["data.partition=iid"])


def test_files_that_are_none(tmp_path: Path) -> None:
    broken, latin = tmp_path / "broken.toml", tmp_path / "latin.toml"
    broken.write_text("rounds = 3\ncohort == 4\n")
    latin.write_bytes('name = "caf\xe9"'.encode("latin-1"))
    with pytest.raises(FedloomError, match=r"^broken\.toml: expected TOML.*line 2, column 9\)$"):
        read(broken)
    with pytest.raises(FedloomError, match=r"latin\.toml: expected UTF-8 text, got byte 11 of another encoding$"):
        read(latin)
    with pytest.raises(FedloomError, match=r"none\.toml: expected an experiment file, got nothing there$"):
        read(tmp_path / "none.toml")
    with pytest.raises(FedloomError, match=r"expected an experiment file, got a folder$"):
        read(tmp_path)


# The built-in experiments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({*registry.experiments()} - {*registry.studies()}))
def test_built_in_experiments_are_sound(name: str) -> None:
    experiment = read(registry.find(name))
    assert experiment.name == name and experiment.title
    assert all(build_algorithm(part) for part in experiment.algorithms)
    assert read(experiment.to_toml()) == experiment


def test_ids_are_not_used_twice() -> None:
    files = [
        file
        for file in Path(inspect.getfile(registry)).parent.rglob("*.toml")
        if file.name not in registry.NOT_EXPERIMENTS
    ]
    assert len(files) == len(registry.experiments()) >= 1


def test_find_takes_ids_and_paths(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(TEXT)
    assert read(registry.find(str(file))).name == "small"
    with pytest.raises(
        FedloomError,
        match=r"^experiment: expected an id that fedloom list shows.*got 'quikstart': did you mean 'quickstart'\?",
    ):
        registry.find("quikstart")
    with pytest.raises(FedloomError, match=r"nowhere\.toml: expected an experiment file, got nothing there"):
        registry.find("nowhere.toml")
    with pytest.raises(FedloomError, match="got a folder"):
        registry.find(str(tmp_path))


# Building -------------------------------------------------------------------------------------------------------------


def test_zeroing_comes_before_clipping_and_glad_goes_around() -> None:
    built = build_algorithm(section("fedadam", zeroing=True, clip=2.0, glad={"gamma": 0.5}, weighting="uniform"))
    assert repr(built.upload).startswith("chain(zeroing(") and repr(built.upload).endswith("), clip(2))")
    assert repr(built.server).startswith("chain(glad(beta=0.9, gamma=0.5, grouping='group'), chain(adam(")
    assert (built.name, repr(built.combine)) == ("fedglad(fedadam)", "uniform()")


def test_a_torch_optimizer_takes_the_server_slot() -> None:
    built = build_algorithm(section("fedavg", server={"torch": "SGD", "lr": 0.5, "momentum": 0.9}))
    assert repr(built.server) == "from_torch(SGD, lr=0.5, momentum=0.9)"


def test_data_and_model_sizes_follow_the_file() -> None:
    experiment = read(TEXT)
    data = build_data(experiment.data)
    assert (data.population, int(data.examples.min())) == (6, 1438 // 6)
    shapes = [tuple(leaf.shape) for leaf in build_task(experiment.model, data).model().parameters()]
    assert shapes == [(5, 64), (5,), (10, 5), (10,)]


def test_the_data_folder_is_told_and_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", "before")
    seen: list[str | None] = []
    import os

    monkeypatch.setattr(catalog, "load", lambda *a, **k: seen.append(os.environ.get("FEDLOOM_DATA")))
    build_data(read(TEXT).data, tmp_path)
    build_data(read(TEXT).data)
    assert [*seen, os.environ["FEDLOOM_DATA"]] == [str(tmp_path), "before", "before"]


def test_a_device_that_is_not_there() -> None:
    check_device("cpu")
    check_device(None)
    with pytest.raises(FedloomError, match=r"^device: expected one of cpu.*; got 'cuda:99'"):
        check_device("cuda:99")


def test_an_experiment_can_be_made_in_python() -> None:
    experiment = Experiment.model_validate({**read(TEXT).to_mapping(), "rounds": 5})
    assert experiment.rounds == 5 and len(experiment.runs()) == 4
