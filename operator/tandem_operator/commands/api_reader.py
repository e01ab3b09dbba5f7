"""Requests of the commands to an API server, over the official client.

Objects stay dictionaries as JSON has them. The client's own watch is not used: it parses without a
limit on depth, and resumes where a new list is needed.
"""

import json
import ssl
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any, Final

import urllib3
from kubernetes.client import ApiException
from kubernetes.client.rest import RESTResponse
from kubernetes.config import ConfigException
from kubernetes.watch.watch import iter_resp_lines

from tandem_operator.commands.access import Access
from tandem_operator.commands.errors import ClusterError
from tandem_operator.k8s.json_depth import truncate_depth
from tandem_operator.k8s.login import account_error
from tandem_operator.k8s.objects import Object

_TIMEOUT_S: Final = 10.0
_HEADERS: Final = {
    "Accept": "application/json",
    "User-Agent": "tandem",
}
_REDIRECTS: Final = range(300, 400)
_MAX_LINE: Final = 200


class Refusal(Exception):
    """The API server refuses a request; the text is its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ApiReader:
    """Reads from the API server of a context."""

    def __init__(self, context: str | None) -> None:
        """Connect to the kubeconfig's context, or to the Kubernetes of this pod.

        Raises:
            NoCluster: there is none.
        """
        self._context = context
        self._access = Access.of(context)
        self._has_answered = False

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self._access.client.configuration.host)

    @property
    def namespace(self) -> str:
        """Default namespace of the context."""
        return self._access.namespace

    def list_page(self, path: str, query: Mapping[str, str]) -> Object:
        """Return the list at `path`, or a page of it.

        Raises:
            Refusal: the API server refuses it.
            ClusterError: it does not answer, or not as an API server does.
        """
        with self._errors():
            response = self._request(path, query, {"Accept-Encoding": "gzip"}, _TIMEOUT_S)
            return self._object(response.read() or b"", _is_list)

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[Object]:
        """Yield the events of a watch until the API server ends it.

        Raises:
            Refusal: the API server refuses it.
            ClusterError: it does not answer, or not as an API server does.
        """
        with self._errors():
            response = self._request(path, {**query, "watch": "true"}, {}, None)
            # What is left of it is not read: it may never end.
            with closing(response.response):
                for line in filter(None, iter_resp_lines(response.response)):
                    yield self._object(line.encode(), _is_event)

    def _request(
        self,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        read_timeout_s: float | None,
    ) -> RESTResponse:
        """Return the response, whose body is still to be read."""
        target = f"{path}?{urllib.parse.urlencode(query)}"
        headers = {**_HEADERS, **headers}
        response = self._send(target, headers, read_timeout_s)
        if response.status == HTTPStatus.UNAUTHORIZED and self._has_answered:
            # The credentials have expired.
            self._access = Access.of(self._context)
            response = self._send(target, headers, read_timeout_s)
        if response.status != HTTPStatus.OK:
            raise _refusal(response)
        self._has_answered = True
        return response

    def _send(
        self, target: str, headers: Mapping[str, str], read_timeout_s: float | None
    ) -> RESTResponse:
        client = self._access.client
        # A service account's token is rotated on disk; the configuration reads the file again.
        authorization = client.configuration.get_api_key_with_prefix("BearerToken")
        login = {"Authorization": authorization.strip()} if authorization else {}
        return client.call_api(
            "GET",
            f"{self.server}{target}",
            header_params={**headers, **login},
            _request_timeout=(_TIMEOUT_S, read_timeout_s),
        )

    def _object(self, text: bytes, is_expected: Callable[[Object], bool]) -> Object:
        try:
            document = _parsed(text)
        except ValueError:
            document = None
        if isinstance(document, dict) and is_expected(document):
            return document
        raise ClusterError(
            f"{self.server} answers with something that is not Kubernetes' own; is a proxy or a "
            "login page in between? --context names another Kubernetes"
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if cause := _tls_cause(error):
                raise ClusterError(
                    f"TLS with the Kubernetes at {self.server} fails ({cause}); renew its "
                    "kubeconfig, or name another Kubernetes with --context"
                ) from error
            cause = _cause(error)
            if any(isinstance(cause, urllib3.exceptions.ProxyError) for cause in _chain(error)):
                cause = f"its proxy {self._access.proxy}: {cause}"
            raise ClusterError(
                f"the Kubernetes at {self.server} does not answer ({cause}); is it running, and is "
                "it the one you mean? --context names another"
            ) from error
        except ConfigException as error:
            raise account_error(error) from None


def _is_list(document: Object) -> bool:
    if "items" not in document:
        return False
    # Go writes an empty list as null.
    items = document["items"] or []
    return isinstance(items, list) and all(
        _has_metadata(item, "namespace", "name") for item in items
    )


def _is_event(document: Object) -> bool:
    item = document.get("object")
    match document.get("type"):
        case "ERROR":
            return isinstance(item, dict)
        case "BOOKMARK":
            return _has_metadata(item)
        case str():
            return _has_metadata(item, "namespace", "name")
    return False


def _has_metadata(item: object, *fields: str) -> bool:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return isinstance(metadata, dict) and metadata.keys() >= {*fields}


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(truncate_depth(text))


def _refusal(response: RESTResponse) -> Refusal:
    body = response.read() or b""
    try:
        status = _parsed(body)
    except ValueError:
        status = None
    message = status.get("message") if isinstance(status, dict) else None
    return Refusal(response.status, str(message or _reason(response, body)))


def _reason(response: RESTResponse, body: bytes) -> str:
    """Return the reason of an answer that is not of Kubernetes' own making, such as a proxy's."""
    reason = response.reason or f"HTTP {response.status}"
    if response.status in _REDIRECTS:
        return f"{reason}, to {response.headers.get('Location', 'nowhere')}"
    if not response.headers.get("Content-Type", "").startswith("text/plain"):
        return reason
    line = body.decode(errors="replace").strip().partition("\n")[0]
    return f"{reason} ({line[:_MAX_LINE]})" if line else reason


def _tls_cause(error: BaseException) -> str:
    """Return the cause of a TLS handshake that failed; empty: it is not that."""
    causes = [cause for cause in _chain(error) if isinstance(cause, ssl.SSLError)]
    return str(causes[-1]) if causes else ""


def _cause(error: BaseException) -> str:
    """Return the innermost cause: those around it name Python's objects."""
    cause = _chain(error)[-1]
    if isinstance(cause, TimeoutError | urllib3.exceptions.TimeoutError):
        return f"nothing within {_TIMEOUT_S:g} s"
    return str(cause) or type(cause).__name__


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error and its causes; the client keeps them in three ways."""
    for inner in (*error.args, error.__cause__, error.__context__):
        if isinstance(inner, BaseException):
            return [error, *_chain(inner)]
    return [error]
