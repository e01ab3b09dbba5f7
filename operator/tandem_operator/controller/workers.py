"""Workers that take keys from the queue: several services at a time, each by one worker."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tandem_operator.controller.queue import WorkQueue
from tandem_operator.k8s.errors import KubeError, Transient
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.metrics import Metrics

RECONCILE_TIMEOUT_S: Final = 60.0
"""Seconds after which a reconcile is cut short; its requests have shorter limits of their own."""

_log = logging.getLogger(__name__)

Work = Callable[[NamespacedName], Awaitable[float | None]]
"""One reconcile; gives the seconds after which to requeue, or None."""


class Workers:
    """Fills the queue and reconciles what is due."""

    def __init__(
        self, queue: WorkQueue[NamespacedName], work: Work, metrics: Metrics, *, count: int
    ) -> None:
        self._queue = queue
        self._work = work
        self._metrics = metrics
        self._count = count
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self.last_reconcile = time.monotonic()
        """Moment at which the last reconcile ended."""

    def add(self, key: NamespacedName, after_s: float = 0.0) -> None:
        """Reconcile the service `key` within `after_s` seconds."""
        self._queue.add(key, time.monotonic() + after_s)
        self._wake.set()

    @property
    def depth(self) -> int:
        """Services that are due and wait."""
        return self._queue.depth(time.monotonic())

    @property
    def running(self) -> int:
        """Services that are being reconciled."""
        return len(self._queue.running)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._count):
                group.create_task(self._run_one())

    async def drain(self, limit_s: float) -> bool:
        """Start no further reconcile, and wait for those that run; True: they ended in time."""
        self._is_draining = True
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _run_one(self) -> None:
        while True:
            key = await self._take()
            self._idle.clear()
            try:
                await self._reconcile(key)
            finally:
                if not self._queue.running:
                    self._idle.set()
                # A key that was added while it ran is due now.
                self._wake.set()

    async def _take(self) -> NamespacedName:
        """Wait for the next service that is due."""
        while True:
            if not self._is_draining:
                key = self._queue.take(time.monotonic())
                if key is not None:
                    return key
            await self._sleep()

    async def _sleep(self) -> None:
        """Wait until the next service is due or a key is added."""
        self._wake.clear()
        due = self._queue.wake_at()
        left_s = None if due is None or self._is_draining else max(0.0, due - time.monotonic())
        try:
            async with asyncio.timeout(left_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _reconcile(self, key: NamespacedName) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(RECONCILE_TIMEOUT_S):
                requeue_after_s = await self._work(key)
        except KubeError as error:
            self._fail(key, error.reason, str(error), error)
        except TimeoutError:
            self._fail(
                key,
                "ReconcileTimeout",
                f"the reconcile took more than {RECONCILE_TIMEOUT_S:.0f} s",
                None,
            )
        except Exception as error:  # noqa: BLE001
            # The last guard: a bug in one service's reconcile must not end the others'.
            _log.exception("%s: reconcile failed; this is a bug, please report it", key)
            self._fail(key, "Bug", repr(error), None)
        else:
            self._finish(key, requeue_after_s)
        finally:
            self.last_reconcile = time.monotonic()
            self._metrics.duration.observe(self.last_reconcile - began)
            self._metrics.last_reconcile.set_to_current_time()

    def _finish(self, key: NamespacedName, requeue_after_s: float | None) -> None:
        self._queue.finish(key)
        self._metrics.reconciles.labels("done").inc()
        if requeue_after_s is not None:
            self.add(key, requeue_after_s)

    def _fail(self, key: NamespacedName, reason: str, text: str, error: KubeError | None) -> None:
        at_least_s = error.retry_after_s if error else 0.0
        wait_s = self._queue.fail(key, time.monotonic(), at_least_s=at_least_s)
        self._metrics.reconciles.labels("failed").inc()
        self._metrics.errors.labels(reason).inc()
        level = logging.INFO if isinstance(error, Transient) else logging.WARNING
        _log.log(level, "%s: %s; retrying in %.0f s", key, text, wait_s)
