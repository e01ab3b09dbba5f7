"""Client of Prometheus' HTTP API, with bounds on time and size of an answer."""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode

import aiohttp

from tandem_operator.autoscaler.past import read_matrix
from tandem_operator.autoscaler.signals import (
    InvalidAnswer,
    Sample,
    Scope,
    Signals,
    read_answer,
    signals_query,
)
from tandem_operator.render.settings import PrometheusSettings

T = TypeVar("T")

MAX_ANSWER_BYTES: Final = 4 * 2**20
"""Sixteen series a replica take 2 KiB of it."""

_MAX_ERROR_BYTES: Final = 2**16
_OK: Final = 200
_REFUSED: Final = frozenset({400, 422})
_CHUNK: Final = 2**16
_HEADERS: Final = {
    "Accept": "application/json",
    "Content-Type": "application/x-www-form-urlencoded",
}


class PrometheusError(Exception):
    """No figures could be had; the text is one sentence without its full stop."""

    result = "none"
    """Result for the metric of queries."""


class Unreachable(PrometheusError):
    """Prometheus does not answer, or something else does."""


class Unusable(PrometheusError):
    """The answer cannot be used."""

    result = "invalid"


class PrometheusClient:
    """Asks Prometheus for the signals of services.

    After a failure it fails at once for a while: services do not wait for it one after the other.
    """

    def __init__(
        self,
        settings: PrometheusSettings,
        count: Callable[[str], None],
        *,
        timeout_s: float = 5.0,
        pause_s: float = 5.0,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """`count` takes the result of each query: `ok`, a status code, `none` or `invalid`.

        `timeout_s` bounds the time of a whole answer, `max_bytes` its size; for `pause_s` after a
        failure nothing is asked.
        """
        self._settings = settings
        self._count = count
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._max_bytes = max_bytes
        self._session: aiohttp.ClientSession | None = None
        self._failure: tuple[float, Unreachable] | None = None

    async def signals(self, scope: Scope) -> Signals:
        """Return the signals of a service.

        Raises:
            PrometheusError: there are none.
        """
        url = self._address("query")
        if self._failure is not None and time.monotonic() < self._failure[0] + self._pause_s:
            raise self._failure[1]
        try:
            signals = await self._answer(url, _form(scope), read_answer)
        except Unreachable as error:
            self._failure = (time.monotonic(), error)
            raise
        self._failure = None
        return signals

    async def span(
        self, query: str, start_s: float, end_s: float, step_s: float
    ) -> dict[float, list[Sample]]:
        """Return the samples of a range query by their moment, which is Unix time.

        Raises:
            PrometheusError: there are none.
        """
        url = self._address("query_range")
        span = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return await self._answer(url, _encoded({"query": query, **span}), read_matrix)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _address(self, method: str) -> str:
        if self._settings.url is None:
            raise Unreachable(
                "the operator knows no Prometheus; set autoscaling.prometheus.url in its settings"
            )
        return f"{self._settings.url.rstrip('/')}/api/v1/{method}"

    async def _answer(self, url: str, form: bytes, read: Callable[[bytes], T]) -> T:
        """Ask, and count what came of it."""
        try:
            answer = read(await self._ask(url, form))
        except InvalidAnswer as error:
            self._count(Unusable.result)
            raise Unusable(f"the answer of {self._settings.url} cannot be used: {error}") from error
        except PrometheusError as error:
            self._count(error.result)
            raise
        self._count("ok")
        return answer

    async def _ask(self, url: str, form: bytes) -> bytes:
        headers = {**_HEADERS, **self._authorization()}
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._connected().post(
                    url, data=form, headers=headers, allow_redirects=False
                ) as response,
            ):
                return await _read(response, url, self._max_bytes)
        except TimeoutError:
            raise Unreachable(f"{url} gives no answer within {self._timeout_s:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = str(error) or type(error).__name__
            raise Unreachable(f"{url} gives no answer ({text})") from error

    def _authorization(self) -> dict[str, str]:
        """Return the header with the token, read each time: a projected one is renewed."""
        if self._settings.bearer_token_file is None:
            return {}
        path = Path(self._settings.bearer_token_file)
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Unreachable(
                f"autoscaling.prometheus.bearerTokenFile {path} cannot be read ({error})"
            ) from error
        return {"Authorization": f"Bearer {token}"}

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls(), limit=8)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True
            )
        return self._session

    def _tls(self) -> ssl.SSLContext | bool:
        if not str(self._settings.url).startswith("https:"):
            # Reading the system's certificates takes a tenth of a second.
            return True
        path = self._settings.ca_file
        try:
            return ssl.create_default_context(cafile=path)
        except OSError as error:
            raise Unreachable(
                f"autoscaling.prometheus.caFile {path} cannot be used ({error})"
            ) from error


def _encoded(form: Mapping[str, str]) -> bytes:
    return urlencode(form).encode()


@lru_cache(maxsize=1024)
def _form(scope: Scope) -> bytes:
    """Return the body of a query, which is the same in each period."""
    return _encoded({"query": signals_query(scope)})


async def _read(response: aiohttp.ClientResponse, url: str, max_bytes: int) -> bytes:
    is_error = response.status != _OK
    body = await _read_bounded(response, _MAX_ERROR_BYTES if is_error else max_bytes, url)
    # Of a query that it refuses, the reason is in the body.
    if response.status == _OK or response.status in _REFUSED:
        return body
    failure = Unreachable(f"{url} answers with the status {response.status}")
    failure.result = str(response.status)
    raise failure


async def _read_bounded(response: aiohttp.ClientResponse, max_bytes: int, url: str) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK):
        body += chunk
        if len(body) > max_bytes:
            raise Unusable(f"the answer of {url} is longer than {max_bytes // 1024} KiB")
    return bytes(body)
