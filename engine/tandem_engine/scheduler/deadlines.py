"""The deadlines of requests: those that are over are computed no further; pure."""

import heapq
from collections.abc import Callable
from math import inf
from typing import Final

from tandem_engine.api.request import Request

# Entries of requests that have ended, beside as many as have not, that are not worth a walk.
_DEAD: Final = 64

# The count breaks ties. Only ids are kept: a prompt is not to outlive its request.
_Entry = tuple[float, int, tuple[str, ...]]


class Deadlines:
    """The moments by which requests must be done, the earliest first.

    Entries of those that end before are dropped when they are the first, or the most.

    Args:
        is_known: True for a sequence that has not ended.
    """

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self._heap: list[_Entry] = []
        self._number = 0

    def add(self, request: Request, num_known: int) -> None:
        """Take note of a request; `num_known` sequences are known beside it at most."""
        if request.deadline == inf:
            return
        heapq.heappush(self._heap, (request.deadline, self._number, request.sequences))
        self._number += 1
        if len(self._heap) > 2 * num_known + _DEAD:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)

    @property
    def next_at(self) -> float:
        """Seconds; when the next one is over, inf: none has any."""
        while self._heap and not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def pop_expired(self, now: float) -> list[str]:
        """Return the sequences whose deadline is over at `now`, in seconds, once."""
        over: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            over += filter(self._is_known, heapq.heappop(self._heap)[-1])
        return over

    def __len__(self) -> int:
        """Entries of the heap, those of ended requests included."""
        return len(self._heap)

    def _is_live(self, entry: _Entry) -> bool:
        return any(map(self._is_known, entry[-1]))
