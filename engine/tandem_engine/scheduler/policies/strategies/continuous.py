"""strategy continuous: iteration-level scheduling (Orca, Yu et al., 2022), stages apart.

MindIE's templateType Standard: a step is all prefill, with whole prompts, or all decode;
stageSelectPolicy says which.
"""

from collections.abc import Collection, Iterable
from itertools import islice

from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.policies.stages import StageView
from tandem_engine.scheduler.policies.strategies.strategy import (
    StrategyContext,
    decode,
    finish_prompts,
    start_whole_prompts,
)
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.scheduler.step_builder import StepBuilder


class Continuous:
    """Requests join and leave at every step."""

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        self._last_was_empty = False
        # Steps of prompts in a row.
        self._num_prefills = 0

    def fill(self, builder: StepBuilder) -> None:
        """Take prompts or decodes; the other when there is none of the one.

        Prompts that end with their first token, or lose their blocks again, never fill the batch.
        If they do not stop coming, no stage policy ever decodes: so there are at most as many steps
        of prompts in a row as the batch has rows.
        """
        self._num_prefills += 1
        if self._num_prefills > builder.limits.max_batch_size:
            self._decode(builder)
        if builder.rows.is_empty:
            finish_prompts(builder, self._context.order)
        else:
            builder.waits.block_queue(Reason.OTHER_STAGE)
        if builder.rows.is_empty:
            self._choose(builder)
        self._last_was_empty = builder.rows.is_empty

    def _decode(self, builder: StepBuilder) -> None:
        self._num_prefills = 0
        decode(builder)

    def _choose(self, builder: StepBuilder) -> None:
        if self._context.stages.choose(self._view(builder), builder.schedule) == "prefill":
            start_whole_prompts(builder)
        if builder.rows.is_empty:
            builder.waits.block_queue(builder.waits.blocked_by or Reason.OTHER_STAGE)
            self._decode(builder)
        if builder.rows.is_empty and builder.queues.waiting.oldest is not None:
            delay_s = builder.schedule.max_queue_delay_microseconds / 1e6
            ripe_at = builder.queues.waiting.oldest.arrived + delay_s
            builder.waits.wake_by(ripe_at)
            if builder.now >= ripe_at:
                start_whole_prompts(builder)

    def _view(self, builder: StepBuilder) -> StageView:
        queues, blocks = builder.queues, builder.blocks
        oldest = queues.waiting.oldest
        return StageView(
            num_waiting=len(queues.waiting),
            num_running=len(queues.decoding),
            num_swapped=len(queues.swapped),
            head_wait_s=0.0 if oldest is None else builder.now - oldest.arrived,
            waiting_load=lambda: _prompts(islice(queues.waiting, builder.limits.max_batch_size)),
            decode_load=lambda: _decodes((*queues.decoding.values(), *queues.swapped.values())),
            free_share=blocks.num_free / blocks.num_blocks,
            last_step_empty=self._last_was_empty,
            max_prefill_batch_size=builder.limits.max_prefill_batch_size,
        )


def _prompts(waiting: Iterable[Sequence]) -> StepLoad:
    """Return the work of whole prompts."""
    lengths = [sequence.num_tokens for sequence in waiting]
    return StepLoad(
        num_tokens=sum(lengths),
        num_rows=len(lengths),
        chunk_context=sum(length * length / 2 for length in lengths),
        decode_context=0,
    )


def _decodes(sequences: Collection[Sequence]) -> StepLoad:
    """Return the work of one more token each."""
    return StepLoad(
        num_tokens=len(sequences),
        num_rows=len(sequences),
        chunk_context=0.0,
        decode_context=sum(sequence.num_tokens for sequence in sequences),
    )
