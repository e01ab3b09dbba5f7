"""SJF and LJF: MindIE's splitFuse.policyType 4 and 5.

The size of a job is the length of its prompt: the output's is unknown.
"""

from tandem_engine.scheduler.policies.orders.order import Key, arrival
from tandem_engine.scheduler.sequence import Sequence


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
