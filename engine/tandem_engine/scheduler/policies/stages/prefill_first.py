"""stageSelectPolicy 0: new requests first, unless running ones would pay for it in blocks."""

from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.policies.stages.stage_view import Stage, StageView

_MICROSECONDS: Final = 1e6
_SMALLEST_DELAY: Final = 5000
"""Microseconds of maxQueueDelayMicroseconds above which a full batch need not wait."""
_RESERVE: Final = 0.05
"""Share of the KV blocks below which running sequences keep what is free."""


class PrefillFirst:
    """MindIE's base choice (stageSelectPolicy 0)."""

    def choose(self, view: StageView, schedule: ScheduleConfig) -> Stage:
        """Decode while sequences are swapped out, nothing is ripe, or blocks are short."""
        if view.must_decode(schedule) or view.num_swapped or not is_ripe(view, schedule):
            return "decode"
        # The reserve is for those that run; with none, a prompt in progress may hold the blocks.
        is_short = view.free_share < _RESERVE and view.num_running > 0
        return "decode" if is_short else "prefill"


def is_ripe(view: StageView, schedule: ScheduleConfig) -> bool:
    """Return True if to prefill now: the oldest request waited for maxQueueDelayMicroseconds.

    With a delay above 5000 µs a full prefill batch is ripe at once. At or below only age counts.
    """
    if not view.num_waiting:
        return False
    delay = schedule.max_queue_delay_microseconds
    if delay > _SMALLEST_DELAY and view.num_waiting >= view.prefill_rows(schedule):
        return True
    return view.head_wait_s >= delay / _MICROSECONDS
