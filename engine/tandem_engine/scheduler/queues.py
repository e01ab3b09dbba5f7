"""The two queues of the scheduler: who holds blocks, and who waits for them."""

from collections import deque
from collections.abc import Iterator

from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.sequence import Sequence


class Queues:
    """Running sequences hold blocks, in order of admission; waiting ones hold none.

    A sequence that lost its blocks waits before those that never ran: it is older.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._running: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for blocks or a place in the batch."""
        return len(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The running sequences, oldest admission first; a copy, safe to preempt over."""
        return tuple(self._running.values())

    @property
    def next_waiting(self) -> Sequence | None:
        """The sequence whose turn it is."""
        return self._waiting[0] if self._waiting else None

    def find(self, request_id: str) -> Sequence | None:
        """A running sequence by its id."""
        return self._running.get(request_id)

    def is_running(self, sequence: Sequence) -> bool:
        """Whether `sequence` holds blocks now."""
        return sequence.request_id in self._running

    def push(self, sequence: Sequence) -> None:
        """Let a new sequence wait at the end."""
        self._waiting.append(sequence)

    def admit_next(self) -> Sequence:
        """Move the next waiting sequence to the running ones, with blocks for all its tokens.

        The whole prompt is reserved at once: sequences that hold half of what they need
        and wait for each other's blocks cannot come about.
        """
        sequence = self._waiting.popleft()
        sequence.block_table = self._pool.allocate(self._pool.blocks_for(sequence.num_tokens))
        self._running[sequence.request_id] = sequence
        return sequence

    def preempt_newest(self) -> Sequence:
        """Take the blocks of the newest running sequence; it has the least to compute again."""
        _, sequence = self._running.popitem()
        self._pool.release(sequence.forget_cache())
        self._waiting.appendleft(sequence)
        self.num_preemptions += 1
        return sequence

    def remove(self, request_id: str) -> bool:
        """Forget a sequence, wherever it is, and take its blocks; tell whether it was there."""
        sequence = self._running.pop(request_id, None)
        if sequence is not None:
            self._pool.release(sequence.forget_cache())
            return True
        return self._remove_waiting(request_id)

    def _remove_waiting(self, request_id: str) -> bool:
        for sequence in self._waiting:
            if sequence.request_id == request_id:
                self._waiting.remove(sequence)
                return True
        return False

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._running.values()
        yield from self._waiting
