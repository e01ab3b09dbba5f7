"""STATE: MindIE's prefillPolicyType and decodePolicyType 1."""

from tandem_engine.scheduler.policies.orders.order import Key, arrival
from tandem_engine.scheduler.sequence import Sequence


class ByState:
    """Sequences that never lost their blocks go first; among waiting ones it is FCFS.

    Arrivals that do not end would always go before one that was preempted, so it ages.
    """

    ages = True

    def key(self, sequence: Sequence) -> Key:
        """Return 1 if it was preempted, else 0, then its arrival."""
        return (float(sequence.num_preempted > 0), *arrival(sequence))
