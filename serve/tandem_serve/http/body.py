"""From the bytes of a request to a checked model of it."""

from typing import Any, Final, TypeVar

from fastapi import Request
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from tandem_serve.http import errors
from tandem_serve.http.errors import ApiError
from tandem_serve.http.off_loop import run_off_loop
from tandem_serve.http.openai_types import RequestModel
from tandem_serve.http.state import state_of
from tandem_serve.http.validation import validate, value_kind

T = TypeVar("T", bound=RequestModel)

_MOST_DISCARDED: Final = 64 << 20
"""Bytes above the limit that are read all the same, and thrown away: a connection that closes while
the client still sends takes the answer with it."""


async def read_request(request: Request, model: type[T]) -> T:
    """Read, parse and check the body of `request`.

    Raises:
        ApiError: it is too large (413) or not what `model` describes (400).
        ClientGone: the caller went away while sending.
    """
    settings = state_of(request).settings
    body = await _read_body(request, settings.max_request_bytes)
    return await run_off_loop(len(body) > settings.max_inline_length, _parse, body, model)


async def _read_body(request: Request, max_bytes: int) -> bytes:
    if _is_refused_at_once(request, max_bytes):
        raise errors.body_too_large(max_bytes)
    body, num_bytes = bytearray(), 0
    try:
        async for piece in request.stream():
            num_bytes += len(piece)
            if num_bytes <= max_bytes:
                body += piece
            elif num_bytes > max_bytes + _MOST_DISCARDED:
                break
    except ClientDisconnect as gone:
        raise errors.ClientGone from gone
    if num_bytes > max_bytes:
        raise errors.body_too_large(max_bytes)
    return bytes(body)


def _is_refused_at_once(request: Request, max_bytes: int) -> bool:
    """Whether nothing of the body is read: there is far too much, or the client waits for word."""
    announced = request.headers.get("content-length", "")
    most = max_bytes if "expect" in request.headers else max_bytes + _MOST_DISCARDED
    return _is_more(announced, most)


def _parse(body: bytes, model: type[T]) -> T:
    return validate(model, _json_object(body))


def _json_object(body: bytes) -> dict[str, Any]:
    if not body:
        raise ApiError("The body is empty; send a JSON object.", code="invalid_json")
    try:
        document = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(f"The body is not valid JSON: {error}.", code="invalid_json") from error
    if not isinstance(document, dict):
        raise ApiError(
            f"The body must be a JSON object, not {value_kind(document)}.", code="invalid_json"
        )
    return document


def _is_more(digits: str, limit: int) -> bool:
    if not digits.isdecimal():
        return False
    # The length goes first: int() refuses thousands of digits with an error of its own.
    significant = digits.lstrip("0") or "0"
    return len(significant) > len(str(limit)) or int(significant) > limit
