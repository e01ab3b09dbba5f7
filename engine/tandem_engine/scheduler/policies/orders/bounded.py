"""A bound on how often others take a sequence's blocks, where an order alone knows none."""

from typing import Final

from tandem_engine.scheduler.policies.orders.order import Key, Order, arrival
from tandem_engine.scheduler.sequence import Sequence

MAX_PREEMPTIONS: Final = 3
"""Times that a sequence may lose its blocks to others that came later and go before it."""


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
