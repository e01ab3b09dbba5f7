"""The update after a step: the rows' counts, their tokens, and the sequences that end."""

from collections import abc
from collections.abc import Iterable
from itertools import islice
from math import inf
from typing import Final

from tandem_engine.api.output import FinishReason
from tandem_engine.api.step import Advance, SampledToken, Step, StepResult
from tandem_engine.scheduler.beam_updater import BeamUpdater
from tandem_engine.scheduler.kv_blocks import KVBlocks
from tandem_engine.scheduler.pace import Pace
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.sequence import RUNNING, Sequence, SequenceGroup

Yielding = Iterable[tuple[Sequence, abc.Sequence[SampledToken] | None]]

# What a NamedTuple calls, past a function of its own that takes as long again.
_NEW: Final = tuple.__new__


class StepUpdater:
    """Updates sequences by the result of a step.

    Without async scheduling, `update` does all. With it, `reserve` counts a step while it is
    computed, and `commit` takes over its tokens.

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

    def update(
        self, step: Step, rows: abc.Sequence[Sequence], result: StepResult, now: float
    ) -> list[Advance]:
        """Count what is computed, and append the tokens; return the sequences that got some.

        Args:
            step: The step that was computed.
            rows: Its sequences. Those that have ended meanwhile are skipped.
            result: The runner's result.
            now: Seconds.
        """
        num_decodes = 0 if self._has_drafts else step.num_decodes
        yielding = _with_tokens(rows, step.sequence_ids, num_decodes, result)
        advances = self._update_decodes(yielding, result, now)
        for row, num_tokens in zip(rows[num_decodes:], step.num_tokens[num_decodes:], strict=True):
            advances += self._update_row(row, num_tokens, result, now)
        return advances

    def reserve(self, step: Step, rows: abc.Sequence[Sequence]) -> None:
        """Count all of a step but its tokens, while it is computed: each row that yields gets one.

        Blocks are not shared before they are computed. The end by length is known; a row that ends
        otherwise is computed once more, and the result is discarded.
        """
        for row in rows[: step.num_decodes]:
            if row.state is not RUNNING:
                continue
            row.num_computed = known = row.num_tokens
            row.num_tokens = known + 1
            if not row.tokens_until_check:
                self._prepare_token(row)
        for row, num_tokens in zip(
            rows[step.num_decodes :], step.num_tokens[step.num_decodes :], strict=True
        ):
            if row.state is RUNNING:
                self._reserve_chunk(row, num_tokens)

    def commit(self, rows: abc.Sequence[Sequence], result: StepResult, now: float) -> list[Advance]:
        """Take over the tokens of a step that was reserved; return the rows that got some."""
        advances: list[Advance] = []
        note, pace, commit_token = advances.append, self.pace, self.commit_token
        for row in rows:
            if row.state is not RUNNING:
                continue
            tokens = result.tokens.get(row.sequence_id)
            if tokens is None:
                # A later step may have its next chunk, which is counted and not computed yet.
                if row.num_computed >= row.next_seal and not row.num_in_flight:
                    self._blocks.seal(row)
                continue
            reason = commit_token(row, tokens[0].token_id)
            note(_NEW(Advance, (row.sequence_id, tokens, reason)))
            if pace is not None and (reason is not None or row.first_token_at == inf):
                _note_latency(pace, row, now, has_ended=reason is not None)
        return advances

    def commit_token(self, row: Sequence, token_id: int) -> FinishReason | None:
        """Take over the newest token of a row, which is counted already: keys, blocks, the end.

        The one statement of what a token does to its row, for every way in which rows get some;
        `_update_decodes` repeats it inline.

        Returns:
            Why the row ends with it; None: it goes on.
        """
        if row.tail is not None:
            row.tail.append(token_id)
        if row.tokens_until_check and token_id not in row.stop_token_ids:
            row.tokens_until_check -= 1
            return None
        return self._check(row, token_id)

    def _reserve_chunk(self, row: Sequence, num_tokens: int) -> None:
        attained = row.num_attained + num_tokens
        row.num_computed = min(row.num_computed + num_tokens, row.num_tokens)
        row.num_attained = attained
        yields = row.num_computed == row.num_tokens
        if yields:
            row.count_token()
        if row.is_prefilling and row.is_decoding:
            self._queues.decode(row)
        if yields:
            self._prepare_token(row)

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

    def _update_decodes(self, rows: Yielding, result: StepResult, now: float) -> list[Advance]:
        """Update rows that went on with their output, each by one token.

        Nearly all of the scheduler's work in most steps, so `commit_token` is inlined: most rows
        need no call. `_update_row` does the same for any row (tests/unit/engine/test_update.py).
        """
        advances: list[Advance] = []
        note, pace = advances.append, self.pace
        for row, tokens in rows:
            if not row.is_plain or tokens is None or len(tokens) != 1 or row.state is not RUNNING:
                advances += self._update_row(row, 1, result, now)
                continue
            row.num_computed = computed = row.num_tokens
            row.num_tokens = computed + 1
            token_id = tokens[0].token_id
            if row.tail is not None:
                row.tail.append(token_id)
            reason: FinishReason | None = None
            if not row.tokens_until_check or token_id in row.stop_token_ids:
                reason = self._check(row, token_id)
            else:
                row.tokens_until_check -= 1
            note(_NEW(Advance, (row.sequence_id, tokens, reason)))
            if pace is not None and (reason is not None or row.first_token_at == inf):
                _note_latency(pace, row, now, has_ended=reason is not None)
        return advances

    def _check(self, row: Sequence, token_id: int) -> FinishReason | None:
        """Seal a computed block, key a filled one, end the row if it is over; return why it is."""
        if row.num_computed >= row.next_seal:
            self._blocks.seal(row)
        row.close_block()
        row.count_until_check()
        self._blocks.note_short(row)
        reason = row.reason_to_end(token_id)
        if reason is not None:
            self.end(row)
        return reason

    def _update_row(
        self, sequence: Sequence, num_tokens: int, result: StepResult, now: float
    ) -> list[Advance]:
        """Update any row."""
        if sequence.state is not RUNNING:
            return []
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


def _with_tokens(
    rows: abc.Sequence[Sequence], ids: abc.Sequence[str], count: int, result: StepResult
) -> Yielding:
    """Return the first `count` rows, each with the tokens that it yielded."""
    tokens, first_ids = result.tokens, list(ids[:count])
    if [*islice(tokens, count)] == first_ids:
        # Most runners give them in the order of the rows; looking each one up costs more.
        return zip(rows[:count], tokens.values(), strict=False)
    return zip(rows[:count], map(tokens.get, first_ids), strict=True)
