"""The autoscaler's loop: a step for each service once a period, spread over it."""

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from tandem_operator.autoscaler.autoscaler import Autoscaler
from tandem_operator.k8s.errors import KubeError, NotLeading
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.metrics import AutoscalerMetrics
from tandem_operator.tasks import cancel

_CONCURRENCY: Final = 8
_TICK_S: Final = 0.5
_SOON_S: Final = 1.0
_STEP_TIMEOUT_S: Final = 30.0
"""Seconds after which a step is cut short; its requests have shorter limits of their own."""

_log: Final = logging.getLogger(__name__)


class AutoscalerLoop:
    """Makes the steps that are due, some at a time; a service has one at a time.

    A step that is late is made once, not once for each period that was missed, so slow answers
    never pile up.
    """

    def __init__(
        self,
        autoscaler: Autoscaler,
        metrics: AutoscalerMetrics,
        *,
        period_s: float,
        services: Callable[[], Iterable[NamespacedName]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        """`services` returns the services that there are; `close` is called at the end."""
        self._autoscaler = autoscaler
        self._metrics = metrics
        self._period_s = period_s
        self._services = services
        self._close = close
        self._due: dict[NamespacedName, float] = {}
        self._running: dict[NamespacedName, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Make steps until cancelled."""
        try:
            while True:
                self._begin_due(time.monotonic())
                await asyncio.sleep(_TICK_S)
        finally:
            if self._running:
                await cancel(list(self._running.values()))
            await self._close()

    def _begin_due(self, now: float) -> None:
        """Begin steps that are due, the latest first, as far as there is room for them."""
        self._update(now)
        due = sorted((at, str(key), key) for key, at in self._due.items() if at <= now)
        for _, _, key in due:
            if len(self._running) >= _CONCURRENCY:
                return
            if key not in self._running:
                self._due[key] = _next_due(key, now, self._period_s)
                self._running[key] = asyncio.create_task(self._step(key))

    def _update(self, now: float) -> None:
        """Add services that are new, which are due at once, and drop those that are gone."""
        there = set(self._services())
        for key in there - set(self._due):
            self._due[key] = now
        for key in set(self._due) - there:
            del self._due[key]
        for key in self._autoscaler.known - there:
            self._autoscaler.forget(key)

    async def _step(self, key: NamespacedName) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_STEP_TIMEOUT_S):
                is_due = await self._autoscaler.step(key)
        except NotLeading:
            # The process is about to end.
            pass
        except KubeError as error:
            _log.warning("%s: the decision was not written: %s", key, error)
        except TimeoutError:
            _log.warning("%s: the step took more than %.0f s", key, _STEP_TIMEOUT_S)
        except Exception:  # noqa: BLE001
            # The last guard: a bug in one service's step must not end the others'.
            _log.exception("%s: the step failed; this is a bug, please report it", key)
        else:
            if is_due:
                self._due[key] = time.monotonic() + _SOON_S
        finally:
            self._running.pop(key, None)
            self._metrics.duration.observe(time.monotonic() - began)


def _next_due(key: NamespacedName, now: float, period_s: float) -> float:
    """Return the next moment of a service: each has one of its own within the period."""
    phase_s = zlib.crc32(str(key).encode()) / 2**32 * period_s
    begun_s = (now - phase_s) // period_s * period_s + phase_s
    return begun_s + period_s
