"""Answers GET /metrics of one replica on a port of its own, and nothing else."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tandem_engine.api.errors import ConfigError
from tandem_serve.api.ray_env import METRICS_PATH, METRICS_PORT

_PATH: Final = METRICS_PATH.encode()
_MAX_PORT: Final = 65535
_END_OF_HEAD: Final = b"\r\n\r\n"
_WORDS_OF_A_REQUEST_LINE: Final = 3
_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLimits:
    """Bounds on what callers can take."""

    max_connections: int = 16
    """Connections at once; one more closes the oldest of them, so that callers that send nothing
    keep no scrape out."""
    max_head_bytes: int = 8192
    """Request line and headers."""
    timeout_s: float = 5.0
    """Seconds of a connection, from its acceptance to the last byte of the answer."""
    body_max_age_s: float = 0.2
    """Age up to which a body is sent again: callers that ask all the time take no more than the
    time of five expositions a second from the requests."""
    rebind_after_s: float = 1.0
    """Pause between attempts to bind a port that is in use."""


def metrics_port() -> int | None:
    """Return the port that the environment names; None: metrics have no port of their own.

    Raises:
        ConfigError: it is not the number of a port.
    """
    text = os.environ.get(METRICS_PORT, "")
    if not text:
        return None
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= _MAX_PORT:
        return int(text)
    raise ConfigError(f"{METRICS_PORT} is '{text}'; it must be a port in [1, {_MAX_PORT}].")


class MetricsServer:
    """A server for Prometheus on the event loop of the replica, whose state it reads.

    The process may not have its port at once: a former replica of the pod holds it until it ends.

    Args:
        exposition: Returns the metrics in Prometheus' text format; called on the event loop.
        port: TCP port, on all addresses.
        limits: Bounds on what callers can take.
    """

    def __init__(
        self,
        exposition: Callable[[], bytes],
        port: int,
        *,
        limits: MetricsLimits | None = None,
    ) -> None:
        self._exposition = exposition
        self._port = port
        self._limits = limits or MetricsLimits()
        self._server: asyncio.Server | None = None
        self._binding: asyncio.Task[None] | None = None
        # Oldest first.
        self._connections: dict[asyncio.StreamWriter, None] = {}
        self._body = b""
        self._body_made = float("-inf")

    def start(self) -> None:
        """Begin to bind the port, on the running event loop; return at once."""
        self._binding = asyncio.create_task(self._bind())

    async def bound(self) -> None:
        """Wait until the port is bound."""
        if self._binding is not None:
            await asyncio.shield(self._binding)

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._binding is not None:
            self._binding.cancel()
            with suppress(asyncio.CancelledError):
                await self._binding
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()

    async def _bind(self) -> None:
        has_failed = False
        while True:
            try:
                self._server = await self._listen()
            except OSError as error:
                if not has_failed:
                    _LOGGER.warning("Port %d for metrics: %s; retrying.", self._port, error)
                has_failed = True
                await asyncio.sleep(self._limits.rebind_after_s)
            else:
                if has_failed:
                    _LOGGER.info("Port %d for metrics is bound.", self._port)
                return

    async def _listen(self) -> asyncio.Server:
        listening = _listening_socket(self._port)
        try:
            return await asyncio.start_server(
                self._serve,
                sock=listening,
                limit=self._limits.max_head_bytes,
                # asyncio accepts as many in one turn of the loop.
                backlog=self._limits.max_connections,
            )
        except BaseException:
            listening.close()
            raise

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection, and close it."""
        if len(self._connections) >= self._limits.max_connections:
            next(iter(self._connections)).transport.abort()
        self._connections[writer] = None
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                writer.write(await self._answer(reader))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            # Closing waits for a caller that does not read; this does not.
            writer.transport.abort()
        finally:
            self._connections.pop(writer, None)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(_END_OF_HEAD)
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != _WORDS_OF_A_REQUEST_LINE or not words[2].startswith(b"HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if target.partition(b"?")[0] != _PATH:
            return _response(HTTPStatus.NOT_FOUND)
        if method != b"GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET\r\n")
        return self._metrics()

    def _metrics(self) -> bytes:
        now = time.monotonic()
        if now - self._body_made > self._limits.body_max_age_s:
            try:
                self._body = self._exposition()
            except Exception:
                _LOGGER.exception("The metrics cannot be shown.")
                return _response(HTTPStatus.INTERNAL_SERVER_ERROR)
            self._body_made = now
        return _response(HTTPStatus.OK, f"Content-Type: {CONTENT_TYPE_LATEST}\r\n", self._body)


def _listening_socket(port: int) -> socket.socket:
    """Return a socket bound to `port` on all addresses of both families, where there are both.

    Raises:
        OSError: the port is in use.
    """
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1
            )
    return socket.create_server(("", port), backlog=1)


def _response(status: HTTPStatus, headers: str = "", body: bytes | None = None) -> bytes:
    content = f"{status.phrase}\n".encode() if body is None else body
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Length: {len(content)}\r\n{headers}Connection: close\r\n\r\n"
    )
    return head.encode() + content
