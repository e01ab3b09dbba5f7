"""pydantic's errors and unknown fields as sentences: path, value, what is allowed, way out."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tandem_engine.api.model import field_names, literal_values, unknown_field_text

_KINDS: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


class ProblemsFound(Exception):
    """The input cannot be used; the text lists every problem, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def unknown_fields(model: type[BaseModel], data: Any, path: str = "") -> Iterator[str]:
    """One sentence for each field of `data`, at any depth, that `model` does not have."""
    if not isinstance(data, Mapping):
        return
    names = field_names(model)
    for key, value in data.items():
        if key not in names:
            name = key if isinstance(key, str) else as_yaml(key)
            yield f"{join(path, name)}: {_unknown_text(name, list(names))}"
            continue
        field = model.model_fields[names[key]]
        part = part_of(field)
        if part is None:
            continue
        if not is_list(field):
            yield from unknown_fields(part, value, join(path, key))
        elif isinstance(value, list):
            for index, entry in enumerate(value):
                yield from unknown_fields(part, entry, f"{join(path, key)}.{index}")


def known_part(model: type[BaseModel], data: Any) -> Any:
    """`data` without the fields, at any depth, that `model` does not have."""
    if not isinstance(data, Mapping):
        return data
    names = field_names(model)
    known = {}
    for key in (key for key in data if key in names):
        field, value = model.model_fields[names[key]], data[key]
        part = part_of(field)
        if part and is_list(field) and isinstance(value, list):
            known[key] = [known_part(part, entry) for entry in value]
        else:
            known[key] = known_part(part, value) if part and not is_list(field) else value
    return known


def validation_problems(model: type[BaseModel], error: ValidationError) -> list[str]:
    """One sentence for each thing that pydantic found wrong."""
    return [_sentence(model, details) for details in error.errors(include_url=False)]


def part_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model that a field, or each entry of it, holds; None: it holds plain values."""
    for annotation in (field.annotation, *get_args(field.annotation)):
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
    return None


def is_list(field: FieldInfo) -> bool:
    """True when a field holds a list."""
    return get_origin(field.annotation) is list


def join(path: str, name: str) -> str:
    """`path.name`, or `name` alone at the top."""
    return f"{path}.{name}" if path else name


def allowed_text(field: FieldInfo) -> str:
    """Allowed values of a field, as a phrase: `1 to 4096 (default 1000)`; empty without a rule."""
    phrase = _range_text(field) or ", ".join(_choices(field))
    if phrase and not field.is_required() and field.default is not None:
        phrase += f" (default {as_yaml(field.default)})"
    return phrase


def as_yaml(value: Any) -> str:
    """Write a value as YAML does."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _unknown_text(key: str, known: list[str]) -> str:
    folded = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.replace("_", "").lower(), folded, n=1, cutoff=0.75)
    if near:
        return f"unknown field; did you mean '{folded[near[0]]}'?"
    return unknown_field_text(key, known).replace(f"unknown field '{key}'", "unknown field")


def _sentence(model: type[BaseModel], details: ErrorDetails) -> str:
    path = ".".join(str(part) for part in details["loc"])
    field = _field_at(model, details["loc"])
    allowed = allowed_text(field) if field else ""
    text = _fault(details)
    if allowed and "allowed:" not in text:
        text += f"; allowed: {allowed}"
    return f"{path}: {text}" if path else text


_LEAST: Final = {"string_too_short": "1 character", "too_short": "1 entry"}


def _fault(details: ErrorDetails) -> str:
    """Describe the fault of one value, without its path and range."""
    value = details["input"]
    match details["type"]:
        case "missing":
            text = "is missing; it has no default"
        case "value_error":
            text = str(details["ctx"]["error"])
        case "greater_than_equal":
            text = f"{as_yaml(value)} is too small"
        case "less_than_equal":
            text = f"{as_yaml(value)} is too large"
        case "literal_error":
            text = f"{as_yaml(value)} is not one of its values{_nearest(value, details)}"
        case "too_long":
            text = f"has {len(value)} entries; the limit is {details['ctx']['max_length']}"
        case "string_too_long":
            text = f"has {len(value)} characters; the limit is {details['ctx']['max_length']}"
        case "string_too_short" | "too_short" as kind:
            text = f"is empty, expected at least {_LEAST[kind]}; give a value or leave it out"
        case kind if kind in _KINDS:
            text = _wrong_kind(value, _KINDS[kind])
        case _:
            text = details["msg"]
    return text


def _nearest(value: Any, details: ErrorDetails) -> str:
    expected = str(details["ctx"]["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
    folded = {name.lower(): name for name in expected}
    near = difflib.get_close_matches(str(value).lower(), folded, n=1)
    return f" (did you mean '{folded[near[0]]}'?)" if near else ""


def _wrong_kind(value: Any, kind: str) -> str:
    """Describe a value of the wrong kind, as YAML read it, and how to write it."""
    if value is None:
        return f"is empty, expected {kind}; give a value or leave the line out"
    if kind == "text" and not isinstance(value, list | dict):
        return f"{_yaml_kind(value)}, expected text; put it in quotes"
    if isinstance(value, str) and kind in {"a whole number", "a number", "true or false"}:
        return f"{as_yaml(value)} is text, expected {kind}{_unquoted(value, kind)}"
    return f"{_yaml_kind(value)}, expected {kind}"


def _unquoted(value: str, kind: str) -> str:
    plain = value.lower() in {"true", "false"} if kind == "true or false" else value.isdecimal()
    return "; write it without quotes" if plain else ""


def _yaml_kind(value: Any) -> str:
    if isinstance(value, bool):
        return f"{as_yaml(value)} is a boolean (YAML reads yes, no, on and off as booleans, too)"
    # By name: modules that may not import a clock import this one.
    if type(value).__name__ in {"date", "datetime"}:
        return f"{value} is a date"
    if isinstance(value, int | float):
        return f"{value} is a number"
    if isinstance(value, str):
        return f"{as_yaml(value)} is text"
    return "this is a list" if isinstance(value, list) else "this is a mapping"


def _field_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> FieldInfo | None:
    """The field that pydantic's location points at; None inside a free mapping."""
    field: FieldInfo | None = None
    current: type[BaseModel] | None = model
    # A number is an index into a list, whose entries are all of one model.
    for part in (part for part in loc if isinstance(part, str)):
        names = field_names(current) if current else {}
        if current is None or part not in names:
            return None
        field = current.model_fields[names[part]]
        current = part_of(field)
    return field


def _range_text(field: FieldInfo) -> str:
    low, high = _bound(field, "ge"), _bound(field, "le")
    if low is not None and high is not None:
        return f"{low} to {high}"
    if low is not None:
        return f"{low} or more"
    return "" if high is None else f"{high} or less"


def _bound(field: FieldInfo, name: str) -> int | None:
    for constraint in _constraints(field):
        value = getattr(constraint, name, None)
        if isinstance(value, int):
            return value
    return None


def _constraints(field: FieldInfo) -> Iterator[Any]:
    """Constraints on a field, also those inside `Annotated[int, …] | None`."""
    yield from field.metadata
    for option in get_args(field.annotation):
        for extra in getattr(option, "__metadata__", ()):
            yield from getattr(extra, "metadata", ())


def _choices(field: FieldInfo) -> tuple[str, ...]:
    for annotation in (field.annotation, *get_args(field.annotation)):
        if get_origin(annotation) is Literal:
            return literal_values(annotation)
    if field.annotation is bool or bool in get_args(field.annotation):
        return ("true", "false")
    return ()
