"""A replica that hangs: it takes requests and computes none."""

from dataclasses import replace

from tandem_engine.simulate.replica import Progress, Replica, ReplicaState
from tandem_engine.simulate.workload import Arrival


class HangingReplica:
    """Has what the replica `before` had when it began to hang, and keeps whatever comes.

    Args:
        before: One replica.
        now: The moment at which it begins to hang, in seconds.
    """

    size = 1

    def __init__(self, before: Replica, now: float) -> None:
        self._state = before.state()
        self._now = now
        self._oldest_s = now if self._state.num_waiting else None
        self.num_ongoing = before.num_ongoing

    def submit(self, arrival: Arrival, count: float = 1.0) -> None:
        """Take `count` requests, which are never computed."""
        self.num_ongoing += count
        self._oldest_s = arrival.due_s if self._oldest_s is None else self._oldest_s

    def advance(self, now: float) -> Progress:
        """Let time pass."""
        self._now = now
        return Progress((), ())

    def state(self) -> ReplicaState:
        """Return the gauges, of which the age of the queue alone moves."""
        waiting = self.num_ongoing - self._state.num_running
        age_s = 0.0 if self._oldest_s is None else self._now - self._oldest_s
        return replace(self._state, num_waiting=max(waiting, 0.0), queue_age_s=age_s)

    def split(self, size: int) -> Replica:
        """Raise: it is one replica.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"size is {size}; a HangingReplica is one replica, which has no parts")

    def absorb(self, other: Replica) -> bool:  # noqa: ARG002  # an interface's parameter
        """Return False: it is like no other."""
        return False
