"""MindIE's three stage policies: new requests first, throughput first, least laxity first."""

from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.latency.step_model import StepTimeModel
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


class ThroughputFirst:
    """Prefill when the decodes it stops cost no more than the rows that stayed empty so far.

    Let R sequences run. A prefill stops them for prefillTimeMsPerReq · R. Every step in which a
    request waits wastes decodeTimeMsPerReq · (maxBatchSize − R): that adds up until it reaches
    the cost. So a batch that is nearly full decodes for long, and only the ratio of the two times
    counts (MindIE's stageSelectPolicy 1; its manual and its source agree).
    """

    def __init__(self) -> None:
        self._waste_ms = 0

    def choose(self, view: StageView, schedule: ScheduleConfig) -> Stage:
        """Decode until the waste has reached the cost of a prefill; then start again from 0."""
        if view.must_decode(schedule):
            return "decode"
        if not view.num_waiting:
            self._waste_ms = 0
            return "decode"
        running = view.num_running
        empty_rows = max(0, schedule.max_batch_size - running)
        self._waste_ms += schedule.decode_time_ms_per_req * empty_rows
        if schedule.prefill_time_ms_per_req * running > self._waste_ms:
            return "decode"
        self._waste_ms = 0
        return "prefill"


_MILLISECONDS: Final = 1e3


class LeastLaxity:
    """Least laxity first over predicted times (MindIE's stageSelectPolicy 2).

    laxity = (deadline − waited − predicted) / deadline, with prefillExpectedTime and
    decodeExpectedTime as deadlines. A prefill has waited as long as the request at the head; a
    decode has not waited. MindIE predicts by two models of its own, prompt tokens and rows with
    their blocks; here the one that predicts all steps knows both.

    Args:
        model: Predicts the time of a step; its owner lets it learn.
    """

    def __init__(self, model: StepTimeModel) -> None:
        self._model = model

    def choose(self, view: StageView, schedule: ScheduleConfig) -> Stage:
        """Prefill when its laxity is the smaller one, and where there is nothing to decode.

        MindIE asks whether nothing runs before it asks whether nothing waits. Here it is the other
        way round: with both true, swapped-out sequences come back, and they do so in decode steps.
        """
        if view.must_decode(schedule) or not view.num_waiting:
            return "decode"
        if not view.num_running:
            return "prefill"
        if self._prefill_laxity(view, schedule) < self._decode_laxity(view, schedule):
            return "prefill"
        return "decode"

    def _prefill_laxity(self, view: StageView, schedule: ScheduleConfig) -> float:
        predicted = self._model.predict(view.waiting_load())
        return laxity(schedule.prefill_expected_time, view.head_wait_s, predicted)

    def _decode_laxity(self, view: StageView, schedule: ScheduleConfig) -> float:
        predicted = self._model.predict(view.decode_load())
        return laxity(schedule.decode_expected_time, 0.0, predicted)


def laxity(deadline_ms: int, waited_s: float, predicted_s: float) -> float:
    """Share of the deadline that is left over once the stage is done; 0 with no deadline."""
    if deadline_ms == 0:
        return 0.0
    deadline_s = deadline_ms / _MILLISECONDS
    return (deadline_s - waited_s - predicted_s) / deadline_s
