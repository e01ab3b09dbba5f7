"""Server-sent events: how chunks become bytes, and the response that sends them."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from typing import Any, Final

from fastapi import Response
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from tandem_serve.http.disconnect import until_disconnect
from tandem_serve.http.errors import ClientDisconnected, from_exception
from tandem_serve.http.openai.generation import Usage

DONE: Final = b"data: [DONE]\n\n"
_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect events otherwise.
}


def event(document: object) -> bytes:
    """One server-sent event with JSON data."""
    return b"data: " + to_json(document) + b"\n\n"


class Envelope:
    """The part that all chunks of one stream share, serialised once; a token adds its choice."""

    def __init__(self, head: dict[str, Any], *, includes_usage: bool) -> None:
        self._prefix = b"data: " + to_json(head).removesuffix(b"}") + b',"choices":['
        self._suffix = b'],"usage":null}\n\n' if includes_usage else b"]}\n\n"

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """A chunk with one choice."""
        return self._prefix + to_json(choice) + self._suffix

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that has the usage."""
        return self._prefix + b'],"usage":' + to_json(usage) + b"}\n\n"


class EventStream(Response):
    """Sends events, and closes `held` at the end, after an error, and when the caller leaves.

    The head waits for the first event, so that a request that fails in the queue still gets a
    status that clients and proxies understand and may try again.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], held: ExitStack) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; see ASGI."""
        with self._held:
            try:
                await until_disconnect(receive, self._send_all(scope, receive, send))
            except (ClientDisconnected, OSError):
                return  # The caller has left; `held` aborts what is running.

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                first = await anext(events)
            except Exception as error:  # noqa: BLE001 - from_exception logs an unexpected one
                await from_exception(error).response()(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _send_piece(send, first)
            async with aclosing(_with_error_as_event(events)) as rest:
                async for data in rest:
                    await _send_piece(send, data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_piece(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _with_error_as_event(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    # Here only the events can fail, not the sending of them: a broken pipe is not a bug.
    try:
        async for data in events:
            yield data
    except Exception as error:  # noqa: BLE001 - from_exception logs an unexpected one
        yield event(from_exception(error).document())
