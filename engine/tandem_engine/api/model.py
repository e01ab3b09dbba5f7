"""The base of all settings and specs: strict, immutable, camelCase outside, with hints."""

import difflib
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from tandem_engine.api.checks import Check


class Model(BaseModel):
    """A frozen pydantic model that refuses an unknown field and names the nearest known one."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        populate_by_name=True,
        alias_generator=to_camel,
        use_attribute_docstrings=True,
    )

    CHECKS: ClassVar[tuple[Check, ...]] = ()
    """Combinations of values that are refused; the first decides."""

    @model_validator(mode="after")
    def _pass_checks(self) -> Self:
        for check in self.CHECKS:
            if problem := check.problem_with(self):
                raise ValueError(problem)
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_nearest(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, Mapping):
            _refuse_unknown(cls, data)
        return handler(data)

    def document(self) -> dict[str, Any]:
        """The value as JSON-ready data under its outside (camelCase) names."""
        return self.model_dump(mode="json", by_alias=True)


@cache
def field_names(model: type[BaseModel]) -> Mapping[str, str]:
    """Outside name of every field of `model` → its Python name."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def _refuse_unknown(model: type[BaseModel], data: Mapping[Any, Any]) -> None:
    names = field_names(model)
    unknown = [key for key in data if key not in names and key not in names.values()]
    if unknown:
        raise PydanticCustomError(
            "unknown_field",
            "{text}",
            {"text": unknown_field_text(str(unknown[0]), list(names))},
        )


def unknown_field_text(name: str, known: list[str]) -> str:
    """One sentence that refuses the field `name` and points at the nearest of `known`."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"unknown field '{name}'; did you mean '{near[0]}'?"
    return f"unknown field '{name}'; known fields are {', '.join(known)}"


def literal_values(annotation: Any) -> tuple[str, ...]:
    """The values that a `Literal` annotation allows."""
    return tuple(str(value) for value in get_args(annotation))
