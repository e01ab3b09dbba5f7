"""bufferResponseEnabled: tokens are held until shortly before their expected time; pure.

MindIE smooths the output this way without changing what is computed: a reader sees tokens come
evenly, and a burst is saved for a later stall.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Final, Generic, TypeVar

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.output import Output

T = TypeVar("T")

# Of the expected time; MindIE's own figure.
_SHARE: Final = 0.95


@dataclass(slots=True)
class _Paced(Generic[T]):
    """The outputs of one choice."""

    last: float
    """Seconds; when the last one was handed out, or the request arrived."""
    has_begun: bool = False
    held: list[T] = field(default_factory=list)


class Pacer(Generic[T]):
    """Holds the outputs of choices back, each until it is due.

    The first output of a choice is due at 0.95 prefillExpectedTime after its arrival, each further
    one at 0.95 decodeExpectedTime after the one before. The last one of a choice, and a failure,
    takes all with it at once.
    """

    def __init__(self, schedule: ScheduleConfig) -> None:
        self.schedule = schedule
        """The settings in force; off, it hands everything out at once."""
        self._choices: dict[str, _Paced[T]] = {}
        # False: certainly nothing is held, so `due` has nothing to look through.
        self._may_hold = False

    def push(
        self, sequence_id: str, item: T, output: Output | None, *, arrived: float, now: float
    ) -> list[T]:
        """Take an output; return what goes out with it.

        Args:
            sequence_id: The sequence of the output.
            item: The delivery to hold.
            output: The output in the item; None: a failure.
            arrived: Seconds; when the request came.
            now: Seconds.
        """
        paced = self._choices.get(sequence_id)
        if paced is None:
            paced = self._choices[sequence_id] = _Paced(arrived)
        is_over = output is None or output.finish_reason is not None
        if not (is_over or paced.held or self.schedule.buffer_response_enabled):
            paced.last, paced.has_begun = now, True
            return [item]
        paced.held.append(item)
        if is_over:
            del self._choices[sequence_id]
        if is_over or not self.schedule.buffer_response_enabled:
            paced.last, paced.has_begun = now, True
            released, paced.held = paced.held, []
            return released
        self._may_hold = True
        return self._due_of(paced, now)

    def due(self, now: float) -> list[T]:
        """All that is due."""
        if not self._may_hold:
            return []
        due = [item for paced in self._choices.values() for item in self._due_of(paced, now)]
        self._may_hold = any(paced.held for paced in self._choices.values())
        return due

    def flush(self) -> list[T]:
        """All that is held: nothing more will come."""
        held = [item for paced in self._choices.values() for item in paced.held]
        self._choices.clear()
        return held

    def next_due(self) -> float:
        """Seconds; when the next output is due; inf: nothing is held."""
        if not self._may_hold:
            return inf
        moments = (self._moment(paced) for paced in self._choices.values() if paced.held)
        return min(moments, default=inf)

    def drop(self, sequence_id: str) -> None:
        """Forget a choice whose reader has left."""
        self._choices.pop(sequence_id, None)

    def _due_of(self, paced: _Paced[T], now: float) -> list[T]:
        released = []
        while paced.held and now >= self._moment(paced):
            released.append(paced.held.pop(0))
            paced.last, paced.has_begun = now, True
        return released

    def _moment(self, paced: _Paced[T]) -> float:
        if not self.schedule.buffer_response_enabled:
            return paced.last
        schedule = self.schedule
        expected_ms = (
            schedule.decode_expected_time if paced.has_begun else schedule.prefill_expected_time
        )
        return paced.last + _SHARE * expected_ms / 1e3
