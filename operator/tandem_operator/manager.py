"""The operator as a process: standby, leading, and an orderly end."""

import asyncio
import logging
import random
import signal
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Self

from tandem_operator.autoscaler.autoscaler import Autoscaler
from tandem_operator.autoscaler.cross_check import CrossCheck
from tandem_operator.autoscaler.loop import AutoscalerLoop
from tandem_operator.autoscaler.prometheus import PrometheusClient
from tandem_operator.autoscaler.publish import Publisher
from tandem_operator.autoscaler.refusals import Refusals
from tandem_operator.controller.queue import Backoff, WorkQueue
from tandem_operator.controller.resync import Resync
from tandem_operator.controller.watch import Watch
from tandem_operator.controller.watched import WATCHED, Watched
from tandem_operator.controller.workers import Workers
from tandem_operator.health import Health, serve
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.connection import Connection
from tandem_operator.k8s.events import EventRecorder
from tandem_operator.k8s.kinds import PROMETHEUS_RULE
from tandem_operator.k8s.kopf_login import KopfLogin
from tandem_operator.k8s.leader_election import LeaderElector, LeaseLost
from tandem_operator.k8s.names import FIELD_MANAGER
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.k8s.owners import service_of
from tandem_operator.metrics import Metrics
from tandem_operator.ray.client import RayClient
from tandem_operator.ray.token_key import TokenKey
from tandem_operator.reconcile.loop import Reconciler
from tandem_operator.reconcile.other_operators import served_by
from tandem_operator.render.settings import OperatorSettings
from tandem_operator.replica_pages.reporter import ReplicaPageReporter
from tandem_operator.tasks import cancel


class StopSignals:
    """Waits for SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self._received = asyncio.Event()

    def install(self) -> None:
        """Handle the signals; called again after kopf has replaced the handlers."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received.set)

    async def wait(self) -> None:
        """Wait until one of them comes."""
        await self._received.wait()


EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_LEASE_LOST: Final = 3

_WORKERS: Final = 4
_LAST_RECONCILES_S: Final = 10.0
_CLOSING_S: Final = 3.0
_COALESCE_S: Final = 0.05
"""Seconds for which an event waits for others of the same service: they come in bursts."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the process."""

    connection: Connection
    settings: OperatorSettings
    port: int
    """Of /healthz, /readyz and /metrics."""

    identity: str
    """Name of this process in leader election."""

    lease_namespace: str
    """Namespace of the Lease: services that it serves have it in their status."""

    ray_address: str
    """Address of Ray's REST interface, with {ip}, {cluster} and {namespace}."""

    replica_address: str
    """Address of a replica's metrics, with {ip} and {pod}."""


async def run(options: Options) -> int:
    """Run until a signal comes or the lease is lost; return the exit code.

    Raises:
        PortTaken: the port cannot be listened on.
    """
    metrics = Metrics()
    health = Health(metrics)
    signals = StopSignals()
    signals.install()
    async with AsyncExitStack() as stack:
        server = await serve(health.application(), options.port)
        stack.push_async_callback(server.cleanup)
        kube = KubeClient.connect(options.connection, metrics.count_request)
        stack.push_async_callback(kube.close)
        lag_task = asyncio.create_task(health.measure_lag())
        stack.callback(lag_task.cancel)
        elector = LeaderElector(
            kube, NamespacedName(options.lease_namespace, FIELD_MANAGER), options.identity
        )
        kube.may_write = elector.is_valid
        if not await _acquire_lease(elector, health, signals):
            return EXIT_DONE
        ray = RayClient(options.ray_address, metrics.count_ray_request)
        manager = Manager.build(options, kube, ray, metrics, signals)
        health.lead(manager.watches, manager.workers, manager.resync)
        return await manager.run(elector, signals)


async def _acquire_lease(elector: LeaderElector, health: Health, signals: StopSignals) -> bool:
    """Wait for the lease; False: a signal came first."""
    _log.info("standby: waiting for the lease as '%s'", elector.identity)
    taken = asyncio.create_task(elector.acquire(on_answer=health.set_ready))
    stopped = asyncio.create_task(signals.wait())
    await asyncio.wait({taken, stopped}, return_when=asyncio.FIRST_COMPLETED)
    has_lease = taken.done()
    await cancel({taken, stopped}, _CLOSING_S)
    if has_lease:
        taken.result()
        _log.info("leading")
    return has_lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """Everything that runs in the leader."""

    workers: Workers
    watches: tuple[Watch, ...]
    resync: Resync
    autoscaler: AutoscalerLoop
    replica_pages: ReplicaPageReporter

    @classmethod
    def build(
        cls,
        options: Options,
        kube: KubeClient,
        ray: RayClient,
        metrics: Metrics,
        signals: StopSignals,
    ) -> Self:
        """Build the parts; none runs yet."""
        settings = options.settings
        events = EventRecorder(kube, options.identity)
        token_key = TokenKey(kube, options.lease_namespace)
        watched_kinds = tuple(_needed(settings))
        cache = ObjectCache([watched.kind for watched in watched_kinds])
        kube.on_written = cache.put
        reconciler = Reconciler(
            kube,
            ray,
            settings,
            cache=cache,
            events=events,
            metrics=metrics,
            token_key=token_key,
            operator=options.lease_namespace,
        )
        queue = WorkQueue[NamespacedName](Backoff(chance=random.random))
        workers = Workers(queue, reconciler.reconcile, metrics, count=_WORKERS)

        def enqueue_owner(item: Mapping[str, Any]) -> None:
            if owner := service_of(item):
                workers.add(NamespacedName(*owner), _COALESCE_S)

        def enqueue_all(namespace: str | None) -> None:
            for key in reconciler.known:
                if namespace in {None, key.namespace}:
                    workers.add(key)

        def watch(namespace: str | None, watched: Watched) -> Watch:
            return Watch(
                watched,
                kube=kube,
                cache=cache,
                login=KopfLogin(options.connection),
                namespace=namespace,
                deliver=enqueue_owner,
                on_kind_found=lambda: enqueue_all(namespace),
                on_start=signals.install,
            )

        everywhere: tuple[str | None, ...] = (None,)
        watches = tuple(
            watch(namespace, watched)
            for namespace in dict.fromkeys(settings.namespaces or everywhere)
            for watched in watched_kinds
        )
        resync = Resync(
            kube,
            cache,
            watches,
            metrics,
            every_s=settings.resync_seconds,
            add=workers.add,
            known=lambda: reconciler.known,
        )
        autoscaler = _autoscaler(options, kube, cache=cache, events=events, metrics=metrics)
        replica_pages = ReplicaPageReporter(
            kube,
            cache=cache,
            address=options.replica_address,
            services=lambda: served_by(options.lease_namespace, cache),
        )
        return cls(
            workers=workers,
            watches=watches,
            resync=resync,
            autoscaler=autoscaler,
            replica_pages=replica_pages,
        )

    async def run(self, elector: LeaderElector, signals: StopSignals) -> int:
        """Lead until a signal comes, the lease is lost, or a part ends; return the exit code."""
        stopped = asyncio.create_task(signals.wait())
        workers = asyncio.create_task(self.workers.run())
        renewing = asyncio.create_task(elector.renew())
        background = {asyncio.create_task(coroutine) for coroutine in self._background()}
        parts = {workers, renewing, *background}
        await asyncio.wait({stopped, *parts}, return_when=asyncio.FIRST_COMPLETED)
        code = _exit_code(parts)
        if code == EXIT_DONE:
            _log.info("shutting down: running reconciles have %.0f s", _LAST_RECONCILES_S)
            await self.workers.drain(_LAST_RECONCILES_S)
        # All of it before the release: nothing decides any more when the next leader begins.
        await cancel({stopped, *parts}, _CLOSING_S)
        if code != EXIT_LEASE_LOST:
            await elector.release()
        return code

    def _background(self) -> Iterable[Coroutine[Any, Any, None]]:
        yield self.resync.run()
        yield self.autoscaler.run()
        yield self.replica_pages.run()
        yield from (watch.run() for watch in self.watches)


def _needed(settings: OperatorSettings) -> Iterable[Watched]:
    has_rules = settings.prometheus_rule.enabled is not False
    return (kind for kind in WATCHED if has_rules or kind.kind != PROMETHEUS_RULE)


def _autoscaler(
    options: Options,
    kube: KubeClient,
    *,
    cache: ObjectCache,
    events: EventRecorder,
    metrics: Metrics,
) -> AutoscalerLoop:
    """Return the loop of the autoscaler, over all services in the cache."""
    settings, counts = options.settings, metrics.autoscaler
    prometheus = PrometheusClient(settings.autoscaling.prometheus, counts.count_query)
    autoscaler = Autoscaler(
        kube,
        settings,
        cache=cache,
        prometheus=prometheus,
        cross_check=CrossCheck(options.replica_address, counts.count_cross_check),
        refusals=Refusals(),
        publisher=Publisher(kube, events),
        metrics=counts,
    )
    return AutoscalerLoop(
        autoscaler,
        counts,
        period_s=settings.autoscaling.period_seconds,
        services=lambda: served_by(options.lease_namespace, cache),
        close=prometheus.close,
    )


def _exit_code(parts: Iterable[asyncio.Task[None]]) -> int:
    """Return the exit code for the parts that have ended by themselves."""
    for part in parts:
        if not part.done():
            continue
        error = part.exception()
        if isinstance(error, LeaseLost):
            _log.error("no longer leading: %s", error)
            return EXIT_LEASE_LOST
        _log.error("a part of the operator has ended; this is a bug", exc_info=error)
        return EXIT_FAILED
    return EXIT_DONE
