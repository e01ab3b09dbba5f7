"""Middleware of every request: its id, its count, and the last exception handler."""

import re
from collections.abc import Mapping
from http import HTTPMethod
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem_serve.http.errors import STATUS_CLIENT_CLOSED_REQUEST, from_exception
from tandem_serve.http.metrics import UNKNOWN
from tandem_serve.http.openai.leniency import HEADER
from tandem_serve.http.state import HttpState

REQUEST_ID_HEADER: Final = "x-request-id"
_VALID_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")


class RequestMiddleware:
    """Gives each request an id, counts its response, and answers 500 to an uncaught exception."""

    def __init__(self, app: ASGIApp, *, state: HttpState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; what is not HTTP (lifespan) passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        watched = _WatchedSend(
            send, scope["state"], request_id if self._returns_request_id else None
        )
        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if watched.status is not None:
                raise  # The head is sent: only closing the connection can still tell the caller.
            await from_exception(error).response()(scope, receive, watched)
        finally:
            self._count(scope, watched.status)

    @property
    def _returns_request_id(self) -> bool:
        return self._state.settings.returns_request_id

    def _request_id(self, scope: Scope) -> str:
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        if _VALID_REQUEST_ID.fullmatch(given):
            return given
        return self._state.dependencies.new_id()

    def _count(self, scope: Scope, status: int | None) -> None:
        # The route's template, not the path: callers can make up paths and methods without end.
        path: Any = getattr(scope.get("route"), "path", UNKNOWN)
        method = scope["method"] if scope["method"] in HTTPMethod.__members__ else UNKNOWN
        self._state.counts.record(path, method, status or STATUS_CLIENT_CLOSED_REQUEST)


class _WatchedSend:
    """ASGI's send that remembers the status and adds the request id and the ignored fields."""

    def __init__(self, send: Send, state: Mapping[str, Any], request_id: str | None) -> None:
        self._send = send
        self._state = state
        self._request_id = request_id
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._request_id is not None:
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = self._request_id
            if ignored := self._state.get("ignored_fields"):
                MutableHeaders(scope=message)[HEADER] = ", ".join(ignored)
        await self._send(message)
