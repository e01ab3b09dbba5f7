"""Memory of heads that use up the time in which they should answer; pure.

Each such question holds up one of the few reconciles that run at a time, and somebody may run many
heads that take every connection and say nothing.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SHORTEST_PAUSE_S: Final = 3.0
LONGEST_PAUSE_S: Final = 60.0
_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class _Pause:
    until: float
    length_s: float
    reason: str


class RayBackoff(Generic[Key]):
    """Heads that are left alone for a while. Moments are seconds of one clock."""

    def __init__(self) -> None:
        self._pauses: OrderedDict[Key, _Pause] = OrderedDict()

    def reason(self, key: Key, now: float) -> str | None:
        """Return why a head did not answer, while it is left alone; None: it may be asked."""
        pause = self._pauses.get(key)
        return pause.reason if pause and now < pause.until else None

    def record_timeout(self, key: Key, reason: str, now: float) -> None:
        """Leave a head alone that used up its time: at first as long, then ever longer."""
        before = self._pauses.pop(key, None)
        length_s = min(2 * before.length_s, LONGEST_PAUSE_S) if before else SHORTEST_PAUSE_S
        self._pauses[key] = _Pause(now + length_s, length_s, reason)
        while len(self._pauses) > _REMEMBERED:
            self._pauses.popitem(last=False)

    def reset(self, key: Key) -> None:
        """Forget a head that was done in time, whatever it said."""
        self._pauses.pop(key, None)
