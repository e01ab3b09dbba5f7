"""Server-sent events: how chunks become bytes, and the response that sends them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any, Final

from fastapi import Response
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from tandem_serve.http.disconnect import until_disconnect
from tandem_serve.http.errors import ApiError, ClientDisconnected, from_exception
from tandem_serve.http.openai.generation import Usage

DONE: Final = b"data: [DONE]\n\n"
COMMENT: Final = b": waiting\n\n"
"""Clients skip lines that begin with a colon."""
Headers = list[tuple[bytes, bytes]]

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
        self.is_begun = False
        """True once there was a chunk."""

    def chunk(
        self,
        choice: dict[str, Any],
        usage: Usage | None = None,
        members: dict[str, Any] | None = None,
    ) -> bytes:
        """A chunk with one choice.

        Args:
            choice: The choice.
            usage: The usage so far, if the chunk is to have it.
            members: Members beside `choices`.
        """
        self.is_begun = True
        end = self._suffix if usage is None else b'],"usage":' + to_json(usage) + b"}\n\n"
        chunk = self._prefix + to_json(choice) + end
        if not members:
            return chunk
        return chunk.removesuffix(b"}\n\n") + b"," + to_json(members)[1:] + b"\n\n"

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that has the usage."""
        return self._prefix + b'],"usage":' + to_json(usage) + b"}\n\n"


class EventStream(Response):
    """Sends events, and closes `held` at the end, after an error, and when the caller leaves.

    The head waits a moment for the first event, so that a request that fails at once still gets a
    status that clients and proxies understand and may try again. It does not wait for longer, and
    comments break the silence after it: proxies end connections on which nothing comes.

    Args:
        events: The events; an error of theirs is the last one.
        held: Callbacks that give back what the stream holds.
        head_after_s: Seconds for which the head waits for the first event.
        comment_after_s: Seconds of silence after which there is a comment; twice as many at most.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        held: ExitStack,
        *,
        head_after_s: float,
        comment_after_s: float,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._held = held
        self._head_after_s = head_after_s
        self._comment_after_s = comment_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; see ASGI."""
        with self._held:
            try:
                await until_disconnect(receive, self._send_all(scope, receive, send))
            except (ClientDisconnected, OSError):
                return  # The caller has left; `held` aborts what is running.

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(send, self.raw_headers)
        async with (
            aclosing(self._events) as events,
            _kept_alive(body, self._head_after_s, self._comment_after_s),
        ):
            error = await _write_all(events, body)
        if error is None:
            await body.end()
        elif body.has_begun:
            await body.write(event(error.document()))
            await body.end()
        else:
            await error.response()(scope, receive, send)


class _Body:
    """A response that begins with the first piece of its body; two tasks may write to it."""

    def __init__(self, send: Send, headers: Headers) -> None:
        self._send = send
        self._headers = headers
        self._writing = asyncio.Lock()
        self.has_begun = False
        self.num_pieces = 0

    async def write(self, data: bytes) -> None:
        """Send a piece, after the head if it is the first."""
        async with self._writing:
            if not self.has_begun:
                # Before it is sent: who is ended in the middle of that has begun, too.
                self.has_begun = True
                await self._send(
                    {"type": "http.response.start", "status": 200, "headers": self._headers}
                )
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self.num_pieces += 1

    async def end(self) -> None:
        """Send the end; nothing may be written after it."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def _kept_alive(
    body: _Body, head_after_s: float, comment_after_s: float
) -> AsyncIterator[None]:
    """Write comments within the block whenever nothing else is written."""
    commenting = asyncio.ensure_future(_comment(body, head_after_s, comment_after_s))
    try:
        yield
    finally:
        commenting.cancel()
        await asyncio.gather(commenting, return_exceptions=True)


async def _comment(body: _Body, head_after_s: float, comment_after_s: float) -> None:
    num_before, silence_s = 0, head_after_s
    while True:
        await asyncio.sleep(silence_s)
        if body.num_pieces == num_before:
            await body.write(COMMENT)
        num_before, silence_s = body.num_pieces, comment_after_s


async def _write_all(events: AsyncGenerator[bytes, None], body: _Body) -> ApiError | None:
    """Write the events; return the error that ended them, if one did.

    Only the events can fail so, not the sending of them: a broken pipe is not a bug.
    """
    while True:
        try:
            data = await anext(events, None)
        except Exception as error:  # noqa: BLE001 - from_exception logs an unexpected one
            return from_exception(error)
        if data is None:
            return None
        await body.write(data)
