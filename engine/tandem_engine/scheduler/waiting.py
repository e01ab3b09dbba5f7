"""The sequences that wait for blocks, in the order of a policy."""

import heapq
from collections.abc import Callable, Iterator
from itertools import chain, count
from math import inf
from typing import Final

from tandem_engine.scheduler.orders import Order
from tandem_engine.scheduler.orders.order import DeadlineOrder, Key, arrival
from tandem_engine.scheduler.sequence import Sequence, State

# Entries of those that left, beside as many as wait, that are not worth a rebuild.
_DEAD: Final = 64

# Of so many that start, one is the oldest that has waited too long, where the order has
# deadlines: in overload all have waited too long, and none would be in time.
_OVERDUE_EVERY: Final = 7

# Entries that one offer demotes to the late ones. When thousands that came at the same moment are
# late at the same moment, no single step pays for all of them.
_MAX_DEMOTED: Final = 256

# The count breaks ties: a beam has the id and the number of the one that it replaced.
_Entry = tuple[Key, int, Sequence]


class Waiting:
    """A queue in which a sequence may be skipped without losing its turn.

    A heap; those that left it otherwise are dropped when their turn comes, so that neither an
    abort nor a step costs more with more of them waiting.
    """

    def __init__(self, order: Order) -> None:
        self._follow(order)
        self._num_demoted = 0
        self._heap: list[_Entry] = []
        # Those that have missed their latest start, in the same order: they go last.
        self._late: list[_Entry] = []
        self._num_passing = 0
        # By arrival: to find the oldest, whatever the order is.
        self._by_age: list[_Entry] = []
        self._numbers = count()
        self._live = 0
        self.age_bound_s = inf
        """Seconds after which the oldest goes first, where the order ages."""
        self.overdue: Sequence | None = None
        """The one that went first in the latest offer because it has waited for longer."""

    def __len__(self) -> int:
        return self._live

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, in no particular order."""
        entries = chain(self._heap, self._late)
        return (sequence for _, _, sequence in entries if sequence.state == State.WAITING)

    def num_tokens(self, most: int) -> int:
        """Known tokens of so many of them as it takes to have `most`, which may be all."""
        total = 0
        for sequence in self:
            total += sequence.num_tokens
            if total >= most:
                break
        return total

    @property
    def oldest(self) -> Sequence | None:
        """The one that came first."""
        while self._by_age:
            key, _, sequence = self._by_age[0]
            # Its arrival changes when it is preempted for a starved one.
            if sequence.state == State.WAITING and key == arrival(sequence):
                return sequence
            heapq.heappop(self._by_age)
        return None

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait; its state says so from now on."""
        sequence.state = State.WAITING
        in_turn, by_age = self._entries(next(self._numbers), sequence)
        heapq.heappush(self._heap, in_turn)
        heapq.heappush(self._by_age, by_age)
        self._live += 1
        if len(self._heap) + len(self._late) + len(self._by_age) > 4 * self._live + _DEAD:
            self._drop_dead()

    def left(self) -> None:
        """Note that one of them waits no more: its state is another now."""
        self._live -= 1

    def offer(self, take: Callable[[Sequence], bool], *, now: float, most: int) -> None:
        """Offer them to `take`, the first in turn first.

        Args:
            take: Starts a sequence (its state is another then) or skips it, in which case
                it keeps its turn; False ends the offers.
            now: Seconds.
            most: How many may be skipped.
        """
        self._num_demoted = 0
        overdue = self.overdue = self._overdue(now)
        if overdue is not None:
            goes_on = take(overdue)
            if overdue.state != State.WAITING:
                self._num_passing = 0
            if not goes_on:
                return
        for heap in (self._heap, self._late):
            if not self._offer(heap, take, most=most, offered=overdue, now=now):
                return

    def first(self, now: float) -> Sequence | None:
        """Return the one that is offered before all others; `now` in seconds."""
        overdue = self._overdue(now)
        if overdue is not None:
            return overdue
        for heap in (self._heap, self._late):
            while heap and not self._may_go(heap, now):
                heapq.heappop(heap)
            if heap:
                return heap[0][-1]
        return None

    def _offer(
        self,
        heap: list[_Entry],
        take: Callable[[Sequence], bool],
        *,
        most: int,
        offered: Sequence | None,
        now: float,
    ) -> bool:
        """Offer those of one heap, in turn; return True if the offers go on behind them."""
        skipped: list[_Entry] = []
        goes_on = True
        while goes_on and heap and len(skipped) < most:
            may_go = self._may_go(heap, now)
            entry = heapq.heappop(heap)
            if not may_go:
                continue
            sequence = entry[-1]
            goes_on = sequence is offered or take(sequence)
            if sequence.state == State.WAITING:
                skipped.append(entry)
            elif sequence is not offered:
                self._num_passing += 1
        for entry in skipped:
            heapq.heappush(heap, entry)
        return goes_on and len(skipped) < most

    def _may_go(self, heap: list[_Entry], now: float) -> bool:
        """Return True if the first of a heap waits there; demote it if its latest start is over."""
        entry = heap[0]
        if entry[-1].state != State.WAITING:
            return False
        if (
            heap is self._late
            or self._num_demoted >= _MAX_DEMOTED
            or self._latest_start(entry[-1]) >= now
        ):
            return True
        self._num_demoted += 1
        heapq.heappush(self._late, entry)
        return False

    def _drop_dead(self) -> None:
        """Drop the entries of those that left: one that waits for long would keep them all."""
        in_turn, by_age = _live([*self._heap, *self._late]), _live(self._by_age)
        # The one being offered has an entry by age alone.
        entries = {
            sequence: self._entries(at, sequence) for sequence, at in (by_age | in_turn).items()
        }
        # In place: an offer may be iterating over them.
        self._heap[:] = [entries[sequence][0] for sequence in in_turn]
        self._late.clear()
        self._by_age[:] = [entries[sequence][1] for sequence in by_age]
        heapq.heapify(self._heap)
        heapq.heapify(self._by_age)

    def _entries(self, number: int, sequence: Sequence) -> tuple[_Entry, _Entry]:
        """Its entries by order and by age: one and the same, where the order is that of arrival."""
        in_turn = (self._order.key(sequence), number, sequence)
        age = arrival(sequence)
        return in_turn, in_turn if age == in_turn[0] else (age, number, sequence)

    def is_overdue(self, sequence: Sequence, now: float) -> bool:
        """Return True if a sequence goes before others although the order puts it behind them.

        An order with deadlines bounds itself how long one may be passed.
        """
        if not self._order.ages or self._has_deadlines:
            return False
        return now - sequence.arrived > self.age_bound_s

    def _overdue(self, now: float) -> Sequence | None:
        """The oldest one, if its order could skip it for ever and it has waited too long."""
        if not self._order.ages:
            return None
        if self._has_deadlines and self._num_passing < _OVERDUE_EVERY - 1:
            return None
        oldest = self.oldest
        late = oldest is not None and now - oldest.arrived > self.age_bound_s
        return oldest if late else None

    def reorder(self, order: Order) -> None:
        """Follow another order."""
        self._follow(order)
        self._drop_dead()

    def _follow(self, order: Order) -> None:
        self._order = order
        self._latest_start = _latest_start(order)
        # Read at every offer, where inspecting an object's methods is slow.
        self._has_deadlines = isinstance(order, DeadlineOrder)


def _live(entries: list[_Entry]) -> dict[Sequence, int]:
    """Each sequence that waits, with its number."""
    return {sequence: at for _, at, sequence in entries if sequence.state == State.WAITING}


def _latest_start(order: Order) -> Callable[[Sequence], float]:
    """Return the latest start of sequences in an order; inf in one without deadlines."""
    return order.latest_start if isinstance(order, DeadlineOrder) else lambda _: inf
