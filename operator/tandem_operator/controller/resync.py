"""LISTs everything once per resync period, beside the watches."""

import asyncio
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tandem_operator.controller.watch import Watch
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import KindMissing, KubeError, Refused, Transient
from tandem_operator.k8s.kinds import INFERENCE_SERVICE, Kind
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.metrics import Metrics
from tandem_operator.tasks import cancel

_SPREAD: Final = 0.5
"""Share of the resync period over which its services are spread."""

_AFTER_FAILURE_S: Final = 5.0
_START_S: Final = 3.0
_CONCURRENCY: Final = 4
_log = logging.getLogger(__name__)


class Resync:
    """LISTs the watched kinds, enqueues every service, and measures how far each watch is behind.

    Each namespace that is served by name is resynced by itself. One that is refused (deleted,
    or the role in it) does not affect the others.
    """

    def __init__(
        self,
        kube: KubeClient,
        cache: ObjectCache,
        watches: Iterable[Watch],
        metrics: Metrics,
        *,
        every_s: float,
        add: Callable[[NamespacedName, float], None],
        known: Callable[[], Iterable[NamespacedName]],
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._metrics = metrics
        self._every_s = every_s
        self._add = add
        self._known = known
        self._watches = defaultdict[str | None, list[Watch]](list)
        for watch in watches:
            self._watches[watch.namespace].append(watch)
        self._resynced = set[str | None]()
        self._slots = asyncio.Semaphore(_CONCURRENCY)
        self.failures: Mapping[str | None, KubeError] = {}
        """Errors of the last resync by namespace; None stands for all namespaces."""

        self.last_end = time.monotonic()
        """Moment at which the last resync ended."""

    @property
    def overdue_after_s(self) -> float:
        """Seconds after which a resync that has not ended is overdue."""
        return 3 * self._every_s + 60.0

    async def run(self) -> None:
        """Resync until cancelled."""
        await self._wait_for_watches()
        while True:
            pause_s = await self._once()
            await asyncio.sleep(pause_s)

    async def _wait_for_watches(self) -> None:
        """Wait until the watches run, since a LIST covers a kind only then; not for long.

        A kind may not be served yet.
        """
        watches = itertools.chain.from_iterable(self._watches.values())
        starting = {asyncio.create_task(watch.started.wait()) for watch in watches}
        await asyncio.wait(starting, timeout=_START_S)
        await cancel(starting)

    async def _once(self) -> float:
        """Resync once; return the seconds until the next one."""
        outcomes = await asyncio.gather(*(self._resync(namespace) for namespace in self._watches))
        errors = dict(zip(self._watches, outcomes, strict=True))
        self._record(
            {
                namespace: next(iter(failed.values()))
                for namespace, failed in errors.items()
                if failed
            }
        )
        # A refusal is an answer: another process would be refused as well. So is the failure of one
        # kind, such as a webhook's that is down.
        if all(isinstance(kinds.get(INFERENCE_SERVICE), Transient) for kinds in errors.values()):
            return _AFTER_FAILURE_S
        self.last_end = time.monotonic()
        self._metrics.last_resync.set_to_current_time()
        return self._every_s

    async def _resync(self, namespace: str | None) -> dict[Kind, KubeError]:
        """Resync one namespace; return the error of each kind that could not be listed."""
        async with self._slots:
            watches = self._watches[namespace]
            outcomes = {watch.kind: await self._try_to_check(watch) for watch in watches}
        # Last, so that the reconciles find every kind in the cache.
        if outcomes[INFERENCE_SERVICE] is None:
            self._enqueue(namespace)
        return {kind: error for kind, error in outcomes.items() if error is not None}

    async def _try_to_check(self, watch: Watch) -> KubeError | None:
        """Check one watch; a kind that may not be listed does not affect the others."""
        try:
            await self._check(watch)
        except KubeError as error:
            failure = error
        except Exception as error:  # noqa: BLE001
            # The last guard: one object must not end the process for all.
            _log.exception("resync failed; this is a bug, please report it")
            failure = Refused(f"it ended with {error!r}; this is a bug")
        else:
            return None
        self._cache.forget(watch.kind, watch.namespace)
        return failure

    def _record(self, failures: Mapping[str | None, KubeError]) -> None:
        for namespace, error in failures.items():
            if str(error) != str(self.failures.get(namespace, "")):
                where = namespace or "all namespaces"
                _log.warning("resync of %s failed: %s", where, error)
        self.failures = failures
        for namespace in filter(None, self._watches):
            self._metrics.resynced.labels(namespace).set(namespace not in failures)

    async def _check(self, watch: Watch) -> None:
        """LIST the kind of a watch: into the cache, and against what the watch has delivered."""
        sent = time.monotonic()
        try:
            listing = await self._kube.list_all(watch.kind, watch.namespace, watch.labels)
        except KindMissing:
            # Its watch waits for it, and the services that need it report it.
            self._cache.forget(watch.kind, watch.namespace)
            watch.lag.compare((), time.monotonic())
            return
        self._cache.replace(watch.kind, watch.namespace, listing.items, listing.version)
        if not watch.has_run_since(sent):
            self._cache.forget(watch.kind, watch.namespace)
        watch.lag.compare(listing.items, time.monotonic())

    def _enqueue(self, namespace: str | None) -> None:
        """Enqueue every service: at once the first time, spread over the period afterwards."""
        known = (key for key in self._known() if namespace in {None, key.namespace})
        keys = {*self._cache.keys(INFERENCE_SERVICE, namespace), *known}
        spread_s = self._every_s * _SPREAD if namespace in self._resynced else 0.0
        self._resynced.add(namespace)
        for index, key in enumerate(sorted(keys, key=str)):
            self._add(key, spread_s * index / len(keys))
