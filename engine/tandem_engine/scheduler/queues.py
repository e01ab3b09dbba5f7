"""The queues of running, waiting and swapped sequences."""

from collections.abc import Iterator

from tandem_engine.scheduler.orders import Order
from tandem_engine.scheduler.orders.order import arrival
from tandem_engine.scheduler.sequence import Sequence, State
from tandem_engine.scheduler.waiting import Waiting


class Queues:
    """The sequences of all requests; each is in exactly one queue.

    Decoding and prefilling sequences hold blocks, in order of admission. Swapped ones hold host
    blocks, waiting ones nothing.
    """

    def __init__(self, order: Order) -> None:
        self.decoding: dict[str, Sequence] = {}
        self.prefilling: dict[str, Sequence] = {}
        self.swapped: dict[str, Sequence] = {}
        self.waiting = Waiting(order)
        self._by_id: dict[str, Sequence] = {}
        self._ended: list[str] = []
        self._retiring: set[str] = set()
        self.num_beam_groups = 0
        """Requests whose sequences move together."""
        self.longest_tokens = 0
        """Tokens of those that hold blocks, were each of them to reach its end."""
        self.num_rows = 0
        """Rows that sequences with blocks take or will take: n for a prompt with n choices."""

    def find(self, sequence_id: str) -> Sequence | None:
        """Return a sequence by its id, in any queue; None: it has ended."""
        return self._by_id.get(sequence_id)

    @property
    def num_known(self) -> int:
        """Sequences that have not ended, those included that wait for the prompt of another."""
        return len(self._by_id)

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self.decoding) + len(self.prefilling)

    @property
    def has_any(self) -> bool:
        """True if a sequence has not ended."""
        return bool(self._by_id)

    @property
    def has_next(self) -> bool:
        """True if a sequence may be in a further step: retiring ones may not."""
        return bool(self.decoding or self.prefilling or len(self.waiting))

    def running(self) -> Iterator[Sequence]:
        """All that hold blocks."""
        yield from self.decoding.values()
        yield from self.prefilling.values()

    def expect(self, first: Sequence) -> None:
        """Let the first sequence of a request wait; ids of pending forks lead to it."""
        self.waiting.push(first)
        for sequence_id in first.group.request.sequences:
            self._by_id[sequence_id] = first

    def wait(self, sequence: Sequence) -> None:
        """Let a sequence wait that has just lost its blocks."""
        self.waiting.push(sequence)

    def forget(self, sequence_id: str) -> None:
        """Forget the id of a sequence."""
        del self._by_id[sequence_id]
        self._ended.append(sequence_id)

    def take_ended(self) -> list[str]:
        """Ids that were forgotten since the last call."""
        taken, self._ended = self._ended, []
        return taken

    def run(self, sequence: Sequence) -> None:
        """Move a waiting or swapped sequence to those that run."""
        if sequence.state == State.SWAPPED:
            del self.swapped[sequence.sequence_id]
        else:
            self.waiting.left()
        self._enter(sequence)

    def join(self, sequence: Sequence) -> None:
        """Let a sequence run that was just forked."""
        self._by_id[sequence.sequence_id] = sequence
        self._enter(sequence)

    def decode(self, sequence: Sequence) -> None:
        """Note that the prompt of a running sequence is done."""
        sequence.is_prefilling = False
        del self.prefilling[sequence.sequence_id]
        self.decoding[sequence.sequence_id] = sequence

    def stand_for(self, sequence: Sequence, rows: int) -> None:
        """Set the rows that a sequence stands for: itself, and those that wait for its prompt."""
        if sequence.state == State.RUNNING:
            self.num_rows += rows - sequence.rows
        sequence.rows = rows

    def leave(self, sequence: Sequence) -> None:
        """Take a running sequence out, to wait, to be swapped out, or for ever."""
        if sequence.sequence_id in self._retiring:
            self._retiring.remove(sequence.sequence_id)
            return
        self.num_rows -= sequence.rows
        self.longest_tokens -= sequence.max_total
        queue = self.prefilling if sequence.is_prefilling else self.decoding
        del queue[sequence.sequence_id]
        sequence.is_prefilling = False

    def retire(self, sequence: Sequence) -> None:
        """Take a running sequence out that ends with the step under way; it keeps its blocks."""
        self.leave(sequence)
        self._retiring.add(sequence.sequence_id)

    def swap(self, sequence: Sequence) -> None:
        """Keep a sequence that has left as one that is swapped out."""
        sequence.state = State.SWAPPED
        self.swapped[sequence.sequence_id] = sequence

    def closed_to(self, sequence: Sequence, victims: Order) -> set[int]:
        """Return the dp ranks where swapped sequences come before a waiting one.

        Otherwise new ones that need few blocks would take each that becomes free, and one that
        needs many would never come back. Where the order of victims ages it is that of arrival:
        by state or by levels, new sequences come first.
        """
        key = arrival if victims.ages else victims.key
        own = key(sequence)
        return {
            sequence.group.dp_rank for sequence in self.swapped.values() if key(sequence) <= own
        }

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence, in any queue."""
        self.forget(sequence.sequence_id)
        if sequence.state == State.RUNNING:
            self.leave(sequence)
        elif sequence.state == State.SWAPPED:
            del self.swapped[sequence.sequence_id]
        else:
            self.waiting.left()
        sequence.state = State.ENDED

    def _enter(self, sequence: Sequence) -> None:
        sequence.state = State.RUNNING
        self.num_rows += sequence.rows
        self.longest_tokens += sequence.max_total
        sequence.is_prefilling = not sequence.is_decoding
        queue = self.prefilling if sequence.is_prefilling else self.decoding
        queue[sequence.sequence_id] = sequence

    def replace(self, sequence: Sequence) -> None:
        """Take out a running sequence whose id another one takes over."""
        self.leave(sequence)
        sequence.state = State.ENDED

    def check_integrity(self) -> None:
        """Raise AssertionError when a sequence is nowhere, or a sum is not that of its parts."""
        if self.longest_tokens != sum(sequence.max_total for sequence in self.running()):
            raise AssertionError("The tokens of those that run are miscounted; this is a bug.")
        if self.num_rows != sum(sequence.rows for sequence in self.running()):
            raise AssertionError("The rows of those that run are miscounted; this is a bug.")
        known = set(self)
        num_waiting = sum(sequence.state == State.WAITING for sequence in known)
        if not num_waiting == len(self.waiting) == len(set(self.waiting)):
            raise AssertionError(
                f"{num_waiting} sequences wait, {len(self.waiting)} were counted and "
                f"{len(set(self.waiting))} stand in the queue; this is a bug."
            )
        running = {sequence for sequence in known if sequence.state == State.RUNNING}
        retiring = {self._by_id[each] for each in self._retiring}
        if running != {*self.running(), *retiring} or known != {
            *running,
            *self.swapped.values(),
            *(sequence for sequence in known if sequence.state == State.WAITING),
        }:
            raise AssertionError("A sequence is in no queue, or in two; this is a bug.")

    def __iter__(self) -> Iterator[Sequence]:
        return iter({id(sequence): sequence for sequence in self._by_id.values()}.values())
