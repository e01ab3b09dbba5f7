"""stageSelectPolicy 1, of old supportSelectBatch: the accumulated-waste formula."""

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.policies.stages.stage_view import Stage, StageView


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
