"""Strategies static and dynamic: requests form a batch, all of which ends before the next forms."""

from math import inf

from tandem_engine.scheduler.policies.strategies.strategy import (
    StrategyContext,
    decode,
    finish_prompts,
    start_whole_prompts,
)
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.scheduler.step_builder import StepBuilder


class Static:
    """maxBatchSize requests form a batch: all their prompts, then decodes until the last one ends.

    For offline work. A request that stays alone would wait for ever, so maxFirstTokenWaitTime ends
    the wait; nothing else does.
    """

    def __init__(self, context: StrategyContext) -> None:
        self._batch = Batch(context)

    def fill(self, builder: StepBuilder) -> None:
        """Form a batch when no sequence runs; else go on with the running one."""
        self._batch.fill(builder, builder.schedule.max_first_token_wait_time / 1e3)


class Dynamic:
    """As static, but a batch forms after maxQueueDelayMicroseconds with as many as there are."""

    def __init__(self, context: StrategyContext) -> None:
        self._batch = Batch(context)

    def fill(self, builder: StepBuilder) -> None:
        """Form a batch when no sequence runs; else go on with the running one."""
        self._batch.fill(builder, builder.schedule.max_queue_delay_microseconds / 1e6)


class Batch:
    """Requests that begin together and end before others begin.

    Prompts that do not fit into one step follow in the steps after it: the batch is closed by its
    first step of decodes. Requests that come after it has formed do not join, nor those that would
    make it larger than maxBatchSize, even if others have ended by then.
    """

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        self._is_open = False
        # Seconds; when it formed.
        self._formed_at = -inf
        self._num_rows = 0

    def fill(self, builder: StepBuilder, longest_wait_s: float) -> None:
        """Form a batch, `longest_wait_s` after its first request at the latest, or go on."""
        if builder.is_async and self._is_open:
            # New rows may take the blocks that running ones are about to need: one step at a time.
            return
        queues = builder.queues
        finish_prompts(builder, self._context.order)
        is_over = not queues.num_running and not queues.swapped
        if is_over:
            self._is_open = _is_formed(builder, longest_wait_s)
            self._formed_at, self._num_rows = builder.now, 0
        if self._is_open:
            start_whole_prompts(builder, lambda sequence: self._may_join(builder, sequence))
            self._num_rows += builder.num_started_rows
        else:
            builder.waits.block_queue(Reason.BATCH_FORMING if is_over else Reason.BATCH_NOT_OVER)
        if not builder.rows.prefills:
            self._is_open = False
            decode(builder)
        if builder.rows.is_empty and queues.num_running and not builder.is_async:
            _bring_beams_back(builder)

    def _may_join(self, builder: StepBuilder, sequence: Sequence) -> bool:
        rows = self._num_rows + builder.num_started_rows + sequence.rows
        is_first = rows == sequence.rows
        fits = is_first or rows <= builder.limits.max_batch_size
        return fits and sequence.arrived <= self._formed_at


def _bring_beams_back(builder: StepBuilder) -> None:
    """Start the beams that all of the batch waits for: they were in it, and lost their blocks.

    Otherwise those that wait for them would lose theirs, to whom the next batch begins with, and so
    on for ever.
    """
    groups = {sequence.group for sequence in builder.queues.running()}
    start_whole_prompts(builder, lambda sequence: sequence.group in groups)


def _is_formed(builder: StepBuilder, longest_wait_s: float) -> bool:
    waiting = builder.queues.waiting
    oldest = waiting.oldest
    if oldest is None or len(waiting) >= builder.limits.max_batch_size:
        return True
    formed_at = oldest.arrived + longest_wait_s
    builder.waits.wake_by(formed_at)
    return builder.now >= formed_at
