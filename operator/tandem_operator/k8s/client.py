"""Client of the Kubernetes API: a few verbs over plain dictionaries, every request counted."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient

from tandem_operator.k8s import errors
from tandem_operator.k8s.connection import Connection
from tandem_operator.k8s.json_depth import is_too_deep, truncate_depth
from tandem_operator.k8s.kinds import LEASE, Kind
from tandem_operator.k8s.names import FIELD_MANAGER
from tandem_operator.k8s.objects import (
    NamespacedName,
    Object,
    Selector,
    has_identity,
    selector_text,
)

CountRequest = Callable[[str, str, str], None]
"""Takes verb, resource and status code of a request that has ended."""

_T = TypeVar("_T")

REQUEST_TIMEOUT_S: Final = 10.0

_TIMEOUT: Final = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_OWN: Final = {"fieldManager": FIELD_MANAGER}
_OWN_BY_FORCE: Final = {**_OWN, "force": "true"}

_REDIRECTION: Final = 300
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_GONE: Final = 410
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


class Listing(NamedTuple):
    """The answer to a LIST."""

    items: list[Object]
    version: str
    """The resourceVersion at which these were all objects."""


class _ListMeta(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion", default="")


class _List(msgspec.Struct):
    items: list[Object]
    metadata: _ListMeta


_OBJECT: Final = msgspec.json.Decoder(Object)
_LIST: Final = msgspec.json.Decoder(_List)


class _Answer(NamedTuple):
    code: int
    phrase: str
    headers: Mapping[str, str]
    body: bytes


class _Request(NamedTuple):
    """A request to the API server, and its name in metrics and messages."""

    verb: str
    kind: Kind
    where: str
    method: str
    path: str
    query: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None
    content: str = "application/json"
    part: str = ""
    """Subresource, with its slash."""


class KubeClient:
    """Reads and writes objects; every failure is raised as a KubeError."""

    def __init__(self, api: ApiClient, count: CountRequest) -> None:
        self._api = api
        self._count = count
        self.may_write: Callable[[], bool] = lambda: True
        """Called before each write but the lease's: a process that was stopped for a while, and
        lost the lease meanwhile, must not write."""

        self.on_written: Callable[[Kind, Object], object] = lambda *_: None
        """Called with each object that was written, as the API server returned it."""

    @classmethod
    def connect(cls, connection: Connection, count: CountRequest) -> Self:
        """Return a client of the API server of `connection`; no request is sent yet."""
        return cls(connection.api_client(), count)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def serves(self, kind: Kind) -> bool:
        """Return True when the API server's discovery lists the kind."""
        try:
            listing = await self._send(
                _Request("get", kind, "of discovery", "GET", kind.group_path), _OBJECT
            )
        except (errors.KindMissing, errors.NotFound):
            return False
        return any(resource.get("name") == kind.plural for resource in listing.get("resources", ()))

    async def get(self, kind: Kind, key: NamespacedName) -> Object | None:
        """Return the object; None: it does not exist.

        Raises:
            KindMissing: the API server does not serve the kind.
        """
        request = _Request("get", kind, str(key), "GET", _path(kind, key))
        try:
            return await self._send(request, _OBJECT)
        except errors.NotFound:
            return None

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        labels: Selector | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> list[Object]:
        """List the objects of the kind in `namespace`; None: in all.

        `labels` and `fields` select them; at most `limit` are read.
        """
        query = {
            "labelSelector": selector_text(labels or {}),
            "fieldSelector": selector_text(fields or {}),
            "limit": str(limit or ""),
        }
        return (await self._list(kind, namespace, query)).items[:limit]

    async def list_all(
        self, kind: Kind, namespace: str | None, labels: Selector | None = None
    ) -> Listing:
        """List the objects of the kind with these labels, and the version that the LIST has."""
        query = {"labelSelector": selector_text(labels or {})}
        listing = await self._list(kind, namespace, query)
        if not all(map(has_identity, listing.items)):
            raise errors.Unreachable(
                f"the response to 'list {kind.plural}' is none of the API server's answers (an "
                "object has no name, uid or version)"
            )
        return listing

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Object:
        """Create the object.

        Raises:
            Conflict: one of this name exists.
        """
        key = NamespacedName.of(manifest)
        path = kind.path(key.namespace)
        return await self._write(_Request("create", kind, str(key), "POST", path, _OWN, manifest))

    async def replace(self, kind: Kind, manifest: Mapping[str, Any]) -> Object:
        """Replace the object that has this resourceVersion.

        Raises:
            Conflict: the object has another resourceVersion.
        """
        key = NamespacedName.of(manifest)
        path = _path(kind, key)
        return await self._write(_Request("update", kind, str(key), "PUT", path, _OWN, manifest))

    async def apply(self, kind: Kind, manifest: Mapping[str, Any], *, force: bool) -> Object:
        """Server-side apply of `manifest`.

        `force` takes over fields that another manager owns.

        Raises:
            Conflict: another manager owns a field, or the uid in `manifest` is not the object's.
        """
        key, query = NamespacedName.of(manifest), _OWN_BY_FORCE if force else _OWN
        return await self._write(
            _Request("patch", kind, str(key), "PATCH", _path(kind, key), query, manifest, _APPLY)
        )

    async def apply_status(
        self, kind: Kind, manifest: Mapping[str, Any], *, manager: str = FIELD_MANAGER
    ) -> Object:
        """Server-side apply of the status alone, as the field manager `manager`.

        Raises:
            Conflict: uid or resourceVersion in `manifest` is not the object's.
        """
        key, part = NamespacedName.of(manifest), "/status"
        where, path = f"{key} (status)", _path(kind, key) + part
        query = {**_OWN_BY_FORCE, "fieldManager": manager}
        return await self._write(
            _Request("patch", kind, where, "PATCH", path, query, manifest, _APPLY, part)
        )

    async def scale(
        self, kind: Kind, key: NamespacedName, replicas: int, *, version: str, manager: str
    ) -> None:
        """Write the number of replicas through the scale subresource, as `manager`.

        Raises:
            Conflict: the object has another resourceVersion than `version`.
        """
        part = "/scale"
        path, query = _path(kind, key) + part, {"fieldManager": manager}
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        request = _Request(
            "patch", kind, f"{key} (scale)", "PATCH", path, query, body, _MERGE, part
        )
        self._check_may_write(request)
        # The answer is a Scale, and not the object.
        await self._send(request, _OBJECT)

    async def scan(self, kind: Kind, decoder: msgspec.json.Decoder[_T], *, fields: str) -> _T:
        """List the objects of the kind in all namespaces as the API server's own cache has them.

        `fields` selects them. `decoder` takes what is needed; there may be thousands of objects.
        """
        query = {"fieldSelector": fields, "resourceVersion": "0"}
        where = "all namespaces"
        return await self._send(
            _Request("list", kind, where, "GET", kind.path(None), query), decoder
        )

    async def merge(self, kind: Kind, key: NamespacedName, changes: Mapping[str, Any]) -> Object:
        """Write the fields of `changes` into the object."""
        return await self._write(
            _Request("patch", kind, str(key), "PATCH", _path(kind, key), _OWN, changes, _MERGE)
        )

    async def _list(self, kind: Kind, namespace: str | None, query: Mapping[str, str]) -> Listing:
        where, path = namespace or "all namespaces", kind.path(namespace)
        request = _Request("list", kind, where, "GET", path, query)
        listing = await self._send(request, _LIST)
        return Listing(listing.items, listing.metadata.version)

    async def _write(self, request: _Request) -> Object:
        self._check_may_write(request)
        written = await self._send(request, _OBJECT)
        if has_identity(written):
            self.on_written(request.kind, written)
        return written

    def _check_may_write(self, request: _Request) -> None:
        if request.kind != LEASE and not self.may_write():
            raise errors.NotLeading("nothing is written: the lease may have expired")

    async def _send(self, request: _Request, decoder: msgspec.json.Decoder[_T]) -> _T:
        code = "none"
        try:
            answer = await self._receive(request)
            code = str(answer.code)
            if answer.code >= _REDIRECTION:
                raise _status_error(answer, request)
            decoded = decoder.decode(answer.body)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise errors.Unreachable(
                f"the API server did not answer '{_name(request)}' "
                f"({str(error) or type(error).__name__})"
            ) from error
        except msgspec.MsgspecError as error:
            # Another server has answered.
            code = "invalid"
            raise errors.Unreachable(
                f"the response to '{_name(request)}' is none of the API server's answers ({error})"
            ) from error
        finally:
            self._count(request.verb, request.kind.plural + request.part, code)
        return decoded

    async def _receive(self, request: _Request) -> _Answer:
        query = urlencode({name: text for name, text in request.query.items() if text})
        response = await self._api.call_api(
            request.method,
            f"{self._api.configuration.host}{request.path}" + (f"?{query}" if query else ""),
            {"Accept": "application/json", "Content-Type": request.content},
            request.body,
            _request_timeout=_TIMEOUT,
        )
        body = await response.read()
        if is_too_deep(body):
            # It takes a second for some megabytes.
            body = await asyncio.to_thread(truncate_depth, body)
        return _Answer(response.status, response.reason or "", response.headers, body)


def _path(kind: Kind, key: NamespacedName) -> str:
    return f"{kind.path(key.namespace)}/{key.name}"


def _name(request: _Request) -> str:
    return f"{request.verb} {request.kind.plural} {request.where}"


def _status_error(answer: _Answer, request: _Request) -> errors.KubeError:
    code, kind, status = answer.code, request.kind, _status_of(answer.body)
    detail = status.get("message") or answer.phrase
    text = f"the API server answered '{_name(request)}' with {code}: {detail}"
    if code == _NOT_FOUND:
        return _not_found(status, kind, text)
    if code == _UNAUTHORIZED:
        return errors.Unauthorized(
            f"{text}; give the operator another token, or mount its service account's"
        )
    if code == _FORBIDDEN:
        return errors.Forbidden(
            f"{text}; allow the operator's service account '{request.verb}' on {kind.plural}"
        )
    if code in {_CONFLICT, _GONE}:
        return errors.Conflict(text)
    if code == _TOO_MANY or code >= _SERVER_ERROR:
        overloaded = errors.Overloaded(text)
        overloaded.retry_after_s = _retry_after(answer.headers)
        return overloaded
    return errors.Refused(text)


def _not_found(status: Mapping[str, Any], kind: Kind, text: str) -> errors.KubeError:
    """Tell a missing object, which the answer names, from a missing kind."""
    details = status.get("details") or {}
    if details.get("name"):
        return errors.NotFound(text)
    return errors.KindMissing(
        f"the API server serves no {kind.plural}.{kind.group or 'v1'}; "
        "install its CustomResourceDefinition"
    )


def _status_of(body: bytes) -> Mapping[str, Any]:
    """Return the Status in the answer; empty: another server has answered."""
    try:
        return _OBJECT.decode(body)
    except msgspec.MsgspecError:
        return {}


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return float(headers.get("Retry-After", "0"))
    except ValueError:
        return 0.0
