"""Preemption: the sequences that lose their blocks, and if they are recomputed or swapped out."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, nextafter

from tandem_engine.scheduler.kv_blocks import KVBlocks
from tandem_engine.scheduler.orders import Order
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence, State
from tandem_engine.scheduler.step_rows import StepRows
from tandem_engine.scheduler.wait_reasons import WaitReasons


@dataclass(slots=True, eq=False, kw_only=True)
class Preemptor:
    """Takes blocks from running sequences in one step; the last in the order of victims first."""

    queues: Queues
    blocks: KVBlocks
    rows: StepRows
    waits: WaitReasons
    now: float
    """Seconds."""
    victims: Order
    """The last one in this order loses its blocks first."""
    max_swaps: int
    """Sequences of the step that may go to the host: maxPreemptCount."""
    is_async: bool = False
    """True while the step before is still computed: nothing may be preempted then."""
    recomputed: list[str] = field(default_factory=list)
    """Sequences that lost their blocks, and what was computed with them."""
    swapped: list[str] = field(default_factory=list)
    """Sequences that lost their blocks to the host."""
    resumed: list[Sequence] = field(default_factory=list)
    """Sequences that came back from the host."""

    @property
    def has_preempted(self) -> bool:
        """True once a sequence lost its blocks in this step: no waiting one takes any then."""
        return bool(self.recomputed or self.swapped)

    def make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence blocks for its tokens; False: it lost its own instead."""
        blocks = self.blocks
        if num_tokens <= sequence.capacity and not sequence.writes_shared:
            return True
        pool = blocks.of(sequence).pool
        while blocks.missing(sequence, num_tokens) > pool.num_free:
            running = self._running_in(sequence.group.dp_rank)
            self.preempt(max(running, key=self.victims.key))
            if sequence.state != State.RUNNING:
                return False
        blocks.grow(sequence, num_tokens)
        return True

    def preempt(self, victim: Sequence) -> None:
        """Take a sequence's blocks, and with them those of all beams of its request."""
        if self.is_async:
            raise RuntimeError("An async step preempts a sequence; this is a bug.")
        beams = victim.beams_or_self()
        attained = max(beam.num_attained for beam in beams)
        times = max(beam.num_preempted for beam in beams)
        for sequence in beams:
            # No order may part the beams of a request.
            sequence.num_attained = attained
            sequence.num_preempted = times + 1
            if sequence.state == State.RUNNING:
                self._preempt_one(sequence)

    def preempt_for_starved(self, starved: Sequence) -> None:
        """Preempt one running sequence for one that has waited too long for its first token.

        MindIE's maxFirstTokenWaitTime. A sequence that was preempted this way once is not again.
        """
        roomiest = self.blocks.roomiest(starved)
        running = [
            sequence
            for sequence in self._running_in(roomiest)
            if not sequence.was_preempted_for_starved
        ]
        if running:
            victim = max(running, key=self.victims.key)
            # Swapped out it would be the first to come back, before the starved one.
            self.max_swaps = 0
            for sequence in victim.beams_or_self():
                sequence.was_preempted_for_starved = True
                # It comes after the starved one, or it would take its blocks again.
                sequence.arrived = max(sequence.arrived, nextafter(starved.arrived, inf))
            self.preempt(victim)

    def break_deadlock(self, order: Order) -> None:
        """Preempt the last running request where no running one can go on with its blocks.

        Beams that are computed again hold blocks while they wait for those of the others: two
        requests could wait for each other for ever.

        Args:
            order: The order in which prompts start.
        """
        if not self.rows.is_empty or self.waits.wake_at < inf or not self.queues.num_running:
            return
        running = list(self.queues.running())
        first = self.queues.waiting.first(self.now)
        if first is not None:
            if self.blocks.is_bound(first):
                running = list(self._running_in(first.group.dp_rank)) or running
            running = [
                sequence for sequence in running if sequence.group is not first.group
            ] or running
        self.preempt(max(running, key=order.key))

    def _running_in(self, dp_rank: int) -> Iterator[Sequence]:
        """The sequences that hold blocks of a dp rank."""
        running = self.queues.running()
        if len(self.blocks.dp_ranks) == 1:
            return running
        return (sequence for sequence in running if sequence.group.dp_rank == dp_rank)

    def _preempt_one(self, sequence: Sequence) -> None:
        # It may be in the step already, if others had to wait their turn before it.
        self.rows.remove(sequence)
        # What it gives back is there for the next step, even if this one is empty.
        self.waits.wake_by(self.now)
        # Beams are computed again, all of them, and then bring new candidates.
        sequence.group.candidates = {}
        self.queues.leave(sequence)
        if self._swap_out(sequence):
            self.swapped.append(sequence.sequence_id)
            self.queues.swap(sequence)
        else:
            self.recomputed.append(sequence.sequence_id)
            self.blocks.drop(sequence)
            self.queues.wait(sequence)
            self.waits.block_queue(self.waits.blocked_by or Reason.PREEMPTION)

    def _swap_out(self, sequence: Sequence) -> bool:
        # The runner copies out before it copies in: none goes out once another has come back.
        if self.resumed or sequence.group.beams or len(self.swapped) >= self.max_swaps:
            return False
        return self.blocks.swap_out(sequence)
