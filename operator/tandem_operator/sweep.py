"""Looks at everything every minute or so, whatever the watches say."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tandem_operator.errors import KindMissing, KubeError
from tandem_operator.kinds import INFERENCE_SERVICE
from tandem_operator.kube import Kube, Object, Place
from tandem_operator.metrics import Metrics
from tandem_operator.watches import Watch

_SPREAD: Final = 0.5
"""Share of the pause between two sweeps over which their services are spread."""

_AFTER_FAILURE_S: Final = 5.0
_log = logging.getLogger(__name__)


class Sweep:
    """LISTs what is watched: every service is looked at, and every watch is checked."""

    def __init__(
        self,
        kube: Kube,
        watches: Iterable[Watch],
        metrics: Metrics,
        *,
        namespaces: Sequence[str],
        every_s: float,
        add: Callable[[Place, float], None],
        known: Callable[[], Iterable[Place]],
    ) -> None:
        self._kube = kube
        self._watches = tuple(watches)
        self._metrics = metrics
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._every_s = every_s
        self._add = add
        self._known = known
        self._is_first = True
        self.last_end = time.monotonic()
        """When a sweep ended last."""

    @property
    def overdue_after_s(self) -> float:
        """Seconds without a finished sweep that are too many."""
        return 3 * self._every_s + 60.0

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            pause_s = await self._once()
            await asyncio.sleep(pause_s)

    async def _once(self) -> float:
        """One sweep; gives the seconds until the next."""
        try:
            for watch in self._watches:
                await self._check(watch)
        except KubeError as error:
            _log.warning("the sweep was cut short: %s", error)
            return _AFTER_FAILURE_S
        self.last_end = time.monotonic()
        self._metrics.last_sweep.set_to_current_time()
        return self._every_s

    async def _check(self, watch: Watch) -> None:
        try:
            items = await self._list(watch)
        except KindMissing:
            # Its watch waits for it, and the services that need it say so.
            items = []
        watch.ledger.compare(items, time.monotonic())
        if watch.kind == INFERENCE_SERVICE:
            self._look_at({_place(item) for item in items} | set(self._known()))

    async def _list(self, watch: Watch) -> list[Object]:
        found: list[Object] = []
        for namespace in self._namespaces:
            found += await self._kube.list(watch.kind, namespace, watch.labels)
        return found

    def _look_at(self, places: set[Place]) -> None:
        """Have every service looked at, one after the other but for the first time."""
        spread_s = 0.0 if self._is_first else self._every_s * _SPREAD
        self._is_first = False
        for index, place in enumerate(sorted(places, key=str)):
            self._add(place, spread_s * index / len(places))


def _place(item: Mapping[str, Any]) -> Place:
    metadata = item["metadata"]
    return Place(metadata["namespace"], metadata["name"])
