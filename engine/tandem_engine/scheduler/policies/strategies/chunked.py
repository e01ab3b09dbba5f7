"""strategy chunked: prompt chunks and decodes in alternating steps.

A long prompt holds decodes up for one chunk of maxPrefillTokens, not for all of its length.
"""

from tandem_engine.scheduler.policies.strategies.strategy import StrategyContext, decode
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.scheduler.step_builder import StepBuilder


class Chunked:
    """One step of chunks, one of decodes, as long as there are both."""

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        self._decodes_next = False

    def fill(self, builder: StepBuilder) -> None:
        """Take what is next in turn; the other one when there is nothing of it."""
        stages = [self._prefill, decode]
        for stage in reversed(stages) if self._decodes_next else stages:
            stage(builder)
            if not builder.rows.is_empty:
                break
        # A prompt of one token starts as a row that decodes.
        self._decodes_next = bool(builder.rows.prefills or builder.num_started_rows)
        if not builder.rows.prefills:
            builder.waits.block_queue(builder.waits.blocked_by or Reason.OTHER_STAGE)

    def _prefill(self, builder: StepBuilder) -> None:
        most = builder.schedule.max_prefill_tokens

        def chunk(sequence: Sequence) -> int:
            return min(sequence.num_uncomputed, most - builder.rows.prefill_tokens)

        def take(sequence: Sequence) -> Reason | None:
            if builder.rows.prefill_tokens >= most:
                return Reason.TOKENS
            return builder.start(sequence, chunk)

        for sequence in builder.unfinished_prompts(self._context.order):
            builder.prefill(sequence, chunk(sequence))
        builder.admit_waiting(take)
