"""The interface of a replica under a virtual clock; a real scheduler and flows implement it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tandem_engine.simulate.workload import Arrival, Shape


class FirstToken(NamedTuple):
    """The first token of `num_requests` requests."""

    at_s: float
    ttft_s: float
    num_requests: float = 1.0


class Completion(NamedTuple):
    """The end of `num_requests` answers; times in seconds of the virtual clock."""

    at_s: float
    arrived_s: float
    first_token_s: float
    tpot_s: float | None
    """Mean time of a token after the first; None: there is no other."""
    shape: Shape
    num_requests: float = 1.0

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_token_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class Progress:
    """What a replica did in a span of time, each list in the order of time."""

    first_tokens: Sequence[FirstToken]
    completions: Sequence[Completion]


class Predictions(NamedTuple):
    """A replica's own predictions for requests as they were of late."""

    requests_per_s: float
    """Highest rate that keeps the targets."""
    concurrency: float
    """Requests in process or waiting at that rate."""
    zero_load_ttft_s: float
    zero_load_tpot_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """The state that a replica's gauges show; of one replica where `size` is more than 1."""

    num_running: float
    """Requests that have KV blocks."""
    num_waiting: float
    """Requests without."""
    queue_age_s: float
    """Age of the oldest request that has had no step yet; 0: there is none."""
    kv_usage: float
    """Share of the KV blocks in use."""
    busy_s: float
    """Seconds spent in steps since the start."""
    predictions: Predictions | None = None
    """None: too few answers have ended, or the replica makes none."""


class Replica(Protocol):
    """One replica, or `size` replicas in the same state."""

    @property
    def size(self) -> int:
        """Replicas that it stands for."""
        ...

    @property
    def num_ongoing(self) -> float:
        """Requests submitted and not completed, of each replica: connections, for the router."""
        ...

    def submit(self, arrival: Arrival, count: float = 1.0) -> None:
        """Take `count` requests, of all replicas together.

        Times never go back: `arrival.due_s` is not before the last call's.
        """
        ...

    def advance(self, now: float) -> Progress:
        """Let time pass up to `now`; return what happened since the last call."""
        ...

    def state(self) -> ReplicaState:
        """Return the state at the time of the last `advance`."""
        ...

    def split(self, size: int) -> "Replica":
        """Make `size` of these replicas, fewer than all, an object of their own; return it."""
        ...

    def absorb(self, other: "Replica") -> bool:
        """Take over `other` if it is in the same state; return False if it is not."""
        ...
