"""Limits a service's writes while another writer undoes them: a token bucket each; pure.

Another controller, or a webhook, may change an object back. Two such writers would keep the API
server busy for ever. So a service whose desired state stays the same has a bucket of a few writes,
which refills slowly; a new desired state, another spec or number of replicas, fills it at once.
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
    state: Hashable
    left: float
    counted_at: float


class WriteLimit(Generic[Key]):
    """A token bucket of writes for each service. Moments are seconds of one clock."""

    def __init__(self) -> None:
        self._buckets: dict[Key, _TokenBucket] = {}

    def take(self, key: Key, state: Hashable, now: float) -> None:
        """Take one write for the desired state `state`."""
        left = self._left(key, state, now)
        self._buckets[key] = _TokenBucket(state, left - 1.0, now)

    def forget(self, key: Key) -> None:
        """Forget a service that is gone."""
        self._buckets.pop(key, None)

    def wait_s(self, key: Key, state: Hashable, now: float) -> float:
        """Seconds until the next write is allowed; 0: it is."""
        return max(0.0, (1.0 - self._left(key, state, now)) * REFILL_S)

    def _left(self, key: Key, state: Hashable, now: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None or bucket.state != state:
            return WRITES
        return min(WRITES, bucket.left + (now - bucket.counted_at) / REFILL_S)
