"""PRIORITY: MindIE's prefillPolicyType and decodePolicyType 2."""

from tandem_engine.scheduler.policies.orders.order import Key, arrival
from tandem_engine.scheduler.sequence import Sequence


class ByPriority:
    """The request's priority, 1 the highest and 5 the lowest; FCFS inside one."""

    ages = False

    def key(self, sequence: Sequence) -> Key:
        """Its priority, then its arrival."""
        return (float(sequence.priority), *arrival(sequence))
