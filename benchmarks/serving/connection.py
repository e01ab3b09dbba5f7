"""Connections to the server, kept between requests, and one request on one of them."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from benchmarks.serving.http1 import NotHttp
from benchmarks.serving.reply import Reply

_MAX_IDLE_S: Final = 2.0
"""Servers close idle connections after 5 s or more; one that is older may close under a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Host and port of a server."""

    host: str
    port: int
    is_secure: bool
    """HTTPS."""

    @classmethod
    def of(cls, url: str) -> Self:
        """The address in a URL."""
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        port = parts.port or (443 if is_secure else 80)
        return cls(host=parts.hostname or "", port=port, is_secure=is_secure)


class Connection(asyncio.Protocol):
    """One connection; it carries one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reply = Reply()
        self._done: asyncio.Future[Reply] | None = None

    @property
    def is_open(self) -> bool:
        """It can carry a request."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes) -> Reply:
        """Send a request and collect its answer.

        Raises:
            ConnectionError: the server went away.
            NotHttp: its answer is no HTTP.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("The server closed the connection.")
        self._reply = Reply()
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        """Drop it, and the request on it."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        now_s = time.perf_counter()
        try:
            self._reply.feed(data, now_s)
        except NotHttp as error:
            self._fail(error)
            return
        if self._reply.is_complete:
            self._succeed()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._reply.end_of_connection()
        if self._reply.is_complete:
            self._succeed()
        else:
            self._fail(exc or ConnectionResetError("The server closed the connection."))

    def _succeed(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(self._reply)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class ConnectionPool:
    """Connections to one address; as many as there are requests in flight."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._ssl = ssl.create_default_context() if address.is_secure else None
        self._idle: list[tuple[float, Connection]] = []

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Connection]:
        """Lend a connection; it is dropped when what is done with it fails.

        Raises:
            OSError: the server takes none.
        """
        connection = self._pop_idle() or await self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append((time.perf_counter(), connection))

    def close(self) -> None:
        """Drop all that are idle."""
        while self._idle:
            self._idle.pop()[1].close()

    def _pop_idle(self) -> Connection | None:
        """The connection that was used last, if it is still good."""
        while self._idle:
            since_s, connection = self._idle.pop()
            if connection.is_open and time.perf_counter() - since_s < _MAX_IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            Connection, self._address.host, self._address.port, ssl=self._ssl
        )
        return connection
