"""The last requests of a replica, of which its capacity is measured."""

from collections import deque
from collections.abc import Sequence
from itertools import cycle
from typing import Final

from tandem_engine.async_engine.capacity_question import RequestLengths
from tandem_engine.async_engine.recent_requests import FEWEST
from tandem_engine.async_engine.timeline import Timeline

_MOST_KEPT: Final = 256


class LoadSample:
    """Keeps the last choices by arrival, for one writing thread; any may read.

    Those that still wait or run belong to it: a replica that lets long prompts wait would else take
    its load for a light one.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Timeline]] = deque(maxlen=_MOST_KEPT)
        self.num_arrived = 0
        """Choices that were ever kept."""

    def arrived(self, num_prompt: int, timelines: Sequence[Timeline]) -> None:
        """Keep the choices of a new request; their timelines go on."""
        self._kept.extend((num_prompt, timeline) for timeline in timelines)
        self.num_arrived += len(timelines)

    def lengths(self) -> list[RequestLengths]:
        """Return the lengths of all; empty: too few have ended to know how long answers get.

        One that has not ended well is taken to be as long as another that has.
        """
        kept = self._kept.copy()
        outputs = [timeline.num_tokens for _, timeline in kept if timeline.has_ended]
        if len(outputs) < FEWEST:
            return []
        others = cycle(outputs)
        return [
            RequestLengths(
                num_prompt,
                timeline.num_cached,
                timeline.num_tokens
                if timeline.has_ended
                else max(timeline.num_tokens, next(others)),
            )
            for num_prompt, timeline in kept
        ]
