"""Builds one step: takes rows within the limits, and notes the reasons that others wait."""

from collections import abc
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.step import BeamMove, Step
from tandem_engine.scheduler.kv_blocks import KVBlocks
from tandem_engine.scheduler.orders import Order
from tandem_engine.scheduler.orders.order import Key, arrival
from tandem_engine.scheduler.preemption import Preemptor
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence, State
from tandem_engine.scheduler.step_rows import BatchLimits, StepRows
from tandem_engine.scheduler.wait_reasons import WaitReasons

SKIPPING_REASONS: Final = frozenset({Reason.PREFIX_PENDING, Reason.LONG_PREFILLS})
"""Reasons that keep one sequence from starting, and not those behind it."""


@dataclass(slots=True, eq=False, kw_only=True)
class StepBuilder:
    """Collects the rows of one step; a strategy asks it, in its own order, to take sequences.

    It keeps what binds every strategy: rows, blocks, and which sequences lose them. Limits on
    tokens are the strategy's: it knows if the step is a prefill, a decode or a mixed one.
    """

    schedule: ScheduleConfig
    queues: Queues
    blocks: KVBlocks
    now: float
    """Seconds."""
    limits: BatchLimits
    """Rows of the step, and rows of it that may work on their prompt."""
    proposals: Mapping[str, abc.Sequence[int]]
    """Sequence id → guesses for its next tokens."""
    expected_drafts: Callable[[str, int], float]
    """Sequence id and its drafts → how many of them are expected to be right."""
    num_drafting_tokens: int = 0
    """Tokens of the budget that proposing has cost."""
    drafting_s: float = 0.0
    """Seconds until `now` that proposing took."""
    num_stages: int = 1
    """Pipeline stages, among which the decode rows are shared out."""
    rows: StepRows
    waits: WaitReasons
    preemptor: Preemptor
    hits: dict[str, int] = field(default_factory=dict)
    """Sequences that were admitted → tokens that the prefix cache had."""
    num_started_rows: int = 0
    """Rows of the sequences that waited until this step."""
    token_budget: int = 0
    """Tokens that the strategy allowed; 0: it has no such limit."""
    max_token_budget: int = 0
    """The upper bound of the budget; 0: there is none."""

    @property
    def is_async(self) -> bool:
        """True while the step before it is still computed: nothing may be preempted then."""
        return self.preemptor.is_async

    @property
    def first_needs(self) -> int:
        """Blocks that the first in line needs, those that stay free for others included."""
        first = self.waits.first
        if first is None:
            return 0
        return self.blocks.blocks_for(first.num_tokens) + self._watermark()

    def decode(
        self, max_rows: int, max_tokens: int | None = None, *, max_drafts: float = inf
    ) -> None:
        """Take the next token of the decoding sequences.

        There are more of them than rows only after the limit was lowered while they ran. Then
        those that were skipped most often go first, so that all of them move on, in turns.

        Args:
            max_rows: Rows of the step.
            max_tokens: Tokens of the step, drafts included; None: no limit on drafts.
            max_drafts: Those of them that may be drafts.
        """
        if self.num_stages > 1 and not self.proposals and not self.queues.num_beam_groups:
            self._decode_share(max_rows if max_tokens is None else min(max_rows, max_tokens))
            return
        if self._decode_all_at_once(max_rows):
            return
        tokens_left = inf if max_tokens is None else max_tokens
        ordered = self._decode_order(max_rows, tokens_left)
        for num_behind, sequence in zip(range(len(ordered) - 1, -1, -1), ordered, strict=True):
            if sequence.state != State.RUNNING or sequence in self.rows.decodes:
                continue
            beams = sequence.beams_or_self()
            # Beams that outnumber the limits run alone.
            is_first = not len(self.rows)
            fits = len(self.rows) + len(beams) <= max_rows and len(beams) <= tokens_left
            if not fits and not is_first:
                self._skip(beams)
            else:
                # The next token of every row goes before the drafts of any.
                drafts_left = min(max_drafts, max(0, tokens_left - len(beams) - num_behind))
                taken = self._decode_rows(beams, drafts_left)
                tokens_left -= taken
                max_drafts -= max(0, taken - len(beams))

    def resume(self, max_rows: int) -> None:
        """Bring swapped sequences back, unless this step has just preempted others."""
        preemptor = self.preemptor
        # dp ranks without room for the first of theirs: those behind it do not overtake it.
        full = set[int]()
        for sequence in sorted(self.queues.swapped.values(), key=preemptor.victims.key):
            if preemptor.has_preempted or len(self.rows) >= max_rows or self._is_full(sequence):
                return
            if sequence.group.dp_rank in full:
                continue
            if not self.blocks.swap_in(sequence, watermark=self._watermark()):
                full.add(sequence.group.dp_rank)
                continue
            preemptor.resumed.append(sequence)
            self.queues.run(sequence)
            if sequence.is_decoding and not sequence.group.beams:
                self._add_decode(sequence, 1)

    def unfinished_prompts(self, order: Order | None = None) -> list[Sequence]:
        """Return the running sequences with prompt tokens to compute.

        A beam that was computed again and waits for the others has none.

        Args:
            order: Sorts them; None: they are in order of admission.
        """
        begun = [
            sequence for sequence in self.queues.prefilling.values() if sequence.num_uncomputed
        ]
        if order is not None and len(begun) > 1:
            begun.sort(key=partial(self._prompt_key, order) if order.ages else order.key)
        return begun

    def prefill(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take `num_tokens` of the prompt of a running sequence; return True if it is in."""
        if num_tokens <= 0:
            return self._refuse(sequence, Reason.TOKENS)
        if not self._takes_prefill(sequence):
            return self._refuse(sequence, Reason.PREFILL_ROWS)
        if len(self.rows) >= self.limits.max_batch_size:
            return self._refuse(sequence, Reason.BATCH_SIZE)
        needs_copy = sequence.writes_shared
        if needs_copy and not self.preemptor.make_room(sequence, sequence.num_tokens):
            return False
        self.rows.add_prefill(sequence, num_tokens)
        sequence.served_at = self.now
        return True

    def start(self, sequence: Sequence, chunk: Callable[[Sequence], int]) -> Reason | None:
        """Give a waiting sequence its blocks, and take the first chunk of its prompt.

        Args:
            sequence: A waiting one.
            chunk: Returns how many of its uncomputed tokens the step takes, at least 1.

        Returns:
            The reason for not starting it; None: it is in.
        """
        closed = self._closed_to(sequence)
        reason = self._refusal(sequence, closed) or self.blocks.start(
            sequence, watermark=self._watermark_of(sequence), closed=closed
        )
        if reason is not None:
            return reason
        self._admit(sequence)
        self.num_started_rows += sequence.rows
        if sequence.is_decoding:
            # The prefix cache had all but the last token: it costs the step what a decode does.
            self._decode_rows([sequence], 0)
        else:
            self.prefill(sequence, chunk(sequence))
        return None

    def admit_waiting(self, take: Callable[[Sequence], Reason | None]) -> None:
        """Try to start the waiting sequences, in turn, until one blocks the queue.

        Args:
            take: Starts a sequence, or returns why not. SKIPPING_REASONS skip that sequence
                alone; any other reason blocks all that wait behind it.
        """

        def goes_on(sequence: Sequence) -> bool:
            reason = take(sequence)
            if reason is None:
                return True
            if reason in SKIPPING_REASONS:
                self.waits.skip(sequence, reason)
                return True
            self.waits.block_queue(reason, sequence)
            return False

        waiting = self.queues.waiting
        waiting.offer(goes_on, now=self.now, most=2 * self.limits.max_batch_size)

    def uncomputed(self, sequence: Sequence) -> int:
        """Return the tokens of a waiting sequence that the prefix cache does not have."""
        blocks = self.blocks
        if len(blocks.dp_ranks) == 1:
            return max(1, sequence.num_tokens - blocks.num_found(sequence))
        hits = blocks.num_found(
            sequence, watermark=self._watermark_of(sequence), closed=self._closed_to(sequence)
        )
        return max(1, sequence.num_tokens - hits)

    def build(self, expected_s: float | None = None) -> Step:
        """Return the step as plain data; see `Step.expected_s`."""
        decodes, prefills = self.rows.decodes, self.rows.prefills
        rows = [*decodes, *prefills]
        copies = self.blocks.take_copies()
        return Step(
            sequence_ids=[row.sequence_id for row in rows],
            num_tokens=[*decodes.values(), *prefills.values()],
            starts=[row.num_computed for row in rows],
            block_tables=[row.table for row in rows],
            num_decodes=len(decodes),
            drafts=self._drafts(),
            swapped_out=copies.swapped_out,
            swapped_in=copies.swapped_in,
            copied=copies.copied,
            moved=self._moved(rows),
            beam_moves=_take_moves(rows) if self.queues.num_beam_groups else {},
            preempted=tuple(self.preemptor.recomputed),
            expected_s=expected_s,
        )

    def _moved(self, rows: Collection[Sequence]) -> tuple[str, ...]:
        """Return the sequences that go to the host or come back in this step without a row."""
        swapped, resumed = self.preemptor.swapped, self.preemptor.resumed
        if not swapped and not resumed:
            return ()
        # A resumed one may have lost its blocks to others again, and the copies with them.
        came = (
            sequence
            for sequence in resumed
            if sequence.state == State.RUNNING and sequence not in rows
        )
        return (*swapped, *(sequence.sequence_id for sequence in came))

    def tokens_ahead(self) -> Mapping[Sequence, float]:
        """Return the decode rows with drafts → how many of these are expected to be right."""
        if not self.proposals:
            return {}
        return {
            row: self.expected_drafts(row.sequence_id, tokens - 1)
            for row, tokens in self.rows.decodes.items()
            if tokens > 1
        }

    def _drafts(self) -> Mapping[str, abc.Sequence[int]]:
        if not self.proposals:
            return {}
        return {
            row.sequence_id: self.proposals[row.sequence_id][: tokens - 1]
            for row, tokens in self.rows.decodes.items()
            if tokens > 1
        }

    def _decode_all_at_once(self, max_rows: int) -> bool:
        """Take all decoding sequences where each needs one token; return False if some do not."""
        decoding, blocks = self.queues.decoding, self.blocks
        if (
            self.num_stages > 1
            or self.proposals
            or self.queues.num_beam_groups
            or self.rows.decodes
        ):
            return False
        if len(decoding) + len(self.rows) > max_rows:
            return False
        short = [sequence for sequence in blocks.short() if not sequence.is_prefilling]
        if not blocks.hold(short):
            return False
        for sequence in short:
            blocks.grow(sequence, sequence.num_tokens)
        self.rows.add_decodes(decoding.values())
        return True

    def _decode_share(self, max_rows: int) -> None:
        """Take the decoding sequences of one pipeline stage: an even share of all of them.

        Those that wait for the token of a step that is computed are left out: each has one
        token a step, and no stage begins it before the last one has given the token before. If the
        first of the steps took all sequences, the other stages would have nothing to do meanwhile.
        """
        decoding = self.queues.decoding
        ready = [sequence for sequence in decoding.values() if not sequence.num_in_flight]
        most = min(-(-len(decoding) // self.num_stages), max_rows - len(self.rows))
        if len(ready) > most:
            ready.sort(key=lambda sequence: -sequence.num_skipped)
        for sequence in ready[most:]:
            sequence.num_skipped += 1
        for sequence in ready[:most]:
            if sequence.state == State.RUNNING and sequence not in self.rows.decodes:
                self._decode_rows([sequence], 0)

    def _decode_order(self, max_rows: int, max_tokens: float) -> list[Sequence]:
        decoding = list(self.queues.decoding.values())
        if len(decoding) > min(max_rows, max_tokens):
            victims = self.preemptor.victims
            decoding.sort(key=lambda sequence: (-sequence.num_skipped, victims.key(sequence)))
        return decoding

    def _skip(self, beams: Collection[Sequence]) -> None:
        reason = Reason.BATCH_SIZE if len(beams) == 1 else Reason.BEAMS_TOGETHER
        for row in beams:
            row.num_skipped += 1
            self.waits.skip(row, reason)

    def _decode_rows(self, beams: list[Sequence], drafts_left: float) -> int:
        """Take a row, or all beams of a request; return the tokens that they take."""
        taken = 0
        for row in beams:
            tokens = 1 + self._num_drafts(row, drafts_left)
            if not row.is_decoding:
                # A beam that is being computed again delays the others; it yields on its own.
                continue
            if not self.preemptor.make_room(row, row.num_computed + tokens):
                break
            self._add_decode(row, tokens)
            taken += tokens
        if any(row.state != State.RUNNING for row in beams):
            # One beam has just lost its blocks, so all of them leave the step.
            for row in beams:
                self.rows.remove_decode(row)
            return 0
        return taken

    def _num_drafts(self, row: Sequence, drafts_left: float) -> int:
        proposal = self.proposals.get(row.sequence_id) if self.proposals else None
        if proposal is None:
            return 0
        count = int(min(len(proposal), max(0, drafts_left)))
        return count if self._has_room(row, row.num_computed + 1 + count) else 0

    def _has_room(self, row: Sequence, num_tokens: int) -> bool:
        """Return True if a row may have so many tokens, and no row loses its blocks for it."""
        if num_tokens <= row.capacity and not row.writes_shared:
            return True
        num_free = self.blocks.of(row).pool.num_free
        return self.blocks.missing(row, num_tokens) + len(self.blocks.short()) <= num_free

    def _add_decode(self, sequence: Sequence, num_tokens: int) -> None:
        self.rows.add_decode(sequence, num_tokens)
        sequence.num_skipped = 0

    def _refusal(self, sequence: Sequence, closed: Collection[int]) -> Reason | None:
        if self.preemptor.has_preempted:
            return Reason.PREEMPTION
        if len(closed) == len(self.blocks.dp_ranks):
            return Reason.SWAPPED_OUT
        if self._is_full(sequence) or len(self.rows) >= self.limits.max_batch_size:
            return Reason.BATCH_SIZE
        return None if self._takes_prefill(sequence) else Reason.PREFILL_ROWS

    def _closed_to(self, sequence: Sequence) -> Collection[int]:
        """Return the dp ranks where swapped sequences come before a waiting one."""
        if not self.queues.swapped:
            return ()
        return self.queues.closed_to(sequence, self.preemptor.victims)

    def _prompt_key(self, order: Order, sequence: Sequence) -> Key:
        """Return the key of a prompt that is begun: overdue ones go before the others."""
        if self.queues.waiting.is_overdue(sequence, self.now):
            return (0.0, *arrival(sequence))
        return (1.0, *order.key(sequence))

    def _is_full(self, sequence: Sequence) -> bool:
        """Return True if maxBatchSize has no row left; a request that needs more runs alone."""
        running = self.queues.num_rows
        if running + sequence.rows <= self.limits.max_batch_size:
            return False
        return not self._is_alone(sequence)

    def _is_alone(self, sequence: Sequence) -> bool:
        """Return True if nothing runs but beams of its own request, which wait for it."""
        if not self.queues.num_running:
            return True
        beams = sequence.group.beams
        return bool(beams) and all(
            running.group is sequence.group for running in self.queues.running()
        )

    def _takes_prefill(self, sequence: Sequence) -> bool:
        rows = self.rows.prefill_rows
        return rows == 0 or rows + sequence.rows <= self.limits.max_prefill_batch_size

    def _admit(self, sequence: Sequence) -> None:
        if not sequence.group.is_admitted:
            sequence.group.is_admitted = True
            self.blocks.admit(sequence.group)
        self.hits[sequence.sequence_id] = sequence.num_hit
        self.queues.run(sequence)

    def _refuse(self, sequence: Sequence, reason: Reason) -> bool:
        self.waits.skip(sequence, reason)
        return False

    def _watermark_of(self, sequence: Sequence) -> int:
        return 0 if self._is_alone(sequence) else self._watermark()

    def _watermark(self) -> int:
        """Return the blocks that an admission leaves free, so that running sequences can grow.

        Without it a new sequence would take the last block and lose it again in the next step.
        """
        of_dp_rank = self.blocks.dp_ranks[0].pool.num_blocks
        return -(-of_dp_rank // 100) if self.queues.num_running else 0


def _take_moves(rows: Iterable[Sequence]) -> dict[str, BeamMove]:
    """Return the moves of the beams among `rows` since the last step, once."""
    moves: dict[str, BeamMove] = {}
    for row in rows:
        if row.group.moves:
            moves.update(row.group.moves)
            row.group.moves = {}
    return moves
