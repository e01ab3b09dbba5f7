"""The reasons that sequences wait: of the queue as a whole, and of those that were skipped."""

from dataclasses import dataclass, field
from math import inf

from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.scheduler.waiting import Waiting


@dataclass(slots=True, eq=False)
class WaitReasons:
    """Notes of one step on the sequences that are not in it."""

    waiting: Waiting
    blocked_by: Reason | None = None
    """The reason that no further waiting sequence is in the step; None: none waits."""
    first: Sequence | None = None
    """The first of them."""
    skipped: list[tuple[str, Reason]] = field(default_factory=list)
    """Sequences that lost their turn in this step, and why."""
    wake_at: float = inf
    """Seconds; when to build a step again, if this one is empty."""

    def block_queue(self, reason: Reason, first: Sequence | None = None) -> None:
        """Note why the waiting sequences are not in the step, and which of them is the first."""
        if len(self.waiting):
            self.blocked_by = reason
            self.first = first or self.first or self.waiting.oldest

    def skip(self, sequence: Sequence, reason: Reason) -> None:
        """Note that others go before `sequence` although it was its turn."""
        self.skipped.append((sequence.sequence_id, reason))

    def wake_by(self, at: float) -> None:
        """Note a moment, in seconds, at which a step may have rows if this one is empty."""
        self.wake_at = min(self.wake_at, at)
