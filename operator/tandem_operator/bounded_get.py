"""One GET over a connection of its own, with bounds on everything that is read.

A full HTTP client follows redirects, keeps cookies, decompresses, and waits for as many interim
responses as a server sends. The server here may be hostile, so this does none of it: h11 parses
the bytes, and the first event that is not part of a plain response ends it.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import h11

_READ_BYTES: Final = 2**16
_MAX_HEAD_BYTES: Final = 2**14
# An honest server sends kilobytes at once; each piece costs as much time as a long one.
_MAX_PIECES: Final = 20_000
_PORTS: Final = {"http": 80, "https": 443}


class NoAnswer(Exception):
    """No answer could be read; the text is the reason, and quotes nothing of the answer."""


class UnexpectedStatus(NoAnswer):
    """The server answers with another status than 200, such as a redirect."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answers with the status {status}")
        self.status = status


class AnswerTimeout(NoAnswer):
    """The answer is not complete in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of an answer."""

    max_bytes: int
    """Bytes of its body."""

    timeout_s: float
    """Seconds until its last byte."""


def url_host(ip: str) -> str:
    """Return an address of a pod as a URL has it."""
    return f"[{ip}]" if ":" in ip else ip


async def get(url: str, limits: Limits, *, token: str | None = None) -> bytes:
    """Return the body of the 200 response of `url`; `token` is sent as `Authorization: Bearer`.

    Raises:
        NoAnswer: there is no such response within `limits`.
    """
    try:
        async with asyncio.timeout(limits.timeout_s):
            return await _get(url, token, limits.max_bytes)
    except TimeoutError:
        raise AnswerTimeout(f"no complete response within {limits.timeout_s:.0f} s") from None
    except (OSError, ValueError, h11.ProtocolError):
        raise NoAnswer("no HTTP response") from None


async def _get(url: str, token: str | None, max_bytes: int) -> bytes:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or _PORTS[parts.scheme],
        ssl=True if parts.scheme == "https" else None,
        limit=_READ_BYTES,
    )
    try:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        writer.write(_request(http, parts.netloc, target, token))
        return await _read(http, reader, max_bytes)
    finally:
        # The rest of the answer is not waited for.
        writer.transport.abort()


def _request(http: h11.Connection, host: str, target: str, token: str | None) -> bytes:
    headers = [
        ("Host", host),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    if token:
        headers.append(("Authorization", f"Bearer {token}"))
    request = h11.Request(method="GET", target=target, headers=headers)
    return (http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b"")


async def _read(http: h11.Connection, reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    body = bytearray()
    for _ in range(_MAX_PIECES):
        match await _next_event(http, reader):
            case h11.Response() as response:
                _check(response)
            case h11.Data(data=data):
                body += data
                if len(body) > max_bytes:
                    raise NoAnswer(f"its answer is longer than {max_bytes // 2**20} MiB")
            case h11.EndOfMessage():
                return bytes(body)
            case _:
                # Interim responses were not asked for, and could go on without end.
                raise NoAnswer("no HTTP response")
    raise NoAnswer(f"its answer has more than {_MAX_PIECES} chunks")


async def _next_event(http: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(_READ_BYTES))
        # A reader with data does not yield by itself; other tasks have to run.
        await asyncio.sleep(0)
    return event


def _check(response: h11.Response) -> None:
    if response.status_code != HTTPStatus.OK:
        raise UnexpectedStatus(response.status_code)
    encodings = [value for name, value in response.headers if name == b"content-encoding"]
    if any(encoding.strip().lower() != b"identity" for encoding in encodings):
        raise NoAnswer("its answer is compressed although the request does not accept that")
