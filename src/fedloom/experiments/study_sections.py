"""The tables of a study file: axes, measures, claims, figure, scales.

Nothing here imports torch: a typing mistake is answered before anything heavy is loaded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedloom.experiments.section import (
    Count,
    Expected,
    NonNegative,
    Number,
    Positive,
    Section,
    Seed,
    Share,
    Text,
    mistake,
)

Cell = dict[str, str]
"""A place in a study: the name of a value for every axis."""

Settings = dict[str, Any]
"""Keys of the experiment, dotted where they lie in a table of it, and their values."""

Chosen = dict[str, str | list[str]]
"""Some axes, each with the value or the values that are meant."""

MEASURE = "measure"
"""The axis that the measures are, where there are several."""

ROW, COLUMN = "row", "column"
"""The axes of a study that trains nothing."""

FULL = "full"
"""The scale of the paper."""

Names = Annotated[list[Text], Expected("a list of names")]

Groups = dict[str, dict[str, str]]
"""Metrics that are lines of one panel: of every group, which has a colour, the lines' names and their metrics."""


def picked(cell: Cell, chosen: Chosen) -> bool:
    """Whether the cell has one of the values for every axis that `chosen` names.

    >>> picked({"method": "FedAvg", "data set": "MNIST"}, {"method": ["FedAvg", "FedAdp"]})
    True
    """
    return all(cell.get(axis) in ([want] if isinstance(want, str) else want) for axis, want in chosen.items())


class Axis(Section):
    """What varies over the cells: each value is a name and the keys of the experiment that it sets.

    `key = "data.alpha"` with `values = [0.1, 1.0]` is short for values that set one key, named by what they set it to.
    With `best` the axis is a search: of its values a cell keeps the one with the highest (or lowest) first measure, or
    the one that `by` names.
    """

    name: Text
    values: Annotated[
        dict[str, Settings] | list[Any],
        Field(min_length=1),
        Expected("a table of values, each a table of keys to set; or, beside key, a list"),
    ]
    key: Text | None = None
    best: Literal["highest", "lowest"] | None = None
    by: Text | None = None

    @model_validator(mode="after")
    def _a_list_has_a_key(self) -> Self:
        if isinstance(self.values, list) != (self.key is not None):
            raise mistake("a list beside values that are a list, and none beside a table of them", "key", self.key)
        if self.by is not None and self.best is None:
            raise mistake("none without best", "by", self.by)
        return self

    def settings(self) -> dict[str, Settings]:
        """What each value sets, by its name."""
        if isinstance(self.values, dict):
            return self.values
        return {name: {str(self.key): value} for name, value in zip(self.names(), self.values, strict=True)}

    def names(self) -> list[str]:
        """The names of the values, in the file's order."""
        return list(self.values) if isinstance(self.values, dict) else [_named(value) for value in self.values]


def _named(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class Where(Section):
    """Keys that depend on several axes at once; or, with `skip`, cells that there are none of; the last one decides.

    With `stand_in` the cells are not the paper's own, in these words, and nothing in them is called a match.
    """

    cell: Annotated[Chosen, Expected("a table of axes, each with a value or a list of values")]
    set: Settings = Field(default_factory=dict)
    skip: Annotated[bool | None, Expected("true or false")] = None
    stand_in: Text | None = None

    @property
    def words(self) -> str:
        """Of which cells it speaks.

        >>> Where(cell={"data set": "MNIST", "method": ["FedAvg", "FedAdp"]}).words
        'MNIST, FedAvg or FedAdp'
        """
        return ", ".join(each if isinstance(each, str) else " or ".join(each) for each in self.cell.values())


MeasureKind = Literal[
    "final",
    "at",
    "best",
    "lowest",
    "highest_at",
    "lowest_at",
    "rounds_to",
    "drop",
    "total",
    "total_to",
    "catastrophic",
    "chosen",
    "correlation",
    "curve",
]


class Measure(Section):
    """A number taken from every run. Rounds are counted from 1, as the papers do.

    final        the metric's mean over the last `last` rounds, of those up to `until` where that is given
    at           its value at `round`
    best, lowest its largest and smallest value
    highest_at, lowest_at   the round in which it was that
    rounds_to    the first round in which it was at least `target`, the run's own target unless given
    drop         how far it fell from the round before `round` to that round
    total        its last value, for what is counted up over the run, or the sum of a time that each round has
    total_to     the same at the first round in which test_accuracy was at least `target`, or the run's own target
    catastrophic 1 where it ever halved from one round to the next, else 0: over seeds, the share of runs that failed;
                 `chance` is what it must have been above before
    chosen       what a searched axis, which `metric` names, was found at
    correlation  Pearson's, over the rounds, of the metric with the one that `against` names
    curve        nothing for the table: the run is kept whole for the figure

    With `where` only some cells have it. Of one that is `lower` a search keeps the lowest, whatever its axis says.
    A metric with a star, such as `gsi/*`, stands for all that match; `across` is what is made of them in each round.
    """

    name: Text
    kind: MeasureKind
    metric: Text = "test_accuracy"
    across: Literal["mean", "lowest", "highest", "deviation"] | None = None
    against: Text | None = None
    scale: Positive = 1.0
    last: Count = 10
    until: Count | None = None
    round: Count | None = None
    target: Number | None = None
    chance: NonNegative = 0.0
    digits: Seed | None = None
    over: dict[str, str] = Field(default_factory=dict)
    where: Annotated[Chosen, Expected("a table of axes, each with a value or a list of values")] = Field(
        default_factory=dict
    )
    lower: Annotated[bool, Expected("true or false")] = False
    tolerance: NonNegative | None = None
    relative: NonNegative | None = None

    @model_validator(mode="after")
    def _has_its_round(self) -> Self:
        if self.kind in ("at", "drop") and self.round is None:
            raise mistake(f"a round, counted from 1, for kind = {self.kind!r}", "round")
        if self.kind == "drop" and self.round == 1:
            raise mistake("a round that has one before it", "round", 1)
        return self

    @model_validator(mode="after")
    def _has_its_metrics(self) -> Self:
        if ("*" in self.metric) != (self.across is not None):
            raise mistake("a value beside a metric with a star, and none beside another", "across", self.across)
        if (self.kind == "correlation") != (self.against is not None):
            raise mistake("another metric for kind = 'correlation', and none for other kinds", "against", self.against)
        return self

    @property
    def decimals(self) -> int:
        """How many are shown."""
        if self.digits is not None:
            return self.digits
        return 0 if self.kind in ("rounds_to", "highest_at", "lowest_at") else 2 if self.scale == 100 else 4

    @property
    def margin(self) -> float | None:
        """How far from the published value still matches, in what is shown; None where only its spread can tell."""
        return 1.5 if self.tolerance is None and self.scale == 100 and self.kind != "rounds_to" else self.tolerance

    @property
    def share(self) -> float | None:
        """How far from the published value still matches, as a share of it."""
        return 0.15 if self.relative is None and self.kind == "rounds_to" else self.relative


class Claim(Section):
    """A sentence of the paper, decided from measured numbers: it must hold in a `share` of the cells it is about.

    less, greater   the measure of `first` against that of `second`, two values of `axis`, by more than `margin`
    at_most, at_least   the same, where equal is enough and `margin` is how far the wrong way it may be
    alike           the two are within `margin` of each other
    reduction       first is lower than second by a share of at least `number`, less `margin`, where it is most so
    above, below    the measure against `number`
    near            the measure is within `margin` of `number`
    between         that of `first` lies among those of `values` of `axis`, or within `margin` of the nearest
    order           the measure does not fall along `values` of `axis` by more than `margin`
    best            among the values of `axis`, `first` has the highest measure (with `lowest = true`, the lowest)
    diminishing     along `values` of `axis`, the last step gains no more than the first, by more than `margin`
    window          the measure is within `margin` of the best at `number` values of `axis` or more, at `most` so many
    """

    text: Text
    kind: Literal[
        "less",
        "greater",
        "at_most",
        "at_least",
        "alike",
        "reduction",
        "above",
        "below",
        "near",
        "between",
        "order",
        "best",
        "diminishing",
        "window",
    ]
    measure: Text | None = None
    axis: Text | None = None
    first: Text | None = None
    second: Text | None = None
    values: Names = Field(default_factory=list)
    number: Number | None = None
    most: Number | None = None
    margin: NonNegative = 0.0
    lowest: Annotated[bool, Expected("true or false")] = False
    share: Share = 1.0
    where: Annotated[Chosen, Expected("a table of axes, each with a value or a list of values")] = Field(
        default_factory=dict
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for key in _CLAIM_NEEDS[self.kind]:
            if getattr(self, key) in (None, []):
                raise mistake(f"a value for kind = {self.kind!r}", key)
        if self.kind in _STEPS and len(self.values) < 2:
            raise mistake(f"at least two values for kind = {self.kind!r}", "values", self.values)
        return self

    def named(self) -> list[str]:
        """The values of its axis that it speaks of."""
        return [value for value in (self.first, self.second, *self.values) if value is not None]


_PAIR = ("axis", "first", "second")
_STEPS = ("order", "diminishing")
_CLAIM_NEEDS: dict[str, tuple[str, ...]] = {
    "less": _PAIR,
    "greater": _PAIR,
    "at_most": _PAIR,
    "at_least": _PAIR,
    "alike": _PAIR,
    "reduction": (*_PAIR, "number"),
    "above": ("number",),
    "below": ("number",),
    "near": ("number",),
    "order": ("axis", "values"),
    "best": ("axis", "first"),
    "between": ("axis", "first", "values"),
    "diminishing": ("axis", "values"),
    "window": ("axis", "number"),
}


class TableSection(Section):
    """Which axes go down and which across; those that are not named go down."""

    rows: Names = Field(default_factory=list)
    columns: Names = Field(default_factory=list)


class FigureSection(Section):
    """The picture: `curves` of a metric against `x`; `lines` or `bars` of a measure against an axis.

    There is a panel for every value of `panels`, and for every metric and x of curves where there are several, and in
    it a line or a colour for every value of `lines`. Of `lines` and `bars`, `measure` may be among both. `running`
    draws the best value so far, or the mean. A metric with a star draws a thin line for each that matches. Of the lines
    that `level` names the last value is drawn across every panel: centralised training, whose rounds are others.

    `metric` may be a table of groups, each a table of names and metrics: then these are the lines, with a colour for
    every group, and all axes have panels. `y` names what goes up, and `marks` are values across every panel.
    """

    kind: Literal["curves", "lines", "bars"]
    metric: Annotated[
        Text | list[Text] | dict[str, dict[str, Text]],
        Expected("the name of a metric, or a list of them, or a table of groups, each a table of names and metrics"),
    ] = "test_accuracy"
    y: Text | None = None
    marks: Annotated[dict[str, Number], Expected("a table of names, each with a number")] = Field(default_factory=dict)
    running: Literal["highest", "lowest", "mean"] | None = None
    measure: Text | None = None
    x: Annotated[Text | list[Text], Expected("the name of what goes across, or a list of them")] = "round"
    panels: Names = Field(default_factory=list)
    lines: Names = Field(default_factory=list)
    level: Annotated[Chosen, Expected("a table of axes, each with a value or a list of values")] = Field(
        default_factory=dict
    )
    logarithmic: Annotated[bool, Expected("true or false")] = False

    @model_validator(mode="after")
    def _groups_are_the_lines(self) -> Self:
        if not self.groups:
            if isinstance(self.metric, dict):
                raise mistake("at least one name with its metric", "metric", self.metric)
            return self
        if self.kind != "curves":
            raise mistake("'curves' beside a table of metrics", "kind", self.kind)
        if self.lines:
            raise mistake("none beside a table of metrics, which are the lines", "lines", self.lines)
        if self.y is None:
            raise mistake("the axis's name beside a table of metrics, which have no common one", "y")
        return self

    @property
    def groups(self) -> Groups:
        """The metrics that are the lines of every panel; none where each metric has panels of its own."""
        return {group: named for group, named in self.metric.items() if named} if isinstance(self.metric, dict) else {}

    @property
    def metrics(self) -> list[str]:
        """Every metric that is drawn."""
        if isinstance(self.metric, dict):
            return [metric for named in self.groups.values() for metric in named.values()]
        return [self.metric] if isinstance(self.metric, str) else self.metric

    @property
    def across(self) -> list[str]:
        return [self.x] if isinstance(self.x, str) else self.x


class Scale(Section):
    """A smaller form of the study: keys set in every cell after all else, and the values of axes that are kept.

    `stand_in` says what takes the place of the paper's own there.
    """

    says: Text
    stand_in: Text | None = None
    set: Settings = Field(default_factory=dict)
    only: Annotated[dict[str, Names], Expected("a table of axes, each with a list of values")] = Field(
        default_factory=dict
    )
    where: list[Where] = Field(default_factory=list)


class FactRow(Section):
    """A row of a study that trains nothing: where our own number comes from.

    `model` is a model's name with its sizes and options, of which `part` counts the tensors whose names match alone;
    `data` a [data] table; `study`, `cell` and `key` name a setting that one of our studies runs with, shown in
    `column`, its logarithm with `log10`, whatever the other rows are about. Of `facts = "none"` a row has a `column` to
    show what the paper printed, of which we have nothing.
    """

    row: Text
    column: Text | None = None
    model: Settings | None = None
    part: Text | None = None
    data: Settings | None = None
    study: Text | None = None
    cell: Cell = Field(default_factory=dict)
    key: Text | None = None
    log10: Annotated[bool, Expected("true or false")] = False

    def kind(self, facts: Facts | None) -> Facts:
        """What it tells, in a study of such facts."""
        return "hyperparameters" if self.study is not None else facts or "none"


Facts = Literal["models", "data", "partition", "hyperparameters", "none"]
FACT_NEEDS: dict[Facts, tuple[str, ...]] = {
    "models": ("model",),
    "data": ("data",),
    "partition": ("data",),
    "hyperparameters": ("column", "study", "key"),
    "none": (),
}
