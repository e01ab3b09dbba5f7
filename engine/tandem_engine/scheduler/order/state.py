"""STATE: MindIE's prefillPolicyType and decodePolicyType 1."""

from tandem_engine.scheduler.order.order import Key, arrival
from tandem_engine.scheduler.sequence import Sequence


class ByState:
    """Sequences that never lost their blocks go first; among waiting ones it is FCFS.

    How often a sequence was preempted only grows, and no sequence is preempted without end: the
    ones in front of it finish.
    """

    ages = False

    def key(self, sequence: Sequence) -> Key:
        """Whether it was preempted, then its arrival."""
        return (float(sequence.num_preempted > 0), *arrival(sequence))
