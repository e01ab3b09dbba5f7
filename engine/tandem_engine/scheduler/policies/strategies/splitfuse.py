"""strategy splitfuse: decodes go first, prompt chunks fill the token budget. templateType Mix.

The idea is Dynamic SplitFuse of DeepSpeed-FastGen (Holmes et al., 2024) and chunked prefill of
Sarathi-Serve (Agrawal et al., 2024); the parameters are MindIE's, of both of its generations.
"""

from math import inf

from tandem_engine.api.config import TILE, ScheduleConfig
from tandem_engine.scheduler.orders.order import Key
from tandem_engine.scheduler.policies.budget import BudgetView
from tandem_engine.scheduler.policies.strategies.strategy import StrategyContext
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.scheduler.step_builder import StepBuilder


class SplitStart:
    """Decides if prompts are cut, by the number of sequences already in the batch.

    MindIE up to 2.3 documents the two parameters but not what exactly it counts; here it is
    the rows of the step being built: all decodes, and the prompts taken so far.
    """

    def __init__(self) -> None:
        self._latched = False

    def is_reached(self, schedule: ScheduleConfig, num_rows: int) -> bool:
        """Return True if a prompt that joins `num_rows` other rows is cut."""
        reached = num_rows >= schedule.split_start_rows
        if schedule.split_fuse.split_start_type:
            return reached
        self._latched = self._latched or reached
        return self._latched


class SplitFuse:
    """Every step does about the same work: decodes and chunks together, up to the budget."""

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        self._split_start = SplitStart()
        # Seconds; when a prompt was last in a step.
        self._prompts_at = -inf

    def fill(self, builder: StepBuilder) -> None:
        """Take all decodes, then chunks of prompts begun, then of prompts that wait."""
        max_token_budget = builder.max_token_budget = builder.schedule.split_fuse.split_chunk_tokens
        max_rows = min(builder.limits.max_batch_size, max_token_budget)
        builder.decode(max_rows, max_token_budget, max_drafts=_draft_tokens(builder))
        builder.resume(max_rows)
        builder.token_budget = self._budget(builder, _left_by_drafting(builder))
        self._overtake(builder)
        self._continue(builder)
        self._start(builder)
        if builder.rows.prefills:
            self._prompts_at = builder.now

    def _budget(self, builder: StepBuilder, max_token_budget: int) -> int:
        """Return the tokens of the step: splitChunkTokens, or what the targets leave of it."""
        prompts = builder.unfinished_prompts(self._context.order)
        oldest = builder.queues.waiting.oldest
        first = prompts[0] if prompts else None
        served = first or oldest
        if served is None:
            return max_token_budget
        return self._context.budget.choose(
            BudgetView(
                max_token_budget=max_token_budget,
                num_decodes=len(builder.rows.decodes),
                decode_tokens=builder.rows.num_tokens,
                decode_context=builder.rows.decode_context,
                slack_s=self._context.pace.slack(
                    builder.rows.decodes, builder.now, builder.tokens_ahead()
                ),
                prompt_tokens=_prompt_tokens(builder, max_token_budget),
                prompt_context=0 if first is None else first.num_computed,
                prompt_wait_s=builder.now - max(served.served_at, self._prompts_at),
            )
        )

    def _overtake(self, builder: StepBuilder) -> None:
        """Start waiting prompts that come before all begun ones, where there is a latency target.

        A prompt of many steps would otherwise make every short one behind it late.
        """
        if not self._context.always_splits:
            return
        begun = builder.unfinished_prompts(self._context.order)
        # None overtakes one that has waited too long.
        if begun and not builder.queues.waiting.is_overdue(begun[0], builder.now):
            self._start(builder, before=self._context.order.key(begun[0]))

    def _continue(self, builder: StepBuilder) -> None:
        begun = builder.unfinished_prompts(self._context.order)
        prompts = [sequence for sequence in begun if sequence not in builder.rows.prefills]
        for number, sequence in enumerate(prompts):
            left = self._tokens_left(builder, sequence)
            if self._is_cut(builder, sequence):
                left = self._share(builder, left, sharers=len(prompts) - number)
            builder.prefill(sequence, min(sequence.num_uncomputed, left))

    def _start(self, builder: StepBuilder, before: Key | None = None) -> None:
        split = builder.schedule.split_fuse
        kept_for: list[Sequence] = []

        def take(sequence: Sequence) -> Reason | None:
            is_overdue = sequence is builder.queues.waiting.overdue
            if before and not is_overdue and self._context.order.key(sequence) >= before:
                return Reason.TOKENS
            if self._tokens_left(builder, sequence) <= 0:
                is_too_small = (
                    builder.token_budget < split.split_chunk_tokens and not builder.rows.prefills
                )
                return Reason.CHUNK_TOO_SMALL if is_too_small else Reason.TOKENS
            if len(builder.unfinished_prompts()) >= split.max_num_partial_prefills:
                return Reason.PREFILL_ROWS
            uncomputed = builder.uncomputed(sequence)
            sequence.is_long = uncomputed > split.long_prefill_token_threshold
            if sequence.is_long and _num_long(builder) + len(kept_for) >= split.long_prefills:
                return Reason.LONG_PREFILLS
            reason = builder.start(sequence, lambda sequence: self._first_chunk(builder, sequence))
            is_first = not builder.waits.skipped and not builder.hits
            if reason is Reason.PREFIX_PENDING and sequence.is_long and is_first:
                # Or a long one behind it would take the limit that it will need.
                kept_for.append(sequence)
            return reason

        builder.admit_waiting(take)

    def _first_chunk(self, builder: StepBuilder, sequence: Sequence) -> int:
        left = self._tokens_left(builder, sequence)
        limit = builder.schedule.split_fuse.largest_chunk
        if limit is not None and self._is_cut(builder, sequence):
            left = min(left, limit)
        return min(sequence.num_uncomputed, left)

    def _is_cut(self, builder: StepBuilder, sequence: Sequence) -> bool:
        """Return True if the prompt takes what the step has left, instead of all that it needs."""
        if sequence.num_uncomputed > builder.schedule.max_prefill_tokens:
            return True  # no step takes all of it
        if not self._is_splitting(builder):
            return False
        split = builder.schedule.split_fuse
        is_short = sequence.num_prompt <= 2 * split.split_chunk_tokens
        return not (split.split_type and is_short) or self._context.always_splits

    def _is_splitting(self, builder: StepBuilder) -> bool:
        """Apply splitStartBatchSize and splitStartType; a latency target always splits.

        MindIE up to 2.3 documents the parameters, but neither what exactly they count nor how a
        prompt that is not cut combines with the token budget. Here they count the rows of the
        step; before cutting starts, whole prompts share maxPrefillTokens; after it, a prompt that
        splitType spares begins only while the step has tokens left.
        """
        return self._context.always_splits or self._split_start.is_reached(
            builder.schedule, len(builder.rows)
        )

    def _tokens_left(self, builder: StepBuilder, sequence: Sequence) -> int:
        """Return the tokens that the step has left for the prompt; 0: it has to wait."""
        whole = builder.schedule.max_prefill_tokens - builder.rows.prefill_tokens
        if not self._is_splitting(builder):
            fits = sequence.num_uncomputed <= whole
            return whole if fits or self._is_cut(builder, sequence) else 0
        left = max(0, builder.token_budget - builder.rows.num_tokens)
        if left == 0 or self._is_cut(builder, sequence):
            return left
        return sequence.num_uncomputed if sequence.num_uncomputed <= whole else 0

    def _share(self, builder: StepBuilder, left: int, *, sharers: int) -> int:
        """Return prefillChunkSize; absent: an even share of the tokens left, in whole tiles."""
        limit = builder.schedule.split_fuse.largest_chunk
        if limit is not None:
            return min(left, limit)
        if self._context.always_splits:
            # Shared out, all of them would be late together.
            return left
        share = -(-left // sharers)
        return min(left, -(-share // TILE) * TILE)


def _left_by_drafting(builder: StepBuilder) -> int:
    """Return the tokens of the step, without those that drafting cost: half of the rest at most."""
    rows = builder.rows.num_tokens
    rest = max(0, builder.max_token_budget - rows)
    return rows + max(rest - builder.num_drafting_tokens, rest // 2)


def _draft_tokens(builder: StepBuilder) -> int:
    """Return the drafts of the step at most: where prompts wait, half of what rows leave."""
    queues = builder.queues
    rest = max(0, builder.max_token_budget - len(queues.decoding))
    return rest // 2 if queues.prefilling or len(queues.waiting) else rest


def _num_long(builder: StepBuilder) -> int:
    return sum(sequence.is_long for sequence in builder.unfinished_prompts())


def _prompt_tokens(builder: StepBuilder, most: int) -> int:
    """Tokens that prompts, begun or waiting, could use; it may stop counting at `most`."""
    begun = sum(sequence.num_uncomputed for sequence in builder.queues.prefilling.values())
    if begun >= most:
        return begun
    # Each has at least one.
    return begun + builder.queues.waiting.num_tokens(most - begun)
