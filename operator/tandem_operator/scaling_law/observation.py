"""Measurements of one service at one moment, as a decision needs them; pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tandem_operator.scaling_law.hindsight import PastLoad


class SignalProblem(StrEnum):
    """A reason for not trusting the measurements."""

    MISSING = "Missing"
    STALE = "Stale"
    NOT_A_NUMBER = "NotANumber"
    DISAGREEING = "Disagreeing"
    """Prometheus and the replicas' own metrics differ."""
    UNREACHABLE = "Unreachable"


@dataclass(frozen=True, slots=True)
class LatencySignal:
    """A latency at the percentile of its target, over the window of the measurement."""

    value_s: float
    """NaN, as Prometheus has it, where there are no samples."""

    target_s: float
    num_samples: int
    age_s: float
    """Seconds since the newest scrape that it is made of."""

    @property
    def ratio(self) -> float:
        """The latency as a multiple of its target."""
        return self.value_s / self.target_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """The load of one replica; None: unknown."""

    arrival_rate: float | None = None
    ongoing_requests: float | None = None
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One service as its metrics and pods show it.

    Latency of whole requests is not part of it: it depends on their lengths more than on load.
    """

    ready: int
    """Replicas that answer."""

    starting: int = 0
    """Replicas that have a pod and do not answer yet."""

    overdue: int = 0
    """Of the replicas that do not answer, those that were waited for long enough: they count as no
    capacity."""

    stalled: int = 0
    """Of `ready`, those that compute no step though they have work: they count as no capacity."""

    unseen: int = 0
    """Of `ready`, those whose own figures are missing, or cannot be trusted. The others' are what
    there is at least."""

    busiest: ReplicaLoad = ReplicaLoad()
    """The most that a replica has of each; an unseen one may have as much."""

    desired: int
    """Replicas in force, asked for by the last decision or by hand."""

    ttft: LatencySignal | None = None
    """None: the SLO has no such target."""

    tpot: LatencySignal | None = None
    """None: the SLO has no such target."""

    queue_age_s: float | None = None
    """Age of the oldest request that has had no step yet, of the replica in the middle; 0: there is
    none. One replica that hangs does not move it."""

    arrival_rate: float | None = None
    """Requests a second, counted when they arrive: completions hide saturation."""

    refused_rate: float | None = None
    """Requests a second that replicas refused for want of slots; None: unknown."""

    capacity_per_replica: float | None = None
    """Requests a second at which one replica's model says that it keeps its targets."""

    ongoing_requests: float | None = None
    """Requests in process or waiting, of all replicas together: known at once, where a rate is
    whole only after its window."""

    concurrency_per_replica: float | None = None
    """Ongoing requests of one replica at its capacity, on average, by its model."""

    zero_load_ttft_s: float | None = None
    zero_load_tpot_s: float | None = None

    kv_usage: float | None = None
    """Share of the KV cache in use, the mean of the ready replicas."""

    room: int | None = None
    """Further replicas that the nodes can hold; None: unknown."""

    refused: int | None = None
    """Requests for text that were refused because there was no replica; None: unknown. It is asked
    for where there is none."""

    problem: SignalProblem | None = None
    """A reason, found where the measurements were read, for not trusting them."""

    @property
    def pending(self) -> int:
        """Replicas asked for that do not answer yet, and are waited for."""
        return max(max(self.starting, self.desired - self.ready) - self.overdue, 0)

    @property
    def lost(self) -> int:
        """Replicas that carry nothing, and are not expected to."""
        return min(self.overdue, max(self.desired - self.ready, 0)) + self.stalled

    @property
    def demand(self) -> float:
        """Requests a second that were taken or refused.

        Clients come again with what was refused, so it counts up to as much as is taken.
        """
        taken = self.arrival_rate or 0.0
        return taken + min(self.refused_rate or 0.0, taken)

    @property
    def load(self) -> float | None:
        """The replicas that the demand takes by their own model; None: unknown.

        An unseen replica counts as a mean one of those that are seen.
        """
        seen = self.ready - self.unseen
        if not self.capacity_per_replica or self.arrival_rate is None or self.problem is not None:
            return None
        load = self.demand / self.capacity_per_replica
        load *= self.ready / seen if seen > 0 else 1.0
        return load if is_amount(load) else None

    def load_at(self, now: float) -> PastLoad | None:
        """Return the load as that of the moment `now`; None: it is unknown."""
        load = self.load
        return None if load is None else PastLoad(now, load, self.demand)

    @property
    def is_at_zero(self) -> bool:
        """True for a service of which no replica answers, and none should."""
        return self.ready == 0 and self.desired == 0

    @property
    def infeasible_targets(self) -> tuple[str, ...]:
        """The targets that a request misses even on an idle replica: replicas do not help."""
        pairs = (
            ("ttft", self.ttft, self.zero_load_ttft_s),
            ("tpot", self.tpot, self.zero_load_tpot_s),
        )
        return tuple(
            name
            for name, signal, zero_load_s in pairs
            if signal and zero_load_s is not None and zero_load_s > signal.target_s
        )

    @property
    def is_feasible(self) -> bool:
        """False where a request misses a target even on an idle replica."""
        return not self.infeasible_targets and self.capacity_per_replica != 0

    def at_most(self) -> "Observation":
        """Return it with the most load that there may be: each unseen replica is the busiest."""
        if not self.unseen or not self.ready:
            return self
        rate, ongoing = self.busiest.arrival_rate, self.busiest.ongoing_requests
        unseen, kv_usage = self.unseen, self.kv_usage
        if kv_usage is not None:
            more = (self.busiest.kv_usage or 0.0) - kv_usage
            kv_usage += max(more, 0.0) * unseen / self.ready
        return replace(
            self,
            unseen=0,
            arrival_rate=_plus(self.arrival_rate, unseen, rate),
            ongoing_requests=_plus(self.ongoing_requests, unseen, ongoing),
            kv_usage=kv_usage,
        )

    def signals(self) -> Iterator[LatencySignal]:
        """Yield the latencies that have a target."""
        yield from (signal for signal in (self.ttft, self.tpot) if signal is not None)

    def find_problem(self, max_age_s: float) -> SignalProblem | None:
        """Return the first reason for not trusting the measurements; None: there is none."""
        if self.problem is not None:
            return self.problem
        if self.arrival_rate is None or self.queue_age_s is None or not any(self.signals()):
            return SignalProblem.MISSING
        if not all(map(is_amount, self._amounts())):
            return SignalProblem.NOT_A_NUMBER
        # An age far below zero is a clock that differs.
        if any(abs(signal.age_s) > max_age_s for signal in self.signals()):
            return SignalProblem.STALE
        return None

    def _amounts(self) -> Iterator[float | None]:
        yield from (self.queue_age_s, self.arrival_rate, self.capacity_per_replica)
        yield self.refused_rate
        yield from (self.ongoing_requests, self.concurrency_per_replica)
        yield from (self.zero_load_ttft_s, self.zero_load_tpot_s)
        # A share above 1 is no share.
        yield math.nan if self.kv_usage is not None and self.kv_usage > 1 else self.kv_usage
        for signal in self.signals():
            yield from (abs(signal.age_s), signal.num_samples)
            yield signal.target_s if signal.target_s > 0 else math.nan
            yield signal.value_s if signal.num_samples else None


def _plus(value: float | None, number: int, each: float | None) -> float | None:
    return None if value is None else value + number * (each or 0.0)


def is_amount(value: float | None) -> bool:
    """Return False for NaN, infinite and negative numbers."""
    return value is None or (math.isfinite(value) and value >= 0)


def finite(value: float | None) -> float | None:
    """Return a number that JSON can hold; None for the others."""
    return value if value is not None and math.isfinite(value) else None
