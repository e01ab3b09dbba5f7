"""Health of the process over HTTP: /healthz, /readyz, /metrics."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from tandem_operator.controller.resync import Resync
from tandem_operator.controller.watch import Watch
from tandem_operator.controller.workers import Workers
from tandem_operator.metrics import Metrics

LOOP_LAG_S: Final = 5.0
"""Seconds for which the event loop may be blocked."""

WATCH_BEHIND_S: Final = 60.0
"""Seconds for which a watch may be behind LIST."""

_TICK_S: Final = 0.5


class PortTaken(Exception):
    """The port cannot be listened on; the text is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """State of the process at one moment. Ages are in seconds."""

    loop_lag_s: float
    """Delay of the event loop."""

    is_leader: bool
    resync_age_s: float
    resync_limit_s: float
    watches_behind_s: dict[str, float]
    """Watch → seconds behind LIST."""


def liveness_problem(snapshot: HealthSnapshot) -> str | None:
    """Return the reason to restart the process, in one sentence; None: it is healthy."""
    if snapshot.loop_lag_s > LOOP_LAG_S:
        return (
            f"the event loop was blocked for {snapshot.loop_lag_s:.0f} s, more than "
            f"{LOOP_LAG_S:.0f}"
        )
    if not snapshot.is_leader:
        return None
    if snapshot.resync_age_s > snapshot.resync_limit_s:
        return (
            f"the last resync of all services ended {snapshot.resync_age_s:.0f} s ago, "
            f"more than {snapshot.resync_limit_s:.0f}"
        )
    for kind, behind_s in snapshot.watches_behind_s.items():
        if behind_s > WATCH_BEHIND_S:
            return (
                f"the watch of {kind} is {behind_s:.0f} s behind LIST, "
                f"more than {WATCH_BEHIND_S:.0f}"
            )
    return None


class Health:
    """Keeps the state of the process and serves it over HTTP."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._watches: tuple[Watch, ...] = ()
        self._workers: Workers | None = None
        self._resync: Resync | None = None
        self._last_tick = time.monotonic()
        self._loop_lag_s = 0.0
        self._is_ready = False
        self.is_leader = False

    def set_ready(self) -> None:
        """Mark the process ready: the API server has answered, even to a standby."""
        self._is_ready = True

    def lead(self, watches: Iterable[Watch], workers: Workers, resync: Resync) -> None:
        """Mark this process the leader, with these parts."""
        self._watches, self._workers, self._resync = tuple(watches), workers, resync
        self.is_leader = True

    async def measure_lag(self) -> None:
        """Measure the delay of the event loop until cancelled."""
        while True:
            self._last_tick = time.monotonic()
            await asyncio.sleep(_TICK_S)
            self._loop_lag_s = max(0.0, time.monotonic() - self._last_tick - _TICK_S)

    def snapshot(self) -> HealthSnapshot:
        """Return the state of the process now."""
        now = time.monotonic()
        return HealthSnapshot(
            loop_lag_s=max(self._loop_lag_s, now - self._last_tick - _TICK_S),
            is_leader=self.is_leader,
            resync_age_s=now - self._resync.last_end if self._resync else 0.0,
            resync_limit_s=self._resync.overdue_after_s if self._resync else 0.0,
            watches_behind_s={watch.name: watch.lag.behind_s(now) for watch in self._watches},
        )

    def application(self) -> web.Application:
        """Return the application with the three paths."""
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._show_metrics)
        return application

    async def _healthz(self, _: web.Request) -> web.Response:
        problem = liveness_problem(self.snapshot())
        return web.json_response(
            {"ok": problem is None, "problem": problem, **self._details()},
            status=200 if problem is None else 503,
        )

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._is_ready:
            return web.json_response({"ok": True, "leader": self.is_leader})
        text = "the API server has not answered yet"
        return web.json_response({"ok": False, "problem": text}, status=503)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        self._metrics.leader.set(self.is_leader)
        if self._workers:
            self._metrics.queue_depth.set(self._workers.depth)
            self._metrics.queue_running.set(self._workers.running)
        return web.Response(
            body=self._metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    def _details(self) -> dict[str, Any]:
        now, workers, resync = time.monotonic(), self._workers, self._resync
        return {
            "leader": self.is_leader,
            "queue": {
                "depth": workers.depth if workers else 0,
                "running": workers.running if workers else 0,
            },
            "lastReconcileSeconds": _age(workers.last_reconcile if workers else None, now),
            "lastResyncSeconds": _age(resync.last_end if resync else None, now),
            "failures": {
                namespace or "*": str(error)
                for namespace, error in (resync.failures if resync else {}).items()
            },
            "watches": {
                watch.name: {
                    "lastEventSeconds": _age(watch.last_event, now),
                    "behindSeconds": round(watch.lag.behind_s(now), 1),
                }
                for watch in self._watches
            },
        }


def _age(moment: float | None, now: float) -> float | None:
    return None if moment is None else round(now - moment, 1)


async def serve(application: web.Application, port: int) -> web.AppRunner:
    """Serve on all addresses; the caller cleans the runner up.

    Raises:
        PortTaken: the port cannot be listened on.
    """
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
    except OSError as error:
        await runner.cleanup()
        text = f"cannot listen on port {port}: {error.strerror}; choose another with --port"
        raise PortTaken(text) from error
    return runner
