"""Turns pydantic's errors into one sentence for the caller."""

from itertools import islice
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, to_json

from tandem_serve.http.errors import MAX_SHOWN, ApiError, truncate
from tandem_serve.http.openai.protocol import RequestModel
from tandem_serve.http.openai.unsupported import refuse_unsupported

T = TypeVar("T", bound=RequestModel)

_EXPECTED: Final = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of at most 64 bits",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "list_type": "a list",
    "model_type": "an object",
}
_KINDS: Final[dict[type, str]] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
}
_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
}


def validate(model: type[T], document: dict[str, Any]) -> T:
    """The body as a `model`.

    Raises:
        ApiError: a field is unsupported, unknown, missing or wrong; the first of them.
    """
    refuse_unsupported(document, model.unsupported)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise _from_pydantic(error.errors(include_url=False)[0]) from error


def value_kind(value: Any) -> str:
    """Kind of a JSON value, with its article."""
    return _KINDS.get(type(value), "an object")


def as_json(value: Any) -> str:
    """The value as JSON, cut to what fits into a sentence."""
    return truncate(to_json(_beginning(value)).decode())


def _beginning(value: Any) -> Any:
    """As much of `value` as can be shown: a whole one may be megabytes."""
    if isinstance(value, str):
        return value[:MAX_SHOWN]
    if isinstance(value, list):
        return [_beginning(item) for item in value[:MAX_SHOWN]]
    if isinstance(value, dict):
        items = islice(value.items(), MAX_SHOWN)
        return {name[:MAX_SHOWN]: _beginning(item) for name, item in items}
    return value


def as_sentence(text: str) -> str:
    """The text with a full stop, unless it ends as a question."""
    return text if text.endswith("?") else f"{text}."


def field_path(location: tuple[int | str, ...]) -> str:
    """Path of a value: messages[0].role."""
    path = "".join(
        f"[{part}]" if isinstance(part, int) else f".{truncate(part)}" for part in location
    )
    return path.removeprefix(".")


def _from_pydantic(error: ErrorDetails) -> ApiError:
    kind = error["type"]
    param = field_path(error["loc"])
    if kind == "unknown_field":
        return _unknown_field(error, param)
    if kind == "missing":
        return ApiError(
            f"{param} is missing; add it.", param=param, code="missing_required_parameter"
        )
    if kind == "too_many":
        return _too_many(error["ctx"], param)
    if kind == "wrong_item":
        return _wrong_item(error["ctx"], param)
    if kind in _BOUNDS:
        return _out_of_range(error, param)
    return _wrong_type(error, param)


def _unknown_field(error: ErrorDetails, param: str) -> ApiError:
    text, name = error["ctx"]["text"], error["ctx"]["name"]
    return ApiError(
        as_sentence(f"{param or 'The body'} has an {text}"),
        param=f"{param}.{name}" if param else name,
        code="unknown_parameter",
    )


def _too_many(context: dict[str, Any], param: str) -> ApiError:
    return ApiError(
        f"{param} has {context['count']} {context['items']}; "
        f"it must have at most {context['most']}.",
        param=param,
        code="invalid_value",
    )


def _out_of_range(error: ErrorDetails, param: str) -> ApiError:
    word, bound = _BOUNDS[error["type"]]
    return ApiError(
        f"{param} is {as_json(error['input'])}; it must be {word} {error['ctx'][bound]}.",
        param=param,
        code="invalid_value",
    )


def _wrong_item(context: dict[str, Any], param: str) -> ApiError:
    value, path = context["value"], param + field_path(context["location"])
    return ApiError(
        f"{path} is {value_kind(value)} ({as_json(value)}); {param} must be {context['what']}.",
        param=param,
        code="invalid_type",
    )


def _wrong_type(error: ErrorDetails, param: str) -> ApiError:
    if error["type"] == "wrong_shape":
        expected = error["ctx"]["what"]
    else:
        expected = _EXPECTED.get(error["type"], error["msg"])
    value = error["input"]
    return ApiError(
        f"{param} is {value_kind(value)} ({as_json(value)}); it must be {expected}.",
        param=param,
        code="invalid_type",
    )
