"""pydantic models → a structural OpenAPI schema, as Kubernetes wants it in a CRD.

Structural means: every node says its type, and nothing is a reference or a choice of types. So an
optional field is one that may be absent, never one that may be null.
"""

from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from tandem_engine.api.constraints import MappingFormat, TextFormat
from tandem_engine.api.model import field_names

Schema = dict[str, Any]

INT32_MAX: Final = 2**31 - 1
"""Largest whole number of a field without a limit of its own: Kubernetes' int32."""

_TYPES: Final[Mapping[Any, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
}


def model_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of an object: its fields by alias, with description and default."""
    names = field_names(model)
    fields = {outside: model.model_fields[name] for outside, name in names.items()}
    required = [outside for outside, field in fields.items() if field.is_required()]
    return {
        "type": "object",
        **({"required": required} if required else {}),
        "properties": {outside: _field_schema(field) for outside, field in fields.items()},
    }


def node_at(schema: Schema, path: str) -> Schema:
    """Return the node at a path such as `spec.runtime.env[].name`; `{}` is a mapping's value.

    Raises:
        KeyError: there is no such node.
    """
    node = schema
    for part in path.split(".") if path else ():
        name = part.removesuffix("[]").removesuffix("{}")
        node = node["properties"][name]
        if part.endswith("[]"):
            node = node["items"]
        elif part.endswith("{}"):
            node = node["additionalProperties"]
    return node


def _field_schema(field: FieldInfo) -> Schema:
    described = {"description": " ".join((field.description or "").split())}
    return described | _type_schema(field.annotation, field.metadata) | _default(field)


def _default(field: FieldInfo) -> Schema:
    """Return the default that the API server fills in; objects are filled in by their fields."""
    if isinstance(field.default, BaseModel):
        return {"default": {}}
    if isinstance(field.default, bool | int | float | str):
        return {"default": field.default}
    return {}


def _type_schema(annotation: Any, constraints: Iterable[Any] = ()) -> Schema:
    annotation, inner = unwrapped(annotation)
    constraints = [*constraints, *inner]
    origin = get_origin(annotation)
    if origin is Literal:
        choices = get_args(annotation)
        return {"type": _TYPES[type(choices[0])], "enum": list(choices)}
    if origin is list:
        items = _type_schema(get_args(annotation)[0])
        return {"type": "array", **_limits(constraints, "Items"), "items": items}
    if origin is dict:
        return _mapping_schema(get_args(annotation)[1], constraints)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return model_schema(annotation)
    return _plain_schema(annotation, constraints)


def _plain_schema(annotation: Any, constraints: list[Any]) -> Schema:
    name = _TYPES.get(annotation)
    if name is None:
        raise TypeError(f"{annotation!r} cannot be in a structural schema; use a plain type")
    if name == "integer":
        return {"type": name} | _range(constraints, {"maximum": INT32_MAX})
    if name == "number":
        return {"type": name} | _range(constraints, {})
    if name == "string":
        return {"type": name} | _limits(constraints, "Length")
    return {"type": name}


def _mapping_schema(value: Any, constraints: list[Any]) -> Schema:
    if value is Any:
        # An open object: Kubernetes' pods define its fields.
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    values = _type_schema(value)
    declared = [
        constraint.func for constraint in constraints if isinstance(constraint, AfterValidator)
    ]
    for form in (constraint for constraint in declared if isinstance(constraint, MappingFormat)):
        values |= _longest(form.values)
    return {"type": "object", **_limits(constraints, "Properties"), "additionalProperties": values}


def _range(constraints: list[Any], high: Schema) -> Schema:
    low: Schema = {}
    for constraint in constraints:
        match constraint:
            case Ge(ge=least):
                low["minimum"] = least
            case Le(le=most):
                high = {"maximum": most}
    return low | high


def _limits(constraints: list[Any], of: Literal["Items", "Length", "Properties"]) -> Schema:
    schema: Schema = {}
    for constraint in constraints:
        match constraint:
            case MinLen(min_length=low):
                schema[f"min{of}"] = low
            case MaxLen(max_length=high):
                schema[f"max{of}"] = high
            case AfterValidator(func=TextFormat() as form):
                schema |= _longest(form)
    return schema


def _longest(form: TextFormat) -> Schema:
    return {} if form.longest is None else {"maxLength": form.longest}


def unwrapped(annotation: Any) -> tuple[Any, list[Any]]:
    """Return `int` and its constraints for `Annotated[int, Field(ge=1)] | None`."""
    constraints: list[Any] = []
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation, *extras = get_args(annotation)
            constraints += (constraint for extra in extras for constraint in _constraints(extra))
            continue
        options = [argument for argument in get_args(annotation) if argument is not NoneType]
        if origin not in {Union, UnionType} or len(options) != 1:
            return annotation, constraints
        annotation = options[0]


def _constraints(extra: Any) -> list[Any]:
    return extra.metadata if isinstance(extra, FieldInfo) else [extra]
