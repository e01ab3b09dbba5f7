"""Multi-level feedback queues: prefillPolicyType and decodePolicyType 3, policyType 6 and 7.

MindIE documents three levels for policy 3 and neither quanta nor what the two variants of
SplitFuse do; skip-join is FastServe's (Wu et al., 2023). The quanta are ours.
"""

from typing import Final

from tandem_engine.scheduler.orders.order import Key, arrival
from tandem_engine.scheduler.sequence import Sequence, State

# Tokens computed for a sequence, its prompt's included, up to which it stays in a level; what has
# had more is in the last one. Chat turns end in the first, documents start in the last.
_QUANTA: Final = (1024, 4096)


def level_of(num_tokens: int) -> int:
    """The level, 0 the first, of a sequence that has had so many tokens computed."""
    return sum(num_tokens > quantum for quantum in _QUANTA)


class MultiLevelFeedback:
    """Low levels go first; inside a level running, swapped, waiting, then FCFS."""

    ages = True

    def key(self, sequence: Sequence) -> Key:
        """Its level, then its state, then its arrival."""
        state = 0 if sequence.state == State.RUNNING else 2 - (sequence.state == State.SWAPPED)
        return (float(level_of(sequence.num_attained)), float(state), *arrival(sequence))


class SkipJoinMlfq:
    """A sequence joins at the level that its prompt will take it to anyhow; FCFS inside it."""

    ages = True

    def key(self, sequence: Sequence) -> Key:
        """Its level, then its arrival."""
        return (float(_joined_level(sequence)), *arrival(sequence))


class ShortestJobMlfq:
    """Skip-join, with the shortest prompt first inside a level."""

    ages = True

    def key(self, sequence: Sequence) -> Key:
        """Its level, then the length of its prompt, then its arrival."""
        return (float(_joined_level(sequence)), float(sequence.num_prompt), *arrival(sequence))


def _joined_level(sequence: Sequence) -> int:
    return level_of(max(sequence.num_prompt, sequence.num_attained))
