"""Reads, parses and checks the body of a request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from fastapi import Request
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from tandem_serve.http import errors
from tandem_serve.http.admission.body_budget import BodyShare, BodyTimer
from tandem_serve.http.admission.json_cost import JsonCostCounter, cost_upper_bound
from tandem_serve.http.admission.slots import AdmissionControl
from tandem_serve.http.errors import ApiError
from tandem_serve.http.offload import PARSER_POOL
from tandem_serve.http.openai.leniency import drop_unknown
from tandem_serve.http.openai.protocol import RequestModel
from tandem_serve.http.openai.validation import validate, value_kind
from tandem_serve.http.state import HttpState, state_of

T = TypeVar("T", bound=RequestModel)

MAX_COST: Final = 2**18
"""Cost of a document that is parsed in any case: 15 ms of the global lock at most."""
COST_PER_TOKEN: Final = 2
"""A longer context may cost more: each of its tokens as a number, and as much again."""

_MOST_DISCARDED: Final = 64 << 20
"""Bytes above the limit that are read all the same, and thrown away: a connection that closes while
the client still sends takes the answer with it."""
_COUNTED_AT_ONCE: Final = 32 << 10
_IDENTITY: Final = frozenset({"", "identity"})


@asynccontextmanager
async def read_body(
    request: Request, model: type[T], admission: AdmissionControl
) -> AsyncIterator[T]:
    """The body of `request`, read, parsed and checked; its memory counts until the block ends.

    Nothing of it is kept while `admission` has no free slot.

    Raises:
        ApiError: it is too large or too complex (413), encoded (415), too slow (408), there is no
            memory for it (503) or no slot (429) now, or it does not fit `model` (400).
        ClientDisconnected: the caller disconnected while sending.
    """
    http = state_of(request)
    with http.body_budget.share() as share:
        yield await _read(request, model, _BodyReader(http, share, admission))


async def _read(request: Request, model: type[T], reader: "_BodyReader") -> T:
    http = state_of(request)
    async with http.body_budget.timer() as timer:
        refusal = reader.early_refusal(request)
        if refusal is None:
            refusal = await reader.read(request, timer)
    if refusal is not None:
        raise refusal
    body, strict = reader.body, http.settings.strict
    is_long = len(body) > http.settings.max_inline_length
    parsed, ignored = await PARSER_POOL.run(is_long, _parse, body, model, strict)
    if ignored:
        request.state.ignored_fields = ignored
        http.ignored_fields.log(ignored)
    return parsed


class _BodyReader:
    """One body as it arrives: the bytes that are kept, or the reason of its refusal."""

    def __init__(self, http: HttpState, share: BodyShare, admission: AdmissionControl) -> None:
        self.body = bytearray()
        self._http = http
        self._max_bytes = http.settings.max_request_bytes
        self._max_cost = max_cost(http)
        self._share = share
        self._admission = admission
        self._highest_cost = 0
        self._counter = JsonCostCounter()
        self._num_counted = 0

    def early_refusal(self, request: Request) -> ApiError | None:
        """Refuse before the body is read: it is far too large, or the client expects a 100."""
        announced = request.headers.get("content-length", "")
        waits = "expect" in request.headers
        most = self._max_bytes if waits else self._max_bytes + _MOST_DISCARDED
        if _is_more(announced, most):
            return errors.body_too_large(self._max_bytes)
        return self._head_refusal(request, announced) if waits else None

    async def read(self, request: Request, timer: BodyTimer) -> ApiError | None:
        """Read to the end; return the refusal, or None.

        Raises:
            ClientDisconnected: the caller disconnected while sending.
        """
        announced = request.headers.get("content-length", "")
        refusal = self._head_refusal(request, announced)
        num_bytes = 0
        try:
            async for piece in request.stream():
                num_bytes += len(piece)
                timer.extend(len(piece))
                if refusal is None:
                    refusal = await self._keep(piece)
                elif num_bytes > self._max_bytes + _MOST_DISCARDED:
                    break
        except ClientDisconnect as gone:
            raise errors.ClientDisconnected from gone
        return refusal

    def _head_refusal(self, request: Request, announced: str) -> ApiError | None:
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding not in _IDENTITY:
            return errors.body_encoded(encoding)
        if _is_more(announced, self._max_bytes):
            return errors.body_too_large(self._max_bytes)
        try:
            self._http.engine()
            self._admission.check_open()
            self._share.announce(_number(announced))
        except ApiError as full:
            return full
        return None

    async def _keep(self, piece: bytes) -> ApiError | None:
        """Keep one piece, or drop all of them and return the refusal."""
        try:
            if len(self.body) + len(piece) > self._max_bytes:
                raise errors.body_too_large(self._max_bytes)
            self._share.grow(len(piece))
            self.body += piece
            await self._measure(piece)
        except ApiError as refusal:
            self.body = bytearray()
            self._share.release()
            return refusal
        return None

    async def _measure(self, piece: bytes) -> None:
        # Most bodies are cheap even if all of their text were values; that check is fast.
        self._highest_cost += cost_upper_bound(piece)
        if self._highest_cost <= self._max_cost:
            return
        while self._num_counted < len(self.body):
            end = self._num_counted + _COUNTED_AT_ONCE
            self._counter.feed(self.body[self._num_counted : end])
            self._num_counted = min(end, len(self.body))
            if self._counter.cost > self._max_cost:
                raise errors.body_too_complex(self._max_cost)
            if self._num_counted < len(self.body):
                await asyncio.sleep(0)  # Streams go on between two pieces.


def max_cost(http: HttpState) -> int:
    """Cost of the documents that are parsed; see `JsonCostCounter`."""
    engine = http.get_engine()
    return max(MAX_COST, COST_PER_TOKEN * engine.limits.max_seq_len if engine else 0)


def _parse(body: bytearray, model: type[T], strict: bool) -> tuple[T, list[str]]:
    """The checked body, and the names of fields in it that are ignored."""
    document = _json_object(body)
    if strict:
        return validate(model, document), []
    document, ignored = drop_unknown(model, document)
    return validate(model, document), ignored


def _json_object(body: bytearray) -> dict[str, Any]:
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


def _is_number(text: str) -> bool:
    """True for digits of HTTP; Python takes those of other scripts for digits as well."""
    return text.isascii() and text.isdecimal()


def _is_more(digits: str, limit: int) -> bool:
    if not _is_number(digits):
        return False
    # The length goes first: int() refuses thousands of digits with an error of its own.
    significant = digits.lstrip("0") or "0"
    return len(significant) > len(str(limit)) or int(significant) > limit


def _number(digits: str) -> int:
    """Length that a header announces, if it is not too large; 0 when it announces none."""
    return int(digits.lstrip("0") or "0") if _is_number(digits) else 0
