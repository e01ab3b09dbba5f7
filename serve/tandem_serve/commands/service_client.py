"""Client of one service's debug endpoints: where it is, its key, and what its refusals mean."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import httpx

from tandem_serve.errors import ServeError
from tandem_serve.local.services import choose

_TIMEOUT_S: Final = 10.0


class ServiceClient:
    """Client of one service.

    Args:
        url: URL of the service.
        api_key: Key of the requests; None: no key.
        transport: Transport of the requests; a test passes its own.

    Raises:
        ServeError: the URL or the key cannot be one.
    """

    def __init__(
        self, url: str, api_key: str | None, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        host = host_of(url)
        self.url = url.rstrip("/").removesuffix("/v1")
        self._has_key = api_key is not None
        check_key(api_key)
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            trust_env=host not in {"127.0.0.1", "localhost", "::1"},
            timeout=_TIMEOUT_S,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def request(
        self, method: str, path: str, params: Mapping[str, Any], *, timeout_s: float = _TIMEOUT_S
    ) -> bytes:
        """The body of the answer.

        Raises:
            ServeError: nothing answers, or it refuses; the text says what to do.
        """
        try:
            answer = self._http.request(
                method, f"{self.url}{path}", params=dict(params), timeout=timeout_s
            )
        except httpx.TransportError as error:
            raise ServeError(
                f"No server answers at {self.url} ({error}); tandem status lists the services "
                "here, tandem serve -f FILE starts one, --url names one elsewhere."
            ) from None
        if answer.status_code != httpx.codes.OK:
            raise self._refused(answer, path)
        return answer.content

    def misunderstood(self, noun: str) -> ServeError:
        """The error for an answer that is not `noun`."""
        return ServeError(
            f"{self.url} does not answer with {noun} of this version of Tandem; check the URL "
            "and the service's version."
        )

    def _refused(self, answer: httpx.Response, path: str) -> ServeError:
        if answer.status_code == httpx.codes.UNAUTHORIZED and not self._has_key:
            return ServeError(
                f"{self.url} requires an API key; pass one with --api-key or in TANDEM_API_KEY."
            )
        if answer.status_code == httpx.codes.NOT_FOUND:
            return ServeError(
                f"{self.url} has no {path}: it is not a service of Tandem, or an older "
                "version; check the URL."
            )
        return ServeError(f"{self.url} answered: {_sentence(answer)}")


def service_url(name: str | None, url: str | None) -> str:
    """URL of the service `name` here, or `url`, of one elsewhere.

    Raises:
        ServeError: both are given, or no such service runs here.
    """
    if url is None:
        return choose(name).url
    if name is not None:
        raise ServeError(f"{name} is a service here, --url names one elsewhere; give only one.")
    return url


def host_of(url: str) -> str:
    """Host of a service's URL.

    Raises:
        ServeError: it is no URL of a service.
    """
    try:
        parsed = httpx.URL(url)
        host = parsed.host
        host.encode("idna")  # as the socket will
    except (httpx.InvalidURL, ValueError):
        host = ""
    if not host or parsed.scheme not in {"http", "https"}:
        raise ServeError(
            f"--url {url!r} is not the URL of a service; write one such as http://127.0.0.1:8000."
        )
    return host


def check_key(api_key: str | None) -> None:
    """Refuse what no header can hold.

    Raises:
        ServeError: the key has a character that is not visible ASCII.
    """
    if api_key and not all("!" <= char <= "~" for char in api_key):
        raise ServeError(
            "The API key has a character that is not visible ASCII (! to ~); pass the key alone, "
            "with --api-key or in TANDEM_API_KEY."
        )


def _sentence(answer: httpx.Response) -> str:
    """The error message in the answer, or its status."""
    try:
        document: Any = answer.json()
        return str(document["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
