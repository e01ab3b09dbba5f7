"""The update after a step: the rows' counts, their tokens, and the sequences that end."""

from collections import abc
from math import inf
from typing import Final

from tandem_engine.api.output import FinishReason
from tandem_engine.api.step import Advance, SampledToken, Step, StepResult
from tandem_engine.scheduler.beam_updater import BeamUpdater
from tandem_engine.scheduler.kv_blocks import KVBlocks
from tandem_engine.scheduler.pace import Pace
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.sequence import RUNNING, Sequence, SequenceGroup

# What a NamedTuple calls, past a function of its own that takes as long again.
_NEW: Final = tuple.__new__


class StepUpdater:
    """Updates sequences by the result of a step.

    `commit` counts what the step computed and takes over its tokens; with async scheduling,
    `reserve` has counted it before. Rows whose number of tokens nothing says before (drafts, beams,
    choices that are to be forked) go another way, and are never reserved.

    Args:
        queues: The queues of its sequences.
        blocks: Their KV blocks.
        has_drafts: True when a decode row may have more than one token.
    """

    def __init__(self, queues: Queues, blocks: KVBlocks, *, has_drafts: bool) -> None:
        self._queues = queues
        self._blocks = blocks
        self._has_drafts = has_drafts
        self.beams = BeamUpdater(queues, blocks, self.commit_token)
        """Moves the beams."""
        self.pace: Pace | None = None
        """Learns from kept and missed targets; None: there are none."""

    def reserve(self, step: Step, rows: abc.Sequence[Sequence]) -> None:
        """Count a step while it is computed: each row that yields gets a token.

        Blocks are not shared before they are computed. The end by length is known; a row that ends
        otherwise is computed once more, and the result is discarded.

        Args:
            step: A step without drafts.
            rows: Its sequences, all plain. Those that have ended meanwhile are skipped.
        """
        num_decodes = step.num_decodes
        self._count_decodes(rows[:num_decodes])
        for row, num_tokens in zip(rows[num_decodes:], step.num_tokens[num_decodes:], strict=True):
            if row.state is RUNNING:
                self._count_chunk(row, num_tokens)

    def commit(
        self,
        step: Step,
        rows: abc.Sequence[Sequence],
        result: StepResult,
        now: float,
        *,
        is_reserved: bool,
    ) -> list[Advance]:
        """Take over the result of a step; return the rows that got tokens.

        Args:
            step: The step that was computed.
            rows: Its sequences. Those that have ended meanwhile are skipped.
            result: The runner's result.
            now: Seconds.
            is_reserved: True if the step is counted already.
        """
        advances: list[Advance] = []
        note, pace = advances.append, self.pace
        has_drafts = bool(step.drafts)
        if not is_reserved and not has_drafts:
            self._count_decodes(rows[: step.num_decodes])
        yielded = map(result.tokens.get, step.sequence_ids)
        for row, num_tokens, tokens in zip(rows, step.num_tokens, yielded, strict=True):
            if row.state is not RUNNING:
                continue
            if has_drafts or not row.is_plain:
                advances += self._update_row(row, num_tokens, result, now)
                continue
            if row.is_prefilling and not is_reserved:
                self._count_chunk(row, num_tokens)
            if tokens is None:
                self._seal_chunk(row)
                continue
            token_id, reason = tokens[0].token_id, None
            if row.tokens_until_check and token_id not in row.stop_token_ids:
                # Most rows need no call: nothing changes but what every token changes.
                row.tokens_until_check -= 1
                if row.tail is not None:
                    row.tail.append(token_id)
            else:
                reason = self.commit_token(row, token_id)
            note(_NEW(Advance, (row.sequence_id, tokens, reason)))
            if pace is not None and (reason is not None or row.first_token_at == inf):
                _note_latency(pace, row, now, has_ended=reason is not None)
        return advances

    def commit_token(self, row: Sequence, token_id: int) -> FinishReason | None:
        """Take over the newest token of a row, which is counted already.

        It seals a computed block, keys a filled one, and ends the row if it is over.

        Returns:
            Why the row ends with it; None: it goes on.
        """
        if row.tail is not None:
            row.tail.append(token_id)
        if row.num_computed >= row.next_seal:
            self._blocks.seal(row)
        row.close_block()
        row.count_until_check()
        self._blocks.note_short(row)
        reason = row.reason_to_end(token_id)
        if reason is not None:
            self.end(row)
        return reason

    def _count_decodes(self, rows: abc.Sequence[Sequence]) -> None:
        """Count what a step computes for plain rows that go on with their output by one token."""
        for row in rows:
            if row.state is not RUNNING or not row.is_plain:
                continue
            row.num_computed = known = row.num_tokens
            row.num_tokens = known + 1
            if not row.tokens_until_check:
                self._prepare_token(row)

    def _count_chunk(self, row: Sequence, num_tokens: int) -> None:
        """Count the tokens of a prompt, and the one that it yields with the last of them."""
        attained = row.num_attained + num_tokens
        row.num_computed = min(row.num_computed + num_tokens, row.num_tokens)
        row.num_attained = attained
        yields = row.num_computed == row.num_tokens
        if yields:
            row.count_token()
        if row.is_decoding:
            self._queues.decode(row)
        if yields:
            self._prepare_token(row)

    def _seal_chunk(self, row: Sequence) -> None:
        """Seal what a prompt has computed, unless a later step has its next chunk: that counts."""
        if row.num_computed >= row.next_seal and not row.num_in_flight:
            self._blocks.seal(row)

    def _prepare_token(self, row: Sequence) -> None:
        """List the block that a row needs for its next token, or retire it if that is its last."""
        self._blocks.note_short(row)
        if row.num_tokens >= row.max_total:
            self._queues.retire(row)

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence, in any queue, and free its blocks."""
        self._queues.end(sequence)
        self._blocks.drop(sequence)
        self.leave(sequence.group)

    def leave(self, group: SequenceGroup) -> None:
        """Count one sequence of a request less, and drop its footprint with the last."""
        group.num_left -= 1
        if not group.num_left and group.is_admitted:
            self._blocks.leave(group)

    def _update_row(
        self, sequence: Sequence, num_tokens: int, result: StepResult, now: float
    ) -> list[Advance]:
        """Count a row that was not reserved, and take over its tokens."""
        self._count_computed(sequence, num_tokens)
        if not sequence.is_plain:
            return self._update_group(sequence, result, now)
        tokens = result.tokens.get(sequence.sequence_id)
        return [] if tokens is None else [self._append_tokens(sequence, tokens, now)]

    def _count_computed(self, sequence: Sequence, num_tokens: int) -> None:
        """Count computed tokens. Drafts count once it is known which were right."""
        attained = sequence.num_attained + num_tokens
        computed = min(sequence.num_computed + num_tokens, sequence.num_tokens)
        sequence.num_computed, sequence.num_attained = computed, attained
        if computed >= sequence.next_seal:
            self._blocks.seal(sequence)
        if sequence.is_prefilling and sequence.num_tokens - computed == 1:
            self._queues.decode(sequence)

    def _update_group(self, sequence: Sequence, result: StepResult, now: float) -> list[Advance]:
        """Give a sequence, and those that move with it or wait for its prompt, their tokens."""
        if sequence.group.search is not None:
            return self.beams.advance(sequence, result)
        tokens = result.tokens.get(sequence.sequence_id)
        if tokens is None:
            return []
        forks = self._fork_choices(sequence)
        advances = [
            self._append_tokens(child, result.tokens[child.sequence_id], now) for child in forks
        ]
        if not sequence.group.is_orphaned:
            return [self._append_tokens(sequence, tokens, now), *advances]
        self.end(sequence)
        return advances

    def _fork_choices(self, first: Sequence) -> list[Sequence]:
        """Fork the other choices of a request: they share the prompt that the first computed."""
        group = first.group
        children = [self._blocks.fork(first, sequence_id) for sequence_id in group.pending_forks]
        self._queues.stand_for(first, 1)
        group.pending_forks = ()
        first.is_plain = True
        for child in children:
            self._queues.join(child)
        return children

    def _append_tokens(
        self, row: Sequence, tokens: abc.Sequence[SampledToken], now: float
    ) -> Advance:
        """Append the tokens that a row yielded, up to one that ends it."""
        reason: FinishReason | None = None
        for number, token in enumerate(tokens, 1):
            row.count_token()
            reason = self.commit_token(row, token.token_id)
            if reason is not None:
                tokens = tokens[:number]
                break
        if self.pace is not None:
            _note_latency(self.pace, row, now, has_ended=reason is not None)
        if reason is None:
            # All but the newest are in the cache: they are the drafts that were right.
            row.hold(row.num_tokens - 1)
            if self._has_drafts:
                self._blocks.trim(row)
            if row.is_prefilling:
                self._queues.decode(row)
        return Advance(row.sequence_id, tokens, reason)


def _note_latency(pace: Pace, sequence: Sequence, now: float, *, has_ended: bool) -> None:
    """Note the time of the first token, and let the pace learn from TTFT and TPOT."""
    if sequence.first_token_at == inf:
        sequence.first_token_at = now
        pace.note_first_token(now - sequence.arrived)
    elif has_ended:
        pace.note_end((now - sequence.first_token_at) / (sequence.num_output - 1))
