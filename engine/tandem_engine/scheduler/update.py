"""What a step came to: the rows' counts, their tokens, and who ends with them."""

from collections.abc import Iterable
from collections.abc import Sequence as List
from itertools import islice
from math import inf
from typing import Final

from tandem_engine.api.output import FinishReason
from tandem_engine.api.step import Advance, SampledToken, Step, StepResult
from tandem_engine.scheduler.beam.beam_updater import BeamUpdater
from tandem_engine.scheduler.kv_blocks import KVBlocks
from tandem_engine.scheduler.policies.budget import Pace
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.sequence import RUNNING, Sequence, SequenceGroup

Yielding = Iterable[tuple[Sequence, List[SampledToken] | None]]

# What a NamedTuple calls, past a function of its own that takes as long again.
_NEW: Final = tuple.__new__


class StepUpdater:
    """Books what a step computed.

    Args:
        queues: Where its sequences are.
        blocks: Their KV blocks.
        has_drafts: Whether a decode row may have more than one token.
    """

    def __init__(self, queues: Queues, blocks: KVBlocks, *, has_drafts: bool) -> None:
        self._queues = queues
        self._blocks = blocks
        self._has_drafts = has_drafts
        self.beams = BeamUpdater(queues, blocks)
        """What moves the beams."""
        self.pace: Pace | None = None
        """What learns how the promises were kept; None: no TPOT is promised."""

    def update(
        self, step: Step, rows: List[Sequence], result: StepResult, now: float
    ) -> list[Advance]:
        """Note what is computed, and the tokens that came of it; return who got some.

        Args:
            step: What was computed.
            rows: Its sequences. Those that have ended meanwhile are passed over.
            result: What the runner made of it.
            now: Seconds.
        """
        num_decodes = 0 if self._has_drafts else step.num_decodes
        yielding = _with_tokens(rows, step.sequence_ids, num_decodes, result)
        advances = self._update_decodes(yielding, result, now)
        for row, num_tokens in zip(rows[num_decodes:], step.num_tokens[num_decodes:], strict=True):
            advances += self._update_row(row, num_tokens, result, now)
        return advances

    def reserve(self, step: Step, rows: List[Sequence]) -> None:
        """Book all of a step but its tokens, while it is computed: each row that yields gets one.

        Blocks are not shown to others before they are computed. Who ends by length is known; who
        ends otherwise is in the next step in vain.
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

    def commit(self, rows: List[Sequence], result: StepResult, now: float) -> list[Advance]:
        """Take over the tokens of a step that was reserved; return the rows that got some."""
        advances: list[Advance] = []
        note, pace, commit_token = advances.append, self.pace, self.commit_token
        for row in rows:
            if row.state is not RUNNING:
                continue
            tokens = result.tokens.get(row.sequence_id)
            if tokens is None:
                if row.num_computed >= row.next_seal:
                    self._blocks.seal(row)
                continue
            reason = commit_token(row, tokens[0].token_id)
            note(_NEW(Advance, (row.sequence_id, tokens, reason)))
            if pace is not None and (reason is not None or row.first_token_at == inf):
                _note_latency(pace, row, now, has_ended=reason is not None)
        return advances

    def commit_token(self, row: Sequence, token_id: int) -> FinishReason | None:
        """Take over the newest token of a row, which is counted already.

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
            row.num_tokens += 1
            row.tokens_until_check = 0
        if row.is_prefilling and row.is_decoding:
            self._queues.decode(row)
        if yields:
            self._prepare_token(row)

    def _prepare_token(self, row: Sequence) -> None:
        """Note what a row needs for the token that it will get, or that it is its last."""
        self._blocks.note_short(row)
        if row.num_tokens >= row.max_total:
            self._queues.retire(row)

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free what it holds."""
        self._queues.end(sequence)
        self._blocks.drop(sequence)
        self.leave(sequence.group)

    def leave(self, group: SequenceGroup) -> None:
        """Count one sequence of a request less."""
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
        """Seal a block that is computed, name one that is filled, end the sequence; say why."""
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
        """Book any row."""
        if sequence.state is not RUNNING:
            return []
        self._count_computed(sequence, num_tokens)
        if not sequence.is_plain:
            return self._update_group(sequence, result, now)
        tokens = result.tokens.get(sequence.sequence_id)
        return [] if tokens is None else [self._append_tokens(sequence, tokens, now)]

    def _count_computed(self, sequence: Sequence, num_tokens: int) -> None:
        """Note that tokens are computed. Drafts count once it is known which were right."""
        attained = sequence.num_attained + num_tokens
        computed = min(sequence.num_computed + num_tokens, sequence.num_tokens)
        sequence.num_computed, sequence.num_attained = computed, attained
        if computed >= sequence.next_seal:
            self._blocks.seal(sequence)
        if sequence.is_prefilling and sequence.num_tokens - computed == 1:
            self._queues.decode(sequence)

    def _update_group(self, sequence: Sequence, result: StepResult, now: float) -> list[Advance]:
        """Hand a sequence, and those that move with it or wait for its prompt, their tokens."""
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
        """The other choices of a request: they share the prompt that the first has computed."""
        group = first.group
        children = [self._blocks.fork(first, sequence_id) for sequence_id in group.pending_forks]
        self._queues.stand_for(first, 1)
        group.pending_forks = ()
        first.is_plain = True
        for child in children:
            self._queues.join(child)
        return children

    def _append_tokens(self, row: Sequence, tokens: List[SampledToken], now: float) -> Advance:
        """Append the tokens that a row yielded, up to one that ends it."""
        reason: FinishReason | None = None
        for number, token in enumerate(tokens, 1):
            row.num_tokens += 1
            row.tokens_until_check = 0
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
    """Note when the first token came, and what the promises came to."""
    if sequence.first_token_at == inf:
        sequence.first_token_at = now
        pace.note_first_token(now - sequence.arrived)
    elif has_ended:
        pace.note_end((now - sequence.first_token_at) / (sequence.num_output - 1))


def _with_tokens(rows: List[Sequence], ids: List[str], count: int, result: StepResult) -> Yielding:
    """The first `count` rows, each with what it yielded."""
    tokens, first_ids = result.tokens, list(ids[:count])
    if [*islice(tokens, count)] == first_ids:
        # As most runners tell it: in the order of the rows. To look each one up costs more.
        return zip(rows[:count], tokens.values(), strict=False)
    return zip(rows[:count], map(tokens.get, first_ids), strict=True)
