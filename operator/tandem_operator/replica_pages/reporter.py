"""Reads what replicas show of themselves once a minute, and writes it into the status."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tandem_operator.autoscaler.replicas import ReplicaPod, read_replica, replica_pods
from tandem_operator.clock import now_text
from tandem_operator.k8s import names
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import KubeError, NotLeading
from tandem_operator.k8s.kinds import INFERENCE_SERVICE, POD, RAY_SERVICE
from tandem_operator.k8s.objects import NamespacedName, Object, status_manifest
from tandem_operator.k8s.owners import is_being_deleted
from tandem_operator.replica_pages.parts import PARTS, Document, ReplicaPages

_PERIOD_S: Final = 60.0
_SOON_S: Final = 5.0
_CONCURRENCY: Final = 8

_log: Final = logging.getLogger(__name__)

Documents = Mapping[str, Document]


class ReplicaPageReporter:
    """Keeps the parts of a status that the replicas' own pages say: status.microBatch and .ranks.

    A step for a service reads its replicas and writes where something else is to be said. It is no
    part of reconciling, which must not wait for replicas, nor of the autoscaler, which asks
    Prometheus.

    Args:
        kube: Writes the status.
        cache: Has services and pods.
        address: Of a replica's metrics, with {ip} and {pod}.
        services: Returns the services that there are.
    """

    def __init__(
        self,
        kube: KubeClient,
        *,
        cache: ObjectCache,
        address: str,
        services: Callable[[], Iterable[NamespacedName]],
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._address = address
        self._services = services

    async def run(self) -> None:
        """Make a round once a minute until cancelled; soon again while watches begin."""
        while True:
            is_complete = await self.round()
            await asyncio.sleep(_PERIOD_S if is_complete else _SOON_S)

    async def round(self) -> bool:
        """Make a step for each service, some at a time; False: some are not covered by a watch."""
        slots = asyncio.Semaphore(_CONCURRENCY)
        keys = list(self._services())

        async def guarded(key: NamespacedName) -> None:
            async with slots:
                await self._guarded(key)

        await asyncio.gather(*(guarded(key) for key in keys))
        return bool(keys) and all(self._covers(key) for key in keys)

    def _covers(self, key: NamespacedName) -> bool:
        return all(self._cache.covers(kind, key.namespace) for kind in (INFERENCE_SERVICE, POD))

    async def _guarded(self, key: NamespacedName) -> None:
        try:
            await self.step(key)
        except NotLeading:
            # The process is about to end.
            pass
        except KubeError as error:
            _log.warning("%s: what its replicas show was not written: %s", key, error)
        except Exception:  # noqa: BLE001
            # The last guard: a bug in one service's step must not end the others'.
            _log.exception("%s: the step failed; this is a bug, please report it", key)

    async def step(self, key: NamespacedName) -> None:
        """Read the replicas of one service, and write what they show.

        Raises:
            KubeError: the API server could not be written to.
        """
        isvc = self._cache.get(INFERENCE_SERVICE, key)
        if isvc is None or is_being_deleted(isvc) or not self._covers(key):
            return
        status = isvc.get("status") or {}
        before = {part.name: status[part.name] for part in PARTS if part.name in status}
        after = await self._documents(isvc, before)
        if self._is_due(before, after):
            await self._write(isvc, after)

    async def _documents(self, isvc: Object, before: Documents) -> Documents:
        """Return what the status is to say, by the names of its parts."""
        key = NamespacedName.of(isvc)
        parts = [part for part in PARTS if part.belongs_to(isvc)]
        pods = replica_pods(self._cache.of_service(POD, key), self._cache.get(RAY_SERVICE, key))
        ready = [pod for pod in pods if pod.ready_at is not None]
        pages = await self._read(ready[: max(part.most_read for part in parts)])
        read = ReplicaPages(pages=pages, num_ready=len(ready), now=now_text())
        documents = {
            part.name: part.document(read.first(part.most_read), before.get(part.name))
            for part in parts
        }
        return {name: document for name, document in documents.items() if document is not None}

    def _is_due(self, before: Documents, after: Documents) -> bool:
        return before.keys() != after.keys() or any(
            part.is_due(before[part.name], after[part.name]) for part in PARTS if part.name in after
        )

    async def _read(self, pods: Sequence[ReplicaPod]) -> list[bytes]:
        """Return the pages of those replicas that can be read."""
        pages = await asyncio.gather(*(read_replica(self._address, pod) for pod in pods))
        return [page for page in pages if page is not None]

    async def _write(self, isvc: Object, documents: Documents) -> None:
        """Write the parts; those that are not among them are taken away."""
        manifest = status_manifest(isvc, documents)
        await self._kube.apply_status(INFERENCE_SERVICE, manifest, manager=names.REPLICA_PAGES)
