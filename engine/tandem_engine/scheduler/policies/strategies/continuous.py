"""strategy continuous: iteration-level scheduling (Orca, Yu et al., 2022), phases apart.

MindIE's templateType Standard: a step is all prefill, with whole prompts, or all decode;
stageSelectPolicy says which.
"""

from tandem_engine.scheduler.policies.stages import StageView
from tandem_engine.scheduler.policies.strategies.strategy import (
    StrategyContext,
    decode,
    finish_prompts,
    start_whole_prompts,
)
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.step_builder import StepBuilder


class Continuous:
    """Requests join and leave at every step."""

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        self._last_was_empty = False
        # Steps of prompts in a row.
        self._num_prefills = 0

    def fill(self, step: StepBuilder) -> None:
        """Take prompts or decodes; the other when there is none of the one.

        Prompts that end with their first token, or lose their blocks again, never fill the batch.
        If they do not stop coming, no stage policy ever decodes: so there are at most as many steps
        of prompts in a row as the batch has rows.
        """
        self._num_prefills += 1
        if self._num_prefills > step.limits.max_batch_size:
            self._decode(step)
        if step.rows.is_empty:
            finish_prompts(step, self._context.order)
        else:
            step.waits.block_queue(Reason.OTHER_STAGE)
        if step.rows.is_empty:
            self._choose(step)
        self._last_was_empty = step.rows.is_empty

    def _decode(self, step: StepBuilder) -> None:
        self._num_prefills = 0
        decode(step)

    def _choose(self, step: StepBuilder) -> None:
        if self._context.stages.choose(self._view(step), step.schedule) == "prefill":
            start_whole_prompts(step)
        if step.rows.is_empty:
            step.waits.block_queue(step.waits.blocked_by or Reason.OTHER_STAGE)
            self._decode(step)
        if step.rows.is_empty and step.queues.waiting.oldest is not None:
            delay_s = step.schedule.max_queue_delay_microseconds / 1e6
            ripe_at = step.queues.waiting.oldest.arrived + delay_s
            step.waits.wake_by(ripe_at)
            if step.now >= ripe_at:
                start_whole_prompts(step)

    def _view(self, step: StepBuilder) -> StageView:
        queues, pool = step.queues, step.blocks.pool
        oldest = queues.waiting.oldest
        return StageView(
            num_waiting=len(queues.waiting),
            num_running=len(queues.decoding),
            num_swapped=len(queues.swapped),
            head_wait_s=0.0 if oldest is None else step.now - oldest.arrived,
            waiting_tokens=lambda: queues.waiting.first_tokens(step.limits.max_batch_size),
            running_blocks=lambda: sum(len(one.table) for one in queues.running()),
            free_share=pool.num_free / pool.num_blocks,
            last_step_empty=self._last_was_empty,
            max_prefill_batch_size=step.limits.max_prefill_batch_size,
        )
