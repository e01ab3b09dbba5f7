"""Correlates Events: repeats are counted, and posted at most once a minute; pure."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

REPEAT_AFTER_S: Final = 60.0
"""Seconds between two posts of one Event."""

_MAX_ENTRIES: Final = 1000


@dataclass(frozen=True, slots=True)
class NewEvent:
    """One Event to be posted."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class _EventKey(NamedTuple):
    uid: str
    reason: str
    message: str


@dataclass(slots=True)
class _Event:
    """An Event that was posted, and the count of its repeats since."""

    name: str
    posted_at: float
    count: int = 1


class EventCorrelator:
    """Decides which Events are posted. Moments are seconds of one clock."""

    def __init__(self, remembered: int = _MAX_ENTRIES) -> None:
        self._remembered = remembered
        self._events: OrderedDict[_EventKey, _Event] = OrderedDict()

    def correlate(
        self, uid: str, new: NewEvent, now: float, new_name: str
    ) -> tuple[str, int] | None:
        """Name and count of the Event to post for `new`; None: it was posted a moment ago.

        A count of 1 means a new one, which is called `new_name`.
        """
        key = _EventKey(uid, new.reason, new.message)
        event = self._events.get(key)
        if event is None:
            self._events[key] = _Event(new_name, now)
            self._drop_oldest()
            return new_name, 1
        self._events.move_to_end(key)
        event.count += 1
        if now - event.posted_at < REPEAT_AFTER_S:
            return None
        event.posted_at = now
        return event.name, event.count

    def forget(self, uid: str, new: NewEvent | None = None) -> None:
        """Drop the Events of an object that is gone, or one of them."""
        dropped = [
            key
            for key in self._events
            if key.uid == uid and (new is None or key[1:] == (new.reason, new.message))
        ]
        for key in dropped:
            del self._events[key]

    def __len__(self) -> int:
        return len(self._events)

    def _drop_oldest(self) -> None:
        while len(self._events) > self._remembered:
            self._events.popitem(last=False)
