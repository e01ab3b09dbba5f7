"""The interface of all orders, and a bound for those that could take blocks for ever."""

from typing import Final, Protocol, runtime_checkable

from tandem_engine.scheduler.sequence import Sequence

Key = tuple[float, ...]

MAX_PREEMPTIONS: Final = 3
"""Times that a sequence may lose its blocks to others that came later and go before it."""


class Order(Protocol):
    """Sorts sequences by a key; the last one of all loses its blocks first.

    A key may grow while its sequence is served, a bounded number of times, and never falls: two
    sequences therefore cannot take each other's blocks for ever.
    """

    ages: bool
    """True if the oldest waiting request goes first once it has waited too long: an order by
    size could skip it for ever."""

    def key(self, sequence: Sequence) -> Key:
        """Return its key: the smaller goes first; no two sequences have the same."""


@runtime_checkable
class DeadlineOrder(Protocol):
    """An order under a target that can be missed."""

    def latest_start(self, sequence: Sequence) -> float:
        """Return when a sequence goes behind all that can be in time, in seconds; inf: never."""


def arrival(sequence: Sequence) -> Key:
    """Return the key of first come, first served, which breaks the ties of every order."""
    return (sequence.arrived, sequence.number)


class Bounded:
    """An order of victims in which no sequence loses its blocks for ever.

    By state or by levels, new sequences go before those that run already; with arrivals that do
    not end, each of those would be computed again and again and never progress. So a sequence that
    was preempted MAX_PREEMPTIONS times goes before all that were not, by arrival.

    Args:
        order: The order of the others.
    """

    ages = True

    def __init__(self, order: Order) -> None:
        self._key = order.key

    def key(self, sequence: Sequence) -> Key:
        """Its arrival among those that have lost enough; behind them, its key in the order."""
        if sequence.num_preempted >= MAX_PREEMPTIONS:
            return (0.0, *arrival(sequence))
        return (1.0, *self._key(sequence))


def bounded(order: Order) -> Order:
    """The order, with a bound where new sequences may go before others for ever.

    An order that is strict on purpose (by priority, by the length of the prompt) stays as it is.
    """
    return Bounded(order) if order.ages else order
