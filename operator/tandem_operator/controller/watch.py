"""kopf's watches, one for each kind, each restarted by itself.

kopf does what is hard about a watch: LIST and WATCH without a gap, bookmarks, expired versions,
streams that die silently. Its handlers here only keep the object in the cache, and report its
change. It writes nothing: no finalizers, no annotations, no Events, no peering.

One kopf for each kind, because kopf ends when one of its kinds is not there: KubeRay may be
installed after this operator, and may be taken away under it. And one for each namespace that is
served by name, because kopf ends for all of them when one is refused: it may be deleted, and the
role in it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import kopf

from tandem_operator.controller.watch_lag import WatchLag
from tandem_operator.controller.watched import EventFilter, Watched
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import KubeError
from tandem_operator.k8s.kopf_login import KopfLogin
from tandem_operator.k8s.names import FIELD_MANAGER
from tandem_operator.k8s.objects import selector_text
from tandem_operator.tasks import cancel
from tandem_serve.api.spec import GROUP

Deliver = Callable[[Mapping[str, Any]], None]
"""Takes an object that is new, deleted, or changed in a way that leads to a reconcile."""

SERVER_TIMEOUT_S: Final = 300
"""Seconds after which the API server ends a watch request, and kopf starts the next."""

_CLIENT_TIMEOUT_S: Final = 330
_CONNECT_TIMEOUT_S: Final = 30
_REQUEST_TIMEOUT_S: Final = 30
_POLL_S: Final = 5.0
_POLL_OPTIONAL_S: Final = 30.0
_RESTART_AFTER_S: Final = 2.0
_MAX_PAUSE_S: Final = 32.0
_LONG_RUN_S: Final = 60.0
"""Seconds after which a watch counts as having worked, so that its pauses start over."""

_STALE_AFTER_S: Final = 30.0
_log = logging.getLogger(__name__)


class Watch:
    """Watches one kind, in all namespaces or in one, while the API server serves it."""

    def __init__(
        self,
        watched: Watched,
        *,
        kube: KubeClient,
        cache: ObjectCache,
        login: KopfLogin,
        namespace: str | None,
        deliver: Deliver,
        on_kind_found: Callable[[], None],
        on_start: Callable[[], None],
    ) -> None:
        self.kind = watched.kind
        self._is_optional = watched.is_optional
        self.namespace = namespace
        """Namespace to watch; None: all."""

        self.labels = watched.labels
        self.lag = WatchLag()
        """Versions that it has delivered; the resync compares them with a LIST."""

        self.last_event: float | None = None
        """Moment of its last event; None: there was none."""

        self.started = asyncio.Event()
        """Set once it runs for the first time, or once an optional kind was found missing."""

        self._running_since: float | None = None
        self._filter = EventFilter(watched)
        self._kube = kube
        self._cache = cache
        self._login = login
        self._deliver = deliver
        self._on_kind_found = on_kind_found
        self._on_start = on_start
        self._last_reason = ""

    @property
    def name(self) -> str:
        """Kind and namespace, for logs."""
        return self.kind.plural + (f" in {self.namespace}" if self.namespace else "")

    def has_run_since(self, moment: float) -> bool:
        """Return True when it has run without a break since `moment`, so that it missed nothing."""
        return self._running_since is not None and self._running_since <= moment

    async def run(self) -> None:
        """Watch until cancelled."""
        pauses = _restart_pauses()
        while True:
            await self._wait_for_kind()
            self._on_kind_found()
            began = time.monotonic()
            await self._watch()
            if time.monotonic() - began > _LONG_RUN_S:
                pauses = _restart_pauses()
            await asyncio.sleep(next(pauses))

    async def _wait_for_kind(self) -> None:
        has_warned = False
        while not await self._exists():
            if not has_warned:
                level = logging.INFO if self._is_optional else logging.WARNING
                _log.log(level, "the API server serves no %s yet; waiting", self.kind.plural)
            has_warned = True
            if self._is_optional:
                self.started.set()
            await asyncio.sleep(_POLL_OPTIONAL_S if self._is_optional else _POLL_S)

    async def _exists(self) -> bool:
        """Return True when kopf would find the kind; kopf itself looks only once."""
        try:
            is_served = await self._kube.serves(self.kind)
        except KubeError as error:
            _log.warning(
                "cannot tell whether the API server serves %s: %s", self.kind.plural, error
            )
            return False
        if is_served:
            self._cache.missing_kinds.discard(self.kind)
        elif self._is_optional:
            # No reconcile asks for it then.
            self._cache.missing_kinds.add(self.kind)
        return is_served

    async def _watch(self) -> None:
        """Run kopf until it ends, or is behind LIST for too long."""
        self.lag.reset()
        self._filter.reset()
        # Peering is off, but kopf would look up its user for it, which an image may not have.
        identity: Any = FIELD_MANAGER
        tasks = await kopf.spawn_tasks(
            identity=identity,
            registry=self._registry(),
            settings=self._settings(),
            standalone=True,
            clusterwide=self.namespace is None,
            namespaces=[self.namespace] if self.namespace else [],
        )
        # kopf has replaced the process's signal handlers.
        self._on_start()
        self._running_since = time.monotonic()
        self.started.set()
        stale = asyncio.create_task(self._wait_until_stale())
        try:
            done, _ = await asyncio.wait({*tasks, stale}, return_when=asyncio.FIRST_COMPLETED)
            for reason in _exit_reasons(done - {stale}):
                self._log_restart(reason)
        finally:
            # A LIST covers the kind again once the watch runs; until then reads are live.
            self._running_since = None
            self._cache.forget(self.kind, self.namespace)
            await cancel({*tasks, stale})

    def _log_restart(self, reason: str) -> None:
        """Warn of a reason once: a missing right to watch ends kopf again and again."""
        level = logging.INFO if reason == self._last_reason else logging.WARNING
        self._last_reason = reason
        _log.log(level, "watch of %s restarting: %s", self.name, reason)

    async def _wait_until_stale(self) -> None:
        behind_s = 0.0
        while behind_s < _STALE_AFTER_S:
            await asyncio.sleep(_POLL_S)
            behind_s = self.lag.behind_s(time.monotonic())
        text = "watch of %s restarting: %.0f s behind LIST"
        _log.warning(text, self.name, behind_s)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login.open_session)
        where = (self.kind.group, self.kind.version, self.kind.plural)
        kopf.on.event(*where, registry=registry)(self._on_event)
        return registry

    async def _on_event(self, event: Mapping[str, Any], **_: Any) -> None:
        item, is_gone = event["object"], event["type"] == "DELETED"
        self.last_event = time.monotonic()
        self.lag.deliver(item, is_gone=is_gone)
        keep = self._cache.remove if is_gone else self._cache.put
        keep(self.kind, item)
        if self._filter.passes(item, is_gone=is_gone):
            self._deliver(item)

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        # Scanning for kinds and namespaces would need rights over the whole cluster.
        settings.scanning.disabled = True
        # Never used; if it ever is, under the operator's own name.
        settings.persistence.finalizer = f"{GROUP}/{FIELD_MANAGER}"
        # kopf would kill the process this long after its end; here it is restarted.
        settings.process.ultimate_exiting_timeout = None
        settings.watching.server_timeout = SERVER_TIMEOUT_S
        settings.watching.client_timeout = _CLIENT_TIMEOUT_S
        settings.watching.connect_timeout = _CONNECT_TIMEOUT_S
        settings.watching.reconnect_backoff = 1.0
        settings.networking.request_timeout = _REQUEST_TIMEOUT_S
        settings.networking.connect_timeout = _CONNECT_TIMEOUT_S
        settings.networking.error_backoffs = _Backoffs()
        if self.labels:
            where = (self.kind.group, self.kind.version, self.kind.plural)
            settings.watching.label_selectors[where] = selector_text(self.labels)
        return settings


def _restart_pauses() -> Iterator[float]:
    """Seconds before each restart of a watch: growing while its runs are short."""
    pause_s = _RESTART_AFTER_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


class _Backoffs:
    """Seconds between tries of a request: growing, without end."""

    def __iter__(self) -> Iterator[float]:
        yield from (1.0, 2.0, 4.0)
        while True:
            yield 8.0


def _exit_reasons(tasks: set[asyncio.Task[Any]]) -> Iterator[str]:
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        yield f"{type(error).__name__}: {error}" if error else f"{task.get_name()} has ended"
