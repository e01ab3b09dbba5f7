"""One GET over a connection of its own, read no further than it has to be.

A client for the whole of HTTP follows redirects, keeps cookies, unpacks, and waits for as many
interim answers as a server likes to send. Whom the operator asks here may be hostile, so this does
none of it: h11 says what the bytes mean, and the first thing that is not a plain answer ends it.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import h11

_READ_BYTES: Final = 2**16
_LONGEST_HEAD: Final = 2**14
# A server that means well sends kilobytes at once; each piece costs as much time as a long one.
_MOST_PIECES: Final = 20_000
_PORTS: Final = {"http": 80, "https": 443}


class NoAnswer(Exception):
    """There is no answer that could be read; the text says why, and quotes nothing of it."""


class UnexpectedStatus(NoAnswer):
    """The server answers with a status that is no answer; a redirect is one of them."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answers with the status {status}")
        self.status = status


class AnswerTimeout(NoAnswer):
    """There is no whole answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far an answer is read."""

    longest: int
    """Bytes of its body."""

    timeout_s: float
    """Seconds until its last byte."""


async def get(url: str, token: str | None, limits: Limits) -> bytes:
    """The body of what `url` answers with 200; `token` goes along as `Authorization: Bearer`.

    Raises:
        NoAnswer: there is no such answer within `limits`.
    """
    try:
        async with asyncio.timeout(limits.timeout_s):
            return await _get(url, token, limits.longest)
    except TimeoutError:
        raise AnswerTimeout(f"it gives no whole answer within {limits.timeout_s:.0f} s") from None
    except (OSError, ValueError, h11.ProtocolError):
        raise NoAnswer("it gives no answer over HTTP") from None


async def _get(url: str, token: str | None, longest: int) -> bytes:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or _PORTS[parts.scheme],
        ssl=True if parts.scheme == "https" else None,
        limit=_READ_BYTES,
    )
    try:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LONGEST_HEAD)
        writer.write(_request(http, parts.netloc, parts.path, token))
        return await _read(http, reader, longest)
    finally:
        # Whatever is left of the answer is not waited for.
        writer.transport.abort()


def _request(http: h11.Connection, host: str, path: str, token: str | None) -> bytes:
    headers = [
        ("Host", host),
        ("Accept", "application/json"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    if token:
        headers.append(("Authorization", f"Bearer {token}"))
    request = h11.Request(method="GET", target=path, headers=headers)
    return (http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b"")


async def _read(http: h11.Connection, reader: asyncio.StreamReader, longest: int) -> bytes:
    body = bytearray()
    for _ in range(_MOST_PIECES):
        match await _next_event(http, reader):
            case h11.Response() as response:
                _check(response)
            case h11.Data(data=data):
                body += data
                if len(body) > longest:
                    raise NoAnswer(f"its answer is longer than {longest // 2**20} MiB")
            case h11.EndOfMessage():
                return bytes(body)
            case _:
                # Of interim answers there is none that was asked for, and no end.
                raise NoAnswer("it gives no answer over HTTP")
    raise NoAnswer(f"its answer comes in more than {_MOST_PIECES} pieces")


async def _next_event(http: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(_READ_BYTES))
        # A reader that has something does not wait; others want to be served, too.
        await asyncio.sleep(0)
    return event


def _check(response: h11.Response) -> None:
    if response.status_code != HTTPStatus.OK:
        raise UnexpectedStatus(response.status_code)
    packed = [value for name, value in response.headers if name == b"content-encoding"]
    if any(one.strip().lower() != b"identity" for one in packed):
        raise NoAnswer("its answer is packed, though nobody asked for that")
