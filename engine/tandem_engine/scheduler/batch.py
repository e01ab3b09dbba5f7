"""The step in the making: who is in it, how many rows and tokens, and what still fits."""

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.step import Step
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.sequence import Sequence


class Batch:
    """Collects the rows of one step; a template asks it, in its own order, to take sequences.

    It answers only whether a sequence is in. Limits on tokens are the template's: it knows
    whether the step is a prefill, a decode or a mixed one.
    """

    def __init__(self, schedule: ScheduleConfig, queues: Queues, pool: BlockPool) -> None:
        self._schedule = schedule
        self._queues = queues
        self._pool = pool
        self._rows: dict[str, Sequence] = {}
        self._num_tokens: dict[str, int] = {}
        self._preempted: list[str] = []
        self._prefill_tokens: dict[str, int] = {}

    @property
    def num_rows(self) -> int:
        """Sequences in the step."""
        return len(self._rows)

    @property
    def total_tokens(self) -> int:
        """Tokens in the step."""
        return sum(self._num_tokens.values())

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens in the step."""
        return sum(self._prefill_tokens.values())

    @property
    def is_full(self) -> bool:
        """Whether maxBatchSize leaves no place."""
        return self.num_rows >= self._schedule.max_batch_size

    @property
    def takes_prefills(self) -> bool:
        """Whether one more sequence may work on its prompt in this step."""
        return not self.is_full and len(self._prefill_tokens) < self._schedule.prefill_rows

    def decode(self, sequence: Sequence) -> bool:
        """Take the next token of a running sequence; newer ones may lose their blocks to it."""
        if self.is_full or not self._make_room(sequence):
            return False
        self._take(sequence, 1)
        return True

    def prefill(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take `num_tokens` of the prompt of a running sequence, whose blocks are reserved."""
        if num_tokens <= 0 or not self.takes_prefills:
            return False
        self._take(sequence, num_tokens)
        self._prefill_tokens[sequence.request_id] = num_tokens
        return True

    def admits(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence may begin: a place in the batch and blocks for its prompt."""
        if self._preempted or not self.takes_prefills:
            return False
        if self._queues.num_running >= self._schedule.max_batch_size:
            return False
        return self._pool.num_free >= self._pool.blocks_for(sequence.num_tokens) + self._reserve()

    def build(self) -> Step:
        """The step as plain data."""
        return Step(
            num_tokens=self._num_tokens,
            starts={name: row.num_computed for name, row in self._rows.items()},
            block_tables={name: tuple(row.block_table) for name, row in self._rows.items()},
            preempted=tuple(self._preempted),
        )

    def _take(self, sequence: Sequence, num_tokens: int) -> None:
        self._rows[sequence.request_id] = sequence
        self._num_tokens[sequence.request_id] = num_tokens

    def _reserve(self) -> int:
        """Blocks that an admission leaves free, so that running sequences can grow a while.

        Without it a newcomer would take the last block and lose it again in the next step.
        """
        return -(-self._pool.num_blocks // 100) if self._queues.num_running else 0

    def _make_room(self, sequence: Sequence) -> bool:
        """Give a running sequence the block for its next token; False when it lost its own."""
        missing = self._pool.blocks_for(sequence.num_tokens) - len(sequence.block_table)
        while missing > self._pool.num_free:
            victim = self._queues.preempt_newest()
            self._preempted.append(victim.request_id)
            # It may be in the step already, if others had to wait their turn before it.
            self._rows.pop(victim.request_id, None)
            self._num_tokens.pop(victim.request_id, None)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.block_table += self._pool.allocate(missing)
        return True
