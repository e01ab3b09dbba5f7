"""lightkube's requests over aiohttp, which kopf brings along.

The transport of lightkube's own HTTP library takes two to three times the CPU time for a request,
and requests are most of what the operator does.
"""

import asyncio
import ssl

import aiohttp
import httpx2

from tandem_operator.k8s.json_depth import is_too_deep, truncate_depth

_CONNECTIONS = 16
_KEEP_S = 90.0


class AioTransport(httpx2.AsyncBaseTransport):
    """Sends whole requests and reads whole responses, without streaming."""

    def __init__(self, tls: ssl.SSLContext, timeout_s: float) -> None:
        self._tls = tls
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send `request` and return its response.

        Raises:
            TransportError: there is no response.
        """
        try:
            async with self._open_session().request(
                request.method,
                str(request.url),
                data=request.content or None,
                headers=request.headers.multi_items(),
                # A redirect would carry the operator's token.
                allow_redirects=False,
            ) as response:
                content = await response.read()
        except TimeoutError as error:
            raise httpx2.ReadTimeout(_text_of(error), request=request) from error
        except aiohttp.ClientError as error:
            raise httpx2.NetworkError(_text_of(error), request=request) from error
        headers = [(name.decode(), value.decode()) for name, value in response.raw_headers]
        answer = httpx2.Response(response.status, headers=headers, content=content, request=request)
        return await _readable(answer)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                ssl=self._tls, limit=_CONNECTIONS, keepalive_timeout=_KEEP_S
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                # httpx2 decompresses the response by its headers.
                auto_decompress=False,
            )
        return self._session


async def _readable(answer: httpx2.Response) -> httpx2.Response:
    """Return a response that a JSON parser can read."""
    if not is_too_deep(answer.content):
        return answer
    # It takes a second for some megabytes.
    content = await asyncio.to_thread(truncate_depth, answer.content)
    kind = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
    return httpx2.Response(
        answer.status_code, headers=kind, content=content, request=answer.request
    )


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__
