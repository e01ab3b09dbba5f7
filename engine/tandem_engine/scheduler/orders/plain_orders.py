"""Orders by what is known of a sequence when it comes: arrival, state, priority, length.

The size of a job is the length of its prompt: the output's is unknown.
"""

from tandem_engine.scheduler.orders.order import Key, arrival
from tandem_engine.scheduler.sequence import Sequence


class FirstComeFirstServed:
    """By arrival. A sequence that lost its blocks is older than those that never ran."""

    ages = False

    def key(self, sequence: Sequence) -> Key:
        """Its arrival."""
        return arrival(sequence)


class ByState:
    """Sequences that never lost their blocks go first; among waiting ones it is FCFS.

    Arrivals that do not end would always go before one that was preempted, so it ages.
    """

    ages = True

    def key(self, sequence: Sequence) -> Key:
        """Return 1 if it was preempted, else 0, then its arrival."""
        return (float(sequence.num_preempted > 0), *arrival(sequence))


class ByPriority:
    """The request's priority, 1 the highest and 5 the lowest; FCFS inside one."""

    ages = False

    def key(self, sequence: Sequence) -> Key:
        """Its priority, then its arrival."""
        return (float(sequence.priority), *arrival(sequence))


class ShortestJobFirst:
    """Short prompts first: the best mean TTFT. Long ones may starve, as MindIE's manual says."""

    ages = False

    def key(self, sequence: Sequence) -> Key:
        """The length of its prompt, then its arrival."""
        return (float(sequence.num_prompt), *arrival(sequence))


class LongestJobFirst:
    """Long prompts first."""

    ages = False

    def key(self, sequence: Sequence) -> Key:
        """The length of its prompt, the other way round, then its arrival."""
        return (-float(sequence.num_prompt), *arrival(sequence))
