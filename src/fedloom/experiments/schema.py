"""An experiment file: what it may say, reading it, and the runs it stands for.

Reading imports neither torch nor anything else that is slow, and every mistake becomes one line: the key's path, what
was expected, what was got, the nearest name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import tomli_w
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from fedloom import private_runs
from fedloom.errors import FedloomError
from fedloom.experiments.algorithm_sections import AlgorithmSection, AnyAlgorithm
from fedloom.experiments.data_sections import AnyData
from fedloom.experiments.mistakes import Key, told
from fedloom.experiments.model_sections import AnyModel
from fedloom.experiments.overrides import once, put_override
from fedloom.experiments.robust_sections import FaultSection
from fedloom.experiments.section import (
    LARGEST,
    Count,
    Described,
    Expected,
    NonNegative,
    Positive,
    Section,
    Seed,
    Share,
    Text,
    mistake,
)
from fedloom.toml_text import BYTES, parse

_TABLES = "at least one [[algorithms]] table"

MANY = 1000
"""The most algorithms, and the most seeds, of one experiment."""


def _some_tables(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise mistake(_TABLES)
    if len(value) > MANY:
        raise mistake(f"at most {MANY:,} [[algorithms]] tables")
    return value


def _not_too_many(values: list[int]) -> list[int]:
    if len(values) > MANY:
        raise mistake(f"at most {MANY:,} of them")
    return values


def _fault_tables(value: Any) -> Any:
    if isinstance(value, dict):
        return [value]
    if value is not None and not isinstance(value, list):
        raise mistake("a [faults] table, or [[faults]] tables")
    return value


def _different(values: list[int]) -> list[int]:
    if len(set(values)) < len(values):
        raise ValueError("repeated")
    return values


Name = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100),
    Expected("a name of letters, digits, '.', '_' and '-', that a folder can have: 100 of them at most"),
]
CohortSize = Annotated[
    Annotated[int, Field(ge=1, le=LARGEST)] | Annotated[float, Field(gt=0, le=1)],
    Expected("a whole number of clients, or a fraction of them above 0 and up to 1.0"),
]


class Doubling(Section):
    """A cohort that doubles every so many rounds."""

    initial: Count = 50
    every: Count = 300
    most: Count = 800


class SystemSection(Section):
    """How devices behave: see `fedloom.system.System`."""

    availability: Share = 1.0
    dropout: Share = 0.0
    straggling: NonNegative | None = None
    over_selection: Annotated[float, Field(ge=1), Expected("a number of at least 1")] = 1.0
    deadline: Positive | None = None

    @property
    def waits(self) -> bool:
        """Whether who is late has no part in the round."""
        return self.deadline is not None or self.over_selection > 1

    @model_validator(mode="after")
    def _has_a_clock(self) -> Self:
        if self.straggling is None and self.waits:
            raise mistake("a number of at least 0, for deadline and over_selection to go by", "straggling")
        return self


class Forced(Section):
    """A round whose cohort nobody draws: these clients, or those whose rows are most nearly all of one label."""

    round: Annotated[int, Field(ge=1), Expected("a round, counted from 1")]
    clients: Annotated[list[Seed], Expected("a list of clients")] = Field(default_factory=list)
    label: Seed | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.clients) == (self.label is not None):
            raise mistake("a list of clients, or a label, and not both", "clients", self.clients)
        return self


Fraction = Annotated[float, Field(gt=0, lt=1), Expected("a number above 0 and below 1")]
Device = Annotated[
    str, Field(pattern=r"^(cpu|mps|(cuda|xpu)(:\d+)?)$"), Expected("'cpu', 'cuda', 'cuda:0', 'mps' or 'xpu'")
]


class Experiment(Section):
    """A whole experiment: algorithms and seeds to run on one model and one federated data set."""

    name: Name
    title: Text | None = None
    rounds: Count
    cohort: Annotated[
        CohortSize | Doubling,
        Expected(
            "a whole number of clients, a fraction of them above 0 and up to 1.0, or a table that doubles it, "
            "such as { initial = 50, every = 300, most = 800 }"
        ),
    ]
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Count = 20
    drop_last: Annotated[bool, Expected("true or false")] = False
    seeds: Annotated[
        list[Seed],
        Field(min_length=1),
        AfterValidator(_different),
        Expected("a list of different whole numbers of at least 0, such as [0, 1, 2]"),
        AfterValidator(_not_too_many),
    ] = Field(default=[0])
    sampling_seed: Seed | None = None
    sampler: Literal["uniform", "multinomial", "attention", "poisson"] = "uniform"
    forced: list[Forced] = Field(default_factory=list)
    executor: Literal["auto", "loop", "vectorized"] = "auto"
    chunk: Count | None = None
    device: Device | None = None
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    precision: Literal["high", "highest", "bfloat16"] = "high"
    compile: Annotated[bool, Expected("true or false")] | None = None
    deterministic: Annotated[bool, Expected("true or false")] = False
    eval_every: Count | None = None
    evaluate_on: Annotated[
        list[Literal["test", "train", "clients", "validation"]],
        Expected("a list out of 'test', 'train', 'clients' and 'validation'"),
    ] = Field(default=["test"])
    validation: Fraction | None = None  # of the clients, held out
    alignment: Annotated[bool, Expected("true or false")] = False
    threads: Annotated[int, Field(ge=1, le=1024), Expected("a whole number from 1 to 1024")] | None = None
    target: Annotated[float, Field(gt=0, le=1), Expected("a test accuracy above 0 and up to 1")] | None = None
    system: SystemSection = Field(default_factory=SystemSection)
    min_reports: Count | None = None
    faults: Annotated[list[FaultSection] | None, BeforeValidator(_fault_tables)] = None
    data: AnyData
    model: AnyModel
    algorithms: Annotated[list[AnyAlgorithm], BeforeValidator(_some_tables), Described(_TABLES)]

    @model_validator(mode="before")
    @classmethod
    def _epochs_unless_steps(cls, value: Any) -> Any:
        if isinstance(value, dict) and "epochs" not in value and "steps" not in value:
            return {**value, "epochs": 1}
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise mistake(f"none beside epochs = {self.epochs}: give one of them", "steps", self.steps)
        if self.deterministic and self.compile:
            raise mistake("none beside deterministic = true: a compiler chooses by the clock", "compile", self.compile)
        if "validation" in self.evaluate_on and self.validation is None:
            raise mistake("a share of clients to hold out, for evaluate_on = ['validation']", "validation")
        wrong = self._against_privacy() if any(part.privacy for part in self.algorithms) else None
        if wrong is not None:
            key, expected, got = wrong
            raise mistake(expected, key, got)
        clients = self.data.clients
        if clients and self.sampler != "multinomial" and isinstance(self.cohort, int) and self.cohort > clients:
            raise mistake(f"at most data.clients = {clients}", "cohort", self.cohort)
        if self.min_reports and type(self.cohort) is int and self.min_reports > self.cohort:
            raise mistake(f"at most the cohort of {self.cohort}", "min_reports", self.min_reports)
        return self

    def _against_privacy(self) -> tuple[str, str, Any] | None:
        return private_runs.objection(
            sampler=self.sampler,
            forced=bool(self.forced),
            fixed_cohort=not isinstance(self.cohort, Doubling),
            over_selection=self.system.over_selection,
            evaluate_on=self.evaluate_on,
            alignment=self.alignment,
            min_reports=self.min_reports,
        )

    def with_seeded_noise(self) -> Experiment:
        """The same with noise that repeats itself, which protects nobody."""
        if not any(part.privacy for part in self.algorithms):
            raise FedloomError("--seeded-noise: expected an algorithm with privacy, got none")
        seeded = [
            part.model_copy(update={"privacy": part.privacy.model_copy(update={"seeded_noise": True})})
            if part.privacy
            else part
            for part in self.algorithms
        ]
        return self.model_copy(update={"algorithms": seeded})

    def runs(self) -> list[RunSpec]:
        """One run for every algorithm and seed, each an experiment of its own with a folder name of its own.

        >>> [run.slug for run in read('''
        ... name = "two"
        ... rounds = 1
        ... cohort = 2
        ... seeds = [0, 1]
        ... data = { name = "digits", partition = "iid", clients = 4 }
        ... model = { name = "logistic" }
        ... algorithms = [{ name = "fedavg", client_lr = 0.1, glad = true }]
        ... ''').runs()]
        ['fedglad-fedavg-seed0', 'fedglad-fedavg-seed1']
        """
        labels = told_apart((part.title() for part in self.algorithms), " ({})")
        folders = told_apart((slug(label) for label in labels), "-{}")
        return [
            RunSpec(label, seed, f"{folder}-seed{seed}", self._only(algorithm, label, seed))
            for algorithm, label, folder in zip(self.algorithms, labels, folders, strict=True)
            for seed in self.seeds
        ]

    def _only(self, algorithm: AlgorithmSection, label: str, seed: int) -> Experiment:
        return self.model_copy(
            update={"algorithms": [algorithm.model_copy(update={"label": label})], "seeds": [seed]}, deep=True
        )

    def arrived(self, record: Mapping[str, Any]) -> bool:
        """Whether a run ends with this round, at its target."""
        accuracy = record.get("test_accuracy")
        return self.target is not None and accuracy is not None and accuracy >= self.target

    def to_mapping(self) -> dict[str, Any]:
        """Every key that has a value, defaults included, as TOML would hold them."""
        return self.model_dump(exclude_none=True)

    def to_toml(self) -> str:
        """The complete file: reading it gives an equal experiment."""
        return tomli_w.dumps(self.to_mapping())


@dataclass(frozen=True)
class RunSpec:
    """One algorithm with one seed: what it is called, where it goes, and the experiment that repeats it alone."""

    label: str
    seed: int
    slug: str
    experiment: Experiment

    @property
    def algorithm(self) -> AlgorithmSection:
        return self.experiment.algorithms[0]


def read(source: Path | Traversable | str, overrides: Iterable[str] = ()) -> Experiment:
    """An experiment from a file, or from TOML text; `overrides` are `a.b=c`, as `--set` takes them.

    In an override the value is a TOML value, or a bare word; `algorithms.0.client_lr=0.1` reaches into a list,
    `algorithms.*.client_lr=0.1` into all of it, and an empty value takes the key out.
    """
    written = Written.of(source, overrides)
    if "tune" in written.table:
        raise FedloomError(f"{written.name or 'experiment'}: expected one to run, got a [tune] table: use fedloom tune")
    return written.valid(Experiment, written.table)


AnySection = TypeVar("AnySection", bound=Section)


@dataclass(frozen=True)
class Written:
    """A file as it stands, overrides included, before anything is checked."""

    name: str
    table: dict[str, Any]
    given: list[list[str]]  # paths of the overrides

    @staticmethod
    def of(source: Path | Traversable | str, overrides: Iterable[str] = ()) -> Written:
        name, text = ("", source) if isinstance(source, str) else (source.name, text_of(source))
        table = parse(name, text)
        return Written(name, table, [put_override(table, override) for override in once(overrides)])

    def valid(self, kind: type[AnySection], table: Mapping[str, Any], *under: Key) -> AnySection:
        """A table of the file, which stands there `under` some key, checked."""
        try:
            return kind.model_validate(table)
        except ValidationError as error:
            path, message = told(error.errors(include_url=False)[0], table)
        path = [*under, *path]
        message = ".".join([*map(str, under), message])
        name, given = self.name, self.given
        if any(_matches(pattern, path) for pattern in given):
            raise FedloomError(message)
        if given and "unknown key" in message:
            message = f"{message}; --set {'.'.join(map(str, path))}= takes it out"
        raise FedloomError(f"{name}: {message}" if name else message)


def text_of(source: Path | Traversable) -> str:
    try:
        with source.open("rb") as file:
            content = file.read(BYTES + 1)
        if len(content) > BYTES:
            raise FedloomError(f"{source}: expected an experiment file of at most {BYTES:,} bytes, got more")
        return content.decode()
    except FileNotFoundError:
        raise FedloomError(f"{source}: expected an experiment file, got nothing there") from None
    except IsADirectoryError:
        raise FedloomError(f"{source}: expected an experiment file, got a folder") from None
    except UnicodeDecodeError as error:
        raise FedloomError(f"{source}: expected UTF-8 text, got byte {error.start} of another encoding") from None


def _matches(pattern: list[str], path: list[Key]) -> bool:
    return all(want in ("*", str(part)) for want, part in zip(pattern, path, strict=False))


# Names ----------------------------------------------------------------------------------------------------------------


def slug(label: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "run"


def told_apart(names: Iterable[str], pattern: str) -> list[str]:
    """The same names, a number added to those that came before.

    >>> told_apart(["fedavg", "fedavg", "fedadam"], "-{}")
    ['fedavg', 'fedavg-2', 'fedadam']
    """
    seen: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in seen:
            candidate, number = name + pattern.format(number), number + 1
        seen.append(candidate)
    return seen
