"""Client of the Kubernetes API: a few verbs over plain dictionaries, every request counted."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import httpx2
from lightkube import AsyncClient
from lightkube.config.client_adapter import user_auth
from lightkube.config.kubeconfig import SingleConfig
from lightkube.generic_resource import GenericNamespacedResource
from lightkube.types import PatchType

from tandem_operator.k8s import errors
from tandem_operator.k8s.kinds import LEASE, Kind
from tandem_operator.k8s.kubeconfig import tls_of, user_of
from tandem_operator.k8s.names import FIELD_MANAGER
from tandem_operator.k8s.resources import resource_of
from tandem_operator.k8s.transport import AioTransport

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""

Selector = Mapping[str, str | None]
"""Labels that an object must have; None: any value."""

CountRequest = Callable[[str, str, str], None]
"""Takes verb, resource and status code of a request that has ended."""

REQUEST_TIMEOUT_S: Final = 10.0

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_GONE: Final = 410
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class NamespacedName:
    """The namespace and the name of an object."""

    namespace: str
    name: str

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Self:
        """Return the namespace and the name in the metadata of `item`."""
        return cls(item["metadata"]["namespace"], item["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class KubeClient:
    """Reads and writes objects; every failure is raised as a KubeError."""

    def __init__(self, client: AsyncClient, plain: httpx2.AsyncClient, count: CountRequest) -> None:
        self._client = client
        self._plain = plain
        self._count = count
        self.may_write: Callable[[], bool] = lambda: True
        """Called before each write but the lease's: a process that was stopped for a while, and
        lost the lease meanwhile, must not continue."""

    @classmethod
    def connect(cls, config: SingleConfig, count: CountRequest) -> Self:
        """Return a client of the API server that `config` names; no request is sent yet.

        Raises:
            NoCluster: its certificates cannot be used.
        """
        tls = tls_of(config)
        transport = AioTransport(tls, REQUEST_TIMEOUT_S)
        client = AsyncClient(config, transport=transport, field_manager=FIELD_MANAGER)
        plain = httpx2.AsyncClient(
            base_url=config.cluster.server, auth=user_auth(user_of(config)), transport=transport
        )
        return cls(client, plain, count)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
        await self._plain.aclose()

    async def serves(self, kind: Kind) -> bool:
        """Return True when the API server's discovery lists the kind."""
        root = "/apis/" if kind.group else "/api/"

        async def ask() -> Object:
            response = await self._plain.get(root + kind.api_version)
            response.raise_for_status()
            found: Object = response.json()
            return found

        try:
            found = await self._call("get", kind, "of discovery", ask())
        except (errors.KindMissing, errors.NotFound):
            return False
        return any(one.get("name") == kind.plural for one in found.get("resources", ()))

    async def get(self, kind: Kind, key: NamespacedName) -> Object | None:
        """Return the object; None: it does not exist.

        Raises:
            KindMissing: the API server does not serve the kind.
        """
        request = self._client.get(resource_of(kind), key.name, namespace=key.namespace)
        try:
            return await self._call("get", kind, str(key), request)
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

        async def collect() -> list[Object]:
            found = self._client.list(
                resource_of(kind),
                namespace=namespace or "*",
                labels=dict(labels or {}),
                fields=dict(fields or {}),
                chunk_size=limit,
            )
            items: list[Object] = []
            async for item in found:
                items.append(item)
                if len(items) == limit:
                    break
            return items

        return await self._call("list", kind, namespace or "all namespaces", collect())

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Object:
        """Create the object.

        Raises:
            Conflict: one of this name exists.
        """
        self._check_leadership(kind)
        key = NamespacedName.of(manifest)
        resource: GenericNamespacedResource = resource_of(kind).from_dict(dict(manifest))
        request = self._client.create(resource)
        return await self._call("create", kind, str(key), request)

    async def replace(self, kind: Kind, manifest: Mapping[str, Any]) -> Object:
        """Replace the object that has this resourceVersion.

        Raises:
            Conflict: the object has another resourceVersion.
        """
        self._check_leadership(kind)
        key = NamespacedName.of(manifest)
        resource: GenericNamespacedResource = resource_of(kind).from_dict(dict(manifest))
        request = self._client.replace(resource)
        return await self._call("update", kind, str(key), request)

    async def apply(self, kind: Kind, manifest: Mapping[str, Any], *, force: bool) -> Object:
        """Server-side apply of `manifest`.

        `force` takes over fields that another manager owns.

        Raises:
            Conflict: another manager owns a field, or the uid in `manifest` is not the object's.
        """
        self._check_leadership(kind)
        key = NamespacedName.of(manifest)
        request = self._client.patch(
            resource_of(kind),
            key.name,
            dict(manifest),
            namespace=key.namespace,
            patch_type=PatchType.APPLY,
            force=force,
        )
        return await self._call("patch", kind, str(key), request)

    async def apply_status(self, kind: Kind, manifest: Mapping[str, Any]) -> Object:
        """Server-side apply of the status alone."""
        self._check_leadership(kind)
        key = NamespacedName.of(manifest)
        request = self._client.patch(
            resource_of(kind).Status,
            key.name,
            dict(manifest),
            namespace=key.namespace,
            patch_type=PatchType.APPLY,
            force=True,
        )
        return await self._call("patch", kind, f"{key} (status)", request, part="/status")

    async def merge(self, kind: Kind, key: NamespacedName, changes: Mapping[str, Any]) -> Object:
        """Write the fields of `changes` into the object."""
        self._check_leadership(kind)
        request = self._client.patch(
            resource_of(kind),
            key.name,
            dict(changes),
            namespace=key.namespace,
            patch_type=PatchType.MERGE,
        )
        return await self._call("patch", kind, str(key), request)

    def _check_leadership(self, kind: Kind) -> None:
        if kind != LEASE and not self.may_write():
            raise errors.NotLeading("nothing is written: the lease may have expired")

    async def _call(
        self, verb: str, kind: Kind, where: str, request: Awaitable[_T], *, part: str = ""
    ) -> _T:
        code = "200"
        try:
            return await request
        except httpx2.HTTPStatusError as error:
            code = str(error.response.status_code)
            raise _status_error(error, verb, kind, where) from error
        except httpx2.HTTPError as error:
            code = "none"
            raise errors.Unreachable(
                f"the API server did not answer '{verb} {kind.plural} {where}' "
                f"({str(error) or type(error).__name__})"
            ) from error
        except (ValueError, RecursionError) as error:
            # Of msgspec, httpx2 and json alike: another server has answered.
            code = "invalid"
            raise errors.Unreachable(
                f"the response to '{verb} {kind.plural} {where}' is none of the API server's "
                f"answers ({error})"
            ) from error
        finally:
            self._count(verb, kind.plural + part, code)


def _status_error(
    error: httpx2.HTTPStatusError, verb: str, kind: Kind, where: str
) -> errors.KubeError:
    code, status = error.response.status_code, _status_of(error.response)
    detail = status.get("message") or error.response.reason_phrase
    text = f"the API server answered '{verb} {kind.plural} {where}' with {code}: {detail}"
    if code == _NOT_FOUND:
        return _not_found(status, kind, text)
    if code in {_UNAUTHORIZED, _FORBIDDEN}:
        return errors.Forbidden(
            f"{text}; allow the operator's service account '{verb}' on {kind.plural}"
        )
    if code in {_CONFLICT, _GONE}:
        return errors.Conflict(text)
    if code == _TOO_MANY or code >= _SERVER_ERROR:
        overloaded = errors.Overloaded(text)
        overloaded.retry_after_s = _retry_after(error.response)
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


def _status_of(response: httpx2.Response) -> Mapping[str, Any]:
    """Return the Status in the answer; empty: another server has answered."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _retry_after(response: httpx2.Response) -> float:
    try:
        return float(response.headers.get("Retry-After", "0"))
    except ValueError:
        return 0.0
