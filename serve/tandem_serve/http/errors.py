"""Every failure in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

import logging
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from tandem_engine.api.errors import (
    DeadlineExceeded,
    EngineError,
    EngineStopped,
    PromptTooLong,
    RequestError,
    RequestFailed,
)
from tandem_serve.http.admission.policy import Refused

logger = logging.getLogger(__name__)

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"
STATUS_CLIENT_CLOSED_REQUEST: Final = 499
"""nginx's number for a caller that disconnected; only the metrics show it."""
STARTING_RETRY_AFTER_S: Final = 1
BODIES_RETRY_AFTER_S: Final = 1
MAX_SHOWN: Final = 60
"""Characters of a wrong value that are quoted."""


class ApiError(Exception):
    """A request that ends with an error; the text is one sentence for the caller."""

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.BAD_REQUEST,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers or {}

    def document(self) -> dict[str, Any]:
        """The body of the response, or the data of an event."""
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        """The whole response, for an error that is known before the first byte."""
        return Response(
            to_json(self.document()),
            status_code=self.status,
            headers=dict(self.headers),
            media_type="application/json",
        )


def truncate(text: str) -> str:
    """`text`, as far as it fits into a sentence."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


class ClientDisconnected(Exception):
    """The caller disconnected before the answer was complete; no answer can reach it."""


def queue_full(refused: Refused, noun: str) -> ApiError:
    """Too few slots are free for so many of `noun`: 429, with the time to retry after."""
    return ApiError(
        f"{refused.num_in_flight} of at most {refused.max_in_flight} {noun} are running or "
        f"waiting; try again in {refused.retry_after_s} s.",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        kind="queue_full",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(refused.retry_after_s)},
    )


def recording_busy(retry_after_s: int) -> ApiError:
    """Another timeline is being recorded: 429, with the time after which it has ended."""
    return ApiError(
        f"Another timeline is being recorded, one at a time; try again in {retry_after_s} s.",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        kind="recording_busy",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(retry_after_s)},
    )


def key_missing() -> ApiError:
    """The request has no API key."""
    return _unauthorized(
        "The request has no API key; send one in the header 'Authorization: Bearer KEY'."
    )


def key_invalid() -> ApiError:
    """The request has a key that is not one of the service's."""
    # Not even a part of it is repeated: answers end up in logs.
    return _unauthorized(
        "The API key is not valid; send one from the service's Secret of API keys."
    )


def no_keys_set() -> ApiError:
    """Keys are required, and there are none."""
    return _unauthorized(
        "This service accepts no requests yet: its Secret of API keys is empty or unreadable; "
        "add a key to it."
    )


def _unauthorized(message: str) -> ApiError:
    return ApiError(
        message,
        status=HTTPStatus.UNAUTHORIZED,
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def model_not_found(requested: str, served: str) -> ApiError:
    """The request names another model than the served one."""
    return ApiError(
        f"The model '{truncate(requested)}' does not exist; this server serves '{served}'.",
        status=HTTPStatus.NOT_FOUND,
        param="model",
        code="model_not_found",
    )


def body_too_large(max_bytes: int) -> ApiError:
    """The body is larger than this server reads; the connection ends with it unread."""
    return ApiError(
        f"The body exceeds the limit of {max_bytes} bytes; send less.",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="request_too_large",
        headers={"Connection": "close"},
    )


def body_too_complex(max_cost: int) -> ApiError:
    """The body would take too long to parse; the connection may stay."""
    return ApiError(
        f"The body exceeds the limit of {max_cost} values to parse (a list or an object counts as "
        "ten, a name in an object as seven); send less, or texts in place of token ids.",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="request_too_large",
    )


def body_too_slow(timeout_s: float) -> ApiError:
    """The body did not arrive in time, or too many others arrive; the connection ends."""
    return ApiError(
        f"The body did not arrive within {timeout_s:g} s and a second for each MiB of it, or "
        "within a second where many send at once; send it again, faster.",
        status=HTTPStatus.REQUEST_TIMEOUT,
        code="request_timeout",
        headers={"Connection": "close"},
    )


def body_encoded(encoding: str) -> ApiError:
    """The body is compressed, or encoded in another way."""
    return ApiError(
        f"The body has Content-Encoding '{truncate(encoding)}'; this server accepts plain JSON "
        "only.",
        status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        code="unsupported_media_type",
    )


def bodies_full(num_held: int, max_bytes: int) -> ApiError:
    """The memory of all bodies is exhausted: 503, so that a client may try another replica."""
    return ApiError(
        f"The bodies of other requests hold {num_held} bytes of at most {max_bytes}; try again in "
        f"{BODIES_RETRY_AFTER_S} s.",
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        kind=SERVER_ERROR,
        code="bodies_full",
        headers={"Retry-After": str(BODIES_RETRY_AFTER_S)},
    )


def prompt_too_long(message: str, param: str | None) -> ApiError:
    """The prompt leaves no room for an answer."""
    return ApiError(message, param=param, code="context_length_exceeded")


def deadline_exceeded(message: str) -> ApiError:
    """The answer was not done in time: 504, whether it was begun or not.

    It is what gRPC's DEADLINE_EXCEEDED is over HTTP. 408 is for a request that comes too slowly,
    and 503 asks to send it again: OpenAI's clients would do so at once, needlessly, were it not for
    the header.
    """
    return ApiError(
        message,
        status=HTTPStatus.GATEWAY_TIMEOUT,
        kind=SERVER_ERROR,
        code="deadline_exceeded",
        headers={"X-Should-Retry": "false"},
    )


def engine_starting() -> ApiError:
    """The replica has no engine yet."""
    return ApiError(
        "The engine is still starting; try again in a moment.",
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        kind=SERVER_ERROR,
        code="engine_starting",
        headers={"Retry-After": str(STARTING_RETRY_AFTER_S)},
    )


def unexpected() -> ApiError:
    """A bug: its traceback is in the log, not in the response."""
    return ApiError(
        "The server failed unexpectedly; its log says where. This is a bug, please report it.",
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        kind=SERVER_ERROR,
        code="internal_error",
    )


def from_engine(error: EngineError) -> ApiError:
    """Turn an engine's error into an API error; its sentence is kept."""
    match error:
        case PromptTooLong():
            return prompt_too_long(str(error), error.parameter)
        case RequestError():
            return ApiError(str(error), param=error.parameter, code="invalid_value")
        case DeadlineExceeded():
            return deadline_exceeded(str(error))
        case EngineStopped():
            return ApiError(
                str(error) or "The engine is stopping and accepts no more requests.",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                kind=SERVER_ERROR,
                code="engine_stopped",
            )
        case _:
            return ApiError(
                str(error),
                status=HTTPStatus.INTERNAL_SERVER_ERROR,
                kind=SERVER_ERROR,
                code="request_failed" if isinstance(error, RequestFailed) else "internal_error",
            )


def from_exception(error: Exception) -> ApiError:
    """Turn any exception into an API error; an unexpected one is logged with its frames."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineError):
        return from_engine(error)
    logger.error("A request failed unexpectedly; this is a bug.\n%s", _trace(error))
    return unexpected()


def _trace(error: BaseException) -> str:
    """The frames in which an error and its causes were raised.

    Their messages are left out: those of a tokenizer or a parser quote what they were given, and
    no prompt belongs into a log. The system's own words say what is wrong with the system.
    """
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    frames = "".join(traceback.format_tb(error.__traceback__))
    message = f": {error}" if isinstance(error, OSError) else ""
    trace = f"{frames}{type(error).__module__}.{type(error).__qualname__}{message}"
    return trace if before is None else f"{_trace(before)}\nand then:\n{trace}"


def from_http(error: HTTPException, request: Request) -> ApiError:
    """Turn a refusal of the router into an API error: unknown path, or wrong method."""
    path, method = request.url.path, request.method
    headers = error.headers or {}
    if error.status_code == HTTPStatus.NOT_FOUND:
        paths = ", ".join(getattr(route, "path", "") for route in request.app.routes)
        message = f"No route {truncate(path)}; available: {paths}."
        code = "unknown_url"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = headers.get("Allow", "another")
        message = f"{truncate(path)} does not support {truncate(method)}; allowed: {allowed}."
        code = "method_not_allowed"
    else:
        message, code = str(error.detail), "http_error"
    return ApiError(message, status=error.status_code, code=code, headers=headers)


async def answer_error(_request: Request, error: Exception) -> Response:
    """The handler for ApiError and EngineError that came before the first byte."""
    return from_exception(error).response()


async def answer_http_error(request: Request, error: Exception) -> Response:
    """The handler for errors of the router."""
    if not isinstance(error, HTTPException):
        raise TypeError(
            f"{type(error).__name__} reached the handler of the router's errors; this is a bug."
        )
    return from_http(error, request).response()


async def answer_client_disconnected(_request: Request, _error: Exception) -> Response:
    """Handle a caller that disconnected; the response is not sent."""
    return Response(status_code=STATUS_CLIENT_CLOSED_REQUEST)
