"""Memory of heads that use up the time in which they should answer; pure.

Each such question holds up one of the few reconciles that run at a time, and somebody may run many
heads that take every connection and say nothing.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SHORTEST_REST_S: Final = 3.0
LONGEST_REST_S: Final = 60.0
_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class _Rest:
    until: float
    length_s: float
    words: str


class RayPatience(Generic[Key]):
    """Heads that are left alone for a while. Moments are seconds of one clock."""

    def __init__(self) -> None:
        self._rests: OrderedDict[Key, _Rest] = OrderedDict()

    def words(self, key: Key, now: float) -> str | None:
        """Return why a head did not answer, while it is left alone; None: it may be asked."""
        rest = self._rests.get(key)
        return rest.words if rest and now < rest.until else None

    def note_slow(self, key: Key, words: str, now: float) -> None:
        """Leave a head alone that used up its time: at first as long, then ever longer."""
        before = self._rests.pop(key, None)
        length_s = min(2 * before.length_s, LONGEST_REST_S) if before else SHORTEST_REST_S
        self._rests[key] = _Rest(now + length_s, length_s, words)
        while len(self._rests) > _REMEMBERED:
            self._rests.popitem(last=False)

    def note_prompt(self, key: Key) -> None:
        """Forget a head that was done in time, whatever it said."""
        self._rests.pop(key, None)
