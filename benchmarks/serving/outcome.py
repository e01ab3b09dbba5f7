"""The outcome of one request. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tandem_engine.simulate.workload import Shape


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason for which a request does not count."""

    reason: str
    """A short reason, the same for all failures of a kind."""
    message: str
    """The details."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request; all times are of one clock, in seconds."""

    shape: Shape
    due_s: float
    """When it was to be sent: a wait for a free connection counts, as it does for a user."""
    end_s: float
    event_times_s: Sequence[float] = ()
    """When each event with a part of the answer came."""
    failure: Failure | None = None

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.event_times_s[0] - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None when there is no other."""
        if self.shape.num_output == 1:
            return None
        return (self.event_times_s[-1] - self.event_times_s[0]) / (self.shape.num_output - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Times between successive events: what a reader of the stream sees."""
        return [later - earlier for earlier, later in pairwise(self.event_times_s)]

    @property
    def e2e_s(self) -> float:
        """Time to the end of the answer."""
        return self.end_s - self.due_s
