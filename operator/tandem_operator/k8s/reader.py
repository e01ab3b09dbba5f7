"""Reads of a reconcile: from the cache where it can answer, from the API server otherwise."""

from collections.abc import Mapping

from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import KindMissing
from tandem_operator.k8s.kinds import Kind
from tandem_operator.k8s.names import SERVICE
from tandem_operator.k8s.objects import NamespacedName, Object


class Reader:
    """Reads the observed objects, each from the API server."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    async def get(self, kind: Kind, key: NamespacedName) -> Object | None:
        """Return the object; None: it does not exist.

        Raises:
            KubeError: a request to the API server failed.
        """
        return await self._kube.get(kind, key)

    async def of_service(self, kind: Kind, service: NamespacedName) -> list[Object]:
        """List the objects of the kind that carry the label of this service.

        Raises:
            KubeError: a request to the API server failed.
        """
        return await self._kube.list(kind, service.namespace, {SERVICE: service.name})

    async def list(
        self, kind: Kind, namespace: str, *, fields: Mapping[str, str], limit: int
    ) -> list[Object]:
        """List at most `limit` objects that have these fields.

        Raises:
            KubeError: a request to the API server failed.
        """
        return await self._kube.list(kind, namespace, fields=fields, limit=limit)


class CachedReader(Reader):
    """Reads what the cache knows, and the rest from the API server.

    A miss is no proof: an object without our labels is not watched, and a kind may not be served.
    """

    def __init__(self, kube: KubeClient, cache: ObjectCache) -> None:
        super().__init__(kube)
        self._cache = cache

    async def get(self, kind: Kind, key: NamespacedName) -> Object | None:
        """Return the object; None: it does not exist."""
        if kind in self._cache.missing_kinds:
            raise KindMissing(f"the API server serves no {kind.plural}.{kind.group}")
        return self._cache.get(kind, key) or await super().get(kind, key)

    async def of_service(self, kind: Kind, service: NamespacedName) -> list[Object]:
        """List the objects of the kind that carry the label of this service."""
        if self._cache.covers(kind, service.namespace):
            return self._cache.of_service(kind, service)
        return await super().of_service(kind, service)
