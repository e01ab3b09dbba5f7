"""The work queue: services and when each is due for a reconcile; pure but for `chance`.

A key is queued once, however often it is added, and never runs twice at a time: a key that is
added while it runs is due again afterwards, so no change is lost. A key that fails is due
again after `base · 2ⁿ` seconds, at most `cap`, and never dropped.
"""

import heapq
import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Seconds that a key waits after failures."""

    base_s: float = 1.0
    """Seconds after the first failure."""

    cap_s: float = 120.0
    """Seconds that no wait exceeds."""

    chance: Callable[[], float]
    """Numbers from 0 to 1: each wait is shortened by up to a quarter, so that keys that failed
    together come back apart."""

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        # 2 ** 1000 overflows a float, and the cap applies long before.
        longest = min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 60))
        return longest * (1.0 - 0.25 * self.chance())


class WorkQueue(Generic[Key]):
    """Keys with the moment from which each is due. All moments are seconds of one clock."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._due: dict[Key, float] = {}
        # May hold entries that `_due` has overtaken; they are skipped.
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._running: set[Key] = set()
        self._failures: dict[Key, int] = {}

    def add(self, key: Key, at: float) -> None:
        """Make `key` due at `at`; an earlier moment stays."""
        if key in self._due and self._due[key] <= at:
            return
        self._due[key] = at
        if key not in self._running:
            heapq.heappush(self._heap, (at, next(self._order), key))

    def take(self, now: float) -> Key | None:
        """Return the key that has been due longest and mark it running; None: no key is due."""
        key = self._first()
        if key is None or self._due[key] > now:
            return None
        heapq.heappop(self._heap)
        del self._due[key]
        self._running.add(key)
        return key

    def finish(self, key: Key) -> None:
        """Mark a running key done; it is due again when it was added meanwhile."""
        self._failures.pop(key, None)
        self._stop(key)

    def fail(self, key: Key, now: float, *, at_least_s: float = 0.0) -> float:
        """Make a running key that failed due after its wait, and return that in seconds."""
        self._failures[key] = self._failures.get(key, 0) + 1
        wait_s = max(at_least_s, self._backoff.wait_s(self._failures[key]))
        self._stop(key)
        self.add(key, now + wait_s)
        return wait_s

    def wake_at(self) -> float | None:
        """Moment at which the next key is due that can be taken; None: there is none."""
        key = self._first()
        return None if key is None else self._due[key]

    def depth(self, now: float) -> int:
        """Number of keys that are due and wait."""
        return sum(at <= now for key, at in self._due.items() if key not in self._running)

    @property
    def running(self) -> frozenset[Key]:
        """The keys that run."""
        return frozenset(self._running)

    def __len__(self) -> int:
        return len(self._due.keys() | self._running)

    def _stop(self, key: Key) -> None:
        self._running.discard(key)
        if key in self._due:
            heapq.heappush(self._heap, (self._due[key], next(self._order), key))

    def _first(self) -> Key | None:
        """The key that is due first among those that do not run."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._due.get(key) == at and key not in self._running:
                return key
            heapq.heappop(self._heap)
        return None
