"""Keeps the operator from fighting: what does not stay as written is written ever less; pure.

Another controller, or a webhook, may change an object back. Two such writers would keep the API
server busy for ever. So a service whose spec stays the same has a few writes at hand, which come
back one by one; a new spec brings all of them back at once.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

WRITES: Final = 5
"""Writes at hand: to make a service takes two, and people mend things by hand."""

REFILL_S: Final = 60.0
"""Seconds after which one more write is at hand."""


@dataclass(slots=True)
class _TokenBucket:
    generation: int
    left: float
    counted_at: float


class WriteLimit(Generic[Key]):
    """The writes that each service has at hand. Moments are seconds of one clock."""

    def __init__(self) -> None:
        self._buckets: dict[Key, _TokenBucket] = {}

    def take(self, key: Key, generation: int, now: float) -> None:
        """Something was written for the spec of this generation."""
        left = self._left(key, generation, now)
        self._buckets[key] = _TokenBucket(generation, left - 1.0, now)

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._buckets.pop(key, None)

    def wait_s(self, key: Key, generation: int, now: float) -> float:
        """Seconds until something may be written again; 0: it may."""
        return max(0.0, (1.0 - self._left(key, generation, now)) * REFILL_S)

    def _left(self, key: Key, generation: int, now: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None or bucket.generation != generation:
            return WRITES
        return min(WRITES, bucket.left + (now - bucket.counted_at) / REFILL_S)
