"""Builds one step: its rows, what they cost, and the reasons that others wait."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import inf, nextafter
from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.step import BeamMove, Step
from tandem_engine.scheduler.kv_blocks import KVBlocks
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.policies.batch_size import BatchLimits
from tandem_engine.scheduler.policies.orders import Order
from tandem_engine.scheduler.policies.orders.order import Key, arrival
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence, State

SKIPPING_REASONS: Final = frozenset({Reason.PREFIX_PENDING, Reason.LONG_PREFILLS})
"""Reasons that keep one sequence from starting, and not those behind it."""


@dataclass(slots=True, eq=False, kw_only=True)
class StepBuilder:
    """Collects the rows of one step; a strategy asks it, in its own order, to take sequences.

    It knows what every strategy must keep: rows, blocks, and who may take them from whom. Limits
    on tokens are the strategy's: it knows whether the step is a prefill, a decode or a mixed one.
    """

    schedule: ScheduleConfig
    queues: Queues
    blocks: KVBlocks
    now: float
    """Seconds."""
    limits: BatchLimits
    """Rows of the step, and rows of it that may work on their prompt."""
    victims: Order
    """Who loses its blocks: the last one in this order."""
    max_drafts: int = 0
    """Draft tokens of one row."""
    is_async: bool = False
    """Whether the step before it is still computed: nobody may lose blocks then."""
    decodes: dict[Sequence, int] = field(default_factory=dict)
    """Rows that go on with their output → their tokens."""
    prefills: dict[Sequence, int] = field(default_factory=dict)
    """Rows that work on their prompt → their tokens."""
    num_tokens: int = 0
    """Tokens of the step."""
    decode_context: int = 0
    """Known tokens of the decode rows: what they read from the cache."""
    prefill_tokens: int = 0
    """Prompt tokens of the step."""
    prefill_rows: int = 0
    """Rows that prompts of the step stand for."""
    num_started_rows: int = 0
    """Rows that sequences stand for which waited until this step."""
    token_budget: int = 0
    """Tokens that the strategy allowed; 0: it has no such limit."""
    ceiling: int = 0
    """The most that this may be; 0: there is no such bound."""
    hits: dict[str, int] = field(default_factory=dict)
    """Those that were admitted → tokens that the prefix cache had."""
    recomputed: list[str] = field(default_factory=list)
    """Those that lost their blocks, and what was computed with them."""
    swapped: list[str] = field(default_factory=list)
    """Those that lost their blocks to the host."""
    resumed: list[Sequence] = field(default_factory=list)
    """Those that came back from the host."""
    may_swap: bool = True
    """Whether who loses its blocks may go to the host."""
    blocked_by: Reason | None = None
    """Why nobody else of those that wait is in the step; None: nobody else waits."""
    first: Sequence | None = None
    """The first of them."""
    passed_over: list[tuple[str, Reason]] = field(default_factory=list)
    """Those that lost their turn in this step, and why."""
    wake_at: float = inf
    """Seconds; when it is worth looking again, if the step is empty."""

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in the step."""
        return not self.decodes and not self.prefills

    @property
    def has_preempted(self) -> bool:
        """Whether anybody lost its blocks in this step: nobody new takes any then."""
        return bool(self.recomputed or self.swapped)

    @property
    def num_rows(self) -> int:
        """Sequences in the step."""
        return len(self.decodes) + len(self.prefills)

    def decode(self, max_rows: int, max_tokens: int | None = None) -> None:
        """Take the next token of the decoding sequences.

        There are more of them than rows only after the limit was lowered while they ran. Then
        those that had to wait longest go first, so that all of them move on, in turns.

        Args:
            max_rows: Rows of the step.
            max_tokens: Tokens of the step, drafts included; None: no limit on drafts.
        """
        if self._decode_all_at_once(max_rows):
            return
        tokens_left = inf if max_tokens is None else max_tokens
        turns = self._decode_order(max_rows, tokens_left)
        for num_behind, sequence in zip(range(len(turns) - 1, -1, -1), turns, strict=True):
            if sequence.state != State.RUNNING or sequence in self.decodes:
                continue
            rows = self._beams_of(sequence)
            # Beams that outnumber the limits have nobody beside them.
            is_first = not self.num_rows
            fits = self.num_rows + len(rows) <= max_rows and len(rows) <= tokens_left
            if not fits and not is_first:
                self._skip(rows)
            else:
                # Everybody's next token goes before anybody's drafts.
                drafts_left = max(0, tokens_left - len(rows) - num_behind)
                tokens_left -= self._decode_rows(rows, drafts_left)

    def resume(self, max_rows: int) -> None:
        """Bring swapped sequences back, unless this step has just sent others away."""
        for sequence in sorted(self.queues.swapped.values(), key=self.victims.key):
            if self.has_preempted or self.num_rows >= max_rows or self._is_full(sequence):
                return
            if not self.blocks.swap_in(sequence, watermark=self._watermark()):
                return
            self.resumed.append(sequence)
            self.queues.run(sequence)
            if sequence.is_decoding and not sequence.group.beams:
                self._take_decode(sequence, 1)

    def unfinished_prompts(self, order: Order) -> list[Sequence]:
        """The sequences whose prompt is begun and not done."""
        begun = [one for one in self.queues.prefilling.values() if one.num_uncomputed]
        if len(begun) > 1:
            begun.sort(key=partial(self._place, order) if order.ages else order.key)
        return begun

    def prefill(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take `num_tokens` of the prompt of a running sequence; tell whether it is in."""
        if num_tokens <= 0:
            return self._refuse(sequence, Reason.TOKENS)
        if not self._takes_prefill(sequence):
            return self._refuse(sequence, Reason.PREFILL_ROWS)
        if self.num_rows >= self.limits.max_batch_size:
            return self._refuse(sequence, Reason.BATCH_SIZE)
        if sequence.writes_shared and not self._make_room(sequence, sequence.num_tokens):
            return False
        self.prefills[sequence] = num_tokens
        sequence.served_at = self.now
        self.num_tokens += num_tokens
        self.prefill_tokens += num_tokens
        self.prefill_rows += sequence.rows
        return True

    def start(self, sequence: Sequence, chunk: Callable[[Sequence], int]) -> Reason | None:
        """Give a waiting sequence its blocks, and take the first chunk of its prompt.

        Args:
            sequence: One that waits.
            chunk: Tells how many of its uncomputed tokens the step takes, at least 1.

        Returns:
            Why not; None: it is in.
        """
        watermark = 0 if self._is_alone(sequence) else self._watermark()
        reason = self._refusal(sequence) or self.blocks.start(sequence, watermark=watermark)
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

    def offer(self, take: Callable[[Sequence], Reason | None]) -> None:
        """Offer the waiting sequences a place, in turn, until one holds up the rest.

        Args:
            take: Starts a sequence, or says why not. Those that only pass a sequence over are
                SKIPPING_REASONS; any other reason holds up all that wait behind it.
        """

        def goes_on(sequence: Sequence) -> bool:
            reason = take(sequence)
            if reason is None:
                return True
            if reason in SKIPPING_REASONS:
                self.pass_over(sequence, reason)
                return True
            self.block_queue(reason, sequence)
            return False

        waiting = self.queues.waiting
        waiting.offer(goes_on, now=self.now, most=2 * self.limits.max_batch_size)

    def wake_by(self, at: float) -> None:
        """Note a moment, in seconds, at which an empty step may be worth another look."""
        self.wake_at = min(self.wake_at, at)

    def pass_over(self, sequence: Sequence, reason: Reason) -> None:
        """Note that others go before `sequence` although it was its turn."""
        self.passed_over.append((sequence.sequence_id, reason))

    def block_queue(self, reason: Reason, first: Sequence | None = None) -> None:
        """Note why the waiting sequences are not in the step, and which of them is the first."""
        if len(self.queues.waiting):
            self.blocked_by = reason
            self.first = first or self.first or self.queues.waiting.oldest

    @property
    def first_needs(self) -> int:
        """Blocks that the first in line needs, with those that stay free for others."""
        if self.first is None:
            return 0
        return self.blocks.pool.blocks_for(self.first.num_tokens) + self._watermark()

    def break_deadlock(self, order: Order) -> None:
        """Let the last running request lose its blocks where nobody can go on with theirs.

        Beams that are computed again hold blocks while they wait for those of the others: two
        requests could wait for each other for ever.

        Args:
            order: In which prompts start.
        """
        if not self.is_empty or self.wake_at < inf or not self.queues.num_running:
            return
        running = list(self.queues.running())
        first = self.queues.waiting.first(self.now)
        if first is not None:
            running = [one for one in running if one.group is not first.group] or running
        self._preempt(max(running, key=order.key))

    def preempt_for_starved(self, sequence: Sequence) -> None:
        """Let one running sequence lose its blocks to one that has waited too long for its first.

        MindIE's maxFirstTokenWaitTime. Who has lost them this way once does not again.
        """
        running = [one for one in self.queues.running() if not one.was_preempted_for_starved]
        if running:
            victim = max(running, key=self.victims.key)
            # Swapped out it would be the first to come back, before the one that it makes room for.
            self.may_swap = False
            for one in self._beams_of(victim):
                one.was_preempted_for_starved = True
                # It comes after the one that it makes room for, or it would take its place again.
                one.arrived = max(one.arrived, nextafter(sequence.arrived, inf))
            self._preempt(victim)

    def uncomputed(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that the prefix cache does not have."""
        return max(1, sequence.num_tokens - self.blocks.num_found(sequence))

    def load(self) -> StepLoad:
        """What the step costs, in the terms of the latency models."""
        block_size = self.blocks.pool.block_size
        chunks = ((chunk, row.num_computed) for row, chunk in self.prefills.items())
        context = self.decode_context
        return StepLoad(
            num_tokens=self.num_tokens,
            num_rows=self.num_rows,
            chunk_context=sum(chunk * (start + chunk / 2) for chunk, start in chunks),
            decode_context=context,
            num_blocks=context // block_size + len(self.decodes),
        )

    def build(self) -> Step:
        """The step as plain data."""
        rows = [*self.decodes, *self.prefills]
        copies = self.blocks.take_copies()
        return Step(
            sequence_ids=[row.sequence_id for row in rows],
            num_tokens=[*self.decodes.values(), *self.prefills.values()],
            starts=[row.num_computed for row in rows],
            block_tables=[row.table for row in rows],
            num_decodes=len(self.decodes),
            num_drafts=self._drafts(),
            swapped_out=copies.swapped_out,
            swapped_in=copies.swapped_in,
            copied=copies.copied,
            moved=self._moved(rows),
            beam_moves=_take_moves(rows) if self.queues.num_beams else {},
            preempted=tuple(self.recomputed),
        )

    def _moved(self, rows: Collection[Sequence]) -> tuple[str, ...]:
        """Those that go to the host or come from there in this step, and have no row in it."""
        if not self.swapped and not self.resumed:
            return ()
        # Who came back may have lost its blocks to others again, and the copies with them.
        came = (one for one in self.resumed if one.state == State.RUNNING and one not in rows)
        return (*self.swapped, *(one.sequence_id for one in came))

    def _drafts(self) -> dict[str, int]:
        if not self.max_drafts:
            return {}
        return {row.sequence_id: tokens - 1 for row, tokens in self.decodes.items() if tokens > 1}

    def _decode_all_at_once(self, max_rows: int) -> bool:
        """Take all decoding sequences where none has to be looked at twice; tell whether it did."""
        decoding = self.queues.decoding
        if self.max_drafts or self.queues.num_beams or self.decodes:
            return False
        if len(decoding) + self.num_rows > max_rows:
            return False
        blocks = self.blocks
        needy = [one for one in blocks.short() if not one.is_prefilling]
        if sum(blocks.missing(one, one.num_tokens) for one in needy) > blocks.pool.num_free:
            return False
        for one in needy:
            blocks.grow(one, one.num_tokens)
        self.decodes = dict.fromkeys(decoding.values(), 1)
        self.num_tokens += len(decoding)
        self.decode_context += sum([one.num_tokens for one in decoding.values()])
        return True

    def _decode_order(self, max_rows: int, max_tokens: float) -> list[Sequence]:
        decoding = list(self.queues.decoding.values())
        if len(decoding) > min(max_rows, max_tokens):
            decoding.sort(key=lambda one: (-one.num_skipped, self.victims.key(one)))
        return decoding

    def _beams_of(self, sequence: Sequence) -> list[Sequence]:
        """The sequences that must be in the same step: all beams of its request."""
        beams = sequence.group.beams
        return list(beams.values()) if beams else [sequence]

    def _skip(self, rows: Collection[Sequence]) -> None:
        reason = Reason.BATCH_SIZE if len(rows) == 1 else Reason.BEAMS_TOGETHER
        for row in rows:
            row.num_skipped += 1
            self.pass_over(row, reason)

    def _decode_rows(self, rows: list[Sequence], drafts_left: float) -> int:
        """Take a row, or all beams of a request; return the tokens that they take."""
        taken = 0
        for row in rows:
            tokens = 1 + self._num_drafts(row, drafts_left)
            if not row.is_decoding:
                # A beam that is being computed again holds the others up; it yields on its own.
                continue
            if not self._make_room(row, row.num_computed + tokens):
                break
            self._take_decode(row, tokens)
            taken += tokens
        if any(row.state != State.RUNNING for row in rows):
            self._take_back(rows)
            return 0
        return taken

    def _num_drafts(self, row: Sequence, drafts_left: float) -> int:
        if not self.max_drafts or row.rows > 1 or not row.num_output or row.group.search:
            return 0
        room = row.max_total - row.num_tokens - 1
        return int(max(0, min(self.max_drafts, room, drafts_left)))

    def _take_decode(self, sequence: Sequence, num_tokens: int) -> None:
        self.decodes[sequence] = num_tokens
        self.num_tokens += num_tokens
        self.decode_context += sequence.num_tokens
        sequence.num_skipped = 0

    def _take_back(self, rows: Iterable[Sequence]) -> None:
        """Take beams out of the step again: one of them has just lost its blocks."""
        for row in rows:
            self._take_back_one(row)

    def _take_back_one(self, row: Sequence) -> None:
        tokens = self.decodes.pop(row, 0)
        if tokens:
            self.num_tokens -= tokens
            self.decode_context -= row.num_tokens

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence blocks for its tokens; False when it lost its own instead."""
        blocks = self.blocks
        if num_tokens <= sequence.capacity and not sequence.writes_shared:
            return True
        while blocks.missing(sequence, num_tokens) > blocks.pool.num_free:
            victim = max(self.queues.running(), key=self.victims.key)
            self._preempt(victim)
            if sequence.state != State.RUNNING:
                return False
        blocks.grow(sequence, num_tokens)
        return True

    def _preempt(self, victim: Sequence) -> None:
        """Take a sequence's blocks, and those of all beams of its request with them."""
        if self.is_async:
            raise RuntimeError("An async step preempts a sequence; this is a bug.")
        beams = self._beams_of(victim)
        attained = max(one.num_attained for one in beams)
        times = max(one.num_preempted for one in beams)
        for sequence in beams:
            # No order may part the beams of a request.
            sequence.num_attained = attained
            sequence.num_preempted = times + 1
            if sequence.state == State.RUNNING:
                self._send_away(sequence)

    def _send_away(self, sequence: Sequence) -> None:
        self._take_back_one(sequence)
        # It may be in the step already, if others had to wait their turn before it.
        chunk = self.prefills.pop(sequence, 0)
        if chunk:
            self.num_tokens -= chunk
            self.prefill_tokens -= chunk
            self.prefill_rows -= sequence.rows
        # What it gives back is there for the next step, even if nobody is in this one.
        self.wake_by(self.now)
        # Beams are computed again, all of them, and then say anew what they may go on with.
        sequence.group.candidates = {}
        self.queues.leave(sequence)
        if self._swaps(sequence):
            self.swapped.append(sequence.sequence_id)
            self.queues.swap(sequence)
        else:
            self.recomputed.append(sequence.sequence_id)
            self.blocks.drop(sequence)
            self.queues.wait(sequence)
            self.block_queue(self.blocked_by or Reason.PREEMPTION)

    def _swaps(self, sequence: Sequence) -> bool:
        # The runner copies out before it copies in, so nobody goes once somebody has come back.
        if self.resumed or not self.may_swap or sequence.group.beams:
            return False
        if len(self.swapped) >= self.schedule.max_preempt_count:
            return False
        return self.blocks.swap_out(sequence)

    def _refusal(self, sequence: Sequence) -> Reason | None:
        if self.has_preempted:
            return Reason.PREEMPTION
        if self.queues.swapped and not self.queues.may_pass_swapped(sequence, self.victims):
            return Reason.SWAPPED_OUT
        if self._is_full(sequence) or self.num_rows >= self.limits.max_batch_size:
            return Reason.BATCH_SIZE
        return None if self._takes_prefill(sequence) else Reason.PREFILL_ROWS

    def _place(self, order: Order, sequence: Sequence) -> Key:
        """Where a prompt that is begun stands among the others."""
        if self.queues.waiting.is_overdue(sequence, self.now):
            return (0.0, *arrival(sequence))
        return (1.0, *order.key(sequence))

    def _is_full(self, sequence: Sequence) -> bool:
        """Whether maxBatchSize leaves no place; a request that needs more runs alone."""
        running = self.queues.num_rows
        if running + sequence.rows <= self.limits.max_batch_size:
            return False
        return not self._is_alone(sequence)

    def _is_alone(self, sequence: Sequence) -> bool:
        """Whether nobody runs but beams of its own request, which wait for it."""
        if not self.queues.num_running:
            return True
        beams = sequence.group.beams
        return bool(beams) and all(one.group is sequence.group for one in self.queues.running())

    def _takes_prefill(self, sequence: Sequence) -> bool:
        rows = self.prefill_rows
        return rows == 0 or rows + sequence.rows <= self.limits.max_prefill_batch_size

    def _admit(self, sequence: Sequence) -> None:
        if not sequence.group.is_admitted:
            sequence.group.is_admitted = True
            self.blocks.admit(sequence.group)
        self.hits[sequence.sequence_id] = sequence.num_hit
        self.queues.run(sequence)

    def _refuse(self, sequence: Sequence, reason: Reason) -> bool:
        self.pass_over(sequence, reason)
        return False

    def _watermark(self) -> int:
        """Blocks that an admission leaves free, so that running sequences can grow a while.

        Without it a newcomer would take the last block and lose it again in the next step.
        """
        return -(-self.blocks.pool.num_blocks // 100) if self.queues.num_running else 0


def _take_moves(rows: Iterable[Sequence]) -> dict[str, BeamMove]:
    """What the beams among `rows` have become since the last step, once."""
    moves: dict[str, BeamMove] = {}
    for row in rows:
        if row.group.moves:
            moves.update(row.group.moves)
            row.group.moves = {}
    return moves
