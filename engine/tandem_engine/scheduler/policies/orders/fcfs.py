"""FCFS: MindIE's policies 0."""

from tandem_engine.scheduler.policies.orders.order import Key, arrival
from tandem_engine.scheduler.sequence import Sequence


class FirstComeFirstServed:
    """By arrival. A sequence that lost its blocks is older than those that never ran."""

    ages = False

    def key(self, sequence: Sequence) -> Key:
        """Its arrival."""
        return arrival(sequence)
