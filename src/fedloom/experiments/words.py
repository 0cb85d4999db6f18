"""A study's numbers in words, the same in the terminal, in `results.json` and on the pages made from it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from fedloom.experiments.measures import Measured
from fedloom.experiments.published import Published
from fedloom.experiments.study_sections import Measure


def measured_words(measure: Measure, measured: Measured) -> str:
    """A measured number with its spread over the seeds.

    >>> rounds = Measure(name="rounds", kind="rounds_to", scale=100)
    >>> measured_words(rounds, Measured((60.0, 64.0))), measured_words(rounds, Measured((None,), best=94.48, never=1))
    ('62.0 ± 2.8', 'N/A (94.48)')
    """
    seeds = len(measured.values)
    found = sum(value is not None for value in measured.values)
    if measured.diverged and (measured.value is None or measured.unreached):
        return "diverged" if measured.diverged == seeds else f"{measured.diverged} of {seeds} diverged"
    if measured.value is None or measured.unreached:
        part = f" in {measured.never} of {seeds}" if found else ""
        return f"N/A{'' if measured.best is None else f' ({measured.best:.2f})'}{part}"
    digits = max(measure.decimals, 1) if seeds > 1 else measure.decimals
    spread = "" if measured.spread is None else f" ± {measured.spread:.{digits}f}"
    part = "" if found == seeds else f" in {found} of {seeds}"
    return f"{measured.value:,.{digits}f}{spread}{part}"


def published_words(measure: Measure, number: Published | None) -> str:
    if number is None:
        return ""
    if isinstance(number.value, str):
        return number.value
    if number.value is None:
        return "N/A" if number.best is None else f"N/A ({number.best:g})"
    spread = "" if number.std is None else f" ± {number.std:.{measure.decimals}f}"
    return f"{number.value:,.{measure.decimals}f}{spread}"


def difference_words(measure: Measure, measured: Measured, number: Published | None) -> str:
    """Measured less published; nothing where either was not reached."""
    if number is None or not isinstance(number.value, float) or measured.value is None or measured.unreached:
        return ""
    return f"{measured.value - number.value:+,.{measure.decimals}f}"


def fact_words(value: float | str | None) -> str:
    """A fact of ours or of a paper's.

    >>> fact_words(1206590.0), fact_words(0.1), fact_words(None)
    ('1,206,590', '0.1', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1000 else f"{value:g}"


def only_words(axis: str, values: Iterable[str]) -> str:
    """As `--only` takes it.

    >>> only_words("setting", ["E 1", "E 1, C 0.05"])
    'setting=E 1,"E 1, C 0.05"'
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return f"{axis}={line.getvalue()}"


def counted(count: int, what: str) -> str:
    """
    >>> counted(1, "run"), counted(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def cell_words(cell: Mapping[str, str]) -> str:
    """The values of a cell; a bare number says of which axis, and so does `with`.

    >>> cell_words({"data set": "MNIST", "epochs": "1", "clients per round": "5", "FedGLAD": "without"})
    'MNIST, epochs 1, clients per round 5, without FedGLAD'
    """

    def words(axis: str, value: str) -> str:
        if value in ("with", "without"):
            return f"{value} {axis}"
        return f"{axis} {value}" if numbers_of([value]) else value

    return ", ".join(words(axis, value) for axis, value in cell.items())


def numbers_of(names: Sequence[str]) -> list[float] | None:
    """The names as numbers; None where one is no number."""
    try:
        return [float(name) for name in names]
    except ValueError:
        return None
