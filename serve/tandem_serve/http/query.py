"""Reads and checks the query of a request."""

import re
from collections import Counter
from typing import Any, Final, TypeVar

from fastapi import Request

from tandem_engine.api.model import unknown_field_text
from tandem_serve.http.errors import ApiError, truncate
from tandem_serve.http.openai.protocol import RequestModel
from tandem_serve.http.openai.validation import as_sentence, validate

T = TypeVar("T", bound=RequestModel)

_BOOLS: Final = {"true": True, "false": False}
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_DECIMAL: Final = re.compile(r"-?[0-9]{1,18}\.[0-9]{1,18}", re.ASCII)


def read_query(request: Request, model: type[T]) -> T:
    """The query of `request` as a `model`.

    Raises:
        ApiError: a name is unknown or comes twice, or a value is not what it should be (400).
    """
    given = request.query_params.multi_items()
    known = sorted(model.model_fields)
    for name, count in Counter(name for name, _ in given).items():
        if name not in known:
            raise ApiError(
                as_sentence(f"The query has an {unknown_field_text(truncate(name), known)}"),
                param=truncate(name),
                code="unknown_parameter",
            )
        if count > 1:
            raise ApiError(
                f"{name} is given {count} times in the query; give it once.",
                param=name,
                code="invalid_value",
            )
    return validate(model, {name: _value(text) for name, text in given})


def _value(text: str) -> Any:
    """The number or the truth that a query spells; else the text, to be refused by name."""
    if text in _BOOLS:
        return _BOOLS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
