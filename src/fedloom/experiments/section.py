"""A table of an experiment file: what a key may be, in words that an error can repeat.

Nothing here imports torch: a typing mistake is answered before anything heavy is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


def mistake(expected: str, key: str | None = None, got: Any = None) -> PydanticCustomError:
    """The error of a value that is not what was expected; `key` names a key inside the table it is raised for."""
    context: dict[str, Any] = {"expected": expected}
    if key is not None:
        context |= {"key": key, "got": got}
    return PydanticCustomError("expected", "expected {expected}", context)


@dataclass(frozen=True)
class Described:
    """Says in words what a value may be, for when it is missing."""

    text: str


@dataclass(frozen=True)
class Expected(Described):
    """Says in words what a value may be, whichever way it is not."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
            try:
                return inner(value)
            except ValidationError:
                raise mistake(self.text) from None

        return core_schema.no_info_wrap_validator_function(check, handler(source))


class Section(BaseModel):
    """A table whose keys are all known."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_and_complete(cls, value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise mistake("a table")
        known = cls.known_keys(value)
        for key in value:
            if key not in known:
                raise PydanticCustomError("unknown_key", "unknown key", {"key": str(key), "allowed": known})
        for key, field in cls.model_fields.items():
            if field.is_required() and key not in value:
                texts = (part.text for part in field.metadata if isinstance(part, Described))
                raise mistake(next(texts, "a value"), key)
        return value

    @classmethod
    def known_keys(cls, value: dict[str, Any]) -> list[str]:
        return list(cls.model_fields)


LARGEST = 2**31 - 1
"""Of what is counted: rounds, clients, layers, letters."""


def _countable(value: int) -> int:
    if value > LARGEST:
        raise mistake(f"a whole number from 1 to {LARGEST}")
    return value


Count = Annotated[int, Field(ge=1), Expected("a whole number of at least 1"), AfterValidator(_countable)]
Seed = Annotated[int, Field(ge=0), Expected("a whole number of at least 0")]
Number = Annotated[float, Expected("a number")]
Positive = Annotated[float, Field(gt=0), Expected("a number above 0")]
NonNegative = Annotated[float, Field(ge=0), Expected("a number of at least 0")]
Unbounded = Annotated[float, Field(ge=0, allow_inf_nan=True), Expected("a number of at least 0, or inf")]
Share = Annotated[float, Field(ge=0, le=1), Expected("a number in [0, 1]")]
Decay = Annotated[float, Field(ge=0, lt=1), Expected("a number in [0, 1)")]
Text = Annotated[str, Field(min_length=1), Expected("some text")]


def by_name(union: Any, key: str) -> dict[str, type[Section]]:
    members = get_args(get_args(union)[0]) if hasattr(union, "__metadata__") else get_args(union)
    return {get_args(member.model_fields[key].annotation)[0]: member for member in members}
