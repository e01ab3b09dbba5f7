"""Decisions over a recorded past: what this policy, or another, would have decided; pure.

Arrivals do not depend on the number of replicas, latencies do. So where the replayed number is not
the one that ran, the recorded latencies say nothing about it, and it is decided by the predicted
load alone; a queue counts where no more replicas answer than in the record.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import Decision
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import LatencySignal, Observation
from tandem_operator.scaling_law.policy import ScalingPolicy


@dataclass(frozen=True, slots=True)
class Recorded:
    """One moment of the past."""

    at_s: float
    """Unix time."""

    observation: Observation
    """With the replicas that ran."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One moment with the decision that a policy would have made."""

    recorded: Recorded
    decision: Decision
    ready: int
    """Replicas that would have answered before the decision took effect."""


def replay(
    past: Iterable[Recorded],
    policy_at: Callable[[float], ScalingPolicy],
    *,
    cold_start_s: float,
    max_gap_s: float = 90.0,
) -> Iterator[Replayed]:
    """Decide at every moment of `past`, each time on the number decided before.

    It begins with the number that ran. `policy_at` gives the policy of a moment, and `cold_start_s`
    is the time after which an added replica answers.
    """
    history = History(max_gap_s=max_gap_s)
    if cold_start_s > 0:
        history = history.with_cold_start(cold_start_s)
    replicas: _Replicas | None = None
    for record in past:
        if replicas is None:
            replicas = _Replicas(record.observation)
        replicas.start(record.at_s)
        observation = _as_seen(record.observation, replicas)
        decision = decide(observation, policy_at(record.at_s), history, record.at_s)
        history = history.append(record.at_s, observation, decision)
        yield Replayed(record, decision, replicas.ready)
        replicas.scale(decision.desired, record.at_s + cold_start_s)


class _Replicas:
    """The replicas of the replay."""

    def __init__(self, observation: Observation) -> None:
        self.desired = observation.desired
        self.ready = min(observation.ready, observation.desired)
        # Those on their way at the beginning answer when the record says so, or one cold start on.
        self._starts_s: list[float] = []
        self._unknown = self.desired - self.ready

    def start(self, now: float) -> None:
        """Let the replicas answer whose cold start is over."""
        self.ready += sum(at_s <= now for at_s in self._starts_s)
        self._starts_s = [at_s for at_s in self._starts_s if at_s > now]

    def follow(self, ready: int) -> None:
        """Take over the replicas of the record that began to answer."""
        begun = min(max(ready - self.ready, 0), self._unknown)
        self.ready += begun
        self._unknown -= begun

    def scale(self, desired: int, ready_s: float) -> None:
        """Start or end replicas; those that do not answer yet are ended first."""
        more = desired - self.desired
        self.desired = desired
        if more >= 0:
            self._starts_s += [ready_s] * more
            return
        fewer = -more
        ended = min(fewer, len(self._starts_s))
        del self._starts_s[len(self._starts_s) - ended :]
        unknown = min(fewer - ended, self._unknown)
        self._unknown -= unknown
        self.ready = max(self.ready - (fewer - ended - unknown), 0)


def _as_seen(recorded: Observation, replicas: _Replicas) -> Observation:
    """Return the observation with the replay's replicas in place of those that ran."""
    replicas.follow(recorded.ready)
    pending = replicas.desired - replicas.ready
    if (replicas.desired, replicas.ready) == (recorded.desired, recorded.ready):
        return recorded
    is_relieved = replicas.ready > recorded.ready
    return replace(
        recorded,
        desired=replicas.desired,
        ready=replicas.ready,
        starting=pending,
        ttft=_unmeasured(recorded.ttft),
        tpot=_unmeasured(recorded.tpot),
        # How long requests stay, and so how many are ongoing, depends on the number of replicas.
        ongoing_requests=None,
        queue_age_s=0.0 if is_relieved and recorded.queue_age_s else recorded.queue_age_s,
        kv_usage=_shared(recorded, replicas.ready),
        room=None,
    )


def _unmeasured(signal: LatencySignal | None) -> LatencySignal | None:
    return None if signal is None else replace(signal, num_samples=0)


def _shared(recorded: Observation, ready: int) -> float | None:
    """Return the KV use if `ready` replicas shared what the recorded ones had."""
    if recorded.kv_usage is None or not ready:
        return recorded.kv_usage
    return min(recorded.kv_usage * recorded.ready / ready, 1.0)
