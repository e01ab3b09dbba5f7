"""Limits a service's writes while another writer undoes them: a token bucket each; pure.

Another controller, or a webhook, may change an object back. Two such writers would keep the API
server busy for ever. So a service whose spec stays the same has a bucket of a few writes, which
refills slowly; a new spec fills it at once.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

WRITES: Final = 5
"""Size of the bucket: a new service takes two writes, and users repair objects by hand."""

REFILL_S: Final = 60.0
"""Seconds in which one write is refilled."""


@dataclass(slots=True)
class _TokenBucket:
    generation: int
    left: float
    counted_at: float


class WriteLimit(Generic[Key]):
    """A token bucket of writes for each service. Moments are seconds of one clock."""

    def __init__(self) -> None:
        self._buckets: dict[Key, _TokenBucket] = {}

    def take(self, key: Key, generation: int, now: float) -> None:
        """Take one write for the spec of this generation."""
        left = self._left(key, generation, now)
        self._buckets[key] = _TokenBucket(generation, left - 1.0, now)

    def forget(self, key: Key) -> None:
        """Forget a service that is gone."""
        self._buckets.pop(key, None)

    def wait_s(self, key: Key, generation: int, now: float) -> float:
        """Seconds until the next write is allowed; 0: it is."""
        return max(0.0, (1.0 - self._left(key, generation, now)) * REFILL_S)

    def _left(self, key: Key, generation: int, now: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None or bucket.generation != generation:
            return WRITES
        return min(WRITES, bucket.left + (now - bucket.counted_at) / REFILL_S)
