"""Input of a stage policy: the scheduler before a step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.latency.step_load import StepLoad

Stage = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """The scheduler before a step of the strategy continuous."""

    num_waiting: int
    """Requests that wait for a prefill, fresh or to be recomputed."""
    num_running: int
    """Sequences that decode; their prompt is done."""
    num_swapped: int
    """Sequences whose blocks are in host memory."""
    head_wait_s: float
    """Age of the oldest waiting request in seconds; 0 with none."""
    waiting_load: Callable[[], StepLoad]
    """Adds up the prompts of up to maxBatchSize waiting requests; called only where a policy asks
    for it."""
    decode_load: Callable[[], StepLoad]
    """Adds up a decode of running and swapped sequences; called only as the one above."""
    free_share: float
    """Free KV blocks of all, from 0 to 1."""
    last_step_empty: bool
    """True if the step before this one had no row."""
    max_prefill_batch_size: int | None = None
    """The limit that the batch size policy has in force; None: that of the settings."""

    def prefill_rows(self, schedule: ScheduleConfig) -> int:
        """Sequences that one prefill step may have now; 0: prefills are held back."""
        if self.max_prefill_batch_size is None:
            return schedule.prefill_rows
        return min(self.max_prefill_batch_size, schedule.prefill_rows)

    def must_decode(self, schedule: ScheduleConfig) -> bool:
        """Return True if sequences run and a prefill step would be empty.

        The last step was: a prefill without blocks or rows would be chosen again and again. MindIE
        asks this before any stageSelectPolicy. Or prefills are held back.
        """
        if not self.num_running:
            return False
        return self.last_step_empty or not self.prefill_rows(schedule)
