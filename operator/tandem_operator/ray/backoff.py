"""Backoff from Ray heads that time out; pure.

Each such request blocks one of the few reconciles that run at a time, and a user may run many heads
that accept every connection and never answer.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

MIN_PAUSE_S: Final = 3.0
MAX_PAUSE_S: Final = 60.0
_MAX_ENTRIES: Final = 4096


@dataclass(frozen=True, slots=True)
class _Pause:
    until: float
    length_s: float
    reason: str


class RayBackoff(Generic[Key]):
    """Heads that are not queried for a while. Moments are seconds of one clock."""

    def __init__(self) -> None:
        self._pauses: OrderedDict[Key, _Pause] = OrderedDict()

    def reason(self, key: Key, now: float) -> str | None:
        """Return the error of a head that is backed off from; None: it may be queried."""
        pause = self._pauses.get(key)
        return pause.reason if pause and now < pause.until else None

    def record_timeout(self, key: Key, reason: str, now: float) -> None:
        """Back off from a head that timed out: for twice as long each time."""
        before = self._pauses.pop(key, None)
        length_s = min(2 * before.length_s, MAX_PAUSE_S) if before else MIN_PAUSE_S
        self._pauses[key] = _Pause(now + length_s, length_s, reason)
        while len(self._pauses) > _MAX_ENTRIES:
            self._pauses.popitem(last=False)

    def reset(self, key: Key) -> None:
        """Forget a head that answered in time, with any answer."""
        self._pauses.pop(key, None)
